"""What always has to hold in a job: the invariants of the design. Each counts how often it had something to judge."""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from typing import TYPE_CHECKING

from rdzv_plugins.elastic.keys import INIT_CLAIM, INITIALIZED, NODES, ROUND, Assignment, Round, decode, readable
from simulation.service import PORT, Faults
from simulation.troubles import RATES

if TYPE_CHECKING:
    from simulation.service import Service
    from simulation.world import Node, Place, World

_CALM_S = 12.0
"""So long after the last disturbance, and after whatever was told last, a job is at rest."""
_LOOK_S = 4.0
_REQUESTS = 16
"""The most that a node asks of a service for each session, each round, and its end; the most in 200 jobs was 11."""
_TOLD_S = 15.0
"""So long after a node has ended the job everybody has heard of it."""
_STOPS_S = 1.0
_BLAMELESS = frozenset({"done", "released"})
_STATES = ("none", "complete", "over", "failed")
"""Of a round, in their order."""
_ALONE = frozenset({"RendezvousTimeout"})
"""How a node may end that is left without enough others."""


class Oracles:
    """Of one job."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.violations: list[str] = []
        self.judged: Counter[str] = Counter()
        self._rounds: dict[tuple[int, int], list[tuple[Node, Place]]] = defaultdict(list)
        """Who has entered each round of each run: a service that forgets all begins another."""
        self._failed_rounds: set[tuple[int, str]] = set()
        self._asked: dict[str, int] | None = None
        self._declared: dict[Service, tuple[int, Round]] = {}
        """What was declared last at each service, and in which of its runs."""
        self._last: tuple[int, int, list[str]] | None = None
        """The newest round that was complete at any place: its number, how many nodes it has, and who they are."""
        self._look_later()

    def wrong(self, invariant: str, text: str) -> None:
        self.violations.append(f"{invariant} at {self._world.now:.3f} s: {text}")

    def entered(self, node: Node, place: Place) -> None:
        """A round is complete for a node."""
        others = self._rounds[self._run_of(node), place.round]
        self._one_world(node, place, others)
        self._first_round(place)
        self._store(node, place)
        self._in_time_with_the_others(node, place)
        others.append((node, place))

    def _run_of(self, node: Node) -> int:
        """Which run of the job is under way: rounds count from 1 again in another one."""
        if not self._world.has_places:
            return len(self._world.service.store.runs)
        run = max((run for run, _ in self._rounds), default=0)  # no place forgets it while any of its nodes is left
        known = [each for (of, _), members in self._rounds.items() if of == run for each, _ in members]
        return run + bool(known and not any(each.lives and not each.end for each in known))

    def failed(self, node: Node) -> None:
        """Workers of a node have failed by themselves."""
        if node.place is not None:
            self._failed_rounds.add(node.place.which)

    def restarted(self, node: Node) -> None:
        """A node has used up a restart."""
        self.judged["I10"] += 1
        place = node.place
        # if the leader is lost while others are done it is taken to be done, too: nobody knows better
        done = [each for each in self._world.nodes if each.end == "done"]
        if place is None or any(each.place is not None and each.place.which == place.which for each in done):
            return
        if place.which not in self._failed_rounds:
            self.wrong("I10", f"{node.name} has used a restart: no worker of round {place.round} has failed")

    def ended(self) -> None:
        """The job is over: what has become of each node."""
        for thread, error in self._world.scheduler.failed:
            self.wrong("I13", f"{thread} has ended by {error!r}")
        self._everybody_is_told()
        for (_, round_), members in self._rounds.items():
            if len(members) == members[0][1].world:
                self._ranks(round_, members)

    # I1, I11: one world per round

    def _one_world(self, node: Node, place: Place, others: list[tuple[Node, Place]]) -> None:
        world = self._world
        self.judged["I1"] += 1
        if not world.low <= place.world <= world.high or not 0 <= place.rank < place.world:
            self.wrong("I1", f"{node.name} has rank {place.rank} of {place.world} in round {place.round}")
        for other, theirs in others:
            self.judged["I11"] += 1
            if (theirs.world, theirs.store) != (place.world, place.store):
                self.wrong("I11", f"{node.name} and {other.name} are in two worlds, both round {place.round}")
            self.judged["I8"] += 1
            if node.request.entrypoint != other.request.entrypoint:
                self.wrong("I8", f"{node.name} and {other.name} differ in their settings: both in round {place.round}")
            if theirs.rank == place.rank:
                self.wrong("I1", f"{node.name} and {other.name} both have rank {place.rank} in round {place.round}")

    # I2

    def _first_round(self, place: Place) -> None:
        world = self._world
        began = any(members for (_, number), members in self._rounds.items() if number == 1)
        if place.round != 1 or place.world == world.high or began:
            return
        self.judged["I2"] += 1
        came = sorted(each.began for each in world.nodes)
        if place.at < came[world.low - 1] + world.options.last_call_timeout / max(RATES):
            self.wrong("I2", f"the first round began with {place.world} nodes, before the last call was over")

    # I9

    def _store(self, node: Node, place: Place) -> None:
        if place.rank == 0:
            self.judged["I9"] += 1
            if place.store.partition(":")[0] != node.process.host:
                self.wrong("I9", f"the store of round {place.round} is at {place.store}, rank 0 at {node.process.host}")

    def _in_time_with_the_others(self, node: Node, place: Place) -> None:
        """I4: workers of an earlier round do not run beside those of this one, if nothing happens to their node."""
        for other in self._world.nodes:
            if other is node or other.place is None or not other.lives:
                continue
            self.judged["I4"] += 1
            if other.works and other.place.round < place.round:
                self._look_whether_it_stops(other, other.place, place.round)

    def _look_whether_it_stops(self, node: Node, place: Place, beside: int) -> None:
        """It has time to hear of the other round, or to see that its session is over."""
        world, began = self._world, self._world.now

        def look() -> None:
            here, there = node.process.host, world.service.host
            away = world.network.is_cut(here, there) or world.network.is_cut(there, here)  # its workers go on meanwhile
            held = node.hindered or node.held_up or node.process.frozen or away
            if held or not node.lives or world.disturbed_at > began:
                return
            if node.works and node.place is place:
                self.wrong("I4", f"{node.name} works in round {place.round} beside round {beside}")

        world.scheduler.at(world.scheduler.now + world.options.ttl + _STOPS_S, look)

    # I3

    def _look_later(self) -> None:
        world = self._world
        world.scheduler.at(world.scheduler.now + _LOOK_S, self._look)

    def _look(self) -> None:
        world = self._world
        well = not any(each.process.frozen or each.faults != Faults() for each in world.services)
        calm = well and world.now - world.disturbed_at >= _CALM_S and all(each.works for each in world.living)
        told = bool(world.story) and world.now - world.story[-1][0] < _CALM_S
        if calm and not told and world.living:
            self.judged["I3"] += 1
            asked = dict(sum((each.asked for each in world.services), Counter[str]()))
            if self._asked is not None and asked != self._asked:
                more = {name: asked[name] - self._asked.get(name, 0) for name in asked}
                self.wrong("I3", f"something is requested at rest: {more}")
            self._asked = asked
        else:
            self._asked = None
        self._look_later()

    # I7

    def written(self, service: Service, key: str, value: bytes | None) -> None:
        """Somebody has written a key: a round is followed by a later one, and one that is over stays so."""
        if key != ROUND or value is None:
            return
        run, declared = len(service.store.runs), decode(Round, value)
        if declared.state == "complete" and (self._last is None or declared.number >= self._last[0]):
            given = (kv for key, (kv, _) in service.store.keys.items() if key.startswith(NODES))
            places = [each for each in readable(Assignment, given) if each.round == declared.number and each.is_place]
            here = [each.node_id for each in places]
            self._last = declared.number, declared.world, here
        of, last = self._declared.get(service, (0, declared))
        self._declared[service] = run, declared
        if of == run:
            self.judged["I7"] += 1
            steps = _STATES.index(declared.state) - _STATES.index(last.state)
            if declared.number < last.number or (declared.number == last.number and steps < 0):
                self.wrong("I7", f"round {last.number} was {last.state}, and then {declared.number} {declared.state}")

    def _asks_for_what_it_needs(self, node: Node) -> None:
        """Whatever else there are, and however long it waits."""
        service = self._world.service
        self.judged["I3"] += 1
        led = sum(members[0][1].at >= node.began for members in self._rounds.values())  # perhaps, in them or not
        most = _REQUESTS * (1 + led + service.opened[node.name])
        if service.asked[node.name] > most:
            self.wrong("I3", f"{node.name} has made {service.asked[node.name]} requests: {most} would be enough")

    # I5

    def _everybody_is_told(self) -> None:
        world = self._world
        failed = [each for each in world.nodes if each.end == "failed" and each.ended_at is not None]
        if not failed:
            return
        first = min(each.ended_at or 0.0 for each in failed)
        # the service forgets a job when nobody is left of it: who comes then is the first of another
        began = world.scheduler.now - world.now
        forgotten = min((at - began for at in world.service.store.runs if at - began > first - 1.0), default=math.inf)
        for node in world.nodes:
            late = node.began > forgotten or (not node.places and forgotten < math.inf)
            late = late or (world.has_places and (node.began > first or not node.places or self._server_was_held()))
            if node.ended_at is None or node.hindered or node.held_up or node in failed or late:
                continue
            self.judged["I5"] += 1
            if node.ended_at > first + _TOLD_S + world.options.ttl:
                self.wrong("I5", f"{node.name} has ended {node.ended_at - first:.1f} s after the job has failed")
            if node.end == "done" and node.ended_at > first + _TOLD_S:
                self.wrong("I5", f"{node.name} ends well after the job has failed")

    def _server_was_held(self) -> bool:
        """Whether nobody may have heard what was told last at a place, as the node that served it was cut off."""
        hosts = [each.host for each in self._world.services]
        return any(each.held_up or each.hindered for each in self._world.nodes if each.process.host in hosts)

    # I6

    def _ranks(self, round_: int, members: list[tuple[Node, Place]]) -> None:
        """Given ranks are honoured; if one is beyond the size of the round, they move down."""
        given = [(node, place) for node, place in members if node.request.node_rank is not None]
        if any((node.request.node_rank or 0) >= place.world for node, place in given):
            return
        for node, place in given:
            self.judged["I6"] += 1
            if place.rank != node.request.node_rank:
                wrong = f"{node.name} was given rank {node.request.node_rank} and has {place.rank} in round {round_}"
                self.wrong("I6", wrong)

    # I13

    def ends(self, node: Node) -> None:
        """A node ends: one that nothing has happened to, with the outcome of its job."""
        world = self._world
        if not world.has_places:
            self._asks_for_what_it_needs(node)
        if node.hindered or self._is_of_a_stranger(node) or (world.has_places and not self._can_go_on()):
            return
        ranked = node.request.node_rank is not None
        if ranked and node.end == "SettingsDiffer" and world.service.opened[node.name] > 1:  # it was free meanwhile
            return
        if not node.places and any(each.refused[node.name] for each in world.services):  # it waits that out later only
            return
        self.judged["I13"] += 1
        there = [each for each in world.living if not each.process.frozen and not each.is_to_leave]
        failed = any(each.end == "failed" for each in world.nodes)
        done = any(each.end == "done" for each in world.nodes)
        alone = (node.end in _ALONE and len(there) + 1 < world.low) or (node.end == "NotNeeded" and done)
        if node.end not in _BLAMELESS and not failed and not alone and node.end != "failed":
            self.wrong("I13", f"{node.name} ends by {node.end}, {len(there)} others are there: {node.error}")

    def _is_of_a_stranger(self, node: Node) -> bool:
        """Whether a node that was started by mistake was the first to come, as all others had gone."""
        jobs = [each.store.keys["job"][0] for each in self._world.services if "job" in each.store.keys]
        return any(json.loads(job.value)["command"] != " ".join(node.request.entrypoint) for job in jobs)

    def _can_go_on(self) -> bool:
        """Whether a place is served, and more than half of the last round are there; before it, half of the places.

        Where the first round is begun that place has to come back, until somebody who is there has heard that it was
        complete: see ``quorum``. A place that only remembers that there was one does not help who has not heard.
        """
        world = self._world
        fit = [each for each in world.nodes if each.lives and not each.hindered and not each.held_up]
        served = [each for each in world.services if any(node.process is each.process for node in fit)]
        told = [each.handler._registration.me for each in fit if each.handler is not None]
        heard = any(vote.complete for me in told for vote in me.votes)
        born = {each.store.keys[INIT_CLAIM][0].value for each in world.services if INIT_CLAIM in each.store.keys}
        lacking = any(json.loads(value)["at"] not in [f"{each.host}:{PORT}" for each in served] for value in born)
        begun = any(INITIALIZED in each.store.keys for each in served)
        if self._last is None or not (heard or begun):
            return 2 * len(served) > len(world.services) and not lacking
        _, size, members = self._last
        return bool(served) and (heard or not lacking) and 2 * sum(me.node_id in members for me in told) > size
