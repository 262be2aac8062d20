"""A plug-in of hooks, led by TOY_* variables where a real plug-in would ask a scheduler."""

import json
import os

from rdzv_plugins import hookimpl
from rdzv_plugins.errors import JoinVetoed

_NUMBERS = ("node_rank", "max_restarts", "min_nodes", "max_nodes")


def _log(**entry):
    if "TOY_LOG" in os.environ:
        with open(os.environ["TOY_LOG"], "a") as log:
            log.write(json.dumps(entry) + "\n")


@hookimpl
def rdzv_resolve_request():
    """TOY_RESOLVE, for example ``node_rank=1 endpoint=10.0.0.1:29500``."""
    pairs = dict(pair.split("=", 1) for pair in os.environ.get("TOY_RESOLVE", "").split())
    return {name: int(value) if name in _NUMBERS else value for name, value in pairs.items()} or None


@hookimpl
def rdzv_before_join(request):
    """A health check that fails when TOY_VETO says why."""
    _log(hook="before_join", run_id=request.run_id)
    if "TOY_VETO" in os.environ:
        raise JoinVetoed(f"this node is not healthy: {os.environ['TOY_VETO']}", remedy="Drain it.")


@hookimpl
def rdzv_after_join(request, info):
    _log(hook="after_join", rank=info.rank, world_size=info.world_size)


@hookimpl
def rdzv_worker_env(env):
    return {"TOY_ENV": f"{env['RANK']} of {env['WORLD_SIZE']}"}


@hookimpl
def rdzv_shutdown(outcome):
    _log(hook="shutdown", end=outcome.end, reason=outcome.reason)
