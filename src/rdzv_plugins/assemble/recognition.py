"""What listens at an endpoint: every backend is asked whether it is one of its own (``Backend.recognise``)."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from rdzv_plugins.certificates import NodeTlsOptions, certificates_of
from rdzv_plugins.endpoints import parse_endpoint
from rdzv_plugins.errors import RdzvError, is_signal
from rdzv_plugins.host.catalog import Catalog, Entry
from rdzv_plugins.interfaces import Backend, Request
from rdzv_plugins.kvstore.sockets.reach import dial
from rdzv_plugins.plain_text import printable
from rdzv_plugins.runtime import SYSTEM, Empty, Runtime

if TYPE_CHECKING:
    import queue

logger = logging.getLogger(__name__)

_ANSWER_S = 2.0
_TLS_S = 0.5
_LONGEST = 300


class Found(NamedTuple):
    """The backend that recognises it, and what it says."""

    entry: Entry
    what: str


def recognise(
    catalog: Catalog, request: Request, *, but: Backend | None = None, runtime: Runtime = SYSTEM
) -> Found | None:
    """The first answer of a backend, other than ``but``, to what listens at the request's endpoint.

    Takes two seconds at most. A backend that takes longer or fails does no harm.
    """
    request = dataclasses.replace(request, options=None, target=None)
    entries = [entry for entry in catalog.entries() if entry.backend.recognise and entry.backend is not but]
    deadline = runtime.monotonic() + _ANSWER_S
    if _speaks_tls(
        request, runtime
    ):  # a store of ours, most likely: what others ask it in plain would make it warn of TLS
        ours = [entry for entry in entries if issubclass(entry.backend.options or object, NodeTlsOptions)]
        if found := _first_answer(ours, request, deadline, runtime):
            return found
        entries = [entry for entry in entries if entry not in ours]
    return _first_answer(entries, request, deadline, runtime)


def _first_answer(entries: Sequence[Entry], request: Request, deadline: float, runtime: Runtime) -> Found | None:
    answers: queue.SimpleQueue[tuple[Entry, str]] = runtime.SimpleQueue()
    for entry in entries:
        runtime.Thread(target=_ask, args=(entry, request, answers), name="rdzv-whose").start()
    for _ in entries:
        try:
            entry, what = answers.get(timeout=max(0.0, deadline - runtime.monotonic()))
        except Empty:
            return None
        if what:
            return Found(entry, what)
    return None


def _speaks_tls(request: Request, runtime: Runtime) -> bool:
    """Whether what listens speaks TLS by the request's certificates, if it has any."""
    tls = certificates_of(request)
    if tls is None:
        return False
    try:
        endpoint = parse_endpoint(request.endpoint, None)
        dial(endpoint.host, endpoint.port, _TLS_S, tls=tls, runtime=runtime).close()
    except (RdzvError, OSError):
        return False
    return True


def _ask(entry: Entry, request: Request, answers: queue.SimpleQueue[tuple[Entry, str]]) -> None:
    assert entry.backend.recognise is not None
    what = ""
    try:
        what = printable(entry.backend.recognise(request, _ANSWER_S), _LONGEST)
    except Exception as error:
        if not is_signal(error):
            logger.debug("%s did not say what listens at %s: %r", entry.record.label, request.endpoint, error)
    answers.put((entry, what))
