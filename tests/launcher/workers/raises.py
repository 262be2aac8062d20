"""For --run-path: says how it was started, and raises."""

import json
import os
import sys
from pathlib import Path

(Path(sys.argv[1]) / "started.json").write_text(
    json.dumps({"argv": sys.argv, "name": __name__, "file": __file__, "environ": dict(os.environ)})
)
sys.stdout.write("says a line\n")
raise KeyError("a fault on purpose")
