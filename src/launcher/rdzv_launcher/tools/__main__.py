"""``python -m rdzv_launcher.tools``: the command ``rdzv``."""

import sys

from rdzv_launcher.tools.cli import main

if __name__ == "__main__":
    sys.exit(main())
