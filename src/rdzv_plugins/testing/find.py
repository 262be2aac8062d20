"""Finds the harness of an installed backend by its name: its own, or one made for an endpoint.

A distribution names the harness of its backend by an entry point::

    [project.entry-points."rdzv_plugins.harnesses"]
    redis = "rdzv_redis.conformance:RedisHarness"

``python -m rdzv_plugins.testing.find BACKEND ENDPOINT [KEY=VALUE ...]`` prints the kind of what ``create`` returns.
"""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

from rdzv_plugins.endpoints import parse_endpoint
from rdzv_plugins.errors import BrokenPlugin, EndpointUnreachable, RdzvError, UsageError
from rdzv_plugins.installed import normalise
from rdzv_plugins.interfaces import Request
from rdzv_plugins.registry.create import prepare
from rdzv_plugins.testing.harness import CONTRACTS, Harness, Kind, entry, kind_of, no_kind

GROUP = "rdzv_plugins.harnesses"
"""The group of the entry points: name of the backend = ``module:HarnessClass``."""
_CREATE_S = 120.0
_ANSWER_S = 10.0
"""Seconds within which a running service answers."""


def find_harness(backend: str, endpoint: str | None = None, conf: Mapping[str, str] = MappingProxyType({})) -> Harness:
    """The harness of ``backend``, not started yet; ``backend`` may be an alias.

    Without ``endpoint`` it is the backend's own, with ``conf`` added to that harness's; with one, it is a harness for a
    service that already runs there. Raises what the host raises for the name, ``UsageError`` if there is neither, and
    ``BrokenPlugin`` if its own harness cannot be made.
    """
    name = entry(backend).backend.name
    if endpoint is not None:
        return _at(name, endpoint, conf)
    for found in entry_points(group=GROUP):
        if normalise(found.name) == normalise(name):
            harness = _made(found)
            harness.backend = harness.backend or name
            harness.conf = MappingProxyType({**harness.conf, **conf})
            return harness
    raise UsageError(
        f"backend {name!r} has no harness (entry point group {GROUP})",
        remedy="Give --rdzv-endpoint (and --rdzv-conf) of a running service.",
    )


def _made(found: EntryPoint) -> Harness:
    owner = found.dist.metadata["Name"] if found.dist else "a distribution"
    which = f"the harness {found.name!r} of {owner} ({found.value})"
    try:
        harness = found.load()()
    except Exception as error:
        what = f"{which} could not be created: {type(error).__name__}: {error}"
        raise BrokenPlugin(what, remedy="To run without it, give --rdzv-endpoint.") from error
    if not isinstance(harness, Harness):
        remedy = "It must be a subclass of rdzv_plugins.testing.Harness."
        raise BrokenPlugin(f"{which} is a {type(harness).__name__}", remedy=remedy)
    if harness.kind not in CONTRACTS:
        raise BrokenPlugin(f"{which} has kind = {harness.kind!r}", remedy=f"Set it to one of {', '.join(CONTRACTS)}.")
    return harness


def _at(name: str, where: str, given: Mapping[str, str]) -> Harness:
    try:
        parse_endpoint(where, None)
        tcp = True
    except UsageError:  # in a form that only the backend knows: a directory, several members
        tcp = False
    created = _kind(name, where, given)

    class Somewhere(Harness):
        """A service run by somebody else: it is neither killed nor cleaned. Jobs are told apart by their ids."""

        backend = name
        kind = created
        conf = MappingProxyType(dict(given))
        dialled = tcp
        wrong_endpoints = ()

        def endpoint(self, directory: Path) -> str:
            return where

    return Somewhere()


def _kind(name: str, endpoint: str, conf: Mapping[str, str]) -> Kind:
    """What ``create`` returns, if the service answers. Runs in another process: it may block, and may import torch."""
    command = [sys.executable, "-m", "rdzv_plugins.testing.find", name, endpoint]
    command += [f"{key}={value}" for key, value in conf.items()]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_CREATE_S)
    except subprocess.TimeoutExpired:
        raise RdzvError(
            f"backend {name!r} could not be created at {endpoint} within {_CREATE_S:g} s",
            remedy="Check that its service runs there, and set short time-outs with --rdzv-conf.",
        ) from None
    kind = (done.stdout.split() or [""])[-1]
    if done.returncode or kind not in CONTRACTS:
        words = "".join(f"\n  | {line}" for line in done.stderr.strip().splitlines()[-6:])
        error = RdzvError(
            f"backend {name!r} could not be created at {endpoint}{words}",
            remedy="Check that its service runs there, and --rdzv-conf.",
        )
        if done.returncode > UsageError.exit_code:  # 1: a traceback; 2: pytest would take it for Ctrl-C
            error.exit_code = done.returncode
        raise error
    return cast(Kind, kind)


def main(arguments: Sequence[str]) -> int:
    """Print ``state``, ``coordination`` or ``handler``. Returns the error's exit code if that fails or nobody answers.

    The reason is then on stderr. The result is asked something: a test of a service where nobody is waits for a minute.
    """
    name, endpoint, *pairs = arguments
    conf = MappingProxyType(dict(pair.split("=", 1) for pair in pairs))
    run_id = f"conformance-{uuid.uuid4().hex[:8]}"
    request = Request(name, run_id, endpoint, min_nodes=1, max_nodes=1, nproc_per_node=1, conf=conf)
    found = entry(name)
    try:
        request = prepare(found, request)
        print(_asked(found.backend.create(request), request))
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
