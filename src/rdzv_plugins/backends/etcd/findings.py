"""Whether a cluster is well, judging by a look at its members. Pure functions."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

from rdzv_plugins.backends.etcd.looks import Listed, Look
from rdzv_plugins.backends.etcd.refusals import MAKE_ROOM, NO_LEADER
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.interfaces import ServiceCheck
from rdzv_plugins.kit.reasons import default_remedy

_SLOW_S = 0.2
"""An answer that takes more seconds than this is slow: a node asks about a dozen times in each round."""
_SLOW_DISK_S = 0.1
"""As long as one of etcd's heartbeats, which wait for the disk as well, in seconds."""
_NEARLY_FULL = 0.8
_CLOCK_S = 5.0
_MIB = 2**20
_ALARM = re.compile(r"memberID:\s*(\d+).*?alarm:\s*(\w+)", re.DOTALL)
_FIRST_WITH_ERRORS = (3, 4)
_REMEDIES = {
    "NOSPACE": MAKE_ROOM,
    "CORRUPT": "The members hold different data. Start no job there: find the one that differs (etcdctl endpoint "
    "hashkv), take it out and add it again, empty; then etcdctl alarm disarm.",
}
_CONSEQUENCES = {"NOSPACE": "etcd takes no more writes", "CORRUPT": "etcd refuses to write"}
_MAJORITY = "Start the members that are down, or mend the way between members (their peer port, 2380 by default)."


def checks_of(looks: Sequence[Look], listed: Sequence[Listed] | None) -> list[ServiceCheck]:
    """The findings: about the cluster, then about each member. ``listed``: all members, as they know each other."""
    return [
        *_alarms(looks, listed or ()),
        *_members(looks, listed),
        *(check for look in looks for check in _of_one(look, looks)),
    ]


def _alarms(looks: Sequence[Look], listed: Sequence[Listed]) -> Iterator[ServiceCheck]:
    """Checks of the alarms: each is raised for one member and holds for the cluster."""
    names = {member.member_id: member.name for member in listed}
    names |= {look.member_id: str(look.endpoint) for look in looks}
    raised: dict[str, list[str]] = {}
    for text in sorted({text for look in looks for text in look.errors}):
        for member, alarm in _ALARM.findall(text):
            raised.setdefault(alarm, []).append(names.get(int(member), f"member {int(member):x}"))
    for alarm, where in raised.items():
        text = f"raised at {', '.join(where)}: {_CONSEQUENCES.get(alarm, 'its documentation says what that is')}"
        remedy = _REMEDIES.get(alarm, "Find the cause in etcd's log, then etcdctl alarm disarm.")
        yield ServiceCheck(f"alarm {alarm}", text, "wrong", remedy)
    if not raised and (told := [look for look in looks if look.version]):
        if any(_tells_alarms(look.version) for look in told):
            yield ServiceCheck("alarms", "none is raised")
        else:
            text = f"etcd {told[0].version} does not tell them: etcdctl alarm list"
            yield ServiceCheck("alarms", text, "skipped")


def _tells_alarms(version: str) -> bool:
    found = re.match(r"(\d+)\.(\d+)", version)
    return found is not None and (int(found[1]), int(found[2])) >= _FIRST_WITH_ERRORS


def _members(looks: Sequence[Look], listed: Sequence[Listed] | None) -> Iterator[ServiceCheck]:
    """How many members there are, and which of them a job can use."""
    clusters = {look.cluster_id: look.endpoint for look in looks if look.cluster_id}
    if len(clusters) > 1:
        yield ServiceCheck(
            "members",
            f"{' and '.join(map(str, clusters.values()))} are members of different clusters",
            "wrong",
            "--rdzv-endpoint has to name members of one cluster, the same on every node.",
        )
        return
    if not listed:
        if any(look.trouble is None for look in looks):
            yield ServiceCheck("members", "this user is not told who they are: etcdctl member list", "skipped")
        return
    voters = [member for member in listed if not member.is_learner]
    spare = (len(voters) - 1) // 2
    several = f"{len(voters)} members" + (f" and {len(listed) - len(voters)} learners" * (len(voters) < len(listed)))
    if len(voters) == 1:
        yield ServiceCheck("members", "one: jobs wait while it is away, for outage_timeout at most")
    elif len(voters) == 2:
        remedy = "Three survive the loss of one: etcdctl member add."
        yield ServiceCheck("members", "two, neither of which may be lost", "warning", remedy)
    else:
        yield ServiceCheck("members", f"{several}, of which {spare} may be lost")
    for member in listed:
        if not member.name:
            where = ", ".join(member.peer_urls)
            counts = "" if member.is_learner else ": it counts for the majority all the same"
            yield ServiceCheck(
                f"member at {where}",
                f"it was added and has not started{counts}",
                "warning",
                f"Start it, or take it out: etcdctl member remove {member.member_id:x}",
            )
    yield from _unnamed(looks, voters)


