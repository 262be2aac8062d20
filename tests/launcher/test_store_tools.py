"""``rdzv serve`` and ``rdzv status``: a store of its own, and who waits for what in it."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import pytest
from kits.eventually import eventually
from kits.launcher.harness import (
    BIN,
    WORKERS,
    Agent,
    Cluster,
    free_port,
)
from kits.wire.wire_client import WAIT, Raw, get, keyed, ping, set_, validate
from torch.distributed import TCPStore

LOOPBACK = " (loopback: only this machine can reach it)"


def rdzv(*arguments: object, stdout: Any = subprocess.PIPE) -> subprocess.CompletedProcess[str]:
    """A command that ends by itself."""
    command = [str(BIN / "rdzv"), *map(str, arguments)]
    return subprocess.run(command, stdout=stdout, stderr=subprocess.PIPE, text=True, timeout=150)


def error_of(done: subprocess.CompletedProcess[str], code: int) -> str:
    """The error message, after checking exit code and form."""
    assert done.returncode == code, done.stderr
    assert done.stdout == ""
    message = re.search(r"^rdzv( \w+)?: error: ((.|\n)*)", done.stderr, re.MULTILINE)  # argparse names the sub-command
    assert message, done.stderr
    assert "Traceback" not in done.stderr
    return message[2]


class Served:
    """A running ``rdzv serve``."""

    def __init__(
        self, cluster: Cluster, *options: object, endpoint: str = "127.0.0.1:0", before: Sequence[str] = ()
    ) -> None:
        self.log = cluster.directory / f"serve{len(cluster.agents)}.err"
        command = ["rdzv", "serve", f"--rdzv-endpoint={endpoint}", *options]
        with self.log.open("wb") as stderr:
            self.agent: Agent = cluster.start(command, stderr=stderr, before=before)
        self.pid = self.agent.pid
        line = self.agent.wait_for(r"\Aserving a store at (\S+):(\d+)(.*): pid (\d+), (\d+) thread\(s\)\n\Z")
        self.host, self.port, self.note = line.group(1), int(line.group(2)), line.group(3)
        assert int(line.group(4)) == self.pid
        self.threads = int(line.group(5))

    @property
    def stderr(self) -> str:
        return self.log.read_text()

    def statistics(self) -> dict[str, Any]:
        answer = rdzv("status", f"--rdzv-endpoint=127.0.0.1:{self.port}", "--json")
        assert answer.returncode == 0, answer.stderr
        data: dict[str, Any] = json.loads(answer.stdout)
        return data

    def status(self) -> str:
        answer = rdzv("status", f"--rdzv-endpoint=127.0.0.1:{self.port}")
        assert (answer.returncode, answer.stderr) == (0, "")
        return str(answer.stdout)

    def end(self, number: signal.Signals = signal.SIGTERM) -> str:
        """Its last words, after checking that it ends well."""
        os.kill(self.pid, number)
        assert self.agent.wait() == 0, self.stderr
        assert "Traceback" not in self.stderr
        return self.stderr.splitlines()[-1]


@pytest.fixture
def served(cluster: Cluster) -> Served:
    return Served(cluster)


def by_hand(cluster: Cluster, name: str, *arguments: object, **env: str) -> Agent:
    """A script of the user's, without a launcher."""
    return cluster.start(["python", WORKERS / name, *arguments], **env)


def test_scripts_use_tcpstore_by_hand(cluster: Cluster, served: Served) -> None:
    assert (served.host, served.note) == ("127.0.0.1", LOOPBACK)
    scripts = [by_hand(cluster, "by_hand.py", "127.0.0.1", served.port, rank, 2) for rank in range(2)]
    assert [script.wait() for script in scripts] == [0, 0], scripts[0].text + scripts[1].text
    for rank, script in enumerate(scripts):
        assert script.text == f"rank {rank} (pid {script.pid}): sum 300\n"
    stats = served.statistics()
    assert (stats["requests"]["add"] >= 202, stats["requests"]["barrier"]) == (True, 2)
    served.end()


