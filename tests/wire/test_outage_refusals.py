"""Whatever is at the endpoint while the server is away, a node that works waits for it, and says so if it ends."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

import pytest
from kits.eventually import eventually
from kits.wire.session_peers import answering
from kits.wire.wire_client import PATIENCE

from rdzv_plugins.elastic.keys import Member
from rdzv_plugins.elastic.link import Link
from rdzv_plugins.elastic.options import ElasticOptions
from rdzv_plugins.elastic.view import View
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.interfaces import Request
from rdzv_plugins.job_token import JobToken
from rdzv_plugins.kvstore.coordination.sessions import NativeCoordination
from rdzv_plugins.kvstore.native.server import StoreServer
from rdzv_plugins.runtime import SYSTEM

pytestmark = pytest.mark.thorough


def serving(port: int, run: str = "run", token: JobToken | None = None) -> StoreServer:
    return StoreServer("127.0.0.1", port, run=run, tokens=token.accepted(run) if token is not None else ())


@contextmanager
def another_program(port: int, answer: bytes | None) -> Iterator[list[socket.socket]]:
    """It says ``answer`` to whoever comes, and hangs up; None: it says nothing."""
    met: list[socket.socket] = []

    def serve(connection: socket.socket) -> None:
        met.append(connection)
        if answer is not None:
            connection.sendall(answer)
            connection.shutdown(socket.SHUT_RDWR)

    with answering(*[serve] * 1000, port=port):
        yield met


MEANWHILE: dict[str, Callable[[int], AbstractContextManager[object]]] = {
    "needs the job's token": lambda port: serving(port, token=JobToken((b"m" * 32,))),
    "serves run 'other'": lambda port: serving(port, run="other"),
    "is not a native store": lambda port: another_program(port, b"HTTP/1.1 400 Bad Request\r\n\r\n"),
    "hangs up": lambda port: another_program(port, b""),
    "does not answer": lambda port: another_program(port, None),
    "refused": lambda port: ExitStack(),
}


@contextmanager
def member(port: int, outage: float) -> Iterator[Link]:
    """A node's link that has had a session in a job that has begun."""
    endpoint = Endpoint("127.0.0.1", port)
    backend = NativeCoordination(endpoint, "run", name="parallel", who="the server", outage_timeout=outage)
    request = Request("parallel", "run", str(endpoint), min_nodes=1, max_nodes=1, nproc_per_node=1)
    view, options = View(lambda: None, SYSTEM), ElasticOptions(ttl=2, outage_timeout=outage)
    me = Member("a", "a", "a", 1, "", "", 1)
    told = {"on_outage": lambda _: None, "on_waits": lambda: None}
    link = Link(backend, request, options, view, lambda _: None, me=me, settings={}, **told, runtime=SYSTEM)
    link.open(PATIENCE)
    view.newest = 1
    try:
        yield link
    finally:
        link.close()


@pytest.mark.parametrize("says", MEANWHILE)
def test_a_node_that_works_is_back_when_the_server_is(says: str) -> None:
    server = serving(0)
    with member(server.port, outage=PATIENCE) as link:
        server.close()
        with MEANWHILE[says](server.port) as there:

            def met() -> bool:
                """It has come there again: it has heard what was said the first time."""
                if isinstance(there, StoreServer):
                    return bool(there.stats()["connections"]["accepted"] > 1)
                return not isinstance(there, list) or len(there) > (says != "does not answer")

            eventually(lambda: link.session is None and link.outage.lasts and met())
            assert link.problem is None
        with serving(server.port):
            eventually(lambda: link.session)
            assert not link.outage.lasts


@pytest.mark.parametrize("says", MEANWHILE)
def test_a_node_whose_server_does_not_come_back_says_what_was_there(says: str) -> None:
    server = serving(0)
    with member(server.port, outage=1.5) as link:
        server.close()
        with MEANWHILE[says](server.port):
            eventually(lambda: link.problem)
        assert says in str(link.problem)
        assert f"127.0.0.1:{server.port}" in str(link.problem)
        assert link.problem is not None
        assert link.problem.exit_code == 68
        assert link.problem.remedy
