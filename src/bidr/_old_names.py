"""Import names of version 0.1 from where they were, with a DeprecationWarning. To be removed in 0.3."""

import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

# Of each old module the names that the documentation of 0.1 showed, and where they are now.
MOVED = {
    "bidr.api": {name: f"bidr:{name}" for name in ("build", "build_vectors", "load", "open_index", "train")},
    "bidr.codes": {"Codebooks": "bidr.quantization.codebooks:Codebooks"},
    "bidr.codes.fit": {"fit": "bidr.quantization.pq_training:fit_pq"},
    "bidr.index.build": {"build_index": "bidr.index.builder.build:build_index"},
    "bidr.index.faissfile": {
        "export_faiss": "bidr.index.faiss_conversion:export_faiss",
        "import_faiss": "bidr.index.faiss_conversion:import_faiss",
    },
    "bidr.index.vectors.layout": {"check_keys": "bidr.index.vectors.row_layout:make_checksum_keys"},
}


class MovedFinder(MetaPathFinder, Loader):
    """Find modules of version 0.1 that are elsewhere now."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname not in MOVED:
            return None
        return ModuleSpec(fullname, self, is_package=any(name.startswith(f"{fullname}.") for name in MOVED))

    def exec_module(self, module: ModuleType) -> None:
        names = MOVED[module.__name__]

        def load_moved(name: str) -> Any:
            if name not in names:
                raise AttributeError(f"module {module.__name__!r} has no attribute {name!r}")
            target, _, attribute = names[name].partition(":")
            message = f"{module.__name__}.{name} is now {target}.{attribute}; the old name goes in version 0.3"
            warnings.warn(message, DeprecationWarning, stacklevel=2)
            return getattr(import_module(target), attribute)

        module.__getattr__ = load_moved  # type: ignore[method-assign]


def install_finder() -> None:
    """Look for moved modules after all others."""
    if not any(isinstance(finder, MovedFinder) for finder in sys.meta_path):
        sys.meta_path.append(MovedFinder())
