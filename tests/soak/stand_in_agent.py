"""Stands in for an agent and its worker in tests of the soak itself; what it does wrong is in ``$SOAK_DIR/wrong``.

``leaves``: a process stays when it is killed. ``code``: it ends by SIGTERM with another code. ``ends``: it ends once it
has worked. ``stands``: it works no more once it has been started again.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

DIRECTORY = Path(os.environ["SOAK_DIR"])
NODE = os.environ["SOAK_NODE"]


def main() -> int:
    wrong = (DIRECTORY / "wrong").read_text()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(7 if wrong == "code" else 143))
    print("joining", flush=True)
    if wrong == "leaves":
        subprocess.Popen(["sleep", "100"])
    records = DIRECTORY / "records" / f"{NODE}.jsonl"
    if wrong == "stands" and records.exists():
        signal.pause()
    who = {"node": NODE, "agent": os.environ["SOAK_AGENT"], "pid": os.getpid(), "id": uuid.uuid4().hex, "rank": 0}
    with records.open("a", buffering=1) as file:
        file.write(json.dumps(who | {"what": "joined", "t": time.monotonic(), "size": 1, "holder": ""}) + "\n")
        step = 0
        while not (DIRECTORY / "stop").exists():
            begun = time.monotonic()
            time.sleep(0.02)
            file.write(json.dumps(who | {"what": "step", "t0": begun, "t": time.monotonic(), "step": step}) + "\n")
            step += 1
            if wrong == "ends" and step == 50:
                return 68
    return 0


if __name__ == "__main__":
    sys.exit(main())
