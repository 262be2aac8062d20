"""Simulated proxies say what a node's proxy says, and notice every answer of their root that is not right."""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

import pytest
from kits.bench.bench_kit import bench, find
from kits.wire.trunk_peer import ERROR, FORWARD, HELLO, OK, RECALL, frame

from rdzv_launcher.bench import _load
from rdzv_launcher.bench.method.turns import DidNotFinish
from rdzv_launcher.bench.processes.load import proxies
from rdzv_launcher.bench.tiered.cases import Way
from rdzv_launcher.bench.tiered.tree import TreeCase, measure_tree
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import RdzvError
from rdzv_plugins.kvstore.native.proxy import StoreProxy
from rdzv_plugins.kvstore.native.server import StoreServer

pytestmark = pytest.mark.thorough

PROXIES, EACH, ROUNDS, PARENTS = 24, 3, 4, 2
WORLD = PROXIES * EACH
LIMIT_S = 60.0
Says = Callable[[int, int, int], bytes]
"""What a root answers: to which proxy, to its request of which number, and of which kind."""


def through_all(simulated: _load.Proxies, window: int = 5) -> None:
    attached = simulated.attach(window=window, sources=["127.0.0.1", "127.0.0.2"], limit_s=LIMIT_S)
    assert (attached.requests, attached.timed) == (PROXIES, PROXIES)
    added = simulated.add("add", limit_s=LIMIT_S)
    assert (added.requests, added.timed) == (PROXIES, PROXIES)
    arrived = simulated.barrier("barrier", rounds=ROUNDS, limit_s=LIMIT_S)
    assert (arrived.requests, arrived.timed) == (PROXIES * ROUNDS, 0)


def test_every_phase_gets_through_and_is_counted_by_the_root() -> None:
    with StoreServer("127.0.0.1") as root, proxies("it", [f"127.0.0.1:{root.port}"], PROXIES, EACH) as simulated:
        through_all(simulated)
        asked = root.stats()["requests"]
        assert (asked["attach"], asked["arrive"]) == (PROXIES, PROXIES * ROUNDS)
        assert asked["forward"] == PROXIES + ROUNDS, "each has added, and one has read the counters"
        with pytest.raises(_load.LoadError, match="attach: proxy 0: it is attached already"):
            simulated.attach(window=1, sources=[], limit_s=LIMIT_S)


