"""A process that has imported the launchers, and forks. ../warm.py starts it, and is the other end of its pipes.

With ``torch`` as its first argument it has imported torch as well, for agents and workers that would; without it is
light, and its forks cost half of what others do.

Each agent is a process of its own, with its own pid, variables, directory and output, runs the ``main`` of
``rdzv_launcher.run.cli`` or torchrun's and ends as the command does. What is not that of the command is what happens
before ``main``: how the interpreter starts, and what it and torch read from the variables then. Tests of that, and of
standard streams, start the command itself.

Each line of the input is a request, in JSON: program, arguments, variables, directory, the file for stdout and
stderr, how many files may be open, a process whose network, host name and mounts are to be the agent's (or 0). A line
of the output says what has been started, or how that has ended: a pid and ``null``, or a pid and the exit code.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import pkgutil
import resource
import select
import sys
from collections.abc import Callable
from typing import Any

import warm_process  # type: ignore[import-not-found]
import warm_workers  # type: ignore[import-not-found]

_OURS = ("rdzv_plugins", "rdzv_launcher.run")
_NOT_OF_AGENTS = ("rdzv_plugins.testing", "rdzv_plugins.torch_bridge")


def serve(with_torch: bool) -> Any:
    """Runs until the end of its input. In the processes that it forks it returns the exit code of the command."""
    os.environ["TORCH_CPP_LOG_LEVEL"] = "FATAL"  # as rdzv-run does for its own import
    gc.disable()  # see quick_torch.py
    programs = {"rdzv-run": found("rdzv_launcher.run.cli")}
    if with_torch:
        programs["torchrun"] = found("torch.distributed.run")
        warm_workers.arrange()
    import_ours()
    gc.freeze()
    gc.enable()
    del os.environ["TORCH_CPP_LOG_LEVEL"]
    agents: dict[int, int] = {}  # pids by the descriptors that tell of their ends
    poll = select.poll()
    poll.register(0, select.POLLIN)
    pending = b""
    while True:
        for fd, _ in poll.poll():
            if fd:
                poll.unregister(fd)
                os.close(fd)
                pid = agents.pop(fd)
                say(pid, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                continue
            if not (read := os.read(0, 65536)):
                os._exit(0)
            *lines, pending = (pending + read).split(b"\n")
            for line in lines:
                known, tells = os.pipe()
                if (pid := os.fork()) == 0:
                    for each in (*agents, known):
                        os.close(each)
                    program, *request = json.loads(line)
                    arguments = become(program, *request)
                    os.close(tells)
                    return programs[program](arguments)
                os.close(tells)
                os.read(known, 1)  # by its end: from now on /proc shows it as what it is
                os.close(known)
                agents[fd := os.pidfd_open(pid)] = pid
                poll.register(fd, select.POLLIN)
                say(pid, None)


def import_ours() -> None:
    """What agents import as they go, but for what imports somebody else's package: a client may start threads."""
    sys.meta_path.insert(0, OursAlone)
    for package in _OURS:
        for module in pkgutil.walk_packages(importlib.import_module(package).__path__, f"{package}."):
            if not module.name.startswith(_NOT_OF_AGENTS):
                with contextlib.suppress(ModuleNotFoundError):
                    importlib.import_module(module.name)
    sys.meta_path.remove(OursAlone)


class OursAlone:
    """Finds no module of a package of others that is not imported yet."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        top = name.partition(".")[0]
        if top not in sys.modules and top not in sys.stdlib_module_names:
            raise ModuleNotFoundError(f"{name} is left out", name=name)


def found(module: str) -> Callable[[list[str]], Any]:
    """The ``main`` of a module that is only known by name here: imports of this package point one way."""
    main: Callable[[list[str]], Any] = importlib.import_module(module).main
    return main


def say(pid: int, code: int | None) -> None:
    """Write a line of output."""
    os.write(1, f"[{pid}, {json.dumps(code)}]\n".encode())


def become(
    program: str,
    arguments: list[str],
    environ: dict[str, str],
    directory: str,
    output: str,
    files: tuple[int, int],
    inside: int,
) -> list[str]:
    """Make this process that of an agent; returns its arguments."""
    if inside:
        enter(inside)
    for path, flags, fds in ((os.devnull, os.O_RDONLY, (0,)), (output, os.O_WRONLY, (1, 2))):
        opened = os.open(path, flags)
        for fd in fds:
            os.dup2(opened, fd)
        os.close(opened)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environ)
    resource.setrlimit(resource.RLIMIT_NOFILE, files)
    warm_process.show([sys.executable, program, *arguments], environ)
    sys.argv = [program, *arguments]
    return arguments


def enter(pid: int) -> None:
    """Enter the namespaces of a process, as nsenter does; os.setns is there from Python 3.12 on. Raises ``OSError``."""
    net, uts, mount = 0x40000000, 0x04000000, 0x00020000
    fd = os.pidfd_open(pid)
    if ctypes.CDLL(None, use_errno=True).setns(fd, net | uts | mount):
        raise OSError(ctypes.get_errno(), f"the agent could not enter the namespaces of {pid}")
    os.close(fd)


if __name__ == "__main__":
    warm_process.end(serve(sys.argv[1] == "torch"))
