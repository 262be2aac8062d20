"""What can happen to a job of nodes: each a function, by the names that the story shows.

Whatever hinders a node on its own, longer than it can hide, is noted: that node may be late (``held_up``), or end as it
likes (``hindered``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import TYPE_CHECKING

from rdzv_plugins.interfaces import Outcome

if TYPE_CHECKING:
    from simulation.world import Node, World

SERVICE = "service"
_NONSENSE = (b"", b"\xff\xfe", b"{}", b"[]", b'{"round": -1}', b'{"number": 1e400}', b"null" * 4000)


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
    world.disturbed(node.name, f"stands still for {seconds:g} s")
    node.held_up = node.held_up or seconds >= world.options.ttl / 2
    world.scheduler.freeze(node.process)

    def thaw() -> None:
        if node.lives:
            world.disturbed(node.name, "goes on")
            world.scheduler.thaw(node.process)

    world.scheduler.at(world.scheduler.now + seconds, thaw)


def cut(world: World, node: Node, seconds: float, *, only: str = "") -> None:
    """Nothing gets from it to the service and back; ``only`` ``to`` or ``from`` the service."""
    world.disturbed(node.name, f"is cut off from the service for {seconds:g} s", only)
    node.held_up = node.held_up or seconds >= world.options.ttl / 2
    here, network = node.process.host, world.network
    ways = {"to": [(here, SERVICE)], "from": [(SERVICE, here)]}.get(only, [(here, SERVICE), (SERVICE, here)])
    for source, target in ways:
        network.cut(source, target)

    def heal() -> None:
        world.disturbed(node.name, "reaches the service again")
        for source, target in ways:
            network.heal(source, target)

    world.scheduler.at(world.scheduler.now + seconds, heal)


def isolate(world: World, nodes: Sequence[Node], seconds: float) -> None:
    """These nodes reach each other, and nobody else; the place that one of them serves is cut off with them."""
    names = ", ".join(each.name for each in nodes)
    world.disturbed(names, f"is cut off from all others for {seconds:g} s")
    inside = {each.process.host for each in nodes}
    hosts = dict.fromkeys(each.host for each in world.services) | dict.fromkeys(n.process.host for n in world.nodes)
    outside = [each for each in hosts if each not in inside]
    ways = [way for here in sorted(inside) for there in outside for way in ((here, there), (there, here))]
    for source, target in ways:
        world.network.cut(source, target)

    def heal() -> None:
        world.disturbed(names, "reaches the others again")
        for source, target in ways:
            world.network.heal(source, target)

    world.scheduler.at(world.scheduler.now + seconds, heal)


def part(world: World, node: Node, other: Node, seconds: float) -> None:
    """Two nodes do not reach each other; both reach the service."""
    world.disturbed(node.name, f"does not reach {other.name} for {seconds:g} s")
    here, there, network = node.process.host, other.process.host, world.network
    network.cut(here, there)
    network.cut(there, here)

    def heal() -> None:
        world.disturbed(node.name, f"reaches {other.name} again")
        network.heal(here, there)
        network.heal(there, here)

    world.scheduler.at(world.scheduler.now + seconds, heal)


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
    world.disturbed("network", f"is slow for {seconds:g} s")
    network = world.network
    network.latency = lambda: world.random.random() * 0.4  # type: ignore[method-assign]

    def over() -> None:
        world.disturbed("network", "is as quick as before")
        del network.latency  # type: ignore[method-assign]

    world.scheduler.at(world.scheduler.now + seconds, lambda: "latency" in vars(network) and over())


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
    process = world.service.process
    world.disturbed(SERVICE, f"stands still for {seconds:g} s")
    world.scheduler.freeze(process)

    def thaw() -> None:
        if not process.killed:
            world.disturbed(SERVICE, "goes on")
            world.scheduler.thaw(process)

    world.scheduler.at(world.scheduler.now + seconds, thaw)


def compact(world: World) -> None:
    """The service forgets what has happened so far."""
    world.disturbed(SERVICE, "forgets its history")
    world.service.store.compact()


def leave(world: World, node: Node, reason: str = "it is preempted") -> None:
    """It gets a signal: it tells the others, and leaves."""
    world.disturbed(node.name, "is to leave:", reason)
    node.hindered = True
    node.leave(Outcome("lost", reason))


def nonsense(world: World, key: str) -> None:
    """A stranger writes what nobody can read."""
    value = _NONSENSE[world.random.randrange(len(_NONSENSE))]
    world.disturbed("stranger", "writes nonsense to", key)
    store = world.service.store
    if key not in store.keys:
        store.put(0, {key: value}, False, None)
        world.service.tell()


def two_with_one_rank(world: World, node: Node) -> None:
    """Somebody starts another node with the rank of this one, by mistake."""
    if node.request.node_rank is not None:
        world.add(rank=node.request.node_rank).hindered = True


def other_settings(world: World) -> None:
    """Somebody starts a node with another script, by mistake."""
    world.add(entrypoint=("other.py",)).hindered = True


def replace(world: World, node: Node) -> None:
    """It is killed, and started again on its host."""
    if node.lives:
        kill(world, node)
    world.add(rank=node.request.node_rank, host=node.process.host)


def _its_round_breaks(world: World, node: Node) -> None:
    if node.works:
        world.break_round(node)
    node.works = False


def happens(world: World, kind: str, rng: Random) -> bool:
    """Let something happen that the job can bear; False if there is nobody to whom it could. Called by a thread."""
    alive = [each for each in world.living if each.lives]
    if not alive:
        return False
    node, others = rng.choice(alive), len(alive) - 1
    seconds, spare = rng.choice((0.5, 1.0, 3.0, 8.0, 20.0)), len(alive) > world.low
    if kind == "kill" and spare:
        kill(world, node)
    elif kind == "crash" and spare:
        crash(world, node)
    elif kind in ("kill", "crash", "replace"):
        kill(world, node)
        world.scheduler.sleep(rng.random() * 8)
        world.add(host=rng.choice(("", node.process.host)), rank=node.request.node_rank)
    elif kind == "freeze":
        freeze(world, node, seconds)
    elif kind == "cut" and world.has_places:
        node.held_up = node.held_up or seconds >= world.options.ttl / 2
        isolate(world, [node], seconds)
    elif kind == "cut":
        cut(world, node, seconds, only=rng.choice(("", "to", "from")))
    elif kind == "part" and others:
        part(world, node, rng.choice([each for each in alive if each is not node]), min(seconds, 8.0))
    elif kind == "reset":
        reset(world, node)
    elif kind == "slow":
        slow(world, node, seconds)
    elif kind == "service with memory":
        restart_service(world, min(seconds, 8.0), memory=True)
    elif kind == "service without memory":
        restart_service(world, min(seconds, 8.0), memory=False)
    elif kind == "freeze the service":
        freeze_service(world, min(seconds, 8.0))
    elif kind == "compact":
        compact(world)
    elif kind == "join":
        world.add()
    elif kind == "leave" and spare:
        leave(world, node)
    elif kind == "nonsense":
        nonsense(world, rng.choice(("members/stranger", "node/stranger", "failure/7", "restart/9")))
    elif kind == "settings" and "job" in world.service.store.keys:  # else the job would be the stranger's
        other_settings(world)
    else:
        return False
    return True


ToNode = Callable[["World", "Node"], None]

KINDS = (
    *("kill", "crash", "replace", "freeze", "cut", "part", "reset", "slow"),
    *("service with memory", "service without memory", "freeze the service", "compact", "join", "leave"),
    *("nonsense", "settings"),
)
AT_THE_SERVICE = {"reset", "service with memory", "service without memory", "freeze the service", "compact"}
