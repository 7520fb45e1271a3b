"""The default of `bidr train` against every baseline at equal code bytes: ahead, level or behind."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from bidr.experiments.reproduce.result_groups import Difference, Measure, ResultGroup
from bidr.experiments.reproduce.result_tables import ResultTable, format_difference
from bidr.experiments.reproduce.row_specs import BASELINES, ROWS, WITH_BM25

DEFAULT = "auto"
METHOD = ("bidr-random-walk", "bidr-snowball", "bidr-random-walk-unified", "bidr-snowball-unified", "star-distilled")
MEASURES = (Measure("answers", 10), Measure("answers", 100))
Standing = Literal["ahead", "level", "behind"]


class Lead(NamedTuple):
    """Differences of the default to a row, R@10 and R@100."""

    row: str
    differences: tuple[Difference, Difference]

    @property
    def standings(self) -> list[Standing]:
        return [get_standing(difference) for difference in self.differences]

    @property
    def is_baseline(self) -> bool:
        return self.row not in METHOD


def get_standing(difference: Difference) -> Standing:
    """Return 'level' if the interval of a difference includes 0."""
    return "ahead" if difference.low > 0 else "behind" if difference.high < 0 else "level"


def compare_default(group: ResultGroup) -> list[Lead]:
    """Compare the default to the baselines and to the rows of the method, over the seeds that both have."""
    leads = []
    for row in (*WITH_BM25, *BASELINES, "star-diskann", *METHOD):
        differences = [group.compare(DEFAULT, row, measure) for measure in MEASURES]
        if differences[0] is not None and differences[1] is not None:
            leads.append(Lead(row, (differences[0], differences[1])))
    return leads


def make_default_table(group: ResultGroup) -> ResultTable:
    """List a row and the default's lead over it in each line."""
    header = ["row", "R@10", "default minus row [95 %]", "R@100", "default minus row [95 %]", "seeds", "default is"]
    cells = []
    for lead in compare_default(group):
        recalls = [part for d in lead.differences for part in (f"{d.base:.4f}", format_difference(d, is_relative=True))]
        standings = list(dict.fromkeys(lead.standings))
        words = standings[0] if len(standings) == 1 else ", ".join(standings)
        cells.append([ROWS[lead.row].title, *recalls, str(lead.differences[0].seeds), words])
    description = (
        "At equal code bytes. *Ahead* and *behind*: the interval does not include 0; two words are of R@10 and R@100. "
        "Rows with BM25 read its postings from disk, as the default may."
    )
    return ResultTable("The default against every row", description, header, cells)


def make_default_summary(groups: Sequence[ResultGroup]) -> ResultTable:
    """List a group in each line: the default, the baseline that is nearest to it, and where it is behind."""
    header = ["data", "encoder", "seeds", "default: R@10, R@100", "strongest baseline", "its R@10", "lead", "behind"]
    cells = []
    for group in groups:
        leads = [lead for lead in compare_default(group) if lead.is_baseline]
        recalls = [group.summarize(DEFAULT, measure) for measure in MEASURES]
        if not leads or recalls[0] is None or recalls[1] is None:
            continue
        strongest = max(leads, key=lambda lead: lead.differences[0].base)
        difference = strongest.differences[0]
        leading_rows = [
            f"{ROWS[lead.row].title} ({measure})"
            for lead in leads
            for measure, standing in zip(MEASURES, lead.standings, strict=True)
            if standing == "behind"
        ]
        cells.append(
            [
                group.first.data,
                group.first.encoder,
                str(recalls[0].seeds),
                f"{recalls[0].mean:.4f}, {recalls[1].mean:.4f}",
                ROWS[strongest.row].title,
                f"{difference.base:.4f}",
                format_difference(difference, is_relative=True),
                "; ".join(leading_rows) or f"none of {len(leads)}",
            ]
        )
    description = (
        "The strongest baseline is the row with the best R@10 on the reported queries, BM25 and fusions with it "
        "included. *Behind*: baselines that are ahead of the default beyond the interval."
    )
    return ResultTable("The default", description, header, cells)
