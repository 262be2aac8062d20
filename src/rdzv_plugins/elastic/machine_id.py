"""Telling machines apart without names: two agents on one machine are rarely meant to be two nodes."""

from __future__ import annotations

import socket
from pathlib import Path

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


def machine_id() -> str:
    """The same for all processes of one machine (one container with a host name of its own), and for no two."""
    try:
        boot = _BOOT_ID.read_text().strip()
    except OSError:  # not Linux
        boot = ""
    return f"{boot} {socket.gethostname()}"
