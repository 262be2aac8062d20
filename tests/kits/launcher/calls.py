"""A caller of ``elastic_launch``, as a script of its own: ``calls.py OURS|TORCHS NODE_RANK NNODES NPROC ENDPOINT ACT``.

The configuration is ours or torch's. Prints lines of JSON.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import signal
import sys
import threading
from typing import Any

from kits.launcher import called
from rdzv_launcher import LaunchConfig, elastic_launch

# a third of what torch takes is looking for garbage; workers that are spawned import this, too
gc.disable()
atexit.register(gc.freeze)


def main() -> None:
    whose, rank, nnodes, nproc, endpoint, act, *rest = sys.argv[1:]
    config_of: Any = LaunchConfig
    if whose == "torchs":
        from torch.distributed.launcher.api import LaunchConfig as config_of
    config = config_of(
        min_nodes=int(nnodes),
        max_nodes=int(nnodes),
        nproc_per_node=int(nproc),
        run_id="job",
        rdzv_backend="static",
        rdzv_endpoint=endpoint,
        rdzv_configs={"rank": int(rank)},
        max_restarts=0,
        monitor_interval=0.1,
        start_method=os.environ.get("METHOD", "spawn"),
    )
    if act == "sums":
        say(results=elastic_launch(config, called.sums)(0.5))
    else:
        try:
            elastic_launch(config, called.starts_and_waits)(*rest)
        except KeyboardInterrupt:
            say(ended="interrupted")
        except Exception as error:
            say(ended=vars(error)["sigval"].name)
        # and goes on as if nothing had been
        say(again=elastic_launch(config, called.returns)("a ${local_rank} $$"))
        say(handled=signal.getsignal(signal.SIGTERM) != signal.SIG_DFL, threads=threading.active_count())


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    main()
