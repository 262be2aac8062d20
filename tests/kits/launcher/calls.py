"""A caller of ``elastic_launch``, as a script of its own: ``calls.py LAUNCHER NODE_RANK NNODES NPROC ENDPOINT ACT``.

LAUNCHER is ``ours``, ``torch``, or ``mixed``: our launch with torch's configuration. Prints one line of JSON.
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

# a third of what torch takes is looking for garbage; workers that are spawned import this, too
gc.disable()
atexit.register(gc.freeze)


def main() -> None:
    launcher, rank, nnodes, nproc, endpoint, act, *rest = sys.argv[1:]
    launch: Any
    config_of: Any
    if launcher == "ours":
        from rdzv_launcher import LaunchConfig as config_of
        from rdzv_launcher import elastic_launch as launch
    else:
        from torch.distributed.launcher.api import LaunchConfig as config_of
        from torch.distributed.launcher.api import elastic_launch as launch
    if launcher == "mixed":
        from rdzv_launcher import elastic_launch as launch
    config = config_of(
        min_nodes=int(nnodes),
        max_nodes=int(nnodes),
        nproc_per_node=int(nproc),
        run_id="job",
        rdzv_backend="c10d" if launcher == "torch" else "static",
        rdzv_endpoint=endpoint,
        rdzv_configs={} if launcher == "torch" else {"rank": int(rank)},
        max_restarts=0,
        monitor_interval=0.1,
        shutdown_timeout=10,
        start_method=os.environ.get("METHOD", "spawn"),
    )
    say(**outcome(launch, config, act, rest))
    if act == "waits":  # and goes on as if nothing had been
        say(again=outcome(launch, config, "returns", [1])["results"])
    if "environment" in rest:
        say(handled=signal.getsignal(signal.SIGTERM) != signal.SIG_DFL, threads=threading.active_count())


def outcome(launch: Any, config: Any, act: str, rest: list[Any]) -> dict[str, Any]:
    """What comes of one call."""
    functions = {"sums": called.sums, "raises": called.raises, "returns": called.returns, "env": called.variables}
    try:
        if act == "waits":
            return {"results": launch(config, called.starts_and_waits)(rest[0])}
        if act == "ends":
            return {"results": launch(config, called.ends)(*rest)}
        arguments = {"sums": [0.5], "raises": ["on purpose", 1], "returns": ["a ${local_rank} $$"], "env": []}[act]
        return {"results": launch(config, functions[act])(*arguments)}
    except KeyboardInterrupt:
        return {"interrupted": True}
    except Exception as error:
        names = {each.__name__ for each in type(error).__mro__}
        if "sigval" in vars(error):
            return {"stopped": error.sigval.name, "torchs": "SignalException" in names}  # type: ignore[attr-defined]
        if "ChildFailedError" not in names and "WorkersFailed" not in names:
            return {"error": type(error).__name__, "text": str(error), "remedy": getattr(error, "remedy", "")}
        return {"failed": failure_of(error), "torchs": "ChildFailedError" in names}


def failure_of(error: Any) -> dict[str, Any]:
    """What torchrun's users look at."""
    rank, first = error.get_first_failure()
    message = first.message
    if isinstance(message, dict):
        callstack = message["extraInfo"]["py_callstack"].splitlines()
        message = [message["message"], callstack[0], callstack[-1], sorted(message), sorted(message["extraInfo"])]
    return {
        "name": error.name,
        "ranks": sorted(error.failures),
        "first": [rank, first.local_rank, first.exitcode, first.signal_name()],
        "message": message,
        "file": first.error_file.rpartition("/0/")[2].rpartition("/1/")[2],
        "there": os.path.isfile(first.error_file),
    }


def say(**what: Any) -> None:
    sys.stdout.write(json.dumps(what) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
