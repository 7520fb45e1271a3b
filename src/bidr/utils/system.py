"""How many cores this process may use."""

import os


def cores() -> int:
    """Those that the system lets it run on; where it does not say (macOS), those of the machine."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
