"""What all nodes of a job have to agree on; a node that does not is told what differs, and from whom."""

from __future__ import annotations

import functools
import json
import logging
import os
import re
from collections.abc import Sequence
from typing import Any

from rdzv_plugins.errors import SettingsDiffer
from rdzv_plugins.installed import version_of
from rdzv_plugins.plain_text import printable
from rdzv_plugins.runtime import SYSTEM, Runtime

logger = logging.getLogger(__name__)

_FLAGS = {
    "nnodes": "--nnodes",
    "nproc": "--nproc-per-node",
    "backend": "--rdzv-backend",
    "run_id": "--rdzv-id",
    "store": "--rdzv-conf store",
    "fanout": "--rdzv-conf fanout",
    "node_unit": "--rdzv-conf node_unit",
    "min_per_domain": "--rdzv-conf min_per_domain",
    "endpoints": "--rdzv-endpoint",
    "preflight": "--preflight",
    "token": "RDZV_TOKEN or token_file",
    "same_command": "--rdzv-conf same_command",
}
COMMAND = "command"
"""The key of a command's digest among the settings, and of its outline beside them."""
WAY = "same_command"
"""How commands are compared. Nodes of plain torchrun have none, as their commands are not known."""
_LONGEST_COMMAND = 200
_LONGEST_VERSION = 80
_OPTION = re.compile(r"--[\w.-]+(?![^=])|-[A-Za-z](?![^=])")
"""Does not match ``-pSECRET``: the value may be attached to a short option."""


def signed(settings: dict[str, Any], host: str, runtime: Runtime = SYSTEM) -> dict[str, Any]:
    """The settings of a node and who it is, in the form that ``compare`` expects."""
    return {"settings": settings, "torch": torch_version(), "by": f"{host} (pid {runtime.getpid()})"}


def outline(command: Sequence[str]) -> str:
    """A command as others may see it: the script's name and the names of its options, without any values.

    A value may be a secret; ``digest`` tells whether all are the same. Longer ones are cut.
    """
    if not command:
        return ""
    script, *arguments = command
    names = (_OPTION.match(each) for each in arguments)
    text = " ".join([os.path.basename(script), *(found[0] if found else "..." for found in names)])
    return text if len(text) <= _LONGEST_COMMAND else f"{text[:_LONGEST_COMMAND]}..."


def digest(command: Sequence[str]) -> str:
    """A digest of the script's name, whose path may differ between nodes, and of the exact arguments."""
    import hashlib  # slow to import: OpenSSL's

    script, *arguments = command
    parts = [os.path.basename(script), *arguments]
    return hashlib.sha256("\0".join(parts).encode(errors="surrogateescape")).hexdigest()[:32]


def compare(mine: dict[str, Any], text: bytes, endpoint: str) -> None:
    """Raise ``SettingsDiffer`` if this node differs from the one that wrote ``text``. Another torch is a warning."""
    try:
        theirs = json.loads(text)
        by, settings = theirs["by"], dict(theirs["settings"])
    except (ValueError, TypeError, KeyError, RecursionError):
        raise SettingsDiffer(
            f"the job at {endpoint} was written by a program that is not this version of rdzv-plugins",
            remedy="Install the same version on all nodes.",
        ) from None
    ways = mine["settings"].get(WAY), settings.get(WAY)
    left_out = {COMMAND, WAY} if None in ways else {COMMAND} if ways[0] != ways[1] else ()
    names = [
        name
        for name in dict.fromkeys((*mine["settings"], *settings))
        if mine["settings"].get(name) != settings.get(name) and name not in left_out
    ]
    if names:

        def said(node: str, here: str, there: str) -> str:
            shown = [
                _commands(mine, theirs, here, there)
                if name == COMMAND
                else f"{_FLAGS.get(name, name)}: {here} {mine['settings'].get(name, 'not set')}, "
                f"{there} {settings.get(name, 'not set')}"
                for name in names
            ]
            job = f"{by}, the first node of the job at {endpoint}"
            return f"{node} was started with other settings than {job}: {'; '.join(shown)}"

        raise SettingsDiffer(
            said("this node", "here", "there"),
            remedy=_REMEDY + (_OF_COMMANDS if COMMAND in names else ""),
            for_others=said("it", "there", "here"),
        )
    warn_of_other_torch(theirs.get("torch"), by)


def warn_of_other_torch(theirs: object, by: str) -> None:
    """Log that the node ``by`` has a different torch from this one: that may work, and is not tested."""
    mine = torch_version()
    if mine != theirs:
        there = printable(str(theirs), _LONGEST_VERSION)
        logger.warning("this node has torch %s, %s has torch %s: these were never tested together", mine, by, there)


def refusal(mine: dict[str, Any], error: SettingsDiffer) -> str:
    """The sentence about a refused node, for those that wait for it."""
    return f"{mine['by']} tried to join and was refused: {error.for_others}"


def _commands(mine: dict[str, Any], theirs: dict[str, Any], here: str, there: str) -> str:
    ours, others = str(mine.get(COMMAND)), str(theirs.get(COMMAND) or "not set")[: _LONGEST_COMMAND + 3]
    if ours == others:
        return f"the command: {ours}, here and there, with other values"
    return f"the command: {here} {ours}, {there} {others}"


_REMEDY = "Start all nodes with the same settings. The other nodes go on without this one."
_OF_COMMANDS = (
    " For another job choose another --rdzv-id. If the commands of one job's nodes differ on purpose, give all of them "
    "--rdzv-conf same_command=script, or same_command=no."
)


@functools.cache
def torch_version() -> str:
    """The installed version of torch, without importing it. Looked up once: that takes as long as half a join."""
    return version_of("torch") or "unknown"


def wanted(min_nodes: int, max_nodes: int) -> str:
    """How many nodes are wanted: ``4`` or ``2:4``."""
    return str(min_nodes) if min_nodes == max_nodes else f"{min_nodes}:{max_nodes}"
