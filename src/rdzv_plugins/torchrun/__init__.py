"""Our backends for plain torchrun, accelerate and torchx: ``--rdzv-backend=rdzv-plugins.<name>``.

torch loads the entry points of group ``torchrun.handlers`` when its elastic package is imported, calls each, and
registers what it returns. Ours registers one creator for every installed plug-in, under the name of its entry point,
without loading any: a third-party backend is reached in the same way as a built-in one, and a broken one matters only
when it is selected. The prefix is needed because torch refuses a second owner of a name.

torch imports this in every process that imports its elastic package, so keep it light. What is for workers
(``worker_transport``) runs only in those whose job asks for it.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from importlib.metadata import entry_points
from typing import Any

PREFIX = "rdzv-plugins"
_GROUP = "rdzv_plugins"
_LAUNCHER_TIMEOUT = 900
"""torch's LaunchConfig adds ``timeout=900`` (a number, where the user's values are text) to every job."""

_FIXED = frozenset(
    {"backend", "min_nodes", "max_nodes", "nproc_per_node", "role", "max_restarts", "conf", "entrypoint", "idle"}
)
"""What plug-ins cannot fill in here: torchrun has decided it and acts on it."""

Creator = Callable[[Any], Any]


def register() -> Creator:
    """Called by torch. Registers ``rdzv-plugins.<entry point>`` for all; returns the creator for the bare name."""
    from torch.distributed.elastic.rendezvous.api import rendezvous_handler_registry

    for name in sorted({entry.name for entry in entry_points(group=_GROUP)}):
        rendezvous_handler_registry.register(f"{PREFIX}.{name}", create)
    return create


def create(params: Any) -> Any:
    """A handler made from torch's ``RendezvousParameters``. Raises our errors, which say what to do."""
    from rdzv_plugins.background_queue import queue_logging
    from rdzv_plugins.errors import RdzvError, UnknownBackend
    from rdzv_plugins.registry import PluginHost
    from rdzv_plugins.registry.create import create_rendezvous, prepare
    from rdzv_plugins.torchrun.torchrun_handler import TorchrunHandler, in_full

    _show_reports()
    queue_logging()
    name = params.backend.partition(".")[2]
    host = PluginHost.load()
    if not name:
        raise UnknownBackend(
            f"--rdzv-backend={PREFIX} does not name a backend",
            remedy="Write --rdzv-backend=rdzv-plugins.NAME. See: rdzv backends",
        )
    try:
        entry = host.catalog.find(name)
        request = prepare(entry, host.resolve_request(request_from(params), entry.backend))
        return TorchrunHandler(request.backend, create_rendezvous(host, entry, request))
    except RdzvError as error:
        raise in_full(error) from error.__cause__


def _show_reports() -> None:
    """Let this package report what it waits for, as under ``rdzv-run``: Python shows only warnings of its own accord.

    Whatever the application has decided about its log, or the user by torch's ``LOGLEVEL``, stays.
    """
    logger = logging.getLogger(_GROUP)
    if logger.level == logging.NOTSET and logging.root.level == logging.WARNING:
        logger.setLevel(os.environ.get("LOGLEVEL", "INFO"))
    if not logger.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter(f"%(asctime)s {PREFIX} %(levelname)s: %(message)s", "%H:%M:%S"))
        logger.addHandler(handler)


def request_from(params: Any) -> Any:
    """A ``Request`` made from torch's ``RendezvousParameters``; what torch does not pass on stays unknown."""
    from rdzv_plugins.interfaces import DEFAULT_RUN_ID, Request

    conf = dict(params.config)
    if conf.get("timeout") == _LAUNCHER_TIMEOUT and not isinstance(conf["timeout"], str):
        del conf["timeout"]
    text = os.environ.get("PET_NODE_RANK", "")  # torch keeps --node-rank to itself
    rank = int(text) if text.isdecimal() and "rank" not in conf else None
    given = {"endpoint": params.endpoint, "local_addr": params.local_addr, "node_rank": rank}
    named = {"run_id"} if params.run_id != DEFAULT_RUN_ID else set()  # torch does not say who has chosen it
    return Request(
        backend=params.backend,
        run_id=params.run_id,
        endpoint=params.endpoint,
        min_nodes=params.min_nodes,
        max_nodes=params.max_nodes,
        nproc_per_node=0,
        node_rank=rank,
        local_addr=params.local_addr,
        conf=conf,
        given=_FIXED | named | {name for name, value in given.items() if value not in (None, "")},
    )
