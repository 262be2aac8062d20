"""Within the template: modules are imported once, and each worker is a fork that continues as a fresh interpreter.

Runs while ``site`` is imported (``hook/sitecustomize.py``). ``serve`` returns only in workers.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import sys
import time
from typing import Any

from rdzv_launcher.run.supervisor.in_worker import arrange
from rdzv_launcher.run.supervisor.messages import Channel, Gone
from rdzv_launcher.run.supervisor.worker_process import NotArranged, redirect
from rdzv_plugins.system import prctl

_DEVICES = ("/dev/nvidia", "/dev/davinci", "/dev/kfd", "/dev/dri/")
_ACCELERATORS = ("cuda", "npu", "xpu")
_LONGEST_REASON = 2000
_ENDED = 255

_libc = ctypes.CDLL(None)


class NotForkable(Exception):
    """The modules have left something in this process that does not survive a fork."""


def serve(fd: int, output: int) -> None:
    """Import, and then fork what the supervisor asks for. Returns in each of the forks, which then becomes a program.

    ``output`` is the standard output that workers get.
    """
    channel = Channel.of(fd)
    if output >= 0:
        os.set_inheritable(output, False)
    try:
        _, supervisor, modules, program, path = _next(channel)
        begun = time.monotonic()
        _import(channel, modules, path)
        gc.collect()
        gc.freeze()
        channel.send(("ready", _memory(), time.monotonic() - begun))
        while True:
            _, local_rank, command, environment, stdout, stderr, number = _next(channel)
            if _fork(channel, supervisor, number, local_rank):
                try:
                    _replace_files(output)
                    redirect(stdout, stderr)
                except NotArranged as error:
                    channel.send(("not_arranged", number, local_rank, os.getpid(), error.what, error.number))
                    os._exit(_ENDED)
                _be_like_new(command, program, environment)
                channel.send(("runs", number, local_rank, os.getpid()))
                channel.close()
                return
    except Gone:
        os._exit(0)
    except NotForkable as error:
        channel.send(("failed", str(error)))
        os._exit(0)


def _next(channel: Channel) -> Any:
    import select

    poll = select.poll()
    poll.register(channel.fileno(), select.POLLIN)
    while (message := channel.receive()) is None:
        poll.poll()
    return message


def _import(channel: Channel, modules: tuple[str, ...], path: str) -> None:
    """Import the modules. Raises ``NotForkable``, also for a module that cannot be imported."""
    safe = getattr(sys.flags, "safe_path", False)
    if not safe:
        sys.path.insert(0, path)  # where the program's own modules are
    for module in modules:
        channel.send(("importing", module))
        try:
            importlib.import_module(module)
        except BaseException as error:  # including one that exits
            reason = f"{module} could not be imported: {type(error).__name__}: {error}"
            raise NotForkable(reason[:_LONGEST_REASON]) from None
        for stream in (sys.stdout, sys.stderr):
            if stream is not None:
                stream.flush()
        _libc.fflush(None)  # otherwise output buffered by C code would be written twice after a fork
        _check(module)
    if not safe and path in sys.path:
        sys.path.remove(path)


def _check(module: str) -> None:
    """Raise ``NotForkable`` if this process has threads that a fork would lose, or an accelerator."""
    torch = sys.modules.get("torch")
    for name in _ACCELERATORS:
        accelerator = getattr(torch, name, None)
        if getattr(accelerator, "is_initialized", bool)():
            raise NotForkable(f"{module} has initialised an accelerator (torch.{name})")
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            continue
        if target.startswith(_DEVICES):
            raise NotForkable(f"{module} has opened an accelerator ({target})")
    if len(tasks := os.listdir("/proc/self/task")) == 1:
        return
    # those of OpenBLAS, for one, are ended before each fork, and started again when they are needed
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    for _ in range(20):  # a thread that has ended is still visible for a moment
        if len(tasks := os.listdir("/proc/self/task")) == 1:
            return
        time.sleep(0.005)
    raise NotForkable(f"{module} has started threads ({_threads(tasks)})")


def _threads(tasks: list[str]) -> str:
    import threading

    names = {str(thread.native_id): thread.name for thread in threading.enumerate()}
    found = []
    for task in tasks:
        if task != str(os.getpid()):
            try:
                with open(f"/proc/self/task/{task}/comm") as file:
                    found.append(names.get(task) or file.read().strip())
            except OSError:
                continue
    return ", ".join(found) or "they have just ended"


def _memory() -> int:
    """The proportional set size in KiB; 0 if the kernel does not say."""
    try:
        with open("/proc/self/smaps_rollup") as file:
            return next((int(line.split()[1]) for line in file if line.startswith("Pss:")), 0)
    except OSError:
        return 0


def _fork(channel: Channel, supervisor: int, number: int, local_rank: int) -> bool:
    """Fork twice, so that the supervisor, a subreaper, becomes the parent.

    Returns True in the worker once that is so.
    """
    try:
        pid = os.fork()
    except OSError as error:
        channel.send(("not_arranged", number, local_rank, -1, "fork", error.errno or 0))
        return False
    if pid:
        os.waitpid(pid, 0)
        return False
    between = os.getpid()
    try:
        worker = os.fork()
        if worker == 0:
            _arrive(between, supervisor)
            return True
        channel.send(("forked", number, local_rank, worker))
    except OSError as error:
        channel.send(("not_arranged", number, local_rank, -1, "fork", error.errno or 0))
    except Gone:  # the worker finds out by itself
        pass
    os._exit(0)


def _arrive(between: int, supervisor: int) -> None:
    """Wait for the process in between to end, and make sure that this one ends with the supervisor."""
    while os.getppid() == between:
        time.sleep(0.0002)
    if not prctl.die_with_parent(supervisor):
        os._exit(_ENDED)
    os.setsid()


def _replace_files(output: int) -> None:
    if output >= 0:
        os.dup2(output, 1)
        os.close(output)
    else:
        try:
            os.close(1)
        except OSError:
            pass


def _be_like_new(command: tuple[str, ...], program: int, environment: dict[str, str]) -> None:
    """Set what every interpreter has to itself: arguments, environment, streams, randomness."""
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[1:] = command[program:]
    sys.orig_argv[:] = command
    _streams()
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        numpy.seed()
    processes = sys.modules.get("multiprocessing.process")
    if processes is not None:
        own = processes.current_process()._config
        own["authkey"] = processes.AuthenticationString(os.urandom(32))
    arrange()


def _streams() -> None:
    for fd, name in ((0, "stdin"), (1, "stdout"), (2, "stderr")):
        try:
            terminal = os.isatty(fd)
            os.fstat(fd)
        except OSError:
            stream = None
        else:
            stream = getattr(sys, f"__{name}__")
            if stream is None:
                stream = open(fd, "r" if fd == 0 else "w", closefd=False)  # noqa: SIM115
            elif fd == 1:
                stream.reconfigure(line_buffering=terminal and not stream.write_through)
            else:
                continue
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)
