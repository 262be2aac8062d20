"""What the installed torchrun can do, for the case of a flag that we do not know."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

_MODULE = "torch.distributed.run"


def knows(flag: str) -> bool:
    """True if the installed torchrun has this flag, in this spelling.

    torch is imported only if the text of its module contains the flag, so that a typo is answered at once.
    """
    if _MODULE not in sys.modules and not any(f"{quote}{flag}{quote}" in _source() for quote in "\"'"):
        return False
    try:
        from torch.distributed.run import get_args_parser

        parser = get_args_parser()
    except (ImportError, OSError, ValueError):  # a broken installation; a PET_* variable that is not a valid number
        return False
    return any(flag in action.option_strings for action in parser._actions)


def _source() -> str:
    """The text of torch's module; empty if it is not where it has been so far."""
    try:
        spec = importlib.util.find_spec(_MODULE.partition(".")[0])  # for a top-level package, this imports nothing
        places = spec.submodule_search_locations or () if spec else ()
        return "".join((Path(place) / "distributed/run.py").read_text(encoding="utf-8") for place in places)
    except (ImportError, ValueError, OSError):
        return ""
