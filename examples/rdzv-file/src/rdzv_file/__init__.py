"""``file``: the state of a run lies in a directory that all nodes share. Endpoint: that directory."""

from __future__ import annotations

import fcntl
import os
import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Literal
from urllib.parse import quote

from rdzv_plugins import Backend, Capability, Request, hookimpl, option
from rdzv_plugins.errors import AccessRefused, EndpointUnreachable, RendezvousFailed, UsageError
from rdzv_plugins.kit import DynamicSettings

_THREADS = threading.Lock()


@dataclass(frozen=True)
class FileOptions(DynamicSettings):
    """Our keys of --rdzv-conf, beside those of torch's rendezvous."""

    fsync: bool = option(True, help="Wait until what was written is on the disk.")
    mode: Literal["600", "660"] = option("600", help="Permissions of the files; 660 lets the group take part.")
    lock_timeout: float = option(60, help="How long to wait for another node's lock.", unit="s", minimum=0.1)


class FileBackend:
    """``rdzv_plugins.RendezvousBackend`` by its methods; the token of a state is its number. Thread-safe."""

    name = "file"

    def __init__(self, directory: str, run_id: str, options: FileOptions) -> None:
        self._files = RunFiles(os.path.join(directory, quote(run_id, safe="") + ".rdzv"), options)

    def get_state(self) -> tuple[bytes, int] | None:
        with self._files.locked() as file:
            number = int(file.read() or 0)
            return (self._files.state(number), number) if number else None

    def set_state(self, state: bytes, token: int | None = None) -> tuple[bytes, int, bool] | None:
        with self._files.locked() as file:
            number = int(file.read() or 0)
            if number != (token or 0):
                return (self._files.state(number), number, False) if number else None
            number += 1
            with self._files.opened(f".{number % 2}", os.O_CREAT) as other:
                self._files.write(other, state)
            self._files.write(file, b"%d" % number)  # from here on it holds
            return state, number, True


class RunFiles:
    """``ID.rdzv`` is locked while anybody reads or writes, and has the number of the state that holds.

    States lie in ``ID.rdzv.0`` and ``ID.rdzv.1`` by turns: who dies while it writes leaves the one that holds.
    """

    def __init__(self, path: str, options: FileOptions) -> None:
        self._path = path
        self._options = options

    def state(self, number: int) -> bytes:
        with self.opened(f".{number % 2}") as file:
            return file.read()

    def write(self, file: IO[bytes], data: bytes) -> None:
        file.seek(0)
        file.write(data)
        file.truncate()  # only now: the number is never gone, not even for a moment
        file.flush()
        if self._options.fsync:
            os.fsync(file.fileno())

    @contextmanager
    def opened(self, ending: str, flags: int = 0) -> Iterator[IO[bytes]]:
        mode = int(self._options.mode, 8)
        how = os.O_RDWR | os.O_NOFOLLOW | flags
        with open(self._path + ending, "r+b", opener=lambda path, _: os.open(path, how, mode)) as file:
            owner = os.fstat(file.fileno()).st_uid
            if owner == os.geteuid():
                os.fchmod(file.fileno(), mode)  # whatever the umask is
            elif self._options.mode == "600":  # every node unpickles the state: it could run anybody's program
                raise AccessRefused(
                    f"{self._path}{ending} belongs to user {owner}",
                    remedy="Give another --rdzv-id or a directory of your own; for several users --rdzv-conf=mode=660",
                )
            yield file

    @contextmanager
    def locked(self) -> Iterator[IO[bytes]]:
        """Nobody else on any node is here. Yields the file with the number; closing it unlocks it."""
        try:
            # lockf is what NFS has too. It keeps processes apart, but not the threads of one
            with _THREADS, self.opened("", os.O_CREAT) as file:
                self._lock(file)
                yield file
        except PermissionError as error:
            raise AccessRefused(
                f"backend 'file' may not use {error.filename or self._path}",
                remedy="Give every node a user that may write there.",
            ) from error
        except ValueError as error:
            raise RendezvousFailed(
                f"backend 'file' cannot read {self._path}, which is not its own: {error}",
                remedy="Give another --rdzv-id, or remove what another program has written there.",
            ) from error
        except OSError as error:
            raise EndpointUnreachable(
                f"backend 'file' cannot use {self._path}: {error}",
                remedy="Every node has to see the directory, with room in it and with locks (man 2 fcntl).",
            ) from error

    def _lock(self, file: IO[bytes]) -> None:
        deadline = time.monotonic() + self._options.lock_timeout
        while True:
            try:
                fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise EndpointUnreachable(
                        f"{self._path} was locked for {self._options.lock_timeout:g} s",
                        remedy="A process that holds it may be stopped (on its node: lslocks), or the file server.",
                    ) from None
            time.sleep(random.uniform(0.001, 0.01))  # lockf knows no time-out


def validate(request: Request) -> None:
    """Called before anything starts."""
    if not os.path.isdir(request.endpoint):
        raise UsageError(
            f"backend 'file' needs a directory, not {request.endpoint!r}",
            remedy="Give --rdzv-endpoint=DIRECTORY: one that exists and that all nodes see.",
        )


def create(request: Request) -> FileBackend:
    """Called once on every node."""
    return FileBackend(request.endpoint, request.run_id, request.options)


@hookimpl
def rdzv_register_backends() -> Backend:
    """The hook through which rdzv-run finds the backend."""
    return Backend(
        name="file",
        summary="a directory that all nodes share",
        create=create,
        capabilities=frozenset({Capability.ELASTIC}),
        options=FileOptions,
        validate=validate,
    )
