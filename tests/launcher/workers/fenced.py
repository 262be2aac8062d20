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
from rdzv_launcher.run.keeper.keeper import Keeper
from rdzv_launcher.run.keeper.marked import Marked, mark_children
from rdzv_launcher.run.keeper.messages import Belongings, Start
from rdzv_plugins.clock import now
from rdzv_plugins.round_page import RoundPage
from rdzv_plugins.runtime import SYSTEM

TTL_S = 2.0
STANDSTILL_S = 6.0
"""After so many seconds without a look, the fence takes it that its process has stood still."""


class Session:
    """A ``Holding``."""

    ttl = 2 * STANDSTILL_S
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


# what a worker starts, in a session of its own, is paused and killed like it
WORKER = "setsid sleep 600 & echo $! > child; exec sleep 600"

os.chdir(tempfile.mkdtemp(prefix="fenced-"))
session, page, mark = Session(), RoundPage(), os.urandom(16).hex()
keeper = Keeper(belongings=Belongings(page.fd, mark, os.getcwd()))
mark_children(mark)
fence = Fence(session, page, Marked(mark), keeper.signal_below, lambda: print("kills", flush=True), SYSTEM)
fence.starting()
other = subprocess.Popen(["sleep", "600"], start_new_session=True)  # the agent's own, as of a plug-in
pids = keeper.start([Start(0, ("sh", "-c", WORKER), dict(os.environ))])
fence.started(pids.values())
own = {"worker": pids[0], "keeper": keeper.pid, "other": other.pid, "directory": os.getcwd()}
print(json.dumps(own | fence.environment), flush=True)
for line in sys.stdin:
    session.said = line.strip()
    if session.said == "again":
        fence.starting()
    os.write(int(sys.argv[1]), b".")
print(f"left: {keeper.close() + fence.close()}", flush=True)
