"""The paper's claims, each with its figures, and what the rows say of them."""

from collections.abc import Callable
from typing import Any, Literal, NamedTuple

from bidr.experiments.reproduce.result_groups import STRONGEST, Difference, Measure, ResultGroup
from bidr.experiments.reproduce.row_specs import BIT_BYTES, ROWS

Verdict = Literal["holds", "does not hold here", "not measured"]
WALK, SNOW, STAR = "bidr-random-walk", "bidr-snowball", "star-opq"
R10, R100 = Measure("answers", 10), Measure("answers", 100)
LARGEST_UNIFICATION_LOSS, LARGEST_QUANTIZATION_LOSS = 0.0084, 0.001
FEW_CANDIDATES, MANY_BITS_SHARE = 300, 0.99


class Outcome(NamedTuple):
    """What was measured of a claim."""

    verdict: Verdict
    ours: str = ""
    difference: Difference | None = None
    """Paired over queries; None for claims on curves, whose `ours` says it all."""
    seeds: int = 0

    @property
    def is_level(self) -> bool:
        """Whether the claim does not hold, but no opposite difference is shown either."""
        difference = self.difference
        is_open = difference is not None and difference.low <= 0 <= difference.high
        return self.verdict == "does not hold here" and is_open


class Claim(NamedTuple):
    """A claim: its words, where the paper makes it, the paper's figures (passages / documents / ads), and its test."""

    text: str
    source: str
    paper: str
    evaluate: Callable[[ResultGroup], Outcome]


NOT_MEASURED = Outcome("not measured")


def expect_gain(row: str, base: str, measure: Measure) -> Callable[[ResultGroup], Outcome]:
    """Expect a row to be better: the interval of the difference lies above 0."""

    def evaluate(group: ResultGroup) -> Outcome:
        difference = group.compare(row, base, measure)
        if difference is None or group.resolve(row) == group.resolve(base):
            return NOT_MEASURED
        return _make_outcome(difference, holds=difference.low > 0, base=group.resolve(base), measure=measure)

    return evaluate


def expect_small_loss(row: str, base: str, measure: Measure, limit: float) -> Callable[[ResultGroup], Outcome]:
    """Expect a row to be at most `limit` worse than another."""

    def evaluate(group: ResultGroup) -> Outcome:
        cut = Measure(measure.ranking, min(measure.cutoff, group.deepest)) if measure.cutoff > 100 else measure
        difference = group.compare(row, base, cut)
        if difference is None:
            return NOT_MEASURED
        return _make_outcome(difference, holds=-difference.difference <= limit, base=base, measure=cut)

    return evaluate


def expect_better_candidates(row: str, base: str, cutoff: int) -> Callable[[ResultGroup], Outcome]:
    """Expect better candidates at a cut-off, which the run's number of candidates limits."""

    def evaluate(group: ResultGroup) -> Outcome:
        return expect_gain(row, base, Measure("candidates", min(cutoff, group.deepest)))(group)

    return evaluate


def _make_outcome(difference: Difference, *, holds: bool, base: str, measure: Measure) -> Outcome:
    title = ROWS[base].title if base in ROWS else base
    ours = f"{measure} {difference.base + difference.difference:.4f}, {title} {difference.base:.4f}"
    return Outcome("holds" if holds else "does not hold here", ours, difference, difference.seeds)


def expect_lead_on_curve(
    curve: str, x: str, y: str, pick: Callable[[list[tuple[float, float]]], tuple[float, float]]
) -> Callable[[ResultGroup], Outcome]:
    """Expect the method's curve above STAR's at the point that `pick` chooses among those of both."""

    def evaluate(group: ResultGroup) -> Outcome:
        leads = get_leads(group, curve, x, y)
        if not leads:
            return NOT_MEASURED
        at, lead = pick(leads)
        return Outcome(
            "holds" if lead > 0 else "does not hold here", f"{lead:+.4f} at {at:,.0f}", None, _count(group, curve)
        )

    return evaluate


def expect_growing_lead(curve: str, x: str, y: str, *, falls: bool = False) -> Callable[[ResultGroup], Outcome]:
    """Expect the lead over STAR to grow along the curve (`falls`: to shrink)."""

    def evaluate(group: ResultGroup) -> Outcome:
        leads = get_leads(group, curve, x, y)
        if len(leads) < 2:
            return NOT_MEASURED
        (first, lead), (last, last_lead) = leads[0], leads[-1]
        holds = lead > last_lead if falls else last_lead > lead
        ours = f"lead in {y} {lead:+.4f} at {first:,.0f}, {last_lead:+.4f} at {last:,.0f}"
        return Outcome("holds" if holds else "does not hold here", ours, None, _count(group, curve))

    return evaluate


def get_leads(group: ResultGroup, curve: str, x: str, y: str) -> list[tuple[float, float]]:
    """Return the lead of random walk over STAR at the points that both curves have."""
    if curve == "bits":
        ours, theirs = (dict(get_bits_curve(group, row)) for row in (WALK, STAR))
    else:
        ours, theirs = (dict(group.get_curve(f"{row}-{curve}", x, y)) for row in (WALK, STAR))
    return [(at, ours[at] - theirs[at]) for at in sorted(ours) if at in theirs]


