"""A whole elastic job in memory: nodes, keys, leaders and everything that is under way between them.

Nothing happens by itself: each method is one step of the world, and whoever calls them decides what comes
first. A node does what ``elastic/handler.py`` does, a leader what ``elastic/leading/leader.py`` does, with the real
``Membership`` in it. Every write of a leader is judged by ``membership_checks``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from msgspec import structs

from kits.unit.many_worlds import shallow
from kits.unit.membership_checks import Checks
from kits.unit.membership_parts import Lead, Node, Told
from rdzv_plugins.elastic.keys import Assignment, Member, Round
from rdzv_plugins.elastic.leading.membership import Decisions, Membership, Rules
from rdzv_plugins.elastic.leading.quorum import seat_of


def arrival(_: object) -> None:
    """No order of its own."""


class World:
    """See the module. ``now`` stands still, but for ``pass_time``: only deadlines that are met count."""

    def __init__(self, rules: Rules, members: Iterable[Member]) -> None:
        self.rules = rules
        self._patient = replace(rules, rejoin=math.inf)
        """A node is slow only if a test says so."""
        self.nodes = {member.node_id: Node(member) for member in members}
        self.members: dict[str, Member] = {}  # the keys, in the order of their revisions
        self.assigned: dict[str, Assignment] = {}
        self.declared = Round()
        self.finishing = 0
        """The round in which a node was done and has left."""
        self.lead: Lead | None = None
        self.led_by = ""
        """The node whose process is gone, and whose key says that it leads."""
        self.stopped: list[Lead] = []
        self.checks = Checks(rules)
        self.sound = True
        """No write of a leader was found wrong."""

    def copy(self) -> World:
        twin = shallow(self)
        twin.nodes = {name: node.copy() for name, node in self.nodes.items()}
        twin.members, twin.assigned = self.members.copy(), self.assigned.copy()
        if self.lead is not None:
            twin.lead = self.lead.copy()
        twin.checks = self.checks.copy()
        return twin

    # nodes

    def start(self, name: str) -> None:
        """A new process joins."""
        node = self.nodes[name]
        node.mode = "joining"
        self._connect(node)

    def read(self, name: str, of_all: int | None = None, of_own: int | None = None) -> None:
        """The node reads so many messages of its two watches (None: all), and does what it is told."""
        node = self.nodes[name]
        for box, count in ((node.of_all, of_all), (node.of_own, of_own)):
            count = len(box) if count is None else count
            for told in box[:count]:
                if isinstance(told, Round):
                    node.declared = told
                    node.newest = max(node.newest, told.number)
                elif isinstance(told, int):
                    node.finishing = told
                else:
                    node.place = told
            del box[:count]
        self._act(node)

    def ask(self, name: str) -> None:
        """A worker has failed: the node wants another round."""
        self._join(self.nodes[name])

    def done(self, name: str) -> None:
        """Its workers have succeeded."""
        node = self.nodes[name]
        self._say(node, done=node.round)

    def stick(self, name: str) -> None:
        """It does nothing more, but it lives."""
        self.nodes[name].stuck = True
        if self.lead is not None:
            machine = self.lead.machine
            machine._rules = self.rules
            machine._act_by = None if machine._act_by is None else self.rules.rejoin

    def leave(self, name: str) -> None:
        """It is done and goes."""
        node = self.nodes[name]
        self.finishing = node.round
        self._tell(node.round)
        self._say(node, leaving="done")
        node.mode = "left"
        self._end_session(node)

    def lose(self, name: str) -> None:
        """The process, or its machine, is gone for good."""
        node = self.nodes[name]
        was_cut, node.mode = node.cut, "dead"
        self.checks.unfenced = self.checks.unfenced - {name}
        if not was_cut:
            self._end_session(node)

    def kill(self, name: str) -> None:
        """The process is gone for good; the service does not notice it."""
        node = self.nodes[name]
        if node.cut:
            self.lose(name)
            return
        node.mode, node.lingers = "dead", True
        node.of_all, node.of_own = [], []
        if self.lead is not None and self.lead.node == name:
            self.lead, self.led_by = None, name

    def lingering(self) -> list[str]:
        """The nodes whose processes are gone, and whose keys are there."""
        return [node.name for node in self.nodes.values() if node.lingers]

    def expire(self, name: str) -> None:
        """The session of a node whose process is gone ends, by itself or because the leader has seen to it."""
        self.nodes[name].lingers = False
        self.led_by = "" if self.led_by == name else self.led_by
        self._end_session(self.nodes[name])

    def cut(self, name: str) -> None:
        """Its session ends; the process lives."""
        node = self.nodes[name]
        node.cut = True
        heard = node.declared == Round() or (node.declared.number, node.declared.state) == (node.round, "complete")
        keeps = node.mode == "working" and heard and node.finishing != node.round and not node.stuck
        node.kept = node.works_at if keeps else None
        self._end_session(node)

    def back(self, name: str) -> None:
        """It opens another session and begins again with what the service still knows."""
        node = self.nodes[name]
        node.cut = node.stuck = False
        self.checks.unfenced = self.checks.unfenced - {name}
        self.checks.left_done.pop(name, None)
        kept = node.kept if node.mode == "working" and self.declared == Round() else None
        node.me = structs.replace(node.me, known=node.newest, keeps=kept)
        if node.mode == "working" and kept is None:
            node.mode = "joining"
            node.me = structs.replace(node.me, **self._fresh(node))
        self._connect(node)

    def repeat(self, name: str, which: int) -> None:
        """Something that it said earlier in this session arrives late, before what it has said last."""
        node = self.nodes[name]
        self._write(name, node.said[which])
        self._write(name, node.me)

    def forget(self) -> None:
        """The service ends, and another one without its memory begins in its place."""
        for node in self.nodes.values():
            if node.lives:
                if node.mode == "working" and self.checks.is_only_one(node):
                    self.checks.unfenced |= {node.name}
                self.cut(node.name)
            elif node.lingers:
                self.expire(node.name)
        self.members, self.assigned, self.declared, self.finishing = {}, {}, Round(), 0
        self.checks.forget()

    # leaders

    def campaign(self, name: str, gone: str = "") -> None:
        """Nobody leads: this node does. ``gone``: it has proved that the process of who did is gone."""
        self.led_by = ""
        rules = self.rules if any(node.stuck for node in self.nodes.values()) else self._patient
        machine = Membership(rules, arrival, self.declared if self.declared.number else None, self.assigned.copy())
        self.lead = lead = Lead(name, machine)
        known = set(self.members)
        for member in self.members.values():
            machine.changed(member, 0)
        if gone:
            self._take_leave(lead, gone)
        machine.all_known(0, finishing=self.finishing == self.declared.number > 0)
        if gone and self.declared.state == "complete":
            here = self.checks.plans[self.declared.number].keys() <= self.members.keys()
            done = here and self.members[gone].done == self.declared.number
            assert not done or machine.round.cause != "lost", f"{gone} was done, and all others are there"
        self._publish(lead, machine.decide(), known)

    def prove(self, name: str) -> None:
        """The leader has proved that the process of a node is gone: it hears the node's last word, and then its end."""
        assert self.lead is not None
        lead = self.lead
        known = set(lead.machine.members)
        self._take_leave(lead, name)
        lead.machine.tick(0)
        self._publish(lead, lead.machine.decide(), known)

    def _take_leave(self, lead: Lead, name: str) -> None:
        lead.machine.changed(self.members[name], 0)
        lead.machine.gone(name, 0)
        lead.gone.add(name)
        lead.proved.add(name)
        lead.inbox = [(other, member) for other, member in lead.inbox if other != name]  # what it said before that
        if self.nodes[name].me.done:
            self.checks.left_done[name] = self.nodes[name].me.done

    def hear(self, count: int | None = None) -> None:
        """The leader reads so many changes of members (None: all) and publishes what it decides."""
        assert self.lead is not None
        lead = self.lead
        known = set(lead.machine.members)
        self._publish(lead, self._feed(lead, count), known)

    def hear_and_die(self, count: int, written: int) -> None:
        """As ``hear``, but the leader's node is lost when so many of its keys are written: a transaction was split."""
        assert self.lead is not None
        lead = self.lead
        known = set(lead.machine.members)
        self._publish(lead, self._feed(lead, count), known, written)
        self.lose(lead.node)

    def deadline(self) -> float | None:
        """The leader's next one."""
        at = None if self.lead is None else self.lead.machine.deadline()
        return at if at is None or at < math.inf else None

    def pass_time(self) -> None:
        """The leader's next deadline is met."""
        assert self.lead is not None
        machine = self.lead.machine
        at = self.deadline()
        assert at is not None
        if at >= self.rules.back:
            self.checks.unfenced = frozenset()
        machine.tick(at)
        self.checks.waited = True
        self._publish(self.lead, machine.decide(), set(machine.members))
        self.checks.waited = False

    def stop_leader(self) -> None:
        """The leader's process is stopped until its session has ended; it is continued by ``resume_leader``."""
        assert self.lead is not None
        lead = self.lead
        self.cut(lead.node)
        self.stopped.append(lead)

    def resume_leader(self) -> None:
        """It goes on as if nothing had been: its writes are guarded by a key that is not its own any more."""
        lead = self.stopped.pop()
        self._feed(lead, None)  # and put(guard=...) writes nothing

    def _feed(self, lead: Lead, count: int | None) -> Decisions:
        machine = lead.machine
        events, lead.inbox = lead.inbox[:count], lead.inbox[len(lead.inbox[:count]) :]
        for name, member in events:
            if member is None:
                lead.gone.add(name)
                machine.gone(name, 0)
            else:
                machine.changed(member, 0)
        machine.tick(0)
        return machine.decide()

    def _publish(self, lead: Lead, decisions: Decisions, known: set[str], written: int | None = None) -> None:
        self.sound = False
        writes: list[tuple[str, Assignment] | Round] = list(decisions.assignments.items())
        if decisions.round is not None:
            writes.insert(0 if decisions.round.state == "over" else len(writes), decisions.round)
        for write in writes[:written]:
            if isinstance(write, Round):
                self.checks.round(write, lead, known, self.declared)
                self.declared = write
                self._tell(write)
            else:
                name, assignment = write
                self.checks.assignment(name, assignment, lead, known, self.declared, self.nodes)
                self.assigned[name] = assignment
                self._tell(assignment, name)
        self.sound = True
        if written is not None:
            return
        for name in decisions.forget:
            if self.assigned.pop(name, None) is not None:
                self._tell(None, name)

    # the service

    def _tell(self, told: Told, name: str | None = None) -> None:
        for node in self.nodes.values():
            if node.lives and (name is None or node.name == name):
                (node.of_all if name is None else node.of_own).append(told)

    def _connect(self, node: Node) -> None:
        node.declared, node.place, node.finishing = Round(), None, 0
        node.of_all = [self.declared] if self.declared.number else []
        node.of_all += [self.finishing] if self.finishing else []
        node.of_own = [self.assigned[node.name]] if node.name in self.assigned else []
        node.said = []
        self._say(node)

    def _end_session(self, node: Node) -> None:
        node.of_all, node.of_own, node.said = [], [], []
        if node.me.done:  # it was done, however it went
            self.checks.left_done[node.name] = node.me.done
        if self.lead is not None and self.lead.node == node.name:
            self.lead = None
        if self.members.pop(node.name, None) is not None and self.lead is not None:
            self.lead.inbox.append((node.name, None))

    def _write(self, name: str, member: Member) -> None:
        self.members.pop(name, None)
        self.members[name] = member
        if self.lead is not None:
            self.lead.inbox.append((name, member))

    # what a node does

    def _say(self, node: Node, **changes: Any) -> None:
        node.me = structs.replace(node.me, **changes)
        node.said.append(node.me)
        self._write(node.name, node.me)

    def _fresh(self, node: Node) -> dict[str, Any]:
        return {"after": node.round, "store": None, "reached": 0, "unreachable": "", "done": 0, "keeps": None}

    def _join(self, node: Node) -> None:
        node.mode = "joining"
        self._say(node, **self._fresh(node))

    def _act(self, node: Node) -> None:
        if node.stuck:
            return
        declared, place = node.declared, node.place
        over = declared.number == node.round and declared.state == "over"
        other = declared.state == "complete" and node.works_at and declared.master_addr != node.works_at.master_addr
        if node.mode == "working" and (over or other or declared.number not in (0, node.round)):
            self._join(node)
        if node.mode != "joining":
            return
        inside = place is not None and place.is_place and place.round == declared.number
        if node.finishing and node.finishing == declared.number and node.round != declared.number and not inside:
            self._give_up(node)
            return
        if place is not None and place.refused:
            self._give_up(node)
            return
        has_place = place is not None and place.is_place and place.round > node.round
        if self._is_outside(node, has_place):
            self._say(node, reached=declared.number, unreachable="no" if node.walled else "")
        if not has_place:
            return
        assert place is not None
        if not place.master_addr:
            if node.me.store is None or node.me.store[0] != place.round:
                self._say(node, store=(place.round, node.name, 1))
        elif node.me.reached != place.round:
            wall = node.walled and place.master_addr != node.name
            self._say(node, reached=place.round, unreachable="no" if wall else "")
        elif declared.number == place.round and declared.state in ("complete", "over"):
            node.round = place.round
            seat = seat_of(place, complete=declared.state == "complete")
            node.me = structs.replace(node.me, seats=(seat,), server=declared.server)
            if declared.state == "complete":
                node.mode, node.works_at = "working", place
                self.checks.works(node, place)
            else:
                self._say(node, after=node.round, store=None)

    def _is_outside(self, node: Node, has_place: bool) -> bool:
        """A round works without it and has room, and it has not dialled its store yet."""
        declared = node.declared
        outside = declared.state == "complete" and declared.number > node.round
        in_it = has_place and node.place is not None and node.place.round >= declared.number
        room = declared.world < self.rules.max_nodes
        return outside and not in_it and room and node.me.reached < declared.number

    def _give_up(self, node: Node) -> None:
        node.mode = "left"
        self._end_session(node)
