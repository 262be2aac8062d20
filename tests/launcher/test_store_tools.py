"""``rdzv serve`` and ``rdzv status``: a store of its own, and who waits for what in it.

Limits, slow and hostile clients are in tests/wire, the text of the status in tests/unit.
"""

from __future__ import annotations

import json
import os
import re
import signal
import struct
import sys
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
from kits.eventually import eventually
from kits.launcher.harness import AgentProcess, Cluster, Said, free_port, server
from kits.wire.wire_client import WAIT, Raw, keyed, ping, set_, validate
from torch.distributed import TCPStore

Rdzv = Callable[..., Said]


class Served:
    """A running ``rdzv serve``."""

    def __init__(self, cluster: Cluster, *options: object, endpoint: str = "127.0.0.1:0") -> None:
        self.log = cluster.directory / f"serve{len(cluster.agents)}.err"
        with self.log.open("wb") as stderr:
            self.agent: AgentProcess = cluster.start(
                ["rdzv", "serve", f"--rdzv-endpoint={endpoint}", *options], stderr=stderr
            )
        self.pid = self.agent.pid
        line = self.agent.wait_for(r"\Aserving a store at (\S+):(\d+)(.*): pid (\d+), (\d+) threads?\n\Z")
        assert (line[1], int(line[4])) == ("127.0.0.1", self.pid)
        self.port, self.note = int(line[2]), line[3]

    def status(self, rdzv: Rdzv, *flags: str) -> str:
        said = rdzv("status", f"--rdzv-endpoint=127.0.0.1:{self.port}", *flags)
        assert (said.code, said.err) == (0, "")
        return said.out

    def statistics(self, rdzv: Rdzv) -> dict[str, Any]:
        data: dict[str, Any] = json.loads(self.status(rdzv, "--json"))
        return data

    def end(self, number: signal.Signals = signal.SIGTERM) -> None:
        """It ends well."""
        os.kill(self.pid, number)
        assert self.agent.wait() == 0, self.log.read_text()
        assert "Traceback" not in self.log.read_text()


