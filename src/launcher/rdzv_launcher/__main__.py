"""``python -m rdzv_launcher``: ``rdzv-run``. The ``rdzv`` tools are ``python -m rdzv_launcher.tools``."""

import sys

from rdzv_launcher.run.cli import main

if __name__ == "__main__":
    sys.exit(main())
