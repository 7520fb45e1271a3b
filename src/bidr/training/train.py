"""A run from data to model folder: which stages, in which order."""

import dataclasses
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from bidr.data.dataset import Dataset
from bidr.errors import ConfigError
from bidr.models.model_card import write_card
from bidr.models.saved_model import Model, ModelParts, TextSettings, save_model
from bidr.quantization.codebooks import check_shape
from bidr.training import stages
from bidr.training.config import TrainConfig
from bidr.training.engine.distributed import ProcessGroup, join_process_group
from bidr.training.engine.logs import check_tensorboard
from bidr.training.ivf import load_learned_lists
from bidr.training.presets import get_changed_settings
from bidr.training.run import TrainingRun
from bidr.utils.files import read_json, storage_errors, write_json

Resume = Literal["auto", "never", "must"]
"""What to do where a folder holds a run: 'auto' goes on with it or begins one, 'never' refuses, 'must' wants one."""

WORK = "work"
RUN = "run.json"
DAMAGED = "restore it, or delete the run's folder to begin anew"
MAY_CHANGE = ("device", "checkpoint_minutes", "tokens_at_once", "logs")
"""Settings of how a run goes, not of what it is: it may go on with others."""


def train(
    dataset: Dataset, config: TrainConfig, out: Path | str, resume: Resume = "auto", recipe: str | None = None
) -> Model:
    """Train a model and leave it in a folder; a run that was cut off there is continued.

    The folder's `work` holds what the stages left: it may be deleted when the model is there. Under torchrun all
    processes train the one model together. recipe: where the settings are from, for the card.
    """
    with join_process_group(config.device) as group:
        return train_model(open_run(dataset, config, Path(out), resume, group), Path(out), recipe)


def train_model(run: TrainingRun, out: Path, recipe: str | None = None) -> Model:
    """The model that the workshop's settings ask for; recipe: where they are from."""
    if run.config.method == "conventional":
        return train_conventional_model(run, out, recipe)
    return train_bidr_model(run, run.config.dense.sampler, out, unified=run.config.unify.epochs > 0, recipe=recipe)


def open_run(
    dataset: Dataset, config: TrainConfig, out: Path, resume: Resume = "auto", group: ProcessGroup | None = None
) -> TrainingRun:
    """The run's folder, after checking that nothing else is in it. Where a new run cannot begin, none is left."""
    group = group or ProcessGroup()
    settings = {
        "data": dataset.name,
        "state of the corpus' files": dataset.corpus.fingerprint(),
        "state of the train and dev files": dataset.fingerprint(["train", "dev"]),
        "config": dataclasses.asdict(config),
    }
    group.run_on_rank_zero(lambda: _check_folder(settings, config, out, resume))
    begun, there = group.run_on_rank_zero(lambda: ((out / WORK / RUN).exists(), out.exists()))
    try:
        group.run_on_rank_zero(lambda: _write_settings(out / WORK / RUN, settings))
        run = TrainingRun(dataset, config, out / WORK, group)
        _refuse_few_documents(len(run.data.documents), config)
    except Exception:
        if not begun:
            shutil.rmtree(out / WORK if there else out, ignore_errors=True)
        raise
    return run


def _check_folder(settings: dict[str, Any], config: TrainConfig, out: Path, resume: Resume) -> None:
    path = out / WORK / RUN
    if path.exists():
        if resume == "never":
            raise ConfigError(f"{out} holds a run already and resume is 'never'; choose another folder, or delete it")
        _refuse_other_run(read_json(path, DAMAGED), settings, out)
    elif resume == "must":
        raise ConfigError(f"{out} holds no run to go on with and resume is 'must'; check the folder, or use 'auto'")
    elif out.is_file():
        raise ConfigError(f"{out} is a file, expected a folder for the model; choose another name")
    elif out.exists() and any(out.iterdir()):
        raise ConfigError(f"{out} holds something else already; choose another folder or empty it")
    _refuse_shape(config)
    check_tensorboard(config.logs)


def _write_settings(path: Path, settings: dict[str, Any]) -> None:
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, settings)


def _refuse_shape(config: TrainConfig) -> None:
    """Where the dimension is known already, say at once that the bytes do not fit it."""
    if not config.built_in:
        return
    try:
        check_shape(config.encoder.dim, config.books, config.codewords)
    except ConfigError as error:
        raise ConfigError(
            f"bytes_per_doc: given {config.bytes_per_doc}, that is {config.books} codebooks of {config.codewords} "
            f"codewords; {error}"
        ) from error


