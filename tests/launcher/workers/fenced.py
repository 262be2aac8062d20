"""A fence, a worker that sleeps, and a session that lives, falls silent or ends as it is told on standard input.

Prints the worker's pid and where it looks for how long its round holds; writes a byte to the descriptor of its
argument for each line that it has done.
"""

import json
import os
import subprocess
import sys
import tempfile

from rdzv_launcher.run.fence.fence import Fence
from rdzv_plugins.clock import now

TTL_S = 2.0


class Session:
    """A ``Holding``."""

    ttl = TTL_S
    said = "lives"
    known_until = now() + TTL_S

    def until(self):
        if self.said == "lives":
            self.known_until = now() + TTL_S
        return 0.0 if self.said == "ended" else self.known_until

    def ended(self):
        return self.said == "ended"

    def confirm(self, timeout):
        raise AssertionError("a session that knows until when it lives is not asked")

    def wait_for_news(self, timeout):
        fence._closing.wait(timeout)

    def on_news(self, call):
        self.call = call


session = Session()
fence = Fence(session, tempfile.mkdtemp(prefix="fenced-"), lambda: print("kills", flush=True))
fence.starting()
worker = subprocess.Popen(["sleep", "600"], start_new_session=True)
fence.started([worker.pid])
print(json.dumps({"worker": worker.pid} | fence.environment), flush=True)
for line in sys.stdin:
    session.said = line.strip()
    if session.said == "again":
        fence.starting()
    os.write(int(sys.argv[1]), b".")
print(f"left: {fence.close()}", flush=True)