def get_bits_curve(group: ResultGroup, row: str) -> list[tuple[float, float]]:
    """Return R@100 by bits a document; the run's own code size comes from the row itself."""
    points = {}
    for size in BIT_BYTES:
        is_own = size == group.first.settings.get("bytes_per_doc")
        summary = group.summarize(row if is_own else f"{row}-{8 * size}-bits", R100)
        if summary is not None:
            points[8.0 * size] = summary.mean
    return sorted(points.items())


def evaluate_enough_bits(group: ResultGroup) -> Outcome:
    """Expect 256 bits to reach nearly the recall of 1,024."""
    curve = dict(get_bits_curve(group, WALK))
    if not {256.0, 1_024.0} <= curve.keys():
        return NOT_MEASURED
    share = curve[256.0] / curve[1_024.0] if curve[1_024.0] else 0.0
    ours = f"R@100 {curve[256.0]:.4f} with 256 bits, {curve[1_024.0]:.4f} with 1,024"
    return Outcome("holds" if share >= MANY_BITS_SHARE else "does not hold here", ours, None, _count(group, "bits"))


def _count(group: ResultGroup, curve: str) -> int:
    row = f"{WALK}-{curve}"
    results = group.get_results(WALK if curve == "bits" else row)
    return len(results)


def _list_claims() -> list[Claim]:
    few = FEW_CANDIDATES
    return [
        Claim(
            "random walk beats the strongest baseline, R@10",
            "table 1",
            ".6048 .6988 .3985 against .5834 .6807 .3438 (+3.7 %, +2.7 %, +15.9 %)",
            expect_gain(WALK, STRONGEST, R10),
        ),
        Claim(
            "snowball beats the strongest baseline, R@10",
            "table 1",
            ".6087 .6959 .4038 against .5834 .6807 .3438 (+4.3 %, +2.2 %, +17.5 %)",
            expect_gain(SNOW, STRONGEST, R10),
        ),
        Claim(
            "random walk beats the strongest baseline, R@100",
            "table 1",
            ".8753 .9176 .7152 against .8331 .8925 .6007 (+5.1 %, +2.8 %, +19.1 %)",
            expect_gain(WALK, STRONGEST, R100),
        ),
        Claim(
            "snowball beats the strongest baseline, R@100",
            "table 1",
            ".8786 .9225 .7158 against .8331 .8925 .6007 (+5.5 %, +3.4 %, +19.2 %)",
            expect_gain(SNOW, STRONGEST, R100),
        ),
        Claim(
            "random walk beats STAR + DiskANN (diskannpy), R@10",
            "table 1",
            ".6048 .6988 .3985 against .5834 .6807 .3438",
            expect_gain(WALK, "star-diskann", R10),
        ),
        Claim(
            "STAR beats ANCE",
            "table 1",
            ".5834 .6807 .3438 against .5745 .6680 .3258",
            expect_gain(STAR, "ance-opq", R10),
        ),
        Claim(
            "ANCE beats DE-BERT",
            "table 1",
            ".5745 .6680 .3258 against .5537 .5998 .3279 (not on ads)",
            expect_gain("ance-opq", "de-bert-opq", R10),
        ),
        Claim(
            "DE-BERT beats DPR",
            "table 1",
            ".5537 .5998 .3279 against .5297 .5969 .3205",
            expect_gain("de-bert-opq", "dpr-opq", R10),
        ),
        Claim(
            "random walk beats STAR's full vectors in RAM, R@10",
            "table 2",
            ".6048 .6988 against .5919 .6816 (+2.2 %, +2.5 %)",
            expect_gain(WALK, "star-hnsw", R10),
        ),
        Claim(
            "snowball beats STAR's full vectors in RAM, R@10",
            "table 2",
            ".6087 .6959 against .5919 .6816 (+2.8 %, +2.1 %)",
            expect_gain(SNOW, "star-hnsw", R10),
        ),
        Claim(
            "full vectors in RAM beat codes and a re-ranking, STAR, R@10",
            "tables 1, 2",
            ".5919 .6816 against .5834 .6807",
            expect_gain("star-hnsw", STAR, R10),
        ),
        *(
            Claim(
                f"trained codes find more than {title}, R@{cutoff:,} of the candidates",
                "table 3",
                paper,
                expect_better_candidates(WALK, f"star-{name}", cutoff),
            )
            for name, title, cutoff, paper in (
                ("pq", "PQ", 1_000, ".9605 .9612 .7659 against .9349 .7488 .6000"),
                ("opq", "OPQ", 1_000, ".9605 .9612 .7659 against .9519 .9483 .6140"),
                ("dpq", "DPQ", 1_000, ".9605 .9612 .7659 against .9558 .9543 .7218"),
                ("opq", "OPQ", 100, ".8460 .8702 .5004 against .8270 .8490 .3320"),
                ("dpq", "DPQ", 100, ".8460 .8702 .5004 against .8399 .8571 .4288"),
            )
        ),
        Claim(
            "trained codes lose at most .001 of their encoder's R@1,000",
            "section 4.2.4",
            "below .001",
            expect_small_loss(WALK, f"{WALK}-unquantized", Measure("candidates", 1_000), LARGEST_QUANTIZATION_LOSS),
        ),
        *(
            Claim(
                f"{title} beats {other_title} as sampling of the dense stage, R@10",
                "table 3",
                paper,
                expect_gain(row, other, R10),
            )
            for row, title, other, other_title, paper in (
                (WALK, "random walk", "bidr-ann", "ANN", ".6048 .6988 .3985 against .6021 .6921 .3835"),
                (
                    WALK,
                    "random walk",
                    "bidr-ann-in-batch",
                    "ANN + in-batch",
                    ".6048 .6988 .3985 against .6014 .6861 .3755",
                ),
                (SNOW, "snowball", "bidr-ann", "ANN", ".6087 .6959 .4038 against .6021 .6921 .3835"),
                (
                    SNOW,
                    "snowball",
                    "bidr-ann-in-batch",
                    "ANN + in-batch",
                    ".6087 .6959 .4038 against .6014 .6861 .3755",
                ),
                (
                    "bidr-ann",
                    "ANN",
                    "bidr-ann-in-batch",
                    "ANN + in-batch",
                    ".6021 .6921 .3835 against .6014 .6861 .3755",
                ),
            )
        ),
        Claim(
            "a unified query encoder costs at most .0084 of R@10, random walk",
            "table 3",
            "-.0021 +.0015 -.0023",
            expect_small_loss(f"{WALK}-unified", WALK, R10, LARGEST_UNIFICATION_LOSS),
        ),
        Claim(
            "a unified query encoder costs at most .0084 of R@10, snowball",
            "table 3",
            "-.0084 -.0035 -.0036",
            expect_small_loss(f"{SNOW}-unified", SNOW, R10, LARGEST_UNIFICATION_LOSS),
        ),
        Claim(
            "ANN negatives in stage one make it worse, random walk, R@10",
            "table 7",
            ".6048 .6988 without, .6021 .6880 with",
            expect_gain(WALK, f"{WALK}-ann-first", R10),
        ),
        Claim(
            "ANN negatives in stage one make it worse, snowball, R@10",
            "table 7",
            ".6087 .6959 without, .5966 .6832 with",
            expect_gain(SNOW, f"{SNOW}-ann-first", R10),
        ),
        Claim(
            "training the codes pays, random walk, R@10", "not in the paper", "-", expect_gain(WALK, f"{WALK}-opq", R10)
        ),
        Claim(
            "training the codes pays, snowball, R@10", "not in the paper", "-", expect_gain(SNOW, f"{SNOW}-opq", R10)
        ),
        Claim(
            f"with {few} candidates the method is ahead of STAR, R@100",
            "figure 4 A1-C1",
            "drawn, no figures",
            expect_lead_on_curve(
                "depths", "candidates", "R@100", lambda leads: min(leads, key=lambda lead: abs(lead[0] - few))
            ),
        ),
        Claim(
            "the lead over STAR remains with the most candidates, R@100",
            "figure 4 A1-C1",
            "drawn, no figures",
            expect_lead_on_curve("depths", "candidates", "R@100", lambda leads: leads[-1]),
        ),
        Claim(
            "the lead over STAR is larger with few candidates, R@100",
            "figure 4 A1-C1",
            "drawn, no figures",
            expect_growing_lead("depths", "candidates", "R@100", falls=True),
        ),
        Claim(
            "the lead over STAR is larger with fewer bits, R@100",
            "figure 4 A2-C2",
            "drawn, no figures",
            expect_growing_lead("bits", "bits", "R@100", falls=True),
        ),
        Claim(
            "256 bits reach 99 % of R@100 with 1,024 bits", "figure 4 A2-C2", "drawn, no figures", evaluate_enough_bits
        ),
        Claim(
            "the lead over STAR grows with the corpus, R@10",
            "section 4.2.1",
            "+3.7 % at 8.8 M, +15.9 % at 1 B",
            expect_growing_lead("sizes", "documents", "R@10"),
        ),
    ]


CLAIMS = _list_claims()


def evaluate_claims(group: ResultGroup) -> list[tuple[Claim, Outcome]]:
    """Evaluate all claims on a group."""
    return [(claim, claim.evaluate(group)) for claim in CLAIMS]


def describe_outcome(outcome: Outcome) -> dict[str, Any]:
    """Return an outcome for JSON."""
    difference = outcome.difference
    return {
        "verdict": outcome.verdict,
        "ours": outcome.ours,
        "difference": None if difference is None else difference.difference,
        "interval": None if difference is None else [difference.low, difference.high],
        "relative": None if difference is None else difference.relative,
        "per_seed": [] if difference is None else difference.per_seed,
        "seeds": outcome.seeds,
    }
