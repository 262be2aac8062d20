"""How static nodes agree on a round: the keys in the control store, and who writes which.

torch's static agents agree on nothing: each restarts by itself, into a store that still holds the old
round's keys. Here a round is a number that all nodes count up together::

    round              the newest round that any node has asked for
    over/<r>           round r is over: who was first to ask for r+1, or which of its nodes was lost (JSON)
    node/<r>/<rank>    node <rank> has arrived in round r: who it is (JSON)
    changes/<r>        counts the arrivals in round r, and what else is worth another look at it
    missing/<r>        written by node rank 0 while it waits: the ranks that have not arrived (JSON)
    refused/<r>        the last node that was refused, in a sentence
    go/<r>             written by node rank 0 when all have arrived: the members and the workers'
                       store of round r; or by a failing node, instead: how the job ended

Every node writes its own arrival and waits for ``go``; node rank 0 waits for the arrivals, and tells
the others who is missing. So a round costs each node a constant number of requests, and nobody polls:
waits are answered by the server.
A write carries its round in its key, so a late one changes nothing. ``status`` reads them from outside.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from msgspec import Struct
from msgspec.json import decode, encode

from rdzv_plugins.backends.static import NAME, run_prefix
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.errors import EndpointUnreachable, StoreLost, StoreTimeout
from rdzv_plugins.interfaces import NodeStatus, Outcome, Request, RunStatus
from rdzv_plugins.kvstore.tcpstore.listener import Hello, StoreReader, reading, require_run
from rdzv_plugins.plain_text import printable, some
from rdzv_plugins.rounds.ends import absent, parse_outcome
from rdzv_plugins.runtime import SYSTEM, Runtime
from rdzv_plugins.store import Prefixed, Store

_NAMED = 16
"""The most ranks to name."""
_MOST_NODES = 10_000
"""The most nodes that are asked for one by one."""


class Arrival(Struct, frozen=True):
    """One node's entry into a round."""

    incarnation: str
    """Unique to one agent process."""
    host: str
    pid: int
    machine: str = ""
    """Shared by all processes that see each other's pids, and by no others; empty if unknown."""

    def __str__(self) -> str:
        return f"{self.host} (pid {self.pid})"

    def has_ended(self, runtime: Runtime = SYSTEM) -> bool:
        """Whether this machine knows that the process has ended. False if it is not one of this machine's."""
        return self.machine != "" and self.machine == runtime.pid_space() and runtime.has_ended(self.pid)


def this_agent(runtime: Runtime = SYSTEM) -> Arrival:
    """This process."""
    return Arrival(runtime.uuid4().hex, runtime.gethostname(), runtime.getpid(), runtime.pid_space())


class Missing(Struct, frozen=True):
    """The ranks that are not in a round."""

    never: tuple[int, ...]
    """They have not arrived."""
    left: tuple[int, ...] = ()
    """They have arrived, and left again."""

    def __contains__(self, rank: int) -> bool:
        return rank in self.never or rank in self.left

    def __len__(self) -> int:
        return len(self.never) + len(self.left)

    def __str__(self) -> str:
        never = f"missing: node rank {some(self.never, _NAMED)}" if self.never else ""
        left = f"node rank {some(self.left, _NAMED)} came, and has left again" if self.left else ""
        return "; ".join(filter(None, (never, left)))


class Over(Struct, frozen=True):
    """Why a round is over: a node has asked for the next one, or was lost."""

    by: str
    """The node, in words."""
    lost: str = ""
    """Why the node was lost; empty if it has asked for the next round."""
    incarnation: str = ""
    """The agent that was lost."""

    def __str__(self) -> str:
        return f"{self.by} was lost: {self.lost}" if self.lost else f"{self.by} has asked for a new round"


def parse_over(text: bytes) -> Over:
    """An ``Over`` from the value of its key. What is none of ours counts as a question for a new round."""
    try:
        over = json.loads(text)
        return Over(*(printable(str(over[name])) for name in ("by", "lost", "incarnation")))
    except (ValueError, TypeError, KeyError, RecursionError):
        return Over(printable(text.decode(errors="backslashreplace")))


class Go(Struct, frozen=True):
    """A complete round: who is in it, and where its workers' store is. Alternatively, the end of the job."""

    members: tuple[str, ...] = ()
    """The incarnations, by node rank."""
    master_addr: str = ""
    master_port: int = 0
    ended: Outcome | None = None