def _unnamed(looks: Sequence[Look], voters: Sequence[Listed]) -> Iterator[ServiceCheck]:
    """Members that a job does not know of, if those it knows have the names that they call themselves."""
    named = {look.endpoint for look in looks}
    own = [{_endpoint(url) for url in member.client_urls} for member in voters]
    if not named.issubset(endpoint for each in own for endpoint in each):  # known by other names, or through a proxy
        return
    others = [member for member, each in zip(voters, own, strict=True) if each and not each & named]
    if others:
        urls = ", ".join(member.client_urls[0] for member in others)
        yield ServiceCheck(
            "endpoint",
            f"it does not name {urls}: a job does not find these members when the others are away",
            "warning",
            "Give all members in --rdzv-endpoint, separated by commas, the same on every node.",
        )


def _endpoint(url: str) -> Endpoint | None:
    host, _, port = url.rpartition("://")[2].rstrip("/").rpartition(":")
    return Endpoint(host.strip("[]"), int(port)) if host and port.isdigit() else None


def _of_one(look: Look, looks: Sequence[Look]) -> Iterator[ServiceCheck]:
    name = f"member {look.endpoint}"
    if look.trouble is not None:
        others = any(each.trouble is None and not each.is_learner for each in looks)
        remedy = _MAJORITY if look.trouble.text == NO_LEADER else look.trouble.remedy or default_remedy("etcd")
        yield ServiceCheck(name, look.trouble.text, "warning" if others else "wrong", remedy)
        return
    if not look.version:
        yield ServiceCheck(name, f"it answers, and does not say how it is: {look.refusal}", "skipped")
    else:
        yield _role(name, look, looks)
        yield from _room(look)
    yield from _disk(look)
    yield from _clock(look)


def _role(name: str, look: Look, looks: Sequence[Look]) -> ServiceCheck:
    if look.is_learner:
        alone = all(each.is_learner or each.trouble is not None for each in looks)
        return ServiceCheck(
            name,
            f"etcd {look.version}, a learner: it has no vote, and refuses what nodes ask",
            "wrong" if alone else "warning",
            f"Let it vote once it has caught up: etcdctl member promote {look.member_id:x}; until then name others.",
        )
    role = "leads" if look.leader_id == look.member_id else "follows"
    text = f"etcd {look.version}, {role}; answers in {_ms(look.answer_s)}"
    if look.read_problem:
        text += f", but not what the others have to agree to: {look.read_problem}"
        return ServiceCheck(name, text, "wrong", "See to the alarm." if look.errors else _MAJORITY)
    if look.read_s is not None:
        text += f", and in {_ms(look.read_s)} what the others have to agree to"
    if max(look.answer_s, look.read_s or 0.0) > _SLOW_S:
        remedy = "It is far away, or busy: members want machines of their own, with quick disks, near the nodes."
        return ServiceCheck(name, text, "warning", remedy)
    return ServiceCheck(name, text)


def _room(look: Look) -> Iterator[ServiceCheck]:
    name = f"database of {look.endpoint}"
    used = f", {_mib(look.size_in_use)} of it in use" if look.size_in_use else ""
    if not look.quota:
        yield ServiceCheck(name, f"{_mib(look.size)}{used}; its quota is not told")
        return
    text = f"{_mib(look.size)} of {_mib(look.quota)}{used}"
    if look.size <= _NEARLY_FULL * look.quota:
        yield ServiceCheck(name, text)
        return
    old = bool(look.size_in_use) and look.size_in_use <= _NEARLY_FULL * look.quota
    first = "etcdctl defrag gives back what is not in use" if old else "etcdctl compact REVISION, then etcdctl defrag"
    remedy = f"{first}; --auto-compaction-retention=1h keeps it small, --quota-backend-bytes allows more."
    yield ServiceCheck(name, f"{text}: when that is full, etcd takes no more writes", "warning", remedy)


def _disk(look: Look) -> Iterator[ServiceCheck]:
    if look.disk_s is None:
        return
    name = f"disk of {look.endpoint}"
    most = "longer than it counts" if math.isinf(look.disk_s) else f"up to {_ms(look.disk_s)}"
    if look.disk_s > _SLOW_DISK_S:
        text = f"more than one of 100 writes takes longer than {_ms(_SLOW_DISK_S)}, {most}"
        remedy = "Give etcd a disk of its own, or a quicker one: while it waits for the disk the others elect a leader."
        yield ServiceCheck(name, text, "warning", remedy)
    else:
        yield ServiceCheck(name, f"99 of 100 writes take {most}")


def _clock(look: Look) -> Iterator[ServiceCheck]:
    if look.clock_s is None:
        return
    name, (least, most) = f"clock of {look.endpoint}", look.clock_s
    if least > _CLOCK_S or most < -_CLOCK_S:
        apart = f"{abs(least + most) / 2:.0f} s {'ahead of' if least > 0 else 'behind'} this machine's"
        remedy = (
            "Keep both in step, by chrony say: certificates are checked by these clocks; rdzv-run itself uses none."
        )
        yield ServiceCheck(name, apart, "warning", remedy)
    else:
        yield ServiceCheck(name, "as this machine's, to a few seconds")


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"


def _mib(size: int) -> str:
    return f"{size / _MIB:.1f} MiB"
