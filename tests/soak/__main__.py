"""``python tests/soak``: see ``arguments``."""

from __future__ import annotations

import sys
from pathlib import Path

_TESTS = Path(__file__).resolve().parents[1]

if __name__ == "__main__":
    sys.path[0] = str(_TESTS)  # where pytest finds this package and `kits`, too
    from soak.command import main

    sys.exit(main(sys.argv[1:]))
