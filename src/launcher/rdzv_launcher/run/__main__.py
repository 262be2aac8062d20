"""``python -m rdzv_launcher.run``: the command ``rdzv-run``, the same as ``python -m rdzv_launcher``."""

import sys

from rdzv_launcher.run.cli import main

if __name__ == "__main__":
    sys.exit(main())
