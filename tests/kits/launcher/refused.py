"""Launches whose system refuses calls: one process that has imported everything is forked for each, which is cheap.

``python refused.py CASES``: a JSON list of [numbers of system calls, errno]; prints a JSON list of [exit code, output].
Linux on x86-64.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import struct
import sys
import tempfile
import time
from collections.abc import Sequence

_LIMIT_S = 60.0
_ARGUMENTS = ["--no-python", "echo", "hello"]


def refuse(numbers: Sequence[int], error: int) -> None:
    """Have the kernel answer these calls with this error from now on, in all that this process starts, too."""
    found = [(0x15, len(numbers) - at, 0, number) for at, number in enumerate(numbers)]
    code = [(0x20, 0, 0, 0), *found, (0x06, 0, 0, 0x7FFF0000), (0x06, 0, 0, 0x00050000 | error)]
    text = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *each) for each in code))

    class Program(ctypes.Structure):
        _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.c_void_p)]

    program, libc = Program(len(code), ctypes.cast(text, ctypes.c_void_p)), ctypes.CDLL(None)
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    assert libc.prctl(22, 2, ctypes.byref(program), 0, 0) == 0


def launched(numbers: Sequence[int], error: int) -> tuple[int, str]:
    """The exit code of a launch to which these calls are refused, and all that it printed."""
    with tempfile.TemporaryFile() as output:
        pid = os.fork()
        if pid == 0:
            os.setpgid(0, 0)
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            sys.argv = ["rdzv-run", *_ARGUMENTS]
            refuse(numbers, error)
            from rdzv_launcher.run.cli import main

            sys.exit(main())
        deadline = time.monotonic() + _LIMIT_S
        while (ended := os.waitpid(pid, os.WNOHANG))[0] == 0 and time.monotonic() < deadline:
            time.sleep(0.005)
        code = os.waitstatus_to_exitcode(ended[1]) if ended[0] else -int(signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        if not ended[0]:
            os.waitpid(pid, 0)
        output.seek(0)
        return code, output.read().decode(errors="replace")


def _import_everything() -> None:
    import rdzv_plugins.backends.static.handler
    import rdzv_plugins.kvstore.native.server  # noqa: F401


if __name__ == "__main__":
    _import_everything()
    found = [launched(numbers, error) for numbers, error in json.loads(sys.argv[1])]
    print(json.dumps(found))