@pytest.mark.thorough
def test_status_names_the_rank_that_a_hung_init_process_group_waits_for(cluster: Cluster, served: Served) -> None:
    def start(rank: int) -> Agent:
        env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(served.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
        return by_hand(cluster, "joins.py", **env, RANK=str(rank), WORLD_SIZE="3")

    def waited() -> list[dict[str, Any]]:
        """Keys that both wait for."""
        [keyspace] = served.statistics()["keyspaces"]
        return [each for each in keyspace["waited"] if each["waiters"] == 2]

    ranks = [start(0), start(1)]
    [one] = eventually(waited, lambda: served.status() + ranks[0].text + ranks[1].text)
    assert one["key"].endswith("/2"), "the third rank has not come"
    assert {client["pid"] for client in one["clients"]} == {agent.pid for agent in ranks}
    [again] = waited()
    assert again["oldest_s"] > one["oldest_s"] >= 0, "since when"

    lines = [line.strip() for line in served.status().splitlines()]
    [line] = [line for line in lines if line.startswith("for ")]
    client = r"127\.0\.0\.1:\d+ \(pid (\d+)\)"
    told = re.fullmatch(rf"for {re.escape(one['key'])}: 2 client\(s\) since [\d.]+ s: {client}, {client}", line)
    assert told, line
    assert {int(told[1]), int(told[2])} == {agent.pid for agent in ranks}

    ranks.append(start(2))
    assert [agent.wait() for agent in ranks] == [0, 0, 0]
    assert {agent.text for agent in ranks} == {"ranks: 3\n"}


def test_ends_on_a_signal_although_clients_are_there(cluster: Cluster) -> None:
    served = Served(cluster, "--threads=2", endpoint=f"127.0.0.1:{free_port()}")  # which nobody else takes meanwhile
    with Raw(served.port) as idle, Raw(served.port) as waiting, Raw(served.port, validated=False) as silent:
        waiting.send(keyed(WAIT, [b"/never"]))
        served.end(signal.SIGINT)
        assert idle.until_close() == waiting.until_close() == silent.until_close() == b""
    again = Served(cluster, endpoint=f"127.0.0.1:{served.port}")
    assert again.port == served.port, "free at once"


REFUSED: list[tuple[str, list[str], int, str]] = [
    ("serve", ["--rdzv-endpoint=127.0.0.1"], 2, "127.0.0.1"),
    ("serve", ["--rdzv-endpoint=192.0.2.1:0"], 68, "192.0.2.1"),
    ("serve", ["--rdzv-endpoint=no-such-host.invalid:0"], 68, "no-such-host.invalid"),
    ("serve", ["--rdzv-endpoint=127.0.0.1:0", "--rdzv-conf=conections=2"], 2, "'connections'"),
    ("serve", ["--rdzv-endpoint=127.0.0.1:0", "--rdzv-conf=connections=99999999999"], 2, "connections"),
    ("serve", ["--rdzv-endpoint=127.0.0.1:0", "--threads=65"], 2, "--threads"),
    ("status", ["--rdzv-endpoint=no-such-host.invalid:1"], 68, "no-such-host.invalid:1"),
    ("status", ["--rdzv-endpoint=127.0.0.1"], 2, "127.0.0.1"),
    ("status", ["--rdzv-endpoint=127.0.0.1:1", "--timeout=0"], 2, "--timeout"),
]


@pytest.mark.thorough
def test_what_cannot_be_is_refused_by_name(served: Served) -> None:
    for command, options, code, named in REFUSED:
        assert named in error_of(rdzv(command, *options), code)
    taken = error_of(rdzv("serve", f"--rdzv-endpoint=127.0.0.1:{served.port}"), 68)
    assert all(each in taken for each in (f"port {served.port} ", f"pid {served.pid} (")), taken


@pytest.mark.thorough
def test_who_goes_beyond_a_limit_is_closed_and_told_of(cluster: Cluster) -> None:
    served = Served(cluster, "--rdzv-conf=connections=3,value_bytes=10,key_bytes=20,handshake_seconds=3")

    def offends(*requests: bytes, validated: bool = True) -> None:
        with Raw(served.port, validated=validated) as client:
            client.send(b"".join(requests))
            assert client.until_close() == b""

    with Raw(served.port) as bystander:
        bystander.send(set_(b"/0123456789012345678", b"0123456789"))
        offends(set_(b"/key", b"01234567890"))
        offends(get(b"/01234567890123456789"))
        offends(validated=False)
        with Raw(served.port), Raw(served.port):
            offends(validated=False)
        assert bystander.ask(get(b"/0123456789012345678"), 18).endswith(b"0123456789")
    line = next(line for line in served.status().splitlines() if line.startswith("refused: "))
    assert line == ("refused: no handshake 1, key too long 1, value too long 1, too many connections 1"), (
        "in the order of the server's list"
    )
    eventually(lambda: "key too long" in served.stderr, lambda: served.stderr)
    served.end()


@pytest.mark.thorough
def test_status_of_a_store_in_use(served: Served) -> None:
    with Raw(served.port, validated=False) as first, Raw(served.port) as second, Raw(served.port) as busy:
        busy.send(set_(b"/here", b"value"))
        assert busy.fence() == b""
        first.send(validate() + ping(4321) + keyed(WAIT, [b"/missing", b"/here"]))
        assert first.receive(4) == (4321).to_bytes(4, sys.byteorder)
        second.send(keyed(WAIT, [b"/missing"]))
        text = eventually(
            lambda: re.search(r"    for /missing: 2 client\(s\) since [\d.]+ s: (.*)\n", served.status()),
            served.status,
        )
        host, port = first.socket.getsockname()
        assert f"{host}:{port} (pid 4321)" in text.group(1)

        stats = served.statistics()
        [keyspace] = stats["keyspaces"]
        assert (keyspace["name"], keyspace["port"], keyspace["keys"]) == ("default", served.port, 1)
        assert (keyspace["waited_keys"], [each["key"] for each in keyspace["waited"]]) == (1, ["/missing"])
        assert stats["server"]["pid"] == served.pid
        assert (stats["requests"]["set"], stats["requests"]["wait"]) == (1, 2)
        eventually(lambda: served.statistics()["connections"]["open"] == 4, served.status)  # who asks is one

        assert f"keyspace 'default', port {served.port}: 1 keys, 0 queues, 10 B" in served.status().splitlines()
        busy.send(set_(b"/missing", b""))
        assert (first.receive(1), second.receive(1)) == (b"\0", b"\0")


@contextmanager
def answers(data: bytes) -> Iterator[int]:
    """The port of a program that is not a store, and answers one client."""

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(100)
            connection.sendall(data)

    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        job = pool.submit(serve)
        try:
            yield listener.getsockname()[1]
            job.result(60)
        finally:
            listener.shutdown(socket.SHUT_RDWR)


def check_not_a_store(port: int, timeout: int = 60) -> None:
    message = error_of(rdzv("status", f"--rdzv-endpoint=127.0.0.1:{port}", f"--timeout={timeout}"), 68)
    assert f"127.0.0.1:{port}" in message
    assert "TCPStore" in message, "the most likely mistake"


@pytest.mark.thorough
def test_status_of_a_program_that_is_no_store() -> None:
    reply = struct.pack("<IIB", 5 + 2, 1, 0) + b"{}"
    of_another_version = b"RDZV" + struct.pack("<I", 2) + reply
    for said in (b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", of_another_version):
        with answers(said) as port:
            check_not_a_store(port)


@pytest.mark.thorough
def test_status_of_torchs_own_store() -> None:
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    check_not_a_store(server.port)
    server.set("still", "works")
    assert server.get("still") == b"works"


@pytest.mark.thorough
def test_goes_on_when_nobody_reads_its_line(cluster: Cluster) -> None:
    port = free_port()
    closed_pipe = ["/bin/bash", "-c", 'exec 3> >(exec true); wait $!; exec "$0" "$@" >&3']
    agent = cluster.start(["rdzv", "serve", f"--rdzv-endpoint=127.0.0.1:{port}"], before=closed_pipe)
    eventually(lambda: rdzv("status", f"--rdzv-endpoint=127.0.0.1:{port}").returncode == 0, lambda: agent.text)
    os.kill(agent.pid, signal.SIGTERM)
    assert agent.wait() == 0
