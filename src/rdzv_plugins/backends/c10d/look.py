"""A c10d rendezvous seen from outside, without torch: whose endpoint it is, and what torch's state says."""

from __future__ import annotations

import base64
import datetime
import io
import json
import pickle
from typing import Any

from rdzv_plugins.backends.c10d import DEFAULT_PORT, NAME, state_key
from rdzv_plugins.dynamic.options import SETTINGS, run_prefix
from rdzv_plugins.endpoints import Endpoint, parse_endpoint
from rdzv_plugins.errors import EndpointUnreachable, UsageError
from rdzv_plugins.interfaces import NodeStatus, Request, RunStatus
from rdzv_plugins.kvstore.tcpstore.listener import StoreReader, reading, served_by
from rdzv_plugins.rounds.ends import parse_outcome

_NONE_YET = b"Y2FuaW1hZGFt"
"""What torch's backend writes before there is a state."""


class NodeState:
    """Stands in for torch's ``_NodeDesc``."""

    addr = ""
    pid = 0

    def __lt__(self, other: NodeState) -> bool:
        return str(self.addr) < str(other.addr)


class State:
    """Stands in for torch's ``_RendezvousState``."""

    round = 0
    complete = closed = False

    def __init__(self) -> None:
        self.participants: dict[NodeState, int] = {}
        self.wait_list: set[NodeState] = set()
        self.redundancy_list: set[NodeState] = set()


_TORCHS = "torch.distributed.elastic.rendezvous.dynamic_rendezvous"
_KNOWN: dict[tuple[str, str], Any] = {
    (_TORCHS, "_RendezvousState"): State,
    (_TORCHS, "_NodeDesc"): NodeState,
    ("datetime", "datetime"): datetime.datetime,
    ("datetime", "timedelta"): datetime.timedelta,
    ("datetime", "timezone"): datetime.timezone,
}


class _Unpickler(pickle.Unpickler):
    """Makes only what a state of torch's consists of: whoever wrote it must not be able to run code here."""

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _KNOWN[module, name]
        except KeyError:
            raise pickle.UnpicklingError(f"{module}.{name} is no part of a rendezvous' state") from None


def load_state(held: bytes) -> State:
    """Load the state from the value of its key. Raises ``ValueError`` for anything else."""
    if held == _NONE_YET:
        return State()
    try:
        state = _Unpickler(io.BytesIO(base64.b64decode(held, validate=True))).load()
    except Exception as error:  # pickle promises no more specific error
        raise ValueError(f"torch's state cannot be read: {error}") from None
    if not isinstance(state, State):
        raise ValueError(f"torch's state is of type {type(state).__name__}")
    return state


def recognise(request: Request, timeout: float) -> str:
    """See ``Backend.recognise``. A store of plain torchrun nodes is recognised by the run id alone."""
    endpoint = parse_endpoint(request.endpoint, DEFAULT_PORT)
    if known := served_by(NAME, endpoint, timeout):
        return known
    with StoreReader(endpoint, timeout) as reader:
        held = reader.held(state_key(request.run_id)) is not None
    return f"the rendezvous of run {request.run_id!r} by torch's {NAME}, of plain torchrun nodes" if held else ""


def status(request: Request, timeout: float) -> RunStatus:
    """See ``Backend.status``. Without a run id, it is that of the run whose node serves the store."""
    if request.options.store_type == "file":
        raise UsageError(
            "with store_type=file a rendezvous is a file of torch's, which only its nodes can read",
            remedy="The output of its nodes says who is there.",
        )
    endpoint: Endpoint = request.target
    with reading(endpoint, timeout) as reader:
        hello = reader.hello(NAME)
        run_id = request.run_id if request.is_named or hello is None else hello.run_id
        held = reader.held(state_key(run_id))
        if held is None:
            there = f"; its store is that of run {hello.run_id!r}, served by {hello}" if hello else ""
            raise EndpointUnreachable(
                f"no node of run {run_id!r} has come to {endpoint}{there}", remedy="Check --rdzv-id and the endpoint."
            )
        return _read(reader, run_id, held)


def _read(reader: StoreReader, run_id: str, held: bytes) -> RunStatus:
    state = load_state(held)
    ranks = sorted((rank, node) for node, rank in state.participants.items())
    settings = reader.held(f"{run_prefix(run_id)}/{SETTINGS}")
    wanted = str(json.loads(settings)["settings"]["nnodes"]) if settings else ""
    nodes = tuple(NodeStatus(int(rank), str(node.addr), int(node.pid), address=str(node.addr)) for rank, node in ranks)
    waiting = len(state.wait_list) + len(state.redundancy_list)
    number, members = int(state.round), len(nodes) + waiting
    ended = reader.held(f"{run_prefix(run_id)}/end")
    outcome = parse_outcome(ended) if ended else None
    if outcome is not None or state.closed:
        failed = outcome is not None and outcome.end == "failed"
        why = outcome.reason if outcome is not None else "it was closed by a node"
        return RunStatus(number, "failed" if failed else "ended", why, members=members, nodes=nodes)
    late = f"{waiting} more wait for the next round" if waiting else ""
    if not state.complete:
        there = f"{len(nodes)} {f'of {wanted} ' if wanted else ''}nodes are there"
        return RunStatus(number, "waiting", "", f"{there}; {late}" if late else there, members=members, nodes=nodes)
    where = f"{state_key(run_id)}.{number}"
    address, port = reader.held(f"{where}/MASTER_ADDR"), reader.held(f"{where}/MASTER_PORT")
    store = str(Endpoint(address.decode(), int(port))) if address and port else ""
    return RunStatus(number, "complete", late, members=members, nodes=nodes, store=store, store_is_here=reader.is_here)