def parse_go(text: bytes) -> Go:
    """Parse a ``Go`` from its JSON form."""
    data: dict[str, Any] = json.loads(text)
    ended = parse_outcome(json.dumps(data["ended"])) if data["ended"] else None
    return Go(tuple(data["members"]), data["master_addr"], data["master_port"], ended)


class StaticRounds:
    """The keys above, in a store that already has the run's prefix. As thread-safe as the store."""

    def __init__(self, store: Store, runtime: Runtime = SYSTEM) -> None:
        self.store, self._runtime = store, runtime

    def agents(self, round_: int) -> Prefixed:
        """The agents' store of that round."""
        return Prefixed(f"agents/{round_}", self.store)

    def latest(self) -> int:
        """The newest round asked for; 0 before the first."""
        return self.store.add("round", 0)

    def is_settled(self, round_: int) -> bool:
        """True once ``go`` of that round is written: then nobody can join it any more."""
        return self.store.check([f"go/{round_}"])

    def open(self, round_: int, by: str) -> int:
        """Ask for ``round_``, tell those still in the previous one ``by`` whom, and return the newest round."""
        newest = int(self.store.compare_set("round", str(round_ - 1), str(round_)))
        self.end(round_ - 1, Over(by))
        return newest

    def end(self, round_: int, over: Over) -> None:
        """Tell the nodes of ``round_`` why it is over. The first statement counts."""
        self.store.compare_set(f"over/{round_}", "", encode(over))

    def over(self, round_: int) -> Over | None:
        """Why ``round_`` is over; None while it is not."""
        text = self._held(f"over/{round_}")
        return parse_over(text) if text is not None else None

    def holder(self, round_: int, rank: int) -> Arrival | None:
        """Who has arrived as ``rank``, and has not withdrawn."""
        text = self._held(f"node/{round_}/{rank}")
        return decode(text, type=Arrival) if text else None

    def arrive(self, round_: int, rank: int, arrival: Arrival) -> Arrival | None:
        """Enter the round; returns who has entered it with the same rank before, in which case nothing is written."""
        text = self.store.compare_set(f"node/{round_}/{rank}", "", encode(arrival))
        held = decode(text, type=Arrival)
        if held.incarnation != arrival.incarnation:
            return held
        self.store.add(f"changes/{round_}", 1)
        return None

    def replace(self, round_: int, rank: int, arrival: Arrival) -> None:
        """Enter the round in the place of one that is gone."""
        self.store.set(f"node/{round_}/{rank}", encode(arrival))
        self.store.add(f"changes/{round_}", 1)

    def withdraw(self, round_: int, rank: int, over: Over) -> None:
        """Leave a round that was not known to be complete; if it is, its nodes are told why it is ``over``.

        Node rank 0 may see the arrival just before it goes: then it looks again after it has written ``go``.
        """
        held = self.holder(round_, rank)
        if held is None or held.incarnation != over.incarnation:
            return
        self.store.set(f"node/{round_}/{rank}", "")  # not deleted: no read of it may ever have to wait
        self.store.add(f"changes/{round_}", 1)
        if self.is_settled(round_):
            self.end(round_, over)

    def refuse(self, round_: int, sentence: str) -> None:
        """Tell those who wait in the round that somebody has come and was refused."""
        self.store.set(f"refused/{round_}", sentence)
        self.store.add(f"changes/{round_}", 1)

    def refused(self, round_: int) -> str:
        """Who was refused last, and why; empty if nobody was."""
        return printable((self._held(f"refused/{round_}") or b"").decode(errors="backslashreplace"))

    def changes(self, round_: int) -> int:
        """A number that grows whenever there is something new to say about who is missing."""
        return self.store.add(f"changes/{round_}", 0)

    def publish_missing(self, round_: int, missing: Missing) -> None:
        """For node rank 0: tell the others who is not there."""
        self.store.set(f"missing/{round_}", encode(missing))

    def published_missing(self, round_: int) -> Missing | None:
        """Who is not there, as node rank 0 sees it; None while it has said nothing."""
        text = self._held(f"missing/{round_}")
        return None if text is None else decode(text, type=Missing)

    def wait_arrivals(self, round_: int, nodes: int, timeout: float) -> list[Arrival] | None:
        """All arrivals in order of rank; None if some are missing after ``timeout`` seconds, and never earlier."""
        deadline = self._runtime.monotonic() + timeout
        keys = [f"node/{round_}/{rank}" for rank in range(nodes)]
        try:
            self.store.wait(keys, timedelta(seconds=timeout))
        except StoreTimeout:
            return None
        arrived = self.arrived(round_, range(nodes))
        if len(arrived) == nodes:
            return list(arrived.values())
        self._runtime.sleep(max(0.0, deadline - self._runtime.monotonic()))  # somebody has withdrawn
        return None

    def wait_go(self, round_: int, until: float) -> Go | None:
        """The ``go`` of the round; None if there is none at ``until``, in the monotonic clock's seconds.

        Raises ``OSError`` when the store is lost.
        """
        seconds = max(0.0, until - self._runtime.monotonic())
        try:
            self.store.wait([f"go/{round_}"], timedelta(seconds=seconds))
            return parse_go(self.store.get(f"go/{round_}"))
        except StoreTimeout:
            return None
        except StoreLost as error:
            raise error.__cause__ or error from None

    def missing(self, round_: int, nodes: int) -> Missing:
        """Who is not there. Makes requests for each of them: for node rank 0, for all."""
        never = absent(self.store, [f"node/{round_}/{rank}" for rank in range(nodes)])
        came = [rank for rank in range(nodes) if rank not in set(never)]
        there = self.arrived(round_, came)
        return Missing(tuple(never), tuple(rank for rank in came if rank not in there))

    def arrived(self, round_: int, ranks: Iterable[int]) -> dict[int, Arrival]:
        """Who these ranks are, all of which have arrived, but for those that have withdrawn since."""
        each = list(ranks)
        texts = self.store.multi_get([f"node/{round_}/{rank}" for rank in each]) if each else []
        return {rank: decode(text, type=Arrival) for rank, text in zip(each, texts, strict=True) if text}

    def present(self, round_: int, nodes: int) -> dict[int, str]:
        """Incarnations of the ranks that have arrived. Makes requests for every node: for use at the end only."""
        gone = self.missing(round_, nodes)
        there = [rank for rank in range(nodes) if rank not in gone]
        return {rank: who.incarnation for rank, who in self.arrived(round_, there).items()}

    def settle(self, round_: int, go: Go) -> Go:
        """Write ``go`` unless there is one; returns the one that holds."""
        return parse_go(self.store.compare_set(f"go/{round_}", "", encode(go)))

    def _held(self, key: str) -> bytes | None:
        # check first: get() of a missing key would block
        return self.store.get(key) if self.store.check([key]) else None


