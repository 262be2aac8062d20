"""What can happen to a job of nodes: each a function, by the names that the story shows.

Whatever hinders a node on its own, longer than it can hide, is noted: that node may be late (``held_up``), or end as it
likes (``hindered``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import TYPE_CHECKING, Any

from rdzv_plugins.interfaces import Outcome
from simulation.service import Faults

if TYPE_CHECKING:
    from simulation.scheduler import Process
    from simulation.world import Node, World

SERVICE = "service"
RATES = (0.9, 0.95, 1.05, 1.1)
"""How many seconds a clock passes in a second."""
_NONSENSE = (b"", b"\xff\xfe", b"{}", b"[]", b'{"round": -1}', b'{"number": 1e400}', b"null" * 4000)


def _for(world: World, seconds: float, who: str, happens: str, ends: str, end: Callable[[], object]) -> None:
    """Something lasts for so long. ``end`` undoes it; False: there is nothing to undo any more."""
    world.disturbed(who, f"{happens} for {seconds:g} s")

    def over() -> None:
        if end() is not False:
            world.disturbed(who, ends)

    world.scheduler.at(world.scheduler.now + seconds, over)


def _cut_for(world: World, seconds: float, who: str, whom: str, ways: Iterable[tuple[str, str]]) -> None:
    """Nothing gets from one host to the other, in these directions."""
    ways = list(ways)
    for way in ways:
        world.network.cut(*way)
    _for(
        world,
        seconds,
        who,
        f"does not reach {whom}",
        f"reaches {whom} again",
        lambda: [world.network.heal(*way) for way in ways],
    )


def _freeze_for(world: World, seconds: float, who: str, process: Process) -> None:
    world.scheduler.freeze(process)
    _for(world, seconds, who, "stands still", "goes on", lambda: not process.killed and world.scheduler.thaw(process))


def kill(world: World, node: Node) -> None:
    """SIGKILL of its agent: its kernel closes its connections."""
    world.disturbed(node.name, "is killed")
    node.hindered = True
    world.network.kill(node.process)
    _its_round_breaks(world, node)


def crash(world: World, node: Node) -> None:
    """Its host is gone, and says nothing."""
    world.disturbed(node.name, "is lost with its host")
    node.hindered = True
    world.network.crash(node.process.host)
    _its_round_breaks(world, node)


def freeze(world: World, node: Node, seconds: float) -> None:
    """Its agent stands still."""
    node.held_up = node.held_up or seconds >= world.options.ttl / 2
    _freeze_for(world, seconds, node.name, node.process)


def cut(world: World, node: Node, seconds: float, *, only: str = "") -> None:
    """Nothing gets from it to the service and back; ``only`` ``to`` or ``from`` the service."""
    node.held_up = node.held_up or seconds >= world.options.ttl / 2
    here = node.process.host
    ways = {"to": (here, SERVICE), "from": (SERVICE, here)}
    _cut_for(
        world, seconds, node.name, f"the service ({only or 'to and from'})", [ways[only]] if only else ways.values()
    )


def isolate(world: World, nodes: Sequence[Node], seconds: float) -> None:
    """These nodes reach each other, and nobody else; the place that one of them serves is cut off with them."""
    inside = {each.process.host for each in nodes}
    hosts = dict.fromkeys(each.host for each in world.services) | dict.fromkeys(n.process.host for n in world.nodes)
    outside = [each for each in hosts if each not in inside]
    ways = [way for here in sorted(inside) for there in outside for way in ((here, there), (there, here))]
    _cut_for(world, seconds, ", ".join(each.name for each in nodes), "the others", ways)


def part(world: World, node: Node, other: Node, seconds: float, *, one_way: bool = False) -> None:
    """Two nodes do not reach each other, or one not the other; both reach the service."""
    if world.has_places and seconds >= world.options.ttl / 2:  # one of them may serve the other
        node.held_up = other.held_up = True
    here, there = node.process.host, other.process.host
    ways = [(here, there)] if one_way else [(here, there), (there, here)]
    _cut_for(world, seconds, node.name, f"{other.name}{' (but is reached)' * one_way}", ways)


def reset(world: World, node: Node) -> None:
    """Its connections to the service are reset by something on the way."""
    world.disturbed(node.name, "its connections to the service are reset")
    node.held_up = node.held_up or world.service.by_connection
    for end in [each for each in world.network.ends if each.process is node.process and each.peer.port == 2379]:
        peer = end.peer
        end.hear_of_the_end("reset")
        peer.hear_of_the_end("reset")


def slow(world: World, node: Node, seconds: float) -> None:
    """The network is slow for a time."""
    network = world.network
    network.latency = lambda: world.random.random() * 0.4  # type: ignore[method-assign]

    def over() -> bool:
        return vars(network).pop("latency", None) is not None

    _for(world, seconds, "network", "is slow", "is as quick as before", over)


def restart_service(world: World, seconds: float, *, memory: bool) -> None:
    """The service ends, and is started again."""
    if world.service.process.killed:
        return
    world.disturbed(SERVICE, f"is down for {seconds:g} s, and", "knows what it knew" if memory else "has forgotten all")
    world.network.kill(world.service.process)

    def start() -> None:
        world.disturbed(SERVICE, "is there again")
        world.service.start(memory=memory)

    world.scheduler.at(world.scheduler.now + seconds, start)


def kill_service(world: World) -> None:
    """It ends for good, and whoever dials its host is refused."""
    world.disturbed(SERVICE, "ends")
    world.network.kill(world.service.process)


def crash_service(world: World) -> None:
    """Its host is gone for good, and says nothing."""
    world.disturbed(SERVICE, "is lost with its host")
    world.network.crash(world.service.host)


def freeze_service(world: World, seconds: float) -> None:
    """The service stands still."""
    _freeze_for(world, seconds, SERVICE, world.service.process)


def fault_of_service(world: World, seconds: float, what: str, **faults: Any) -> None:
    """The service does not do what it should for a time."""
    found, service = Faults(**faults), world.service
    service.faults = found

    def over() -> bool:
        if mine := service.faults is found:
            service.faults = Faults()
        return mine

    _for(world, seconds, SERVICE, what, "does again what it should", over)


def late_watch(world: World, node: Node, seconds: float) -> None:
    """A node is slow to take in what the service tells it."""
    node.held_up = True
    fault_of_service(world, seconds, f"is heard late by {node.name}", calls_take={node.name: 1.0})


def wrong_settings(world: World, seconds: float, **faults: Any) -> None:
    """The service is started again with a setting that is wrong: whoever comes then for the first time may end."""
    restart_service(world, 1.0, memory=True)
    fault_of_service(world, 1.0 + seconds, "lets nobody in", **faults)


def compact(world: World) -> None:
    """The service forgets what has happened so far."""
    world.disturbed(SERVICE, "forgets its history")
    world.service.store.compact()


def leave(world: World, node: Node, reason: str = "it is preempted") -> None:
    """It gets a signal: it tells the others, and leaves."""
    world.disturbed(node.name, "is to leave:", reason)
    node.hindered = True
    node.leave(Outcome("lost", reason))


def notice(world: World, node: Node, seconds: float) -> None:
    """It is told that it will be stopped: it tells the others, saves, and leaves."""
    world.disturbed(node.name, f"has notice that it is stopped in {seconds:g} s")
    node.hindered = True
    if node.handler is not None:
        world.scheduler.spawn(node.process, "notice", lambda: node.handler.note_leaving("it is preempted"))
    world.scheduler.at(world.scheduler.now + seconds, lambda: node.lives and leave(world, node))


def wrong_clock(world: World, node: Node, seconds: float) -> None:
    """The wall clock of its host jumps."""
    world.disturbed(node.name, f"its wall clock is {seconds:+g} s off")
    node.runtime.wall_is_off = seconds


def drift(world: World, node: Node, rate: float) -> None:
    """The clock of its host is too fast or too slow from now on, by more than any real one."""
    world.disturbed(node.name, f"its clock passes {rate:g} s in a second from now on")
    world.scheduler.drift(node.process.host, rate)


def starve(world: World, node: Node, seconds: float) -> None:
    """Its process gets no further descriptor for a time."""
    node.hindered = True
    world.kernel.starved.add(node.process)
    _for(
        world,
        seconds,
        node.name,
        "has no descriptor left",
        "has descriptors again",
        lambda: world.kernel.starved.discard(node.process),
    )


def stranger(world: World, node: Node) -> bool:
    """Somebody dials the port by which others see whether it lives, and sends what nobody understands."""
    port = node.handler._registration.me.listens if node.handler is not None else 0
    if not port:
        return False
    world.disturbed("stranger", "writes nonsense to the port of", node.name)
    try:
        end = world.network.connect(node.process.host, port, 1.0)
        end.send(world.random.choice(_NONSENSE) + bytes(world.random.randrange(200)))
        if world.random.random() < 0.5:
            end.close()
    except (OSError, TimeoutError):
        pass
    return True


def nonsense(world: World, key: str) -> None:
    """A stranger writes what nobody can read."""
    value = _NONSENSE[world.random.randrange(len(_NONSENSE))]
    world.disturbed("stranger", "writes nonsense to", key)
    store = world.service.store
    if key not in store.keys:
        store.put(0, {key: value}, False, None)
        world.service.tell()


def two_with_one_rank(world: World, node: Node) -> None:
    """Somebody starts another node with the rank of this one, by mistake: whoever is heard of first has the rank."""
    key = node.handler and f"members/{node.handler._registration.me.node_id}"
    if not any(key in each.store.keys for each in world.services):
        node.hindered = True
    world.add(rank=node.request.node_rank).hindered = True


def other_settings(world: World) -> None:
    """Somebody starts a node with another script, by mistake."""
    world.add(entrypoint=("other.py",)).hindered = True


def replace(world: World, node: Node) -> None:
    """It is killed, and started again on its host."""
    if node.lives:
        kill(world, node)
    _again(world, node, node.process.host)


def _again(world: World, node: Node, host: str) -> None:
    """Another one in its place: it may end as it likes if that one was started by mistake."""
    rank = node.request.node_rank
    twice = rank is not None and any(each.lives and each.request.node_rank == rank for each in world.nodes)
    world.add(rank=rank, host=host).hindered = twice


def _its_round_breaks(world: World, node: Node) -> None:
    if node.works:
        world.break_round(node)
    node.works = False


ToNode = Callable[["World", "Node"], None]
Kind = Callable[["World", "Node", Random, float], "bool | None"]
"""Let something happen that the job can bear, to a node or for so many seconds; False: now it cannot."""


def _spared(world: World) -> bool:
    return len([each for each in world.living if each.lives]) > world.low


def _lost(how: ToNode) -> Kind:
    """If there are too few without it, another comes."""

    def happens(world: World, node: Node, rng: Random, seconds: float) -> None:
        if _spared(world):
            how(world, node)
        else:
            _replaced(world, node, rng, seconds)

    return happens


def _replaced(world: World, node: Node, rng: Random, seconds: float) -> None:
    kill(world, node)
    world.scheduler.sleep(rng.random() * 8)
    _again(world, node, rng.choice(("", node.process.host)))


def _cut(world: World, node: Node, rng: Random, seconds: float) -> None:
    if world.has_places:
        node.held_up = node.held_up or seconds >= world.options.ttl / 2
        isolate(world, [node], seconds)
    else:
        cut(world, node, seconds, only=rng.choice(("", "to", "from")))


def _part(*, one_way: bool) -> Kind:
    def happens(world: World, node: Node, rng: Random, seconds: float) -> bool:
        others = [each for each in world.living if each.lives and each is not node]
        if others:
            part(world, node, rng.choice(others), min(seconds, 8.0), one_way=one_way)
        return bool(others)

    return happens


def _if_spared(how: Callable[..., object]) -> Kind:
    def happens(world: World, node: Node, rng: Random, seconds: float) -> bool:
        if there := _spared(world):
            how(world, node, *((seconds,) if how is notice else ()))
        return there

    return happens


def _of_service(what: str, **faults: Any) -> Kind:
    return lambda world, node, rng, seconds: fault_of_service(world, min(seconds, 8.0), what, **faults)


def _one_rank(world: World, node: Node, rng: Random, seconds: float) -> bool:
    if ranked := node.request.node_rank is not None and "job" in world.service.store.keys:
        two_with_one_rank(world, node)
    return ranked


def _settings(world: World, node: Node, rng: Random, seconds: float) -> bool:
    if known := "job" in world.service.store.keys:  # else the job would be the stranger's
        other_settings(world)
    return known


AT_NODES: dict[str, Kind] = {
    "kill": _lost(kill),
    "crash": _lost(crash),
    "replace": _replaced,
    "freeze": lambda world, node, rng, seconds: freeze(world, node, seconds),
    "cut": _cut,
    "part": _part(one_way=False),
    "part one way": _part(one_way=True),
    "slow": lambda world, node, rng, seconds: slow(world, node, seconds),
    "join": lambda world, node, rng, seconds: world.add() and None,
    "leave": _if_spared(leave),
    "notice": _if_spared(notice),
    "nonsense": lambda world, node, rng, seconds: nonsense(
        world, rng.choice(("members/stranger", "node/stranger", "failure/7", "restart/9"))
    ),
    "stranger": lambda world, node, rng, seconds: stranger(world, node),
    "settings": _settings,
    "one rank twice": _one_rank,
    "wall clock": lambda world, node, rng, seconds: wrong_clock(world, node, rng.choice((-1e9, -3600.0, 60.0, 1e6))),
    "clock drift": lambda world, node, rng, seconds: drift(world, node, rng.choice(RATES)),
    "no descriptors": lambda world, node, rng, seconds: starve(world, node, min(seconds, 8.0)),
}
AT_THE_SERVICE: dict[str, Kind] = {
    "reset": lambda world, node, rng, seconds: reset(world, node),
    "service with memory": lambda world, node, rng, seconds: restart_service(world, min(seconds, 8.0), memory=True),
    "service without memory": lambda world, node, rng, seconds: restart_service(world, min(seconds, 8.0), memory=False),
    "freeze the service": lambda world, node, rng, seconds: freeze_service(world, min(seconds, 8.0)),
    "compact": lambda world, node, rng, seconds: compact(world),
    "lost answers": _of_service("does what it is asked, and its answers are lost", loses_answers=True),
    "late watches": _of_service("tells late, in any order,", pushes_take=3.0, pushes_vary=True),
    "late watch": lambda world, node, rng, seconds: late_watch(world, node, min(seconds, 8.0)),
    "full": _of_service("takes no writes", full=True),
    "wrong token": lambda world, node, rng, seconds: wrong_settings(world, min(seconds, 8.0), wants_token=True),
    "too few sessions": lambda world, node, rng, seconds: wrong_settings(world, min(seconds, 8.0), most_sessions=0),
}
"""What happens to the service, of which there is none if nodes serve places."""
KINDS = AT_NODES | AT_THE_SERVICE


def happens(world: World, kind: str, rng: Random) -> bool:
    """Let something happen that the job can bear; False if there is nobody to whom it could. Called by a thread."""
    alive = [each for each in world.living if each.lives]
    if not alive:
        return False
    node, seconds = rng.choice(alive), rng.choice((0.5, 1.0, 3.0, 8.0, 20.0))
    return KINDS[kind](world, node, rng, seconds) is not False
