"""Whether a cluster is well: a look at its members, and what is found by it. Changes nothing.

Requests and fields are those of etcd 3.4 and later; the quota is told since 3.6. What no request tells is on the page
for Prometheus.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from typing import Any

from rdzv_plugins.backends.etcd.api import grpc, rpc
from rdzv_plugins.backends.etcd.cluster import Connection, open_connection
from rdzv_plugins.backends.etcd.diagnosis import page_of
from rdzv_plugins.backends.etcd.refusals import MAKE_ROOM, NO_LEADER, is_about_users, text_of
from rdzv_plugins.backends.etcd.space import Space
from rdzv_plugins.elastic import keys
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.interfaces import Request, ServiceCheck
from rdzv_plugins.kit.loop import here, hold_for_good, in_thread
from rdzv_plugins.kit.reasons import Reason, Unusable, default_remedy
from rdzv_plugins.kit.security import Security

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
_CONSEQUENCES = {"NOSPACE": "etcd accepts no more writes", "CORRUPT": "etcd refuses to write"}
_MAJORITY = "Start the members that are down, or mend the way between members (their peer port, 2380 by default)."
_TIMES = 5
"""How many questions are timed; the median counts."""
_STEPS = 6
"""The steps of a look, each of which has its own time: a name, two connections, a login, questions, a page."""
_QUOTA_METRIC = re.compile(rb"^etcd_server_quota_backend_bytes (\S+)$", re.MULTILINE)
_WRITES_METRIC = re.compile(rb'^etcd_disk_wal_fsync_duration_seconds_bucket\{le="([^"]+)"\} (\S+)$', re.MULTILINE)
_TROUBLE = (grpc.aio.AioRpcError, EOFError, TimeoutError)
_ALMOST_ALL = 0.99
_FEWEST_WRITES = 100


@dataclass
class Look:
    """One member, as it was seen. Times are in seconds, sizes in bytes; 0 or None means not known."""

    endpoint: Endpoint
    trouble: Reason | None = None
    """Why it cannot be used; then nothing else is known."""
    refusal: str = ""
    """Why it does not tell how it is."""
    status: Any = field(default_factory=rpc.StatusResponse)
    """How it says that it is. Its ``errors`` are about the cluster: alarms, and the lack of a leader."""
    listed: Sequence[Any] = ()
    """All members of the cluster, as they know each other."""
    answer_s: float = 0.0
    """How long it takes to answer by itself."""
    read_s: float | None = None
    """How long a read takes that more than half of the members agree to."""
    read_problem: str = ""
    """Why such a read is not answered, unless this user may not read."""
    disk_s: float | None = None
    """Nearly all (99 of 100) of its writes to the disk took no longer than this."""
    clock_s: tuple[float, float] | None = None
    """How far its clock is ahead of this machine's, at least and at most. It tells whole seconds."""


def health(request: Request, timeout: float) -> list[ServiceCheck]:
    """See ``Backend.health``. Covers the members that the endpoint names, and what they know about each other."""
    members, security = request.target
    return checks_of(look_at(members, security, Space(request.options.prefix, request.run_id).full(keys.JOB), timeout))


def look_at(members: Sequence[Endpoint], security: Security, key: bytes, timeout: float) -> Sequence[Look]:
    """Look at each of ``members``, in that order.

    ``key`` is one that a job's user may read. ``timeout``: seconds for each step.
    """

    async def look() -> Sequence[Look]:
        return await asyncio.gather(*(_whole_look(endpoint, security, key, timeout) for endpoint in members))

    return hold_for_good().run(look(), _STEPS * timeout)  # gRPC cannot move from one loop to another


async def _whole_look(endpoint: Endpoint, security: Security, key: bytes, timeout: float) -> Look:
    look = Look(endpoint)
    try:
        connection = await open_connection(endpoint, security)
    except Unusable as error:
        look.trouble = error.reason
        return look
    try:
        await _ask(connection, look, key, timeout)
    finally:
        await connection.drop()
    await _read_page(look, security, timeout)
    return look


async def _ask(connection: Connection, look: Look, key: bytes, timeout: float) -> None:
    """Add what requests tell. Whether this user may log in is reported elsewhere; much is told without a login."""
    try:
        await connection.logged_in(timeout)
    except _TROUBLE as error:
        look.refusal = text_of(error)
    try:
        look.answer_s, look.status = await _timed(connection, "Maintenance/Status", rpc.StatusRequest(), timeout)
    except _TROUBLE as error:
        look.refusal = text_of(error)
        return
    look.refusal = ""
    try:
        request = rpc.RangeRequest(key=key, count_only=True)
        look.read_s, _ = await _timed(connection, "KV/Range", request, timeout)
    except _TROUBLE as error:
        if not (isinstance(error, grpc.aio.AioRpcError) and is_about_users(error)):
            look.read_problem = text_of(error)
    with contextlib.suppress(*_TROUBLE):
        look.listed = (await connection.unary("Cluster/MemberList", rpc.MemberListRequest(), timeout)).members


