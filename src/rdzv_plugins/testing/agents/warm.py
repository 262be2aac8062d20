"""Launchers without the seconds that imports take: forks of a process that has already imported them.

See ``testing.forks`` and ``forked_agent``. Each process that runs tests has up to two of these: one without torch, and
one with it, for agents that would import it or whose workers may be warm.
"""

from __future__ import annotations

import functools
import os
import re
import resource
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal, TypeAlias

from rdzv_plugins.host import PluginHost
from rdzv_plugins.interfaces import Capability
from rdzv_plugins.testing.agents.processes import clean_environment
from rdzv_plugins.testing.forks.forks import Fork, forks

Program: TypeAlias = Literal["rdzv-run", "torchrun"]

READ_AT_START = ("LD_", "PYTHON", "TORCH", "OMP_", "MALLOC_", "RDZV_DEBUG")
"""The beginnings of the names of variables that must be there when the interpreter starts, or torch is imported."""

AGENTS = "rdzv_plugins.testing.agents.forked_agent"
_ROOM, LONGEST = 32_000, 4_000
"""How many bytes of variables and of a command line /proc can show of a fork: see ``forks.process``."""


def warm_agent(
    program: Program,
    arguments: Sequence[str],
    output: Path,
    env: Mapping[str, str],
    inside: int = 0,
    with_torch: bool = False,
) -> Fork:
    """Start a process that is like the program's, except for how its interpreter has started.

    stdout and stderr go to ``output``, and its directory is that of ``output``. ``inside``: a process whose network,
    host name and mounts it has to share. ``with_torch``: it is known to import torch; otherwise that is guessed.
    """
    output.write_bytes(b"")
    kind = "torch" if with_torch or _wants_torch(program, arguments, output.parent, env) else "light"
    forker = forks(AGENTS, kind, with_room(_environment()), {}, LONGEST)
    request = agent_request(program, arguments, env, output, output)
    host = [os.pidfd_open(inside)] if inside else []
    try:
        return forker.start(request, [program, *arguments], host)
    finally:
        for each in host:
            os.close(each)


def with_room(environment: Mapping[str, str]) -> dict[str, str]:
    """Variables for the program that forks agents, with room for theirs."""
    return {**environment, "RDZV_TEST_ROOM": "x" * _ROOM}


def agent_request(
    program: Program, arguments: Sequence[str], env: Mapping[str, str], stdout: Path, stderr: Path
) -> dict[str, object]:
    """The request to ``AGENTS``; the directory is that of ``stdout``."""
    return {
        "program": program,
        "arguments": [*arguments],
        "environment": {**env},
        "directory": str(stdout.parent),
        "stdout": str(stdout),
        "stderr": str(stderr),
        "files": resource.getrlimit(resource.RLIMIT_NOFILE),
    }


def can_be_warm(env: Mapping[str, str]) -> bool:
    """Whether an agent with these variables may begin in a process that has others."""
    return _read_at_start(env) == _read_at_start(_environment())


def _read_at_start(env: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in env.items() if name.startswith(READ_AT_START)}


def _wants_torch(program: Program, arguments: Sequence[str], directory: Path, env: Mapping[str, str]) -> bool:
    """Whether the agent is likely to import torch, or to have a worker that may be warm. A wrong guess costs time."""
    told = [*arguments, *(value for name, value in env.items() if name.startswith(("PET_", "RDZV_")))]
    words = {word for text in told for word in re.split(r"[=,]", text)}
    return (
        program == "torchrun"
        or any(text.startswith(("--preload", "--check")) or "torch" in text for text in arguments)
        or not words.isdisjoint(_torchs_own())
        or any(asks_for_it(directory / text) for text in arguments if text.endswith(".py"))
    )


def asks_for_it(script: str | Path) -> bool:
    """Whether the script may run in a warm worker, see ``forked_worker``."""
    try:
        return b"import quick_torch" in Path(script).read_bytes()
    except OSError:
        return False


@functools.cache
def _torchs_own() -> frozenset[str]:
    """The names of backends that use the rendezvous of torch's launcher."""
    backends = [entry.backend for entry in PluginHost.load().catalog.entries()]
    own = [backend for backend in backends if Capability.TORCHRUN_PEERS in backend.capabilities]
    return frozenset(name for backend in own for name in (backend.name, *backend.aliases))


@functools.cache
def _environment() -> dict[str, str]:
    return clean_environment()
