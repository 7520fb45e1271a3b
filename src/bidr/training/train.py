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
from bidr.quantization import check_shape
from bidr.training import stages
from bidr.training.config import TrainConfig
from bidr.training.engine.distributed import Group, joined
from bidr.training.engine.logs import check_tensorboard
from bidr.training.ivf import learned_lists
from bidr.training.presets import changes
from bidr.training.run import Workshop
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
    with joined(config.device) as group:
        return model_of(open_workshop(dataset, config, Path(out), resume, group), Path(out), recipe)


def model_of(shop: Workshop, out: Path, recipe: str | None = None) -> Model:
    """The model that the workshop's settings ask for; recipe: where they are from."""
    if shop.config.method == "conventional":
        return conventional_model(shop, out, recipe)
    return bidr_model(shop, shop.config.dense.sampler, out, unified=shop.config.unify.epochs > 0, recipe=recipe)


def open_workshop(
    dataset: Dataset, config: TrainConfig, out: Path, resume: Resume = "auto", group: Group | None = None
) -> Workshop:
    """The run's folder, after checking that nothing else is in it. Where a new run cannot begin, none is left."""
    group = group or Group()
    settings = {
        "data": dataset.name,
        "state of the corpus' files": dataset.corpus.fingerprint(),
        "state of the train and dev files": dataset.fingerprint(["train", "dev"]),
        "config": dataclasses.asdict(config),
    }
    group.once(lambda: _check_folder(settings, config, out, resume))
    begun, there = group.once(lambda: ((out / WORK / RUN).exists(), out.exists()))
    try:
        group.once(lambda: _write_settings(out / WORK / RUN, settings))
        shop = Workshop(dataset, config, out / WORK, group)
        _refuse_few_documents(len(shop.material.documents), config)
    except Exception:
        if not begun:
            shutil.rmtree(out / WORK if there else out, ignore_errors=True)
        raise
    return shop


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


def bidr_model(shop: Workshop, sampler: str, out: Path, *, unified: bool, recipe: str | None = None) -> Model:
    """The method: codes first, then vectors on the candidates that the codes bring up, then one query encoder."""
    side = stages.sparse(shop)
    stages.dense(shop, sampler)
    names = [shop.name("warmup"), side.name, shop.name(f"dense-{sampler}")]
    codebooks, query, lists = side.codebooks, None, None
    if unified:
        fitted = stages.unify(shop, sampler)
        names.append(fitted.name)
        codebooks, query = fitted.codebooks, shop.folder / fitted.name / "encoder"
        lists = learned_lists(shop, fitted)
    parts = ModelParts(
        sparse=shop.folder / side.name / "encoder",
        dense=shop.folder / names[2] / "encoder",
        query=query,
        codebooks=codebooks,
        lists=lists,
    )
    return _save(shop, parts, out, names, recipe)


def conventional_model(shop: Workshop, out: Path, recipe: str | None = None) -> Model:
    """The conventional way: one encoder, codes of its vectors, the same vectors ranked again."""
    codes = shop.config.conventional.codes
    made_by = {
        "learned": stages.sparse,
        "jpq": stages.jpq,
        "distilled": stages.distilled,
        "tuned": stages.tuned,
        "taught": stages.taught,
    }
    side = made_by.get(codes, stages.fitted)(shop)
    name = shop.name("conventional")
    encoder, names = shop.folder / name / "encoder", [shop.name("warmup"), name]
    parts = ModelParts(sparse=encoder, dense=encoder, query=encoder, codebooks=side.codebooks)
    if codes == "learned":
        parts, names = replace(parts, sparse=shop.folder / side.name / "encoder", query=None), [*names, side.name]
    elif codes == "taught":
        own = shop.folder / shop.name("taught") / "encoder"
        parts, names = replace(parts, sparse=own, query=None), [*names, shop.name("taught"), side.name]
    elif codes == "distilled":
        names.append(side.name)
    elif codes in ("jpq", "tuned"):
        own = shop.folder / side.name / "encoder"
        parts, names = replace(parts, query=own, lists=learned_lists(shop, side)), [*names, side.name]
    return _save(shop, parts, out, names, recipe)


def _save(shop: Workshop, parts: ModelParts, out: Path, names: list[str], recipe: str | None) -> Model:
    config = shop.config
    text = TextSettings(
        titles=config.text.titles,
        query_length=config.text.query_length,
        document_length=config.text.document_length,
    )
    training: dict[str, Any] = {
        "data": shop.dataset.name,
        "documents": len(shop.material.documents),
        "train_queries": len(shop.material.train.texts),
        **({"recipe": recipe} if recipe else {}),
        "config": dataclasses.asdict(config),
        "stages": {name: shop.history(name) for name in names},
        "codewords": shop.usage(),
    }

    def write() -> str:
        model = save_model(out, parts, text, candidates=config.candidates, training=training)
        write_card(model, changes(config))
        return model.fingerprint

    shop.group.once(write)
    return Model(out, shop.device)


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