async def _timed(connection: Connection, method: str, request: Any, timeout: float) -> tuple[float, Any]:
    """The seconds that an answer takes, and the last answer."""
    times, answer = [], None
    for _ in range(_TIMES):
        began = here().monotonic()
        answer = await connection.unary(method, request, timeout)
        times.append(here().monotonic() - began)
    return statistics.median(times), answer


async def _read_page(look: Look, security: Security, timeout: float) -> None:
    """Add what the page for Prometheus tells, if it is on the clients' port: it may be elsewhere."""
    try:
        began = here().wall()
        ask = in_thread(page_of, look.endpoint, security, "/metrics", timeout)
        date, body = await asyncio.wait_for(ask, timeout)
        ended = here().wall()
    except (OSError, HTTPException, TimeoutError, asyncio.TimeoutError):
        return
    if not look.status.dbSizeQuota and (quota := _QUOTA_METRIC.search(body)):
        look.status.dbSizeQuota = int(float(quota[1]))
    look.disk_s = _almost_all([(float(le), float(count)) for le, count in _WRITES_METRIC.findall(body)])
    look.clock_s = _lead_of_clock(date, began, ended)


def _almost_all(buckets: Sequence[tuple[float, float]]) -> float | None:
    """The lowest upper limit of a histogram's buckets below which nearly all values lie; None if there are too few."""
    if not buckets or (total := buckets[-1][1]) < _FEWEST_WRITES:
        return None
    return next(limit for limit, count in buckets if count >= _ALMOST_ALL * total)


def _lead_of_clock(date: str, began: float, ended: float) -> tuple[float, float] | None:
    """The clock's lead, from the date of an answer requested and received at these times of this machine's clock."""
    try:
        told = parsedate_to_datetime(date).timestamp()
    except ValueError:
        return None
    return told - ended, told + 1 - began


def checks_of(looks: Sequence[Look]) -> list[ServiceCheck]:
    """The findings: about the cluster, then about each member."""
    listed = max((look.listed for look in looks), key=len)
    return [
        *_alarms(looks, listed),
        *_members(looks, listed),
        *(check for look in looks for check in _of_one(look, looks)),
    ]


def _alarms(looks: Sequence[Look], listed: Sequence[Any]) -> Iterator[ServiceCheck]:
    """Checks of the alarms: each is raised for one member and holds for the cluster."""
    names = {member.ID: member.name for member in listed}
    names |= {look.status.header.member_id: str(look.endpoint) for look in looks}
    raised: dict[str, list[str]] = {}
    for text in sorted({text for look in looks for text in look.status.errors}):
        for member, alarm in _ALARM.findall(text):
            raised.setdefault(alarm, []).append(names.get(int(member), f"member {int(member):x}"))
    for alarm, where in raised.items():
        text = f"raised at {', '.join(where)}: {_CONSEQUENCES.get(alarm, 'its documentation says what that is')}"
        remedy = _REMEDIES.get(alarm, "Find the cause in etcd's log, then etcdctl alarm disarm.")
        yield ServiceCheck(f"alarm {alarm}", text, "wrong", remedy)
    if not raised and (versions := [look.status.version for look in looks if look.status.version]):
        if any(map(_tells_alarms, versions)):
            yield ServiceCheck("alarms", "none is raised")
        else:
            text = f"etcd {versions[0]} does not tell them: etcdctl alarm list"
            yield ServiceCheck("alarms", text, "skipped")


def _tells_alarms(version: str) -> bool:
    found = re.match(r"(\d+)\.(\d+)", version)
    return found is not None and (int(found[1]), int(found[2])) >= _FIRST_WITH_ERRORS


def _members(looks: Sequence[Look], listed: Sequence[Any]) -> Iterator[ServiceCheck]:
    """How many members there are, and which of them a job can use."""
    clusters = {look.status.header.cluster_id: look.endpoint for look in looks}
    clusters.pop(0, None)  # not known
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
    voters = [member for member in listed if not member.isLearner]
    spare = (len(voters) - 1) // 2
    several = f"{len(voters)} members" + (f" and {len(listed) - len(voters)} learners" * (len(voters) < len(listed)))
    if len(voters) == 1:
        yield ServiceCheck("members", "one: jobs wait while it is away, for outage_timeout at most")
    elif len(voters) == 2:
        remedy = "Three survive the loss of one: etcdctl member add."
        yield ServiceCheck("members", "two, and it survives the loss of neither", "warning", remedy)
    else:
        yield ServiceCheck("members", f"{several}, of which {spare} may be lost")
    for member in listed:
        if not member.name:
            where = ", ".join(member.peerURLs)
            counts = "" if member.isLearner else ": it counts for the majority all the same"
            yield ServiceCheck(
                f"member at {where}",
                f"it was added, but has not started{counts}",
                "warning",
                f"Start it, or take it out: etcdctl member remove {member.ID:x}",
            )
    yield from _unnamed(looks, voters)