def test_through_a_second_tier_only_that_one_asks_the_root() -> None:
    with ExitStack() as opened:
        root = opened.enter_context(StoreServer("127.0.0.1"))
        parents = [StoreProxy(Endpoint("127.0.0.1", root.port), leaf=False, timeout=60) for _ in range(PARENTS)]
        for parent in parents:
            opened.callback(parent.close)
        roots = [f"127.0.0.1:{parent.listen()}" for parent in parents]
        through_all(opened.enter_context(proxies("it", roots, PROXIES, EACH)))
        assert [parent.stats()["requests"]["attach"] for parent in parents] == [PROXIES // PARENTS] * PARENTS
        asked = root.stats()["requests"]
        assert asked["attach"] == PARENTS
        assert PARENTS * ROUNDS <= asked["arrive"] < PROXIES * ROUNDS


@contextmanager
def root_that_says(says: Says, count: int = 2, attached: bytes = struct.pack("<QQ", 0, 0)) -> Iterator[str]:
    """A root that takes ``count`` trunks, and answers as the test says; its address."""

    def serve(number: int, connection: socket.socket) -> None:
        with connection:
            try:
                assert connection.recv(1 + len(HELLO), socket.MSG_WAITALL) == b"\xf7" + HELLO
                connection.sendall(HELLO)
                answer: Says = lambda *_: frame(0, OK, attached)  # noqa: E731
                while head := connection.recv(9, socket.MSG_WAITALL):
                    size, request, operation = struct.unpack("<IIB", head)
                    connection.recv(size - 5, socket.MSG_WAITALL)
                    connection.sendall(answer(number, request, operation))
                    answer = says
            except ConnectionError:
                pass

    def accept() -> None:
        for number in range(count):
            try:
                connection, _ = listener.accept()
            except OSError:  # the test is over
                return
            threading.Thread(target=serve, args=(number, connection), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as listener:
        accepting = threading.Thread(target=accept)
        accepting.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        accepting.join()


def adds_or_lets_in(number: int, request: int, operation: int) -> bytes:
    return frame(request, OK, struct.pack("<bq", 0, 3) if operation == FORWARD else b"")


def adds(value: int) -> Says:
    return lambda _number, request, _operation: frame(request, OK, struct.pack("<bq", 0, value))


LIES: dict[str, tuple[str, Says, str]] = {
    "a sum of nobody": ("add", adds(4), "proxy .: reply to add: 4, which is no multiple of 3 within 6"),
    "a sum beyond all": ("add", adds(9), "proxy .: reply to add: 9, which is no multiple of 3 within 6"),
    "the same sum twice": ("add", adds(3), "proxy .: reply to add: 3, which another proxy has got already"),
    "a sum that may be held": (
        "add",
        lambda _number, request, _operation: frame(request, OK, struct.pack("<bq", 1, 3)),
        "proxy .: reply to add: a number was expected, which may not be held",
    ),
    "a refusal": (
        "add",
        lambda _number, request, _operation: frame(request, ERROR, b"it is full"),
        "proxy .: reply to add: refused: it is full",
    ),
    "an answer to something else": ("add", lambda *_: frame(7, OK), "proxy .: an answer to request 7, which is not"),
    "a recall of nothing": ("add", lambda *_: frame(0, RECALL, b"k"), "proxy .: a frame of status 8, which nobody"),
    "who comes out too early": (
        "barrier",
        lambda number, request, _operation: frame(request, OK) if number == 0 else b"",
        "proxy .: came out of barrier 1, at which only 1 of 2 proxies have arrived",
    ),
    "a counter that lacks some": ("barrier once", adds_or_lets_in, "'key/0' has counted 3 of 6 workers"),
}


@pytest.mark.parametrize(("phase", "says", "why"), LIES.values(), ids=LIES)
def test_wrong_answer_is_named(phase: str, says: Says, why: str) -> None:
    with root_that_says(says) as root, proxies("it", [root], 2, 3) as simulated:
        simulated.attach(window=2, sources=[], limit_s=LIMIT_S)
        phases = {
            "add": lambda: simulated.add("key", limit_s=LIMIT_S),
            "barrier": lambda: simulated.barrier("key", rounds=2, limit_s=LIMIT_S),
            "barrier once": lambda: simulated.barrier("key", rounds=1, limit_s=LIMIT_S),
        }
        with pytest.raises(_load.LoadError, match=f"^{phase.split()[0]}: {why}"):
            phases[phase]()


def test_root_that_knows_the_trunk_already_is_none() -> None:
    with (
        root_that_says(adds_or_lets_in, 1, attached=struct.pack("<QQ", 1, 0)) as root,
        pytest.raises(RdzvError, match=r"^it: attach: proxy 0: reply to attach: not that of a root"),
        proxies("it", [root], 1, 1) as simulated,
    ):
        simulated.attach(window=1, sources=[], limit_s=LIMIT_S)


def test_lost_root_and_a_root_that_is_too_slow() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        pytest.raises(DidNotFinish, match="attach: 2 of 2 proxies had no answer"),
        proxies("it", [f"127.0.0.1:{silent.getsockname()[1]}"], 2, 1) as simulated,
    ):
        simulated.attach(window=2, sources=[], limit_s=0.1)
    with StoreServer("127.0.0.1") as root:
        simulated = _load.Proxies([(f"127.0.0.1:{root.port}", -1)], count=2, workers=1)
        simulated.attach(window=2, sources=[], limit_s=LIMIT_S)
    with pytest.raises(_load.ConnectionLost, match=r"^add: proxy .: (closed by the server|recv: |send: )"):
        simulated.add("key", limit_s=LIMIT_S)


def test_more_ranks_than_a_process_may_have_are_a_result() -> None:
    with pytest.raises(DidNotFinish, match="98304 connections are more than one process may have"):
        measure_tree(TreeCase(12_288, 8, LIMIT_S), Way("direct"), [])


def test_tree_is_measured_by_all_ways() -> None:
    alone = ["--nodes=none", "--many=none", "--workers=none", "--tree=16x4"]
    result = bench("tiered", "--quick", "--json", *alone).result()
    case = "16 simulated proxies x 4 ranks"
    cases = {f"{case}, connect", f"{case}, ADD", f"{case}, one of 5 barriers"}
    assert {point.case for point in result.points} == cases
    for each in cases:
        for target in ("torch", "direct", "tiered", "tiered, fanout=2"):
            assert find(result, each, target, "wall").samples[0] > 0
    barriers = f"{case}, one of 5 barriers"
    assert find(result, barriers, "direct", "root_requests").samples == (5 * 64,)
    assert find(result, barriers, "tiered", "root_requests").samples == (5 * 16 + 5,), "and one reads the counters"
    assert find(result, barriers, "tiered, fanout=2", "root_requests").samples[0] < 5 * 16
    assert find(result, barriers, "torch", "root_requests").unfinished == "torch's server does not count"
    (runs,) = (details["runs"] for details in result.details if details["case"] == barriers)
    assert (runs["tiered"][0]["connections"], runs["tiered, fanout=2"][0]["connections"]) == (16, 2)
