"""What takes part in ``rdzv bench rendezvous``: the requested backends, and torch's own."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from rdzv_launcher.bench.backends import REFERENCES, TORCH_STATIC, Candidate, at_native_store, reference_names
from rdzv_launcher.bench.processes.closed import TOKEN, conf_of
from rdzv_plugins.assemble.create import NoOptions
from rdzv_plugins.endpoints import parse_endpoint
from rdzv_plugins.errors import RdzvError, UsageError
from rdzv_plugins.interfaces import Capability, Request
from rdzv_plugins.testing.harness import Harness

LATER_S = 60.0
"""How much later than the benchmark a node gives up."""
_IS_HOST = "is_host"
_IMPORTS_OF_TORCH = tuple(
    f"torch.distributed.elastic.rendezvous.{name}" for name in ("c10d_rendezvous_backend", "static_tcp_rendezvous")
)
_GO = 2
"""How many nodes go, one after another, where sessions tell who lives."""


class Torch(Harness):
    """torch's own rendezvous: node 0 serves the endpoint, as with plain torchrun."""

    def __init__(self, name: str) -> None:
        self.backend = name


@dataclasses.dataclass(frozen=True)
class RendezvousTarget:
    """A rendezvous that is measured: of an installed backend, or torch's own."""

    name: str
    harness: Harness
    """The harness, already started."""
    elastic: bool
    ranks: bool
    """Node ranks have to be given."""
    given: bool = False
    """The service was already running, where the user said."""
    says_who_serves: bool = False
    """A node can be told whether it serves the endpoint. Otherwise each tries to, which takes long on one machine."""
    native: bool = False
    """Its nodes meet at the native store, which may have its own process: --server."""
    probe: str = ""
    """How the service is asked what it has counted, as in ``Harness.probe``; empty: it does not say."""
    imports: tuple[str, ...] = ()
    """What all of its nodes import, once."""

    @property
    def reference(self) -> bool:
        return self.name in REFERENCES

    @property
    def served_by_node(self) -> bool:
        """Whether node 0 serves the endpoint, which it alone may bind."""
        return self.harness.dialled and self.harness.service is None and not self.given

    def why_not(self, *, delay: bool, native: bool) -> str:
        """Why it cannot be measured with a delay, or with native nodes; empty if it can."""
        if native and not self.native:
            return "not measured: simulated native nodes speak to a native store alone"
        if delay and not self.harness.dialled:
            return "not measured: its endpoint is not HOST:PORT, so no relay can stand in front of it"
        return ""

    def request(self, nodes: int, run_id: str, endpoint: str) -> Request:
        """The request of any node; not prepared."""
        low = nodes
        if self.elastic:
            low = nodes - (_GO if self.harness.kind == "coordination" else 1)
        return self.harness.request(
            endpoint, run_id=run_id, min_nodes=low, max_nodes=nodes, nproc_per_node=1, node_rank=None
        )

    def endpoint(self, directory: Path) -> tuple[str, str, int]:
        """The endpoint of a new run: as written, and host and port where it is dialled. Raises ``RdzvError``."""
        try:
            written = self.harness.endpoint(directory)
        except RdzvError:
            raise
        except Exception as error:  # a third-party harness may raise anything
            raise RdzvError(f"its harness gives no endpoint: {type(error).__name__}: {error}") from error
        if not self.harness.dialled:
            return written, "", 0
        where = parse_endpoint(written, None)
        return written, where.host, where.port


def references(names: str) -> list[RendezvousTarget]:
    """torch's own of these names, or ``none``. Raises ``UsageError``."""
    return [
        RendezvousTarget(
            name, Torch(name), elastic=name != TORCH_STATIC, ranks=name == TORCH_STATIC, imports=_IMPORTS_OF_TORCH
        )
        for name in reference_names(names)
    ]


def target(candidate: Candidate, given: bool) -> RendezvousTarget:
    """The target of a backend; its harness need not run yet."""
    traits = candidate.traits
    promised = candidate.entry.backend.capabilities
    elastic = Capability.ELASTIC in promised
    ranks = Capability.NODE_RANK in promised and not elastic
    says = _IS_HOST in _keys(candidate) - candidate.given.keys()
    return RendezvousTarget(
        candidate.name,
        candidate.harness,
        elastic=elastic,
        ranks=ranks,
        given=given,
        says_who_serves=says,
        native=traits.native,
        probe=(traits.probe or candidate.harness.probe) if candidate.harness.dialled else "",
        imports=traits.imports,
    )


def closed(target: RendezvousTarget, way: str, directory: Path) -> RendezvousTarget:
    """The same target, for jobs closed to strangers by what is made in ``directory``; its service is not asked."""
    harness = copy.copy(target.harness)
    harness.conf = MappingProxyType({**harness.conf, **conf_of(way, directory)})
    imports = target.imports if way == TOKEN else (*target.imports, "rdzv_plugins.kvstore.sockets.secured")
    return dataclasses.replace(target, name=f"{target.name}, {way}", harness=harness, probe="", imports=imports)


def _keys(candidate: Candidate) -> set[str]:
    """The keys that its --rdzv-conf takes."""
    return {field.name for field in dataclasses.fields(candidate.entry.backend.options or NoOptions)}


def wanted(ttl: float, limit_s: float) -> Mapping[str, str]:
    """Options for a benchmark: rounds wait for all nodes, and the benchmark loses patience first.

    All nodes are asked to dial the workers' store at once here, on few cores. torch's signs of life keep their
    defaults: more of them would slow its nodes down while they join.
    """
    patience = f"{ttl + limit_s + LATER_S:g}"
    return {
        "ttl": f"{ttl:g}",
        "timeout": patience,
        "join_timeout": patience,
        "reach_timeout": f"{ttl + limit_s:g}",
        "last_call_timeout": f"{limit_s:g}",
        "allow_same_host": "true",
        "keep_alive_interval": "5",
        "keep_alive_max_attempt": "3",
    }


def require_server(where: str, targets: Sequence[RendezvousTarget]) -> None:
    """Raises ``UsageError`` if ``--server=process`` applies to none of the targets."""
    if where == "process" and not any(each.native for each in targets):
        raise UsageError(
            f"--server=process is about {' and '.join(at_native_store())}, which are not measured",
            remedy="Leave it out, or name one of them in --backends.",
        )


def details(sample: Mapping[str, Any]) -> dict[str, Any]:
    """A run as the results keep it: without what is not known."""
    return {name: _known(each) if isinstance(each, dict) else each for name, each in sample.items()}


def _known(data: Mapping[str, Any]) -> dict[str, Any]:
    return {name: each for name, each in data.items() if each is not None}
