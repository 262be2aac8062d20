"""One run of ``rdzv bench rendezvous``: ``python -m rdzv_launcher.bench.rendezvous.keeper TASK``.

It imports what the nodes need, once, and forks the processes that hold them, so a node costs milliseconds. TASK is JSON
(made by ``rendezvous.run``), the output is one line of JSON, and the end of standard input ends it and all nodes.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import socket
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rdzv_launcher.bench.method.turns import DidNotFinish
from rdzv_launcher.bench.rendezvous.children import Children, NodesProcess
from rdzv_launcher.bench.rendezvous.native_process import NativeProcess
from rdzv_launcher.bench.rendezvous.nodes import FIXED
from rdzv_launcher.bench.rendezvous.phases import (
    NodesState,
    RendezvousPhase,
    RendezvousSample,
    grown,
    is_plain,
    per_node,
    wrong_places,
)
from rdzv_launcher.bench.rendezvous.process import NodeProcess
from rdzv_launcher.bench.rendezvous.service import MeasuredService, Served
from rdzv_plugins.errors import RdzvError
from rdzv_plugins.host import PluginHost
from rdzv_plugins.kvstore.native.limits import raise_file_limit

_CREATE_S = 120.0
_REPORT_S = 120.0
_SO_FAR_S = 20.0


class KeptRun:
    """The phases that the nodes go through."""

    def __init__(self, task: Mapping[str, Any], children: Children, host: PluginHost) -> None:
        self._task, self._children = task, children
        self._service = MeasuredService(task["service"])
        for mine in task["processes"]:
            children.fork(mine["numbers"], self._process(host, task, mine))
        self._tells = ""

    @staticmethod
    def _process(host: PluginHost, task: Mapping[str, Any], mine: Mapping[str, Any]) -> Callable[[socket.socket], None]:
        made = NativeProcess if task["native"] and 0 not in mine["numbers"] else NodeProcess
        return lambda connection: made(connection, host, task, mine).run()

    def run(self) -> RendezvousSample:
        """Run everything that was asked for. What did not finish is noted in the sample."""
        sample = RendezvousSample()
        try:
            self._create()
            sample.join = self._measure("joined", self._join, self._task["limit_s"])
            sample.memory_mib = self._now().memory_mib
            if self._task["idle_s"]:
                sample.idle = self._idle(self._task["idle_s"])
            if self._task["loss"] and self._tells != FIXED:
                self._losses(sample)
        except DidNotFinish as error:
            sample.unfinished = str(error)
        return sample

    def _create(self) -> None:
        """Create the nodes. The first node's process goes first: it may serve what the others connect to."""
        first, *others = self._children.living
        for group in ([first], others):
            for child in group:
                child.send("create")
            answers = self._children.ask(group, "created", _CREATE_S, "the nodes' handlers were not there")
            for answer in answers.values():
                self._tells = answer["tells"]

    def _losses(self, sample: RendezvousSample) -> None:
        chosen, key = self._choose()
        limit_s, unheard_s = self._task["limit_s"], self._task["unheard_s"]
        watched = self._watch(key)
        sample.loss = self._measure("joined again", lambda: self._lose(chosen), limit_s + unheard_s, chosen)
        known_s = sample.loss.known_s
        if not watched or known_s is None or known_s < self._task["at_once_s"]:
            return
        with contextlib.suppress(_NobodyPlain):
            chosen, key = self._choose()
            self._watch(key)
            (number,) = chosen.numbers
            sample.close = self._measure("joined again", lambda: chosen.send("close", number=number), limit_s, chosen)

    def _join(self) -> None:
        for child in self._children.living:
            child.send("join")

    def _lose(self, chosen: NodesProcess) -> None:
        self._children.lose(chosen)
        for child in self._children.living:
            child.send("again")
        chosen.reap()  # for a backend that checks whether a process still exists

    def _choose(self) -> tuple[NodesProcess, str]:
        """A node that decides nothing and serves nothing, with a process of its own; and the key of its member."""
        now = self._now()
        plain = {
            child: now.nodes[child.numbers[0]]
            for child in self._children.living
            if len(child.numbers) == 1 and child.expected and is_plain(now.nodes[child.numbers[0]])
        }
        if not plain:
            raise _NobodyPlain("no node with a process of its own could be lost: all of them serve or lead")
        chosen = max(plain, key=lambda child: plain[child]["rank"])
        return chosen, plain[chosen]["key"]

    def _watch(self, key: str) -> bool:
        """Let another node watch the key of the one that goes, to learn when the service has deleted it."""
        if not key:
            return False
        first = self._children.living[0]
        first.send("watch", number=0, key=key)
        return bool(self._children.ask([first], "watching", _REPORT_S, "no watch")[first]["watching"])

    def _idle(self, seconds: float) -> dict[str, Any] | None:
        before = self._now()
        if before.asked(before.nodes) is None and before.service.requests is None:
            return None  # nobody counts anything
        self._children.pause(seconds)
        now = self._now()
        if now.joins != len(now.nodes):
            return {"disturbed": True}  # the machine was so busy that a node was taken for lost: they had another round
        return {
            "seconds": seconds,
            "asked": grown(now.asked(now.nodes), before.asked(now.nodes)),
            "served": grown(now.service.requests, before.service.requests),
            "signs": now.service.signs - before.service.signs,
        }

    def _measure(
        self, what: str, begin: Callable[[], None], limit_s: float, gone: NodesProcess | None = None
    ) -> RendezvousPhase:
        """Measure a phase. ``gone``: the process whose node goes in this phase."""
        if gone is not None:
            gone.expected = 0
        before = self._now(begins=True)
        start = time.perf_counter()
        begin()
        joining = [child for child in self._children.living if child.expected]
        wanted = sum(child.expected for child in joining)
        try:
            answers = self._children.ask(joining, "joined", limit_s, f"not all of {wanted} nodes had {what}")
        except DidNotFinish as error:
            raise DidNotFinish(self._explained(error, what, wanted)) from None
        last = max(answer["last"] for answer in answers.values())
        if gone is None:
            start = min(answer["began"] for answer in answers.values())
        now = self._now()
        there = {number: node for number, node in now.nodes.items() if gone is None or number not in gone.numbers}
        if wrong := wrong_places(there):
            raise DidNotFinish(f"wrong places: {wrong}")
        return RendezvousPhase(
            seconds=last - start,
            known_s=now.known_at - start if now.known_at is not None and gone is not None else None,
            per_node=per_node(there, before.nodes),
            asked=grown(now.asked(there), before.asked(there)),
            served=grown(now.service.requests, before.service.requests),
            nodes_cpu_s=now.cpu_since(before),
            first_cpu_s=now.cpu_since(before, self._children.living[0].pid) if self._task["native"] else None,
            service_cpu_s=_since(now.service.cpu_s, before.service.cpu_s),
            apart_cpu_s=_since(now.service.apart_s, before.service.apart_s),
            syncs=now.service.syncs - before.service.syncs,
            sync_s=now.service.sync_s - before.service.sync_s,
        )

    def _explained(self, error: DidNotFinish, what: str, wanted: int) -> str:
        """How far they got, if they still say."""
        text = str(error)
        if not text.startswith("not all"):
            return text
        joining = [child for child in self._children.living if child.expected]
        for child in joining:
            child.send("so_far")
        with contextlib.suppress(DidNotFinish):
            answers = self._children.ask(joining, "so_far", _SO_FAR_S, "")
            there = sum(answer["so_far"] for answer in answers.values())
            return f"{there} of {wanted} nodes had {what}{text[text.rindex(' after') :]}"
        return text

    def _now(self, *, begins: bool = False) -> NodesState:
        """Ask all nodes for their state; ``begins``: a phase begins."""
        for child in self._children.living:
            child.send("report", expect=child.expected, begins=begins)
        answers = self._children.ask(self._children.living, "nodes", _REPORT_S, "no report")
        known = [answer["known_at"] for answer in answers.values() if answer["known_at"] is not None]
        return NodesState(
            nodes={node["number"]: node for answer in answers.values() for node in answer["nodes"]},
            joins=sum(answer["joins"] for answer in answers.values()),
            known_at=min(known, default=None),
            cpu_s={child.pid: (answer["cpu_s"], answer["cpu_after_s"]) for child, answer in answers.items()},
            memory_mib=sum(answer["memory_mib"] for answer in answers.values()),
            service=self._counts(),
        )

    def _counts(self) -> Served:
        """What the service says; it may have ended, or be too busy to answer."""
        try:
            return self._service.served()
        except (OSError, RdzvError) as error:
            raise DidNotFinish(f"its service does not say what it has counted: {error}") from None


def _since(now: float | None, before: float | None) -> float | None:
    return None if now is None or before is None else now - before


class _NobodyPlain(DidNotFinish):
    pass


def _import_all(needed: Sequence[str]) -> PluginHost:
    """Import what every node needs, once; none of it starts a thread that a fork would miss."""
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "FATAL")  # as the launcher does
    gc.disable()
    for name in needed:
        importlib.import_module(name)
    host = PluginHost.load()
    gc.freeze()
    return host


def main() -> None:
    """Measure, print, and end without tidying up thousands of nodes: the kernel ends them with this process."""
    task = json.loads(sys.argv[1])
    raise_file_limit()
    children = Children()
    code = 1
    try:
        sample = KeptRun(task, children, _import_all(task["imports"])).run()
        print(json.dumps(asdict(sample)), flush=True)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        for child in children.living:
            child.kill()
        for child in children.living:
            child.reap()
        os._exit(code)


if __name__ == "__main__":
    main()
