"""``python -m rdzv_plugins.testing.created_kind BACKEND ENDPOINT [KEY=VALUE ...]``: prints what ``create`` returns.

It first asks the result something: a test of a service where nobody is waits for a minute before it fails.
"""

from __future__ import annotations

import sys
import uuid
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

from rdzv_plugins.assemble.create import prepare
from rdzv_plugins.errors import BrokenPlugin, EndpointUnreachable, RdzvError
from rdzv_plugins.host import PluginHost
from rdzv_plugins.interfaces import Request
from rdzv_plugins.testing.kinds import kind_of, no_kind

_ANSWER_S = 10.0
"""Seconds within which a running service answers."""


def main(arguments: Sequence[str]) -> int:
    """Print ``state``, ``coordination`` or ``handler``. Returns the error's exit code if that fails or nobody answers.

    The reason is then on stderr.
    """
    name, endpoint, *pairs = arguments
    conf = MappingProxyType(dict(pair.split("=", 1) for pair in pairs))
    run_id = f"conformance-{uuid.uuid4().hex[:8]}"
    request = Request(name, run_id, endpoint, min_nodes=1, max_nodes=1, nproc_per_node=1, conf=conf)
    entry = PluginHost.load().catalog.find(name)
    try:
        request = prepare(entry, request)
        print(_asked(entry.backend.create(request), request))
    except RdzvError as error:
        print(f"{type(error).__name__}: {error} {error.remedy}", file=sys.stderr)
        return error.exit_code
    except Exception as error:
        if type(error).__name__ != "RendezvousConnectionError":  # torch's, which a state may raise
            raise
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return EndpointUnreachable.exit_code
    return 0


def _asked(created: Any, request: Request) -> str:
    """The kind of what was created, tried once. A handler is asked nothing: it would wait for other nodes."""
    kind = kind_of(created)
    if not kind:
        raise BrokenPlugin(no_kind(created))
    if kind == "handler":
        created.shutdown()
    elif kind == "coordination":
        ttl = float(getattr(request.options, "ttl", _ANSWER_S))
        try:
            created.open_session(ttl, on_lost=lambda error: None, timeout=_ANSWER_S).close()
        finally:
            created.close()
    else:
        created.get_state()
    return kind


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
