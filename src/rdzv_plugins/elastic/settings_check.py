"""What all nodes of a job have to agree on, and telling a node that does not what differs, and from whom."""

from __future__ import annotations

import json
import logging
import os
from typing import Any

from rdzv_plugins.elastic.facts import wanted
from rdzv_plugins.elastic.keys import PROTOCOL
from rdzv_plugins.errors import SettingsDiffer
from rdzv_plugins.interfaces import Request

logger = logging.getLogger(__name__)

_FLAGS = {
    "nnodes": "--nnodes",
    "nproc": "--nproc-per-node",
    "backend": "--rdzv-backend",
    "run_id": "--rdzv-id",
    "store": "--rdzv-conf store",
    "fanout": "--rdzv-conf fanout",
}


def settings_of(request: Request, backend: str, store: str, host: str, fanout: int = 0) -> dict[str, Any]:
    """This node's settings, and who it is."""
    settings = {
        "protocol": PROTOCOL,
        "run_id": request.run_id,
        "backend": backend,
        "nnodes": wanted(request.min_nodes, request.max_nodes),
        "store": store,
    }
    if os.environ.get("TORCH_ELASTIC_WORKER_IDENTICAL") == "1":  # torch then computes ranks from its own number
        settings["nproc"] = request.nproc_per_node
    if fanout:
        settings["fanout"] = fanout  # who is whose parent is known from the rank alone
    return {"settings": settings, "torch": _torch_version(), "by": f"{host} (pid {os.getpid()})"}


def compare(mine: dict[str, Any], text: bytes, endpoint: str) -> None:
    """Raise ``SettingsDiffer`` if this node differs from the one that wrote ``text``. Another torch is a warning."""
    try:
        theirs = json.loads(text)
        by, settings = theirs["by"], theirs["settings"]
    except (ValueError, TypeError, KeyError):
        raise SettingsDiffer(
            f"the job at {endpoint} was written by a program that is not this version of rdzv-plugins",
            remedy="Install the same version on all nodes.",
        ) from None
    differing = [
        f"{_FLAGS.get(name, name)}: here {mine['settings'].get(name, 'not set')}, there {settings.get(name, 'not set')}"
        for name in dict.fromkeys((*mine["settings"], *settings))
        if mine["settings"].get(name) != settings.get(name)
    ]
    if differing:
        raise SettingsDiffer(
            f"this node was started with other settings than {by}, the first node of the job at {endpoint}: "
            f"{'; '.join(differing)}",
            remedy="Start all nodes with the same ones. The other nodes go on without this one.",
        )
    if mine["torch"] != theirs.get("torch"):
        logger.warning("this node has torch %s, %s has torch %s", mine["torch"], by, theirs.get("torch"))


def _torch_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("torch")
    except PackageNotFoundError:
        return "unknown"
