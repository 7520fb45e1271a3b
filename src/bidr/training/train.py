"""Train a model from data to model folder: which stages, in which order."""

import dataclasses
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from bidr.data.dataset import Dataset
from bidr.errors import ConfigError
from bidr.models.dev_query_hashes import KEY, make_dev_record
from bidr.models.model_card import format_choice, write_card
from bidr.models.saved_model import Model, ModelParts, SearchSettings, TextSettings, save_model
from bidr.quantization.codebooks import Codebooks, check_shape
from bidr.training import stages
from bidr.training.config import TrainConfig
from bidr.training.engine.distributed import ProcessGroup, join_process_group
from bidr.training.engine.logs import check_tensorboard
from bidr.training.ivf_lists import load_learned_lists
from bidr.training.model_selection import select_model
from bidr.training.presets import get_changed_settings
from bidr.training.run_context import TrainingRun
from bidr.utils.files import read_json, storage_errors, write_json
from bidr.utils.progress import say

Resume = Literal["auto", "never", "must"]
"""What to do if the folder holds a run: 'auto' resumes it or starts one, 'never' refuses, 'must' requires one."""

WORK = "work"
RUN = "run.json"
CHOICE = "choice.json"
DAMAGED = "restore it, or delete the run's folder to start over"
RESUMABLE_CHANGES = ("device", "checkpoint_minutes", "tokens_at_once", "logs")
"""Settings that may change when a run is resumed: they do not affect the model."""


def train(
    dataset: Dataset, config: TrainConfig, out: Path | str, resume: Resume = "auto", recipe: str | None = None
) -> Model:
    """Train a model into a folder; resume an interrupted run there.

    The stages' results are in the folder's `work`, which may be deleted once the model is written. Under torchrun all
    processes train one model.

    Args:
        recipe: Name of the recipe that the settings come from, for the model card.
    """
    with join_process_group(config.device) as group:
        return train_model(open_run(dataset, config, Path(out), resume, group), Path(out), recipe)


def train_model(run: TrainingRun, out: Path, recipe: str | None = None) -> Model:
    """Train the model of a run's method. recipe: name for the model card."""
    if run.config.method == "auto":
        return train_selected_model(run, out, recipe)
    if run.config.method == "conventional":
        return train_conventional_model(run, out, recipe)
    return train_bidr_model(run, run.config.dense.sampler, out, unified=run.config.unify.epochs > 0, recipe=recipe)


def open_run(
    dataset: Dataset, config: TrainConfig, out: Path, resume: Resume = "auto", group: ProcessGroup | None = None
) -> TrainingRun:
    """Open or create a run in a folder; on failure a new run's folder is removed."""
    group = group or ProcessGroup()
    settings = {
        "data": dataset.name,
        "state of the corpus' files": dataset.corpus.fingerprint(),
        "state of the train and dev files": dataset.fingerprint(["train", "dev"]),
        "config": dataclasses.asdict(config),
    }
    group.run_on_rank_zero(lambda: _check_folder(settings, config, out, resume))
    is_resumed, folder_exists = group.run_on_rank_zero(lambda: ((out / WORK / RUN).exists(), out.exists()))
    try:
        group.run_on_rank_zero(lambda: _write_settings(out / WORK / RUN, settings))
        run = TrainingRun(dataset, config, out / WORK, group)
        _refuse_few_documents(len(run.data.documents), config)
    except Exception:
        if not is_resumed:
            shutil.rmtree(out / WORK if folder_exists else out, ignore_errors=True)
        raise
    return run


def _check_folder(settings: dict[str, Any], config: TrainConfig, out: Path, resume: Resume) -> None:
    path = out / WORK / RUN
    if path.exists():
        if resume == "never":
            raise ConfigError(f"{out} already holds a run and resume is 'never'; choose another folder, or delete it")
        _refuse_other_run(read_json(path, DAMAGED), settings, out)
    elif resume == "must":
        raise ConfigError(f"{out} holds no run to resume and resume is 'must'; check the folder, or use 'auto'")
    elif out.is_file():
        raise ConfigError(f"{out} is a file, expected a folder for the model; choose another path")
    elif out.exists() and any(out.iterdir()):
        raise ConfigError(f"{out} is not empty and holds no run; choose another folder or empty it")
    _refuse_shape(config)
    check_tensorboard(config.logs)


def _write_settings(path: Path, settings: dict[str, Any]) -> None:
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_json(path, settings)


def _refuse_shape(config: TrainConfig) -> None:
    """Refuse bytes_per_doc that do not fit the dimension, if it is known before training."""
    if config.encoder_kind != "built-in":
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
            f"codewords: given {config.codewords} for a corpus of {count:,} documents, too few to train them; "
            + ("use 16" if config.codewords > 16 and count >= 16 else "add documents")
        )


