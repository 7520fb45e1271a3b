"""Train a model from texts with labels, or codes and a query adapter from vectors."""

from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from bidr.data.dataset import Dataset
from bidr.data.readers.trec import Qrels
from bidr.data.vector_ids import label_rows, read_ids, read_judgments
from bidr.data.vector_source import CodesMetric, open_vectors
from bidr.errors import ConfigError
from bidr.models.codes_only_model import CodesOnlyModel
from bidr.models.saved_model import Model
from bidr.pipeline.build import IdSource, Vectors
from bidr.training.codes_only.config import refuse_text_settings
from bidr.training.codes_only.train import train_codes_only
from bidr.training.config import TrainConfig
from bidr.training.presets import get_changed_settings, with_default_recipe
from bidr.training.train import Resume
from bidr.training.train import train as train_run
from bidr.utils.device import pick_device
from bidr.utils.progress import say


def train(
    data: Dataset,
    out: Path | str,
    config: TrainConfig | None = None,
    *,
    recipe: str | None = None,
    resume: Resume = "auto",
    **settings: Any,
) -> Model:
    """Train codes and vectors on the train pairs of a dataset; select on its dev pairs.

    `recipe` is a preset of settings (`bidr recipes` lists them; by default "auto", unless a method is set); values of
    `config` that differ from the defaults override it; `settings` override both:
    ``bidr.train(data, "runs/a", recipe="star-opq", bytes_per_doc=8)``. An interrupted run with the same folder
    and settings is resumed; resume="never" refuses a folder with a run, "must" one without.
    """
    method = {name: value for name, value in settings.items() if name == "method"}
    chosen, recipe = with_default_recipe(replace(config or TrainConfig(), **method), recipe)
    return train_run(data, replace(chosen, **settings), out, resume, recipe)


def train_vectors(
    vectors: Vectors,
    query_vectors: Vectors | None,
    out: Path | str,
    config: TrainConfig | None = None,
    *,
    metric: CodesMetric = "cosine",
    qrels: Path | str | Qrels | None = None,
    ids: IdSource | None = None,
    query_ids: IdSource | None = None,
    resume: Resume = "auto",
    **settings: Any,
) -> CodesOnlyModel:
    """Train codes and a query adapter for fixed document vectors; minutes on a CPU.

    vectors:       array or .npy file, one document per row, of any model; may be larger than RAM.
    query_vectors: train queries of the same model, not those to measure on. None: documents serve as queries.
    metric:        similarity of the full vectors: "cosine", or "ip" (inner product).
    qrels:         relevance judgments, if there are any, by `ids` and `query_ids` (default: row numbers).
    """
    chosen = replace(config or TrainConfig(), **settings)
    pick_device(chosen.device)
    refuse_text_settings(get_changed_settings(chosen), chosen.device)
    _check_named(query_vectors, qrels, {"ids": ids, "query_ids": query_ids})
    if metric not in get_args(CodesMetric):
        raise ConfigError(
            f"metric: given {metric!r}, expected {' or '.join(get_args(CodesMetric))}: codes are learned for inner "
            "products; for l2 build without a model, with PlainCodes(metric='l2')"
        )
    documents = open_vectors(vectors, "vectors", metric)
    questions = None if query_vectors is None else open_vectors(query_vectors, "query vectors", metric)
    labels = None
    if qrels is not None:
        names = read_ids(ids, len(documents), "documents")
        query_names = read_ids(query_ids, len(questions) if questions else 0, "questions")
        judgments = qrels if isinstance(qrels, dict) else read_judgments(qrels)
        labels = label_rows(judgments, query_names, names, "qrels" if isinstance(qrels, dict) else str(qrels))
        if not labels:
            say("no judgment is above 0, so there are no labels: codes learn the ranking of the full vectors alone")
    return train_codes_only(documents, questions, chosen, Path(out), labels, resume)


def _check_named(query_vectors: object, qrels: object, names: dict[str, object]) -> None:
    if qrels is not None and query_vectors is None:
        raise ConfigError("qrels: given without query vectors, which they judge; give --query-vectors too")
    for name, value in names.items():
        if value is not None and qrels is None:
            raise ConfigError(f"{name}: given without qrels, whose rows they name; give --qrels too, or leave them out")
