"""The program that forks agents, and the workers of those that ask for it: ``python program.py FD KIND``.

It imports the launchers once: with KIND ``torch`` torch as well, for agents and workers that would; ``light`` costs
half as much. None of what it imports may start a thread, which a fork would miss. Each request is a message of JSON on
the control socket. The answers are lists of JSON: a pid and ``null`` once a process has become what was asked for, a
pid and its exit code (negative for a signal) once it has ended. The program ends when the socket is closed, which the
kernel does when the process of the tests ends.

Each agent is a process of its own, with its own pid, variables, directory and output. It runs the ``main`` of
``rdzv_launcher.run.cli`` or torchrun's, and ends as the command does. It differs from the command in what happens
before ``main``: how the interpreter starts, and what it and torch read from the variables at that time. Tests of that,
and of standard streams, start the command itself.

Workers are forks of the supervisor of such an agent. The product makes such a worker for a function called by
``elastic_launch`` with ``start_method="fork"``; here the function is the script. This is only for scripts that ask for
it by ``import quick_torch``, and only if no variable differs that is read when an interpreter starts or torch is
imported.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import importlib
import json
import logging
import os
import pkgutil
import resource
import select
import socket
import sys
import threading
import types
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

_OURS = ("rdzv_plugins", "rdzv_launcher.run")
_NOT_OF_AGENTS = ("rdzv_plugins.testing", "rdzv_plugins.torchrun")
_LONGEST = 1 << 18
"""Bytes of a request: more than its variables may have."""

programs: dict[str, Callable[[list[str]], Any]] = {}
"""What can be run, by name."""


def serve(control: socket.socket, kind: str) -> Any:
    """In the program this never returns; in the processes that it forks it returns the exit code."""
    prepare(kind)
    children: dict[int, int] = {}  # pids by the descriptors that tell of their ends
    poll = select.poll()
    poll.register(control, select.POLLIN)
    while True:
        for ready, _ in poll.poll():
            if ready != control.fileno():
                poll.unregister(ready)
                os.close(ready)
                pid = children.pop(ready)
                _say(control, pid, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
                continue
            data = control.recv(_LONGEST)
            if not data:
                os._exit(0)
            known, tells = os.pipe()
            pid = os.fork()
            if pid == 0:
                for each in (*children, known, control.detach()):
                    os.close(each)
                run = become(json.loads(data))
                os.close(tells)
                return run()
            os.close(tells)
            os.read(known, 1)  # by its end: from now on /proc shows it as what it is
            os.close(known)
            children[ends := os.pidfd_open(pid)] = pid
            poll.register(ends, select.POLLIN)
            _say(control, pid, None)


def prepare(kind: str) -> None:
    """Import what every fork needs."""
    name = "TORCH_CPP_LOG_LEVEL"
    before = os.environ.get(name)
    os.environ[name] = "FATAL"  # as the launcher does for its own import
    gc.disable()  # it would look through everything that torch creates, again and again
    programs["rdzv-run"] = importlib.import_module("rdzv_launcher.run.cli").main
    if kind == "torch":
        programs["torchrun"] = importlib.import_module("torch.distributed.run").main
        arrange()
    import_ours()
    gc.freeze()
    gc.enable()
    if before is None:
        del os.environ[name]
    else:
        os.environ[name] = before


def become(request: Mapping[str, Any]) -> Callable[[], Any]:
    """Turn this process into an agent's."""
    if request["inside"]:
        enter(request["inside"])
    settle(request["output"], request["environment"])
    resource.setrlimit(resource.RLIMIT_NOFILE, tuple(request["files"]))
    program, arguments = request["program"], request["arguments"]
    show([sys.executable, program, *arguments], request["environment"])
    sys.argv = [program, *arguments]
    return lambda: end(programs[program](arguments))


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


def enter(pid: int) -> None:
    """Enter the namespaces of a process, as nsenter does; os.setns exists from Python 3.12 on. Raises ``OSError``."""
    net, uts, mount = 0x40000000, 0x04000000, 0x00020000
    process = os.pidfd_open(pid)
    if ctypes.CDLL(None, use_errno=True).setns(process, net | uts | mount):
        raise OSError(ctypes.get_errno(), "the agent could not enter the namespaces of its host")
    os.close(process)