def _unnamed(looks: Sequence[Look], voters: Sequence[Any]) -> Iterator[ServiceCheck]:
    """Members that a job does not know of, if those it knows have the names that they call themselves."""
    named = {look.endpoint for look in looks}
    own = [{_endpoint(url) for url in member.clientURLs} for member in voters]
    if not named.issubset(endpoint for each in own for endpoint in each):  # known by other names, or through a proxy
        return
    others = [member for member, each in zip(voters, own, strict=True) if each and not each & named]
    if others:
        urls = ", ".join(member.clientURLs[0] for member in others)
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
        others = any(each.trouble is None and not each.status.isLearner for each in looks)
        remedy = _MAJORITY if look.trouble.text == NO_LEADER else look.trouble.remedy or default_remedy("etcd")
        yield ServiceCheck(name, look.trouble.text, "warning" if others else "wrong", remedy)
        return
    if not look.status.version:
        yield ServiceCheck(name, f"it answers, but does not report its status: {look.refusal}", "skipped")
    else:
        yield _role(name, look, looks)
        yield _room(look)
    if look.disk_s is not None:
        yield _disk(f"disk of {look.endpoint}", look.disk_s)
    if look.clock_s is not None:
        yield _clock(f"clock of {look.endpoint}", *look.clock_s)


def _role(name: str, look: Look, looks: Sequence[Look]) -> ServiceCheck:
    status, member = look.status, look.status.header.member_id
    if status.isLearner:
        alone = all(each.status.isLearner or each.trouble is not None for each in looks)
        return ServiceCheck(
            name,
            f"etcd {status.version}, a learner: it has no vote, and refuses what nodes ask",
            "wrong" if alone else "warning",
            f"Let it vote once it has caught up: etcdctl member promote {member:x}; until then name others.",
        )
    role = "leads" if status.leader == member else "follows"
    text = f"etcd {status.version}, {role}; answers in {_ms(look.answer_s)}"
    if look.read_problem:
        text += f", but not what the others have to agree to: {look.read_problem}"
        return ServiceCheck(name, text, "wrong", "Clear the alarm first." if status.errors else _MAJORITY)
    if look.read_s is not None:
        text += f", and in {_ms(look.read_s)} what the others have to agree to"
    if max(look.answer_s, look.read_s or 0.0) > _SLOW_S:
        remedy = "It is far away, or busy: give each member a machine of its own, with fast disks, near the nodes."
        return ServiceCheck(name, text, "warning", remedy)
    return ServiceCheck(name, text)


def _room(look: Look) -> ServiceCheck:
    name = f"database of {look.endpoint}"
    size, in_use, quota = look.status.dbSize, look.status.dbSizeInUse, look.status.dbSizeQuota
    used = f", {_mib(in_use)} of it in use" if in_use else ""
    if not quota:
        return ServiceCheck(name, f"{_mib(size)}{used}; its quota is not told")
    text = f"{_mib(size)} of {_mib(quota)}{used}"
    if size <= _NEARLY_FULL * quota:
        return ServiceCheck(name, text)
    old = 0 < in_use <= _NEARLY_FULL * quota
    first = "etcdctl defrag gives back what is not in use" if old else "etcdctl compact REVISION, then etcdctl defrag"
    remedy = f"{first}; --auto-compaction-retention=1h keeps it small, --quota-backend-bytes allows more."
    return ServiceCheck(name, f"{text}: when that is full, etcd accepts no more writes", "warning", remedy)


def _disk(name: str, limit_s: float) -> ServiceCheck:
    most = "longer than it counts" if math.isinf(limit_s) else f"up to {_ms(limit_s)}"
    if limit_s > _SLOW_DISK_S:
        text = f"more than one of 100 writes takes longer than {_ms(_SLOW_DISK_S)}, {most}"
        remedy = "Give etcd a disk of its own, or a faster one: while it waits for the disk, the others elect a leader."
        return ServiceCheck(name, text, "warning", remedy)
    return ServiceCheck(name, f"99 of 100 writes take {most}")


def _clock(name: str, least: float, most: float) -> ServiceCheck:
    if least > _CLOCK_S or most < -_CLOCK_S:
        apart = f"{abs(least + most) / 2:.0f} s {'ahead of' if least > 0 else 'behind'} this machine's"
        remedy = "Synchronize both, with chrony say: certificates depend on these clocks; rdzv-run itself uses none."
        return ServiceCheck(name, apart, "warning", remedy)
    return ServiceCheck(name, "as this machine's, to a few seconds")


def _ms(seconds: float) -> str:
    return f"{seconds * 1000:.1f} ms"


def _mib(size: int) -> str:
    return f"{size / _MIB:.1f} MiB"
