"""Configuration of text encoding."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from bidr.errors import ConfigError
from bidr.utils.cpu_and_heap import count_available_cpus

Program = Literal["auto", "onnx", "int8", "torch"]


@dataclass(frozen=True, kw_only=True)
class EncodingConfig:
    """Each field is a flag: --encoding.batch 1 disables micro-batching."""

    program: Program = "auto"
    """Program that runs the encoders: 'onnx', 'int8' (8-bit weights: smaller and faster, slightly different vectors),
    'torch', or 'auto': int8 if its hits score within .001 of fp32, else onnx; static encoders need neither."""
    cache: Path | None = None
    """Folder for the ONNX files; by default 'onnx' in the folder of the model."""
    batch: int = 16
    """Maximum number of texts in a batch; 1: no batching."""
    parallel: int = field(default_factory=lambda: min(2, count_available_cpus()))
    """Batches that a worker encodes in parallel."""
    threads: int = 1
    """Threads for one batch. On few cores, two batches in parallel are faster than one with two threads."""
    wait_ms: float = 1.0
    """Milliseconds that a batch waits for more texts while another is being encoded."""

    def __post_init__(self) -> None:
        for name, minimum, maximum in (
            ("batch", 1, 1_024),
            ("parallel", 1, 64),
            ("threads", 1, 64),
            ("wait_ms", 0, 1_000),
        ):
            if not minimum <= getattr(self, name) <= maximum:
                raise ConfigError(f"encoding.{name}: given {getattr(self, name)}, expected {minimum} to {maximum}")

    @classmethod
    def from_fields(cls, fields: dict[str, Any]) -> Self:
        """Parse the JSON that workers receive."""
        return cls(**fields | {"cache": Path(fields["cache"]) if fields["cache"] else None})
