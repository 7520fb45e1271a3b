"""What a stage's folder is called, so that runs with other settings share the stages that these do not touch."""

import dataclasses
import re
from typing import Any

import xxhash

from bidr.training.config import TrainConfig

LONGEST = 120
# What says how a run is measured or where it runs does not change what is learned.
ELSEWHERE = {
    "method",
    "bytes_per_doc",
    "codewords",
    "candidates",
    "device",
    "checkpoint_minutes",
    "logs",
    "tokens_at_once",
}
CONVENTIONAL = ("conventional.negatives", "conventional.refresh", "sparse.epochs", "unify.epochs")
DENSE = ("dense.epochs", "dense.batch_size", "dense.rate", "dense.depth")


def name_stage(stage: str, config: TrainConfig, base: TrainConfig) -> str:
    """The stage, and in what its settings differ from those of the run's own (`base`)."""
    ours, theirs = get_stage_settings(stage, config), get_stage_settings(stage, base)
    kind = stage.partition("-")[0]
    found = {key.removeprefix(f"{kind}."): value for key, value in ours.items() if theirs.get(key) != value}
    name = "+".join([stage, *(f"{key}={_word(value)}" for key, value in sorted(found.items()))])
    return name if len(name) <= LONGEST else f"{stage}+{xxhash.xxh3_64_hexdigest(name.encode())}"


def get_stage_settings(stage: str, config: TrainConfig) -> dict[str, Any]:
    """Every setting on which a stage's result depends, those of the stages before it included."""
    every = _flat(config)
    for stage_negatives in ("warmup.negatives", "sparse.negatives"):
        every[stage_negatives] = every[stage_negatives] or ("in-batch" if config.built_in else "bm25")
    # What takes steps from the conventional way's encoder makes it another one.
    takes = {"learned": "learned", "taught": "learned", "jpq": "jpq", "tuned": "jpq"}
    learned = takes.get(config.conventional.codes, "fitted")
    common = {key: value for key, value in every.items() if "." not in key and key not in ELSEWHERE}
    common |= _below(every, "encoder.", "text.", "warmup.")
    codes = _below(every, "bytes_per_doc", "codewords")
    single = common | _below(every, *CONVENTIONAL, *DENSE, "negatives.") | {"codes": learned}
    first = (single if config.method == "conventional" else common) | {"method": config.method}
    mined = _below(every, "dense.depth", "negatives.margin", "negatives.judge", "distil.teacher", "distil.depth")
    drawn = config.sparse.negatives == "mined" or config.distil.source == "teacher"
    sparse = first | codes | _below(every, "sparse.", "negatives.each", "negatives.live_margin", "distil.")
    sparse |= mined if drawn else {}
    dense = sparse | {key: value for key, value in _below(every, "dense.").items() if key != "dense.sampler"}
    dense |= _below(every, "negatives.")
    return {
        "warmup": common,
        "conventional": single,
        "neighbours": common | mined,
        "nearest": first | mined,
        "fitted": single | codes | _below(every, "conventional.codes"),
        "distilled": single | codes | _below(every, "frozen."),
        "taught": single | codes | mined | _below(every, "sparse.", "frozen."),
        "sparse": sparse,
        "dense": dense,
        "unify": dense | _below(every, "unify."),
        "jpq": single | codes | _below(every, "unify."),
        "tuned": single | codes | _below(every, "unify.", "frozen."),
    }[stage.partition("-")[0]]


def _flat(config: TrainConfig) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in dataclasses.asdict(config).items():
        found |= {f"{key}.{name}": each for name, each in value.items()} if isinstance(value, dict) else {key: value}
    return found


def _below(every: dict[str, Any], *starts: str) -> dict[str, Any]:
    return {key: value for key, value in every.items() if key.startswith(starts)}


def _word(value: Any) -> str:
    text = ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
    return re.sub(r"[^\w.,-]", "_", text)
