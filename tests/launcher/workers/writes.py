"""No torch: writes its variables to a file, then known lines. Local rank 1 fails in the first attempt, by @record.

It fails when all others of its attempt have written what they write.
"""

import json
import os
import sys
import time
from pathlib import Path

directory = Path(sys.argv[1])
rank, attempt = os.environ["RANK"], os.environ["TORCHELASTIC_RESTART_COUNT"]
for stream in (sys.stdout, sys.stderr):
    for word in ("apple, x", "pear", "kiwi \u00e9", "turns\rturned"):
        stream.write(f"says {attempt} {rank} {word}\n")
(directory / f"{attempt}.{rank}.part").write_text(json.dumps({"argv": sys.argv[2:], "environ": dict(os.environ)}))
(directory / f"{attempt}.{rank}.part").rename(directory / f"{attempt}.{rank}.json")
if (rank, attempt) == ("1", "0"):
    from torch.distributed.elastic.multiprocessing.errors import record

    while len(list(directory.glob("0.*.json"))) < int(os.environ["WORLD_SIZE"]):
        time.sleep(0.02)

    @record
    def fail() -> None:
        """Raise."""
        raise ValueError("a fault on purpose")

    fail()
