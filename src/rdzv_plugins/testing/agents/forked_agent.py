"""Agents that are forks of a program that has imported the launchers (``testing.forks``).

With ``torch`` that program has imported torch as well, for agents and workers that would; without it the program is
light, and its forks cost half of what others do.

Each agent is a process of its own, with its own pid, variables, directory and output. It runs the ``main`` of
``rdzv_launcher.run.cli`` or torchrun's, and ends as the command does. It differs from the command in what happens
before ``main``: how the interpreter starts, and what it and torch read from the variables at that time. Tests of that,
and of standard streams, start the command itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import os
import pkgutil
import resource
import sys
from collections.abc import Callable, Mapping
from typing import Any

from rdzv_plugins.testing.agents import forked_worker
from rdzv_plugins.testing.forks import process

_OURS = ("rdzv_plugins", "rdzv_launcher.run")
_NOT_OF_AGENTS = ("rdzv_plugins.testing", "rdzv_plugins.torch_bridge")


def prepare(argument: str) -> None:
    """See ``testing.forks.program``."""
    programs["rdzv-run"] = found("rdzv_launcher.run.cli")
    if argument == "torch":
        programs["torchrun"] = found("torch.distributed.run")
        forked_worker.arrange()
    import_ours()


programs: dict[str, Callable[[list[str]], Any]] = {}
"""What can be run, by name."""


def become(_: int, request: Mapping[str, Any], fds: list[int]) -> Callable[[], Any]:
    """Turn this process into an agent's.

    ``fds`` is empty, or has the pidfd of a process whose network, host name and mounts are to be the agent's, too.
    """
    if fds:
        enter(fds[0])
    stdout, stderr = (os.open(request[name], os.O_WRONLY | os.O_APPEND) for name in ("stdout", "stderr"))
    process.settle(stdout, stderr, request["directory"], request["environment"])
    resource.setrlimit(resource.RLIMIT_NOFILE, tuple(request["files"]))
    program, arguments = request["program"], request["arguments"]
    process.show([sys.executable, program, *arguments], request["environment"])
    sys.argv = [program, *arguments]
    return lambda: process.end(programs[program](arguments))


def import_ours() -> None:
    """Import what agents import as they run, except what imports foreign packages: a client may start threads."""
    sys.meta_path.insert(0, OursAlone)
    for package in _OURS:
        for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            if not module.name.startswith(_NOT_OF_AGENTS):
                with contextlib.suppress(ModuleNotFoundError):
                    importlib.import_module(module.name)
    sys.meta_path.remove(OursAlone)


class OursAlone:
    """Finds no module of a foreign package that is not imported yet."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        top = name.partition(".")[0]
        if top not in sys.modules and top not in sys.stdlib_module_names:
            raise ModuleNotFoundError(f"{name} is left out", name=name)


def found(module: str) -> Callable[[list[str]], Any]:
    """The ``main`` of a module known only by name here: imports of this package point one way."""
    main: Callable[[list[str]], Any] = importlib.import_module(module).main
    return main


def enter(of: int) -> None:
    """Enter the namespaces of a process, as nsenter does; os.setns exists from Python 3.12 on. Raises ``OSError``."""
    net, uts, mount = 0x40000000, 0x04000000, 0x00020000
    if ctypes.CDLL(None, use_errno=True).setns(of, net | uts | mount):
        raise OSError(ctypes.get_errno(), "the agent could not enter the namespaces of its host")
    os.close(of)