def arrange() -> None:
    """From now on, have the supervisors of this process's forks start such workers."""
    supervisor: Any = importlib.import_module("rdzv_launcher.run.supervisor.supervisor_process").SupervisorProcess
    worker_process = importlib.import_module("rdzv_launcher.run.supervisor.worker_process")
    differing = importlib.import_module("rdzv_launcher.run.supervisor.template_process").differing
    be_like_new = importlib.import_module("rdzv_launcher.run.supervisor.template")._be_like_new
    otherwise, before = supervisor._instead, dict(os.environ)

    def instead(self: Any, asked: Any) -> Callable[[], None] | None:
        """Replaces the supervisor's method of that name."""
        command, variables = asked.command, asked.environment
        plain = command[:2] == (sys.executable, "-u") and asks_for_it(command[2])
        read_by_torch = [name for name in variables if name.startswith("TORCH_") and not name.startswith("TORCH_NCCL_")]
        if self._inherited.function or not plain or differing(before, variables) or read_by_torch:
            fresh: Callable[[], None] | None = otherwise(self, asked)
            return fresh

        def function() -> int:
            show(command, variables)
            be_like_new(command, 3, variables)
            return run(command[2:])

        return lambda: worker_process.run_function(function, variables, (), os.path.basename(sys.executable))

    supervisor._instead = instead


def run(argv: tuple[str, ...]) -> int:
    """Run a script, the first of its arguments, and end as an interpreter does."""
    atexit._clear()  # those belong to the agent, as do logging handlers
    logging.root.handlers.clear()
    logging.root.setLevel(logging.WARNING)
    for name in [*logging.root.manager.loggerDict]:
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.setLevel(logging.NOTSET)
        logger.propagate, logger.disabled = True, False
    script = argv[0]
    sys.argv[:] = argv
    sys.path[0] = os.path.dirname(os.path.abspath(script))
    main = sys.modules["__main__"] = types.ModuleType("__main__")
    main.__file__ = script
    code: object = None
    try:
        with open(script, "rb") as file:
            exec(compile(file.read(), script, "exec"), main.__dict__)
    except SystemExit as error:
        code = error.code
    except BaseException as error:
        here = error.__traceback__
        sys.excepthook(type(error), error, here.tb_next if here else None)
        code = 1
    if code:
        # a fresh interpreter takes its time to tidy up: workers that fail with a peer should end well after that one
        gc.unfreeze()
        gc.collect()
    end(code)
    raise AssertionError("not reached")


def asks_for_it(script: str | Path) -> bool:
    """Whether the script may run in a worker that is a fork."""
    try:
        return b"import quick_torch" in Path(script).read_bytes()
    except OSError:
        return False


def settle(output: str, variables: Mapping[str, str]) -> None:
    """Give this process its own output, the directory of that, and its variables."""
    for path, flags, streams in ((os.devnull, os.O_RDONLY, (0,)), (output, os.O_WRONLY | os.O_APPEND, (1, 2))):
        fd = os.open(path, flags)
        for stream in streams:
            os.dup2(fd, stream)
        os.close(fd)
    os.chdir(os.path.dirname(output))
    os.environ.clear()
    os.environ.update(variables)


def show(words: Iterable[str], variables: Mapping[str, str]) -> None:
    """Make /proc show this command line and these variables, by which processes are found.

    They are written over those with which the forking program was started, as setproctitle does: it needs room for them
    there (``agents.ROOM``). A longer command line is cut off.
    """
    with open("/proc/self/stat") as file:
        start, _, middle, end = map(int, file.read().rpartition(")")[2].split()[45:49])
    shown = b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in variables.items())
    if len(shown) > end - middle:
        raise RuntimeError(f"/proc cannot show {len(shown)} bytes of variables: no more than {end - middle}")
    line = b"\0".join(map(os.fsencode, words))[: middle - start - 1]
    for address, text, size in ((start, line, middle - start), (middle, shown, end - middle)):
        ctypes.memmove(address, text.ljust(size, b"\0"), size)


def end(code: object) -> None:
    """End as ``sys.exit`` does, but without tidying up torch's modules: what they would free ends with the process."""
    if not isinstance(code, int | None):
        print(code, file=sys.stderr)
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)


def _say(control: socket.socket, pid: int, code: int | None) -> None:
    control.send(json.dumps([pid, code]).encode())


if __name__ == "__main__":
    del sys.path[0]  # this directory
    sys.exit(serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2]))