def train_bidr_model(run: TrainingRun, sampler: str, out: Path, *, unified: bool, recipe: str | None = None) -> Model:
    """Train the method: codes, then vectors on the codes' candidates, then one query encoder."""
    coded = stages.train_sparse(run)
    stages.train_dense(run, sampler)
    names = [run.get_stage_name("warmup"), coded.name, run.get_stage_name(f"dense-{sampler}")]
    codebooks, query, lists = coded.codebooks, None, None
    if unified:
        unified_codes = stages.unify(run, sampler)
        names.append(unified_codes.name)
        codebooks, query = unified_codes.codebooks, run.folder / unified_codes.name / "encoder"
        lists = load_learned_lists(run, unified_codes)
    parts = ModelParts(
        sparse=run.folder / coded.name / "encoder",
        dense=run.folder / names[2] / "encoder",
        query=query,
        codebooks=codebooks,
        lists=lists,
    )
    return _save(run, parts, out, names, recipe)


def train_conventional_model(run: TrainingRun, out: Path, recipe: str | None = None) -> Model:
    """Train the conventional method: one encoder, codes of its vectors, reranking by them."""
    codes = run.config.conventional.codes
    code_stages = {
        "learned": stages.train_sparse,
        "jpq": stages.train_jpq,
        "distilled": stages.distill_codes,
        "tuned": stages.train_tuned,
        "taught": stages.learn_taught_codes,
    }
    coded = code_stages.get(codes, stages.fit_codes)(run)
    name = stages.get_conventional_stage(run)
    encoder, names = run.folder / name / "encoder", [run.get_stage_name("warmup"), name]
    parts = ModelParts(sparse=encoder, dense=encoder, query=encoder, codebooks=coded.codebooks)
    if codes == "learned":
        parts, names = replace(parts, sparse=run.folder / coded.name / "encoder", query=None), [*names, coded.name]
    elif codes == "taught":
        query_encoder = run.folder / run.get_stage_name("taught") / "encoder"
        parts, names = (
            replace(parts, sparse=query_encoder, query=None),
            [*names, run.get_stage_name("taught"), coded.name],
        )
    elif codes == "distilled":
        names.append(coded.name)
    elif codes in ("jpq", "tuned"):
        query_encoder = run.folder / coded.name / "encoder"
        parts, names = replace(parts, query=query_encoder, lists=load_learned_lists(run, coded)), [*names, coded.name]
    return _save(run, parts, out, names, recipe)


def train_selected_model(run: TrainingRun, out: Path, recipe: str | None = None) -> Model:
    """Train the contenders and save the one that is best on dev, with choice.json beside it."""
    vectors, codes, choice = select_model(run)
    parts = ModelParts(
        sparse=run.folder / codes.documents / "encoder",
        dense=run.folder / vectors.documents / "encoder",
        query=run.folder / vectors.queries / "encoder" if vectors.queries == codes.queries else None,
        codebooks=Codebooks.load(codes.codebooks),
    )
    names = [run.get_stage_name("warmup"), vectors.documents, codes.documents, codes.codebooks.parent.name]
    finished = [name for name in dict.fromkeys([*names, vectors.queries]) if run.is_finished(name)]
    content = choice.to_json()
    say(format_choice(content["rows"], content["why"]))

    def write() -> None:
        out.mkdir(parents=True, exist_ok=True)
        write_json(out / CHOICE, content)

    run.group.run_on_rank_zero(write)
    fusion = choice.contender.fusion
    return _save(run, parts, out, finished, recipe, content, SearchSettings(*fusion))


def _save(
    run: TrainingRun,
    parts: ModelParts,
    out: Path,
    names: list[str],
    recipe: str | None,
    choice: dict[str, Any] | None = None,
    search: SearchSettings | None = None,
) -> Model:
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
        KEY: make_dev_record(run.data.dev.texts),
        "codewords": run.read_codeword_usage() if run.get_stage_name("sparse") in names else None,
        **({"choice": choice} if choice else {}),
    }

    def write() -> str:
        model = save_model(out, parts, text, candidates=config.candidates, training=training, search=search)
        write_card(model, get_changed_settings(config))
        return model.fingerprint

    run.group.run_on_rank_zero(write)
    return Model(out, run.device)


def _refuse_other_run(saved: dict[str, Any], settings: dict[str, Any], out: Path) -> None:
    settings = json.loads(json.dumps(settings))
    for name in RESUMABLE_CHANGES:
        settings["config"].pop(name)
    if "choice" not in saved.get("config", {}):  # a run older than the method 'auto', which alone has a choice
        settings["config"].pop("choice")
    for name in _list_differences(saved, settings):
        raise ConfigError(f"{out} holds a run with another {name}; choose another folder, or delete it to start over")


def _list_differences(saved: dict[str, Any], settings: dict[str, Any], prefix: str = "") -> list[str]:
    names: list[str] = []
    for key, new in settings.items():
        # A run older than this setting, which has no value now either. No epochs are not no value.
        if key not in saved and not new and key != "epochs":
            continue
        old = saved.get(key)
        if isinstance(new, dict) and isinstance(old, dict):
            names += _list_differences(old, new, f"{prefix}{key}.")
        elif old != new:
            names.append(f"{prefix}{key} ({old!r} there, {new!r} now)")
    return names