@pytest.mark.thorough
def test_status_names_the_rank_that_a_hung_init_process_group_waits_for(cluster: Cluster, rdzv: Rdzv) -> None:
    served = Served(cluster)

    def start(rank: int) -> AgentProcess:
        env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(served.port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
        return cluster.start(["python", cluster.script("joins.py")], **env, RANK=str(rank), WORLD_SIZE="3")

    def waited() -> list[dict[str, Any]]:
        """Keys that both wait for."""
        [keyspace] = served.statistics(rdzv)["keyspaces"]
        return [each for each in keyspace["waited"] if each["waiters"] == 2]

    assert "only this machine" in served.note
    ranks = [start(0), start(1)]
    [one] = eventually(waited, lambda: served.status(rdzv) + ranks[0].text + ranks[1].text)
    assert one["key"].endswith("/2"), "the third rank has not come"
    [again] = waited()
    assert again["oldest_s"] > one["oldest_s"] >= 0, "since when"
    client = r"127\.0\.0\.1:\d+ \(pid (\d+)\)"
    line = rf"for {re.escape(one['key'])}: 2 clients for [\d.]+ s: {client}, {client}"
    told = re.search(line, served.status(rdzv))
    assert told
    assert {int(told[1]), int(told[2])} == {agent.pid for agent in ranks}
    ranks.append(start(2))
    assert [agent.wait() for agent in ranks] == [0, 0, 0]
    assert {agent.text for agent in ranks} == {"ranks: 3\n"}


def test_serves_and_ends_on_a_signal_although_clients_are_there(cluster: Cluster, rdzv: Rdzv) -> None:
    served = Served(cluster, "--threads=2", endpoint=f"127.0.0.1:{free_port()}")  # which nobody else takes meanwhile
    with Raw(served.port, validated=False) as first, Raw(served.port) as second:
        first.send(validate() + ping(4321) + set_(b"/here", b"value") + keyed(WAIT, [b"/never", b"/here"]))
        assert first.receive(4) == (4321).to_bytes(4, sys.byteorder)
        second.send(keyed(WAIT, [b"/never"]))
        waits = re.compile(r"    for /never: 2 clients for [\d.]+ s: (.*)\n")
        text = eventually(lambda: waits.search(served.status(rdzv)), lambda: served.status(rdzv))
        host, port = first.socket.getsockname()
        assert f"{host}:{port} (pid 4321)" in text[1]
        stats = served.statistics(rdzv)
        [keyspace] = stats["keyspaces"]
        assert (keyspace["name"], keyspace["port"], keyspace["keys"]) == ("default", served.port, 1)
        assert (stats["server"]["pid"], stats["server"]["threads"]) == (served.pid, 2)
        assert (stats["requests"]["set"], stats["requests"]["wait"]) == (1, 2)

        taken = rdzv("serve", f"--rdzv-endpoint=127.0.0.1:{served.port}")
        assert taken.code == 68
        assert all(each in taken.err for each in (f"port {served.port} ", f"pid {served.pid} (")), taken
        served.end(signal.SIGINT)
        assert first.until_close() == second.until_close() == b""
    again = Served(cluster, endpoint=f"127.0.0.1:{served.port}")
    assert again.port == served.port, "free at once"
    again.end()


@pytest.mark.parametrize(
    ("command", "options", "code", "named"),
    [
        ("serve", ["--rdzv-endpoint=127.0.0.1"], 2, "127.0.0.1"),
        ("serve", ["--rdzv-endpoint=192.0.2.1:0"], 68, "192.0.2.1"),
        ("serve", ["--rdzv-endpoint=no..name:0"], 68, "no..name"),
        ("serve", ["--rdzv-endpoint=127.0.0.1:0", "--rdzv-conf=conections=2"], 2, "'connections'"),
        ("serve", ["--rdzv-endpoint=127.0.0.1:0", "--threads=65"], 2, "--threads"),
        ("status", ["--rdzv-endpoint=no..name:1"], 68, "no..name:1"),
        ("status", ["--rdzv-endpoint=127.0.0.1:1", "--timeout=0"], 2, "--timeout"),
    ],
)
def test_what_cannot_be_is_refused_by_name(command: str, options: list[str], code: int, named: str, rdzv: Rdzv) -> None:
    said = rdzv(command, *options)
    assert (said.code, said.out) == (code, "")
    assert named in said.err.partition("error: ")[2]


def test_status_of_a_program_that_is_no_store(rdzv: Rdzv) -> None:
    of_another_version = b"RDZV" + struct.pack("<IIIB", 2, 5 + 2, 1, 0) + b"{}"
    torchs = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    for answer in (b"HTTP/1.1 400 Bad Request\r\n\r\n", b"", of_another_version, None):
        port = torchs.port if answer is None else free_port()
        with nullcontext() if answer is None else server(port, answer):
            said = rdzv("status", f"--rdzv-endpoint=127.0.0.1:{port}", "--timeout=60")
        assert said.code == 68
        assert f"127.0.0.1:{port}" in said.err
        assert "TCPStore" in said.err, "the most likely mistake"
    torchs.set("still", "works")
    assert torchs.get("still") == b"works"


@pytest.mark.thorough
def test_goes_on_when_nobody_reads_its_line(cluster: Cluster, rdzv: Rdzv) -> None:
    port = free_port()
    closed_pipe = ["/bin/bash", "-c", 'exec 3> >(exec true); wait $!; exec "$0" "$@" >&3']
    agent = cluster.start(["rdzv", "serve", f"--rdzv-endpoint=127.0.0.1:{port}"], before=closed_pipe)
    endpoint = f"--rdzv-endpoint=127.0.0.1:{port}"
    eventually(lambda: rdzv("status", endpoint).code == 0, lambda: agent.text)
    os.kill(agent.pid, signal.SIGTERM)
    assert agent.wait() == 0
