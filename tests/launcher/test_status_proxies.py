"""``rdzv status`` of a store with proxies, and of a proxy: what real ones say of themselves."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from kits.eventually import eventually
from kits.launcher.harness import BIN, Cluster
from kits.wire.wire_client import WAIT, Raw, get, keyed, set_

from rdzv_launcher.tools.status.command import as_text
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.kvstore.native.framing import ask_statistics
from rdzv_plugins.kvstore.native.proxy import StoreProxy
from rdzv_plugins.kvstore.native.server import StoreServer

PATIENCE_S = 60
OFTEN_S = 12
"""A grace with which proxies report every four seconds, and bear six of silence."""
FOR_EVER_S = 60
PROXY = """
import sys
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.kvstore.native.proxy import StoreProxy
with StoreProxy(Endpoint("127.0.0.1", int(sys.argv[1])), name="node 1 on b", grace=float(sys.argv[2])):
    print("attached", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def server() -> Iterator[StoreServer]:
    with StoreServer("127.0.0.1", threads=1, name="workers-1") as server:
        yield server


def told(port: int) -> str:
    endpoint = Endpoint("127.0.0.1", port)
    return as_text(endpoint, ask_statistics(endpoint, PATIENCE_S))


def told_soon(port: int, *parts: str) -> str:
    """What is said when all these are among it."""

    def all_there() -> str:
        text = told(port)
        return text if all(part in text for part in parts) else ""

    return str(eventually(all_there, lambda: f"{parts} in\n{told(port)}"))


@pytest.mark.thorough
def test_two_tiers_with_who_waits_and_what_was_saved(server: StoreServer) -> None:
    with ExitStack() as stack:

        def proxy(root: int, name: str, *, leaf: bool = True) -> tuple[StoreProxy, int]:
            made = StoreProxy(Endpoint("127.0.0.1", root), name=name, leaf=leaf, grace=OFTEN_S)
            stack.enter_context(made)
            return made, made.listen()

        def worker(port: int) -> Raw:
            return stack.enter_context(Raw(port))

        _, middle = proxy(server.port, "node 0 on a", leaf=False)
        _, alone = proxy(server.port, "node 1 on b")
        below, under = proxy(middle, "node 2 on c")
        workers = [worker(port) for port in (middle, alone, alone, under, under)]
        workers[0].ask(set_(b"/known", b"value") + get(b"/known"), 8 + 5)
        for one in workers:
            for _ in range(10):
                assert one.ask(get(b"/known"), 8 + 5).endswith(b"value")
        for one in workers[2:]:
            one.send(keyed(WAIT, [b"/never"]))

        text = told_soon(server.port, "proxies here", "waits for /never: 2 client(s)", "waits for /never: 1 client(s)")
        lines = [line.strip() for line in text.splitlines()]
        order = [line.partition(" at ")[0].partition(":")[0] for line in lines if line.startswith("node ")]
        assert order == ["node 0 on a", "node 2 on c", "node 1 on b"], "children below their parent"
        assert [line for line in lines if line.startswith("2 proxies here, 1 below them: 5 clients, ")]
        assert " 19 from its cache" in "".join(line for line in lines if line.startswith("node 1 on b"))
        (waited,) = (line for line in lines if line.startswith("for /never: "))
        assert set(waited.rpartition(" s: ")[2].split(", ")) == {"the proxy of node 0 on a", "the proxy of node 1 on b"}

        own = told(under)
        stats = below.stats()["proxy"]
        assert f"127.0.0.1:{middle}" in own
        assert f"\nsent up: forward {stats['upstream']['forward']}, follow 1\n" in own
        assert f"\nsaved: waits 1, hits {stats['saved']['hits']}\n" in own
        (waited,) = (line for line in own.splitlines() if line.startswith("    for /never: "))
        assert waited.count("127.0.0.1:") == 2, "its own workers"


@pytest.mark.thorough
def test_a_node_that_is_gone_is_shown_with_its_last_report(server: StoreServer) -> None:
    command = [sys.executable, "-c", PROXY, str(server.port), str(FOR_EVER_S)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as node:
        try:
            assert node.stdout is not None
            assert node.stdout.readline() == "attached\n"
            told_soon(server.port, "node 1 on b at ", "from its cache")  # it has reported
        finally:
            node.send_signal(signal.SIGKILL)
    told_soon(server.port, "from its cache; CUT OFF")


def test_the_endpoint_of_a_job_leads_to_its_store_and_its_proxies(cluster: Cluster) -> None:
    stop = cluster.directory / "stop"
    agent = cluster.run("holds_on.py", "wait", stop, 0, backend="tiered", nproc=2)
    agent.wait_for(r'"RANK": 1')
    command = [str(BIN / "rdzv"), "status", f"--rdzv-endpoint={cluster.endpoint}"]
    text = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    host = socket.gethostname()
    assert f"  nodes: 0 on {host} (2 workers)\n" in text
    assert f"\n        node 0 on {host} (pid {agent.pid}) at 127.0.0.1:" in text
    data = json.loads(subprocess.run([*command, "--json"], capture_output=True, timeout=120, check=True).stdout)
    (run,) = data["runs"]
    (node,) = run["round"]["nodes"]
    assert (node["rank"], node["pid"], node["workers"], node["there"]) == (0, agent.pid, 2, True)
    (keyspace,) = run["round"]["store"]["statistics"]["keyspaces"]
    (trunk,) = keyspace["trunks"]
    assert (keyspace["name"], trunk["attached"]) == ("workers-1", True)
    assert keyspace["connections"] == 2, "one for the node, and the one that asks"
    stop.write_text("now")
    assert agent.wait() == 0, agent.text