def _refuse_few_documents(count: int, config: TrainConfig) -> None:
    if count < config.codewords:
        raise ConfigError(
            f"codewords: given {config.codewords} for a corpus of {count:,} documents, too few to learn them from; "
            + ("use 16" if config.codewords > 16 and count >= 16 else "add documents")
        )


def train_bidr_model(run: TrainingRun, sampler: str, out: Path, *, unified: bool, recipe: str | None = None) -> Model:
    """The method: codes first, then vectors on the candidates that the codes bring up, then one query encoder."""
    side = stages.train_sparse(run)
    stages.train_dense(run, sampler)
    names = [run.get_stage_name("warmup"), side.name, run.get_stage_name(f"dense-{sampler}")]
    codebooks, query, lists = side.codebooks, None, None
    if unified:
        fitted = stages.unify(run, sampler)
        names.append(fitted.name)
        codebooks, query = fitted.codebooks, run.folder / fitted.name / "encoder"
        lists = load_learned_lists(run, fitted)
    parts = ModelParts(
        sparse=run.folder / side.name / "encoder",
        dense=run.folder / names[2] / "encoder",
        query=query,
        codebooks=codebooks,
        lists=lists,
    )
    return _save(run, parts, out, names, recipe)


def train_conventional_model(run: TrainingRun, out: Path, recipe: str | None = None) -> Model:
    """The conventional way: one encoder, codes of its vectors, the same vectors ranked again."""
    codes = run.config.conventional.codes
    made_by = {
        "learned": stages.train_sparse,
        "jpq": stages.train_jpq,
        "distilled": stages.distill_codes,
        "tuned": stages.train_tuned,
        "taught": stages.learn_taught_codes,
    }
    side = made_by.get(codes, stages.fit_codes)(run)
    name = run.get_stage_name("conventional")
    encoder, names = run.folder / name / "encoder", [run.get_stage_name("warmup"), name]
    parts = ModelParts(sparse=encoder, dense=encoder, query=encoder, codebooks=side.codebooks)
    if codes == "learned":
        parts, names = replace(parts, sparse=run.folder / side.name / "encoder", query=None), [*names, side.name]
    elif codes == "taught":
        own = run.folder / run.get_stage_name("taught") / "encoder"
        parts, names = replace(parts, sparse=own, query=None), [*names, run.get_stage_name("taught"), side.name]
    elif codes == "distilled":
        names.append(side.name)
    elif codes in ("jpq", "tuned"):
        own = run.folder / side.name / "encoder"
        parts, names = replace(parts, query=own, lists=load_learned_lists(run, side)), [*names, side.name]
    return _save(run, parts, out, names, recipe)


def _save(run: TrainingRun, parts: ModelParts, out: Path, names: list[str], recipe: str | None) -> Model:
    config = run.config
    text = TextSettings(
        titles=config.text.titles,
        query_length=config.text.query_length,
        document_length=config.text.document_length,
    )
    training: dict[str, Any] = {
        "data": run.dataset.name,
        "documents": len(run.data.documents),
        "train_queries": len(run.data.train.texts),
        **({"recipe": recipe} if recipe else {}),
        "config": dataclasses.asdict(config),
        "stages": {name: run.read_history(name) for name in names},
        "codewords": run.read_codeword_usage(),
    }

    def write() -> str:
        model = save_model(out, parts, text, candidates=config.candidates, training=training)
        write_card(model, get_changed_settings(config))
        return model.fingerprint

    run.group.run_on_rank_zero(write)
    return Model(out, run.device)


def _refuse_other_run(found: dict[str, Any], wanted: dict[str, Any], out: Path) -> None:
    wanted = json.loads(json.dumps(wanted))
    for name in MAY_CHANGE:
        wanted["config"].pop(name)
    for name in _differences(found, wanted):
        raise ConfigError(f"{out} holds a run with another {name}; choose another folder, or delete it to begin anew")


def _differences(found: dict[str, Any], wanted: dict[str, Any], prefix: str = "") -> list[str]:
    names: list[str] = []
    for key, new in wanted.items():
        if key not in found and not new:  # a run from before there was this setting, which is not asked for
            continue
        old = found.get(key)
        if isinstance(new, dict) and isinstance(old, dict):
            names += _differences(old, new, f"{prefix}{key}.")
        elif old != new:
            names.append(f"{prefix}{key} ({old!r} there, {new!r} asked for)")
    return names
