"""How texts are encoded while serving."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from bidr.errors import ConfigError
from bidr.utils.system import available_cpus

Program = Literal["auto", "onnx", "int8", "torch"]


@dataclass(frozen=True, kw_only=True)
class EncodingConfig:
    """Each is a flag: --encoding.batch 1 encodes every query by itself."""

    program: Program = "auto"
    """What runs the encoders: 'onnx', 'int8' (8-bit weights, smaller and quicker, not quite the same vectors), 'torch',
    or 'auto': int8 where its answers score as high (within .001), else onnx; the built-in encoder needs neither."""
    cache: Path | None = None
    """Folder for the ONNX files; by default 'onnx' in the folder of the model."""
    batch: int = 16
    """Most texts that are encoded together; 1: each by itself."""
    parallel: int = field(default_factory=lambda: min(2, available_cpus()))
    """Batches that are encoded at once, for each worker."""
    threads: int = 1
    """Threads for one batch. On few cores two batches at once do more than one on two threads."""
    wait_ms: float = 1.0
    """How long a batch that is not full waits for more while another is being encoded; alone it never waits."""

    def __post_init__(self) -> None:
        for name, least, most in (("batch", 1, 1_024), ("parallel", 1, 64), ("threads", 1, 64), ("wait_ms", 0, 1_000)):
            if not least <= getattr(self, name) <= most:
                raise ConfigError(f"encoding.{name}: given {getattr(self, name)}, expected {least} to {most}")

    @classmethod
    def from_fields(cls, given: dict[str, Any]) -> Self:
        """From JSON, as workers get it."""
        return cls(**given | {"cache": Path(given["cache"]) if given["cache"] else None})