def status(request: Request, timeout: float) -> RunStatus:
    """See ``Backend.status``. Without a run id, it is that of the run whose node rank 0 serves there, the only one."""
    endpoint: Endpoint = request.target
    with reading(endpoint, timeout) as reader:
        hello = reader.hello(NAME)
        if hello is None:
            raise EndpointUnreachable(
                f"{endpoint} is a TCPStore, but not that of a {NAME!r} node rank 0", remedy="Check address and port."
            )
        require_run(request, endpoint, hello)
        return _read(reader, hello)


def _read(reader: StoreReader, hello: Hello) -> RunStatus:
    prefix, wanted = run_prefix(hello.run_id), int(hello.nnodes)
    number = int(reader.held(f"{prefix}/round") or b"0")
    arrived = {
        rank: decode(text, type=Arrival)
        for rank in range(min(wanted, _MOST_NODES))
        if (text := reader.held(f"{prefix}/node/{number}/{rank}"))
    }
    published = reader.held(f"{prefix}/go/{number}")
    go = parse_go(published) if published is not None else None
    ended = reader.held(f"{prefix}/end")
    nodes = tuple(
        NodeStatus(rank, who.host, who.pid, there=reader.held(f"{prefix}/left/{who.incarnation}") is None)
        for rank, who in arrived.items()
    )
    outcome = parse_outcome(ended) if ended else go.ended if go else None
    if outcome is not None:
        members = sum(node.there for node in nodes)
        failed = outcome.end == "failed"
        return RunStatus(number, "failed" if failed else "ended", outcome.reason, members=members, nodes=nodes)
    missing = [str(rank) for rank in range(wanted) if rank not in arrived]
    if number == 0 or go is None:
        there = f"{len(arrived)} of {wanted} nodes are there"
        progress = f"{there}; missing: node rank {', '.join(missing)}" if missing else there
        return RunStatus(number, "waiting" if number else "none", "", progress, members=len(arrived), nodes=nodes)
    over = reader.held(f"{prefix}/over/{number}")
    if over is not None:
        return RunStatus(number, "over", str(parse_over(over)), members=len(arrived), nodes=nodes)
    store = str(Endpoint(go.master_addr, go.master_port))
    return RunStatus(number, "complete", members=len(arrived), nodes=nodes, store=store, store_is_here=reader.is_here)
