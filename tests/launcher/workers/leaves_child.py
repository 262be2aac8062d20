"""Leaves a process behind in round 0, which writes to stderr when round 1 runs."""

import os
import subprocess
import sys
import time
from pathlib import Path

CHILD = """
import sys, time
from pathlib import Path
while not Path("second-round").exists():
    time.sleep(0.05)
sys.stderr.write("from the child\\n")
sys.stderr.flush()
Path("child.tmp").write_text("ok")
Path("child.tmp").rename("child")
"""
if os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
    subprocess.Popen([sys.executable, "-c", CHILD], start_new_session=True)
    sys.exit(3)
Path("second-round").touch()
while not Path("child").exists():
    time.sleep(0.05)
