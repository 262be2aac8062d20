"""All kinds of attack at once, with torch's own clients as the bystanders, in a process of their own."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from kits import KITS
from kits.wire.attack_kit import MIB, PROXY, ServerProcess, read_line, repeated, standing, wait_until
from kits.wire.wire_client import GET, MULTI_SET, PATIENCE, SET, WAIT, Raw, get, keyed, op, set_, text, u64, validate

pytestmark = pytest.mark.thorough

CLIENTS, ROUNDS = 8, 40
TORCHS_PATIENCE = 150.0  # to be loaded, and to look up names that nobody knows, beside the attack


@pytest.fixture(scope="module")
def bystanders() -> Iterator[Callable[[int], None]]:
    """Call it with a port: returns when torch's clients have done their rounds there."""
    process = subprocess.Popen(
        [sys.executable, str(KITS / "wire" / "torch_bystander.py")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdin
    assert process.stdout

    def run(port: int) -> None:
        print(port, CLIENTS, ROUNDS, file=process.stdin, flush=True)
        assert read_line(process, TORCHS_PATIENCE) == "done\n", f"torch's clients ended with {process.wait(PATIENCE)}"

    try:
        yield run
        process.stdin.close()
        assert process.wait(PATIENCE) == 0
    finally:
        process.kill()
        process.wait()
        for file in (process.stdin, process.stdout):
            file.close()


@pytest.mark.parametrize("threads", [1, 4, PROXY], ids=["1 thread", "4 threads", "proxy"])
def test_clients_of_torch_notice_nothing(threads: int, bystanders: Callable[[int], None]) -> None:
    source = random.Random(threads)
    half = [bytes([SET]), op(SET, text(b"/half"), u64(8 * MIB), bytes(100_000)), op(MULTI_SET, u64(131072))]
    offences = [op(GET, u64(2**30)), op(SET, text(b"/a"), u64(2**63)), op(MULTI_SET, u64(131073)), b"\xff"]

    def attack() -> None:
        for offence in offences:
            with Raw(server.port) as client:
                client.send(offence)
                assert client.until_close() == b""
        with Raw(server.port) as client:
            client.send(bytes([source.randrange(19)]) + source.randbytes(5000))
        with Raw(server.port, validated=False) as client:
            client.send(b"GET / HTTP/1.1\r\n\r\n")
            assert client.until_close() == b""

    with (
        ServerProcess(threads=threads) as server,
        standing(server.port, set_(b"/v", bytes(4000)) + get(b"/v") * 20_000, count=4),
        standing(server.port, *half, count=10),
        standing(server.port, b"", validate()[:3], validated=False, count=50),
        standing(server.port, keyed(WAIT, [b"/never/%d" % number for number in range(1000)]), count=10),
        repeated(attack) as done,
    ):
        bystanders(server.port)
        rounds = wait_until(done, lambda: "the attack was not completed once")
        refused = server.stats()["refused"]
        assert {"key too long", "value too long", "too many keys", "unknown request"} <= set(refused)
        assert refused["key too long"] >= rounds
        assert server.growth() < 64 * MIB
