"""Remember the index built last, the default of `bidr search`."""

import json
import os
from pathlib import Path

from bidr.errors import IndexFolderError, StorageError
from bidr.utils.files import storage_errors, write_json
from bidr.utils.progress import say


def get_state_file() -> Path:
    """Return $BIDR_STATE/last.json, else $XDG_STATE_HOME/bidr/last.json, else ~/.local/state/bidr/last.json."""
    state_folder, shared = os.environ.get("BIDR_STATE"), os.environ.get("XDG_STATE_HOME")
    base = Path(shared) if shared else Path.home() / ".local" / "state"
    return (Path(state_folder) if state_folder else base / "bidr") / "last.json"


def save_last_index(index: Path) -> None:
    """Save the path of the index; only print a message if that fails."""
    path = get_state_file()
    try:
        with storage_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, {"index": str(index.resolve())})
    except (StorageError, OSError) as error:
        say(f"the index is built, but its path cannot be saved for `bidr search` ({error}); give it with --index")


def load_last_index() -> Path:
    """Return the index built last."""
    path = get_state_file()
    try:
        index = Path(json.loads(path.read_text(encoding="utf-8"))["index"])
    except FileNotFoundError as error:
        raise IndexFolderError(
            f"no index was built yet (no entry in {path}); give one with --index, or build one with `bidr demo`"
        ) from error
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise IndexFolderError(
            f"{path} cannot be read ({error}); delete it, and give the index with --index"
        ) from error
    if not (index / "CURRENT").exists():
        raise IndexFolderError(f"{index}: the index built last is gone; give another with --index, or build it again")
    return index
