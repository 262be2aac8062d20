"""All places where an agent may wait in a store are under an ``Interruption``, or named here with the reason why not.

A new one that is not fails this test. tests/hosts/test_waits.py shows that it works.
"""

from __future__ import annotations

import ast
import inspect
from pathlib import Path

import pytest

import rdzv_plugins
from rdzv_plugins.kvstore.native import proxy
from rdzv_plugins.kvstore.sockets import reach
from rdzv_plugins.kvstore.tcpstore import plain_client

SOURCES = Path(rdzv_plugins.__file__).parents[1]
PARTS = [
    *(f"rdzv_plugins/{room}" for room in ("dynamic", "elastic", "kvstore", "rounds")),
    "launcher/rdzv_launcher/run/agent",
]
OTHERS = {"framing.py", "opening.py", "framed_connection.py", "sessions.py", "torch_store.py", "unix_transport.py"}
"""No waits in a round's store: sessions of the coordination service, torch's control store, workers."""
OPENS = {"PlainClient", "StoreProxy", "reach", "try_connect"}
"""What an ``interruption`` can be given to: it is to be given everywhere."""
BLOCKS = {"dial", "wait_reachable", "create_connection", "TCPStore", "AwaitedKey", "KeyWatch", "connect"}
"""What blocks, or makes something that does, and cannot be interrupted."""
KNOWN = {
    "kvstore/sockets/reach.py: connect",  # within what is interrupted
    "kvstore/sockets/reach.py: try_connect",  # look: before a start, by rdzv-run --check
    "kvstore/sockets/reach.py: reach",  # wait_reachable: first contact with a meeting point, before there is a round
    "elastic/joining.py: reach",  # RoundStore's
    "kvstore/tcpstore/whose.py: dial",  # two seconds at most, at an endpoint that is silent: before there is a round
    "kvstore/tcpstore/hello.py: dial",  # from outside, or on threads of their own, for which nobody waits
    "elastic/trial/node.py: dial",  # coroutines with a limit each, on the thread of a trial: before there is a round
    "elastic/trial/gloo_child.py: TCPStore",  # in a process of its own, with a limit
    # of torch's control store: for a thread of its own, which another one stops
    "kvstore/tcpstore/watch.py: dial",
    "kvstore/tcpstore/watch.py: KeyWatch",
    "dynamic/handler.py: KeyWatch",
    "dynamic/refusals.py: KeyWatch",
    "dynamic/envelope.py: connect",
    "dynamic/envelope.py: wait_reachable",
}


def found() -> tuple[set[str], set[str]]:
    """(calls that are under an interruption, calls that are not)."""
    under, other = set(), set()
    for root in PARTS:
        top = SOURCES / root
        assert top.exists()
        for path in [top] if top.is_file() else top.rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if not isinstance(node, ast.Call) or path.name in OTHERS:
                    continue
                name = getattr(node.func, "id", getattr(node.func, "attr", ""))
                place = f"{'/'.join(path.relative_to(SOURCES).parts[1:])}: {name}"
                if name in OPENS and any(keyword.arg == "interruption" for keyword in node.keywords):
                    under.add(place)
                elif name in OPENS | BLOCKS:
                    other.add(place)
    return under, other


def test_every_wait_is_interrupted_or_known() -> None:
    under, other = found()
    assert other == KNOWN
    assert {
        "elastic/round_store.py: try_connect",
        "elastic/round_store.py: PlainClient",
        "elastic/node_proxy.py: StoreProxy",
        "rounds/presence.py: PlainClient",
        "rounds/presence.py: try_connect",
        "kvstore/native/proxy.py: reach",
        "kvstore/sockets/reach.py: try_connect",
    } == under


@pytest.mark.parametrize("name", sorted(OPENS))
def test_what_can_be_interrupted_says_so(name: str) -> None:
    for module in (plain_client, proxy, reach):
        if hasattr(module, name):
            assert "interruption" in inspect.signature(getattr(module, name)).parameters
