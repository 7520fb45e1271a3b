"""Stage folder names that depend on the config, so that runs share unaffected stages."""

import dataclasses
import re
from typing import Any

import xxhash

from bidr.training.config import TrainConfig

MAX_NAME_LENGTH = 120
# Settings of measurement and hardware, which do not change what a stage learns, or that only some stages read.
NO_EFFECT = {
    "method",
    "bytes_per_doc",
    "codewords",
    "candidates",
    "device",
    "checkpoint_minutes",
    "logs",
    "tokens_at_once",
}
CONVENTIONAL = (
    "conventional.negatives",
    "conventional.refresh",
    "conventional.epochs",
    "sparse.epochs",
    "unify.epochs",
)
DENSE = ("dense.epochs", "dense.batch_size", "dense.rate", "dense.depth")


def name_stage(stage: str, config: TrainConfig, base: TrainConfig) -> str:
    """Name a stage's folder: the stage and its settings that differ from `base`."""
    ours, theirs = get_stage_settings(stage, config), get_stage_settings(stage, base)
    kind = stage.partition("-")[0]
    differences = {key.removeprefix(f"{kind}."): value for key, value in ours.items() if theirs.get(key) != value}
    name = "+".join([stage, *(f"{key}={_format_value(value)}" for key, value in sorted(differences.items()))])
    return name if len(name) <= MAX_NAME_LENGTH else f"{stage}+{xxhash.xxh3_64_hexdigest(name.encode())}"


def get_stage_settings(stage: str, config: TrainConfig) -> dict[str, Any]:
    """Return the settings that a stage's result depends on, earlier stages included."""
    settings = _flatten_config(config)
    for stage_negatives in ("warmup.negatives", "sparse.negatives"):
        settings[stage_negatives] = settings[stage_negatives] or (
            "bm25" if config.encoder_kind == "transformer" else "in-batch"
        )
    # Code stages that take steps from the conventional encoder's budget change that encoder.
    takes = {"learned": "learned", "taught": "learned", "jpq": "jpq", "tuned": "jpq"}
    learned = takes.get(config.conventional.codes, "fitted")
    common = {key: value for key, value in settings.items() if "." not in key and key not in NO_EFFECT}
    common |= _select_keys(settings, "encoder.", "text.", "warmup.")
    codes = _select_keys(settings, "bytes_per_doc", "codewords")
    single = common | _select_keys(settings, *CONVENTIONAL, *DENSE, "negatives.") | {"codes": learned}
    # The stages of 'auto' are those of the other two.
    method = "bidr" if config.method == "auto" else config.method
    first = (single if method == "conventional" else common) | {"method": method}
    mined = _select_keys(
        settings, "dense.depth", "negatives.margin", "negatives.judge", "distil.teacher", "distil.depth"
    )
    drawn = config.sparse.negatives == "mined" or config.distil.source == "teacher"
    sparse = first | codes | _select_keys(settings, "sparse.", "negatives.each", "negatives.live_margin", "distil.")
    sparse |= mined if drawn else {}
    dense = sparse | {key: value for key, value in _select_keys(settings, "dense.").items() if key != "dense.sampler"}
    dense |= _select_keys(settings, "negatives.")
    dense |= single if config.dense.start == "conventional" else {}
    kind, _, of_vectors = stage.partition("-")
    if (kind in ("fitted", "distilled") and of_vectors) or kind == "averaged":
        members = _select_keys(settings, "choice.vectors") if "averaged" in stage else {}
        return dense | single | codes | members | (_select_keys(settings, "frozen.") if kind == "distilled" else {})
    if kind == "choice":
        return dense | single | codes | _select_keys(settings, "unify.", "frozen.", "choice.", "candidates", "dense.")
    return {
        "warmup": common,
        "conventional": single,
        "neighbours": common | mined,
        "nearest": first | mined,
        "fitted": single | codes | _select_keys(settings, "conventional.codes"),
        "distilled": single | codes | _select_keys(settings, "frozen."),
        "taught": single | codes | mined | _select_keys(settings, "sparse.", "frozen."),
        "sparse": sparse,
        "dense": dense,
        "unify": dense | _select_keys(settings, "unify."),
        "jpq": single | codes | _select_keys(settings, "unify."),
        "tuned": single | codes | _select_keys(settings, "unify.", "frozen."),
    }[kind]


def _flatten_config(config: TrainConfig) -> dict[str, Any]:
    settings: dict[str, Any] = {}
    for key, value in dataclasses.asdict(config).items():
        settings |= (
            {f"{key}.{name}": field_value for name, field_value in value.items()}
            if isinstance(value, dict)
            else {key: value}
        )
    return settings


def _select_keys(settings: dict[str, Any], *prefixes: str) -> dict[str, Any]:
    return {key: value for key, value in settings.items() if key.startswith(prefixes)}


def _format_value(value: Any) -> str:
    text = ",".join(map(str, value)) if isinstance(value, tuple | list) else str(value)
    return re.sub(r"[^\w.,-]", "_", text)
