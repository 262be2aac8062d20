"""Unmodified PyTorch programs on our server: a gloo job by env://, and scripts that use dist.TCPStore by hand."""

from __future__ import annotations

import json
import re
import signal

import pytest
from kits.wire import processes
from kits.wire.attack_kit import read_line
from kits.wire.store_servers import running

pytestmark = pytest.mark.thorough


def test_four_gloo_workers():
    with running("threads=4") as server:
        shared = {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(server.port),
            "WORLD_SIZE": "4",
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_RESTART_COUNT": "0",
        }
        ranks = [{"RANK": str(rank)} for rank in range(4)]
        with processes.started("gloo_worker.py", [()] * 4, ranks, **shared) as started:
            pids = [process.pid for process in started]
            reports = [json.loads(processes.last_line(text)) for text in processes.outputs(started)]
        stats = server.ours.stats()
    for rank, report in enumerate(reports):
        assert report["sum"] == [10, 4]
        assert report["half"] == (3 if rank < 2 else 7)
        assert report["ranks"] == [0, 1, 2, 3]
        assert report["pids"] == pids
    assert stats["connections"]["peak"] >= 4, "they did meet here"
    assert stats["requests"]["wait"] > 12
    assert stats["refused"] == {}


def test_scripts_with_a_store_by_hand_on_rdzv_serve():
    command = [processes.BIN / "rdzv", "serve", "--rdzv-endpoint", "127.0.0.1:0", "--threads", 2]
    with processes.spawned([command]) as (server,):
        greeting = read_line(server)
        found = re.search(r"127\.0\.0\.1:(\d+)", greeting)
        assert found, greeting
        arguments = [(found[1], rank, 2) for rank in range(2)]
        with processes.started("store_by_hand.py", arguments) as started:
            reports = [json.loads(processes.last_line(text)) for text in processes.outputs(started)]
        server.send_signal(signal.SIGTERM)
        (end,) = processes.outputs([server])
    assert reports == [{"greeting": "hello", "sum": 3}] * 2
    served = re.search(r"SIGTERM: served (\d+) connection\(s\), (\d+) request\(s\)", end)
    assert served, end
    assert int(served[1]) >= 2
    assert int(served[2]) > 10
