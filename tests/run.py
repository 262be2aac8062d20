"""``python tests/run.py ARGUMENTS OF PYTEST``: a test run that is not red by chance, and ends with what is to be done.

A test that has started a process and fails is run once more, in a run by itself, with nothing beside it. If it passes
then, the run is green and ends with a line that names it. Any other test that fails is a failure at once, and so is a
run in which many fail: that is no chance.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

MOST = 10
"""How many failures can be chance; more are not run again."""


def main(arguments: list[str]) -> int:
    kept = Path("build/tests/failed")
    shutil.rmtree(kept, ignore_errors=True)
    kept.mkdir(parents=True)
    pytest = [sys.executable, "-m", "pytest"]
    # `f` and `E`: what failed is listed, not what could not run here
    first = [*pytest, "-rfE", *arguments]
    code = subprocess.run(first, env={**os.environ, "RDZV_FAILURES": str(kept.absolute())}).returncode
    if code != 1:  # passed; or interrupted, or nothing was run
        return code

    failed: dict[str, bool] = json.loads((kept / "failed.json").read_text())
    if 0 < len(failed) <= MOST and all(failed.values()):
        print(f"tests: {len(failed)} failed, each with processes of its own: once more, by themselves ...", flush=True)
        code = subprocess.run([*pytest, "-n0", "-rfE", *failed]).returncode

    print(f"\nWhat each of them printed when it failed: {kept}/", flush=True)
    if code:
        for name in failed:
            print("to run it:", shlex.join([os.path.relpath(sys.executable), "-m", "pytest", "-n0", name]))
    else:
        print("!" * 120)
        for name in failed:
            print(f"RUN TWICE: {name} failed, and passed when it was run again by itself")
        print("!" * 120)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
