"""``python tests/soak``: see ``arguments``."""

from __future__ import annotations

import sys
from pathlib import Path

_TESTS = Path(__file__).resolve().parents[1]

if __name__ == "__main__":
    sys.path[0] = str(_TESTS)  # this folder is a package, the kits of the tests are modules
    sys.path += [str(_TESTS / kit) for kit in ("hosts", "launcher", "etcd")]
    from soak.command import main

    sys.exit(main(sys.argv[1:]))
