"""What the soak does to the links of hosts."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
from kits.hosts.hosts import Host, Lan

DELAY_S = 0.1
CONNECT = "import socket, sys, time; t = time.monotonic(); socket.socket().connect_ex((sys.argv[1], 1))"


def round_trip(host: Host, other: Host) -> float:
    """Seconds that it takes until the other one has refused a connection."""
    program = f"{CONNECT}; print(time.monotonic() - t)"
    command = ["nsenter", f"--target={host.pid}", "--net", sys.executable, "-c", program, other.address]
    return float(subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout)


@pytest.mark.usefixtures("hosts_can_be_made")
def test_slow_and_hidden_hosts(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    lan = Lan(tmp_path / "etc")
    try:
        one, two, three = lan.add("one", "two", "three")
        lan.slow(one, DELAY_S)
        assert round_trip(one, two) >= 2 * DELAY_S
        assert round_trip(two, one) >= 2 * DELAY_S
        lan.hasten(one)
        assert any(round_trip(one, two) < 2 * DELAY_S for _ in range(100))

        served = subprocess.Popen(
            ["nsenter", f"--target={two.pid}", "--net", sys.executable, "-m", "http.server", "8000"],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        try:
            while not two.listens(8000):
                time.sleep(0.05)
            lan.hide(two, one)
            assert not one.dials(two.address, 8000)
            assert three.dials(two.address, 8000)
            lan.show(two, one)
            assert one.dials(two.address, 8000)
        finally:
            served.kill()
            served.wait(60)
    finally:
        lan.close()
