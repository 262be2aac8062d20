"""A look at the members of a cluster: what each says about itself, and the latency of the way to it. Changes nothing.

Requests and fields are those of etcd 3.4 and later: api/etcdserverpb/rpc.proto of https://github.com/etcd-io/etcd. For
fields that are newer than our messages, their numbers are given here. What no request tells is on the page for
Prometheus.
"""

from __future__ import annotations

import asyncio
import re
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime
from http.client import HTTPException
from typing import Any

from rdzv_plugins.backends.etcd.api import grpc, rpc, unknown_fields
from rdzv_plugins.backends.etcd.connection import TROUBLE, Connection
from rdzv_plugins.backends.etcd.diagnosis import page_of
from rdzv_plugins.backends.etcd.opening import open_connection
from rdzv_plugins.backends.etcd.refusals import is_about_users, reason_of
from rdzv_plugins.backends.etcd.security import EtcdSecurity
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.kit.loop import here, hold_for_good, in_thread
from rdzv_plugins.kit.reasons import Reason, Unusable

_TIMES = 5
"""How many questions are timed; the median counts."""
_STEPS = 6
"""The steps of a look, each of which has its own time: a name, two connections, a login, questions, a page."""
_ERRORS, _SIZE_IN_USE, _IS_LEARNER, _QUOTA = 8, 9, 10, 12
"""Field numbers of ``StatusResponse``; the last one exists since 3.6."""
_MEMBER_IS_LEARNER = 5
"""A field number of ``Member``."""
_QUOTA_METRIC = re.compile(rb"^etcd_server_quota_backend_bytes (\S+)$", re.MULTILINE)
_WRITES_METRIC = re.compile(rb'^etcd_disk_wal_fsync_duration_seconds_bucket\{le="([^"]+)"\} (\S+)$', re.MULTILINE)
_ALMOST_ALL = 0.99
_FEWEST_WRITES = 100


@dataclass(frozen=True)
class Look:
    """One member, as it was seen. Times are in seconds, sizes in bytes; 0 or None means not known."""

    endpoint: Endpoint
    trouble: Reason | None = None
    """Why it cannot be used; then nothing else is known."""
    refusal: str = ""
    """Why it does not tell how it is."""
    version: str = ""
    cluster_id: int = 0
    member_id: int = 0
    leader_id: int = 0
    is_learner: bool = False
    size: int = 0
    size_in_use: int = 0
    quota: int = 0
    errors: tuple[str, ...] = ()
    """What it reports to be wrong with the cluster: alarms, and the lack of a leader."""
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


@dataclass(frozen=True)
class Listed:
    """One member, as the others know it."""

    member_id: int
    name: str
    """The member's name; empty until it has been started."""
    peer_urls: tuple[str, ...]
    client_urls: tuple[str, ...]
    is_learner: bool


def look_at(
    members: Sequence[Endpoint], security: EtcdSecurity, key: bytes, timeout: float
) -> tuple[list[Look], list[Listed] | None]:
    """Look at each of ``members``, in that order; also returns all members of the cluster, or None if nobody tells.

    ``key`` is one that a job's user may read. ``timeout``: seconds for each step.
    """
    # gRPC cannot move from one loop to another
    return hold_for_good().run(_look_at(members, security, key, timeout), _STEPS * timeout)


async def _look_at(
    members: Sequence[Endpoint], security: EtcdSecurity, key: bytes, timeout: float
) -> tuple[list[Look], list[Listed] | None]:
    found = await asyncio.gather(*(_whole_look(endpoint, security, key, timeout) for endpoint in members))
    lists = [listed for _, listed in found if listed]
    return [look for look, _ in found], max(lists, key=len, default=None)


async def _whole_look(
    endpoint: Endpoint, security: EtcdSecurity, key: bytes, timeout: float
) -> tuple[Look, list[Listed] | None]:
    try:
        connection = await open_connection(endpoint, security)
    except Unusable as error:
        return Look(endpoint, trouble=error.reason), None
    try:
        look, listed = await _asked(connection, key, timeout)
    finally:
        await connection.drop("not needed")
    return await _with_page(look, security, timeout), listed


async def _asked(connection: Connection, key: bytes, timeout: float) -> tuple[Look, list[Listed] | None]:
    """What requests tell. Whether this user may log in is reported elsewhere; much is told even without a login."""
    look = Look(connection.endpoint)
    try:
        await connection.logged_in(timeout)
    except TROUBLE as error:
        look = replace(look, refusal=_said(error))
    try:
        seconds, status = await _timed(connection, "Maintenance/Status", rpc.StatusRequest(), timeout)
    except TROUBLE as error:
        return replace(look, refusal=_said(error)), None
    newer = unknown_fields(status)
    look = replace(
        look,
        refusal="",
        version=status.version,
        cluster_id=status.header.cluster_id,
        member_id=status.header.member_id,
        leader_id=status.leader,
        is_learner=bool(newer.get(_IS_LEARNER)),
        size=status.dbSize,
        size_in_use=_last(newer, _SIZE_IN_USE),
        quota=_last(newer, _QUOTA),
        errors=tuple(text.decode(errors="replace") for text in newer.get(_ERRORS, ())),
        answer_s=seconds,
    )
    try:
        request = rpc.RangeRequest(key=key, count_only=True)
        look = replace(look, read_s=(await _timed(connection, "KV/Range", request, timeout))[0])
    except TROUBLE as error:
        look = replace(look, read_problem="" if _is_about_users(error) else _said(error))
    try:
        answer = await connection.unary("Cluster/MemberList", rpc.MemberListRequest(), timeout)
    except TROUBLE:
        return look, None
    return look, [_listed(member) for member in answer.members]


async def _timed(connection: Connection, method: str, request: Any, timeout: float) -> tuple[float, Any]:
    """The seconds that an answer takes, and the last answer."""
    times, answer = [], None
    for _ in range(_TIMES):
        began = here().monotonic()
        answer = await connection.unary(method, request, timeout)
        times.append(here().monotonic() - began)
    return statistics.median(times), answer


async def _with_page(look: Look, security: EtcdSecurity, timeout: float) -> Look:
    """Add what the page for Prometheus tells, if it is on the clients' port: it may be elsewhere."""
    if look.trouble is not None:
        return look
    try:
        began = here().wall()
        ask = in_thread(page_of, look.endpoint, security, "/metrics", timeout)
        date, body = await asyncio.wait_for(ask, timeout)
        ended = here().wall()
    except (OSError, HTTPException, TimeoutError, asyncio.TimeoutError):
        return look
    quota = _QUOTA_METRIC.search(body)
    return replace(
        look,
        quota=look.quota or (int(float(quota[1])) if quota else 0),
        disk_s=_almost_all([(float(le), float(count)) for le, count in _WRITES_METRIC.findall(body)]),
        clock_s=_clock(date, began, ended),
    )


def _almost_all(buckets: Sequence[tuple[float, float]]) -> float | None:
    """The lowest upper limit of a histogram's buckets below which nearly all values lie; None if there are too few."""
    if not buckets or (total := buckets[-1][1]) < _FEWEST_WRITES:
        return None
    return next(limit for limit, count in buckets if count >= _ALMOST_ALL * total)


def _clock(date: str, began: float, ended: float) -> tuple[float, float] | None:
    """The clock's lead, from the date of an answer requested and received at these times of this machine's clock."""
    try:
        told = parsedate_to_datetime(date).timestamp()
    except ValueError:
        return None
    return told - ended, told + 1 - began


def _listed(member: Any) -> Listed:
    learner = bool(unknown_fields(member).get(_MEMBER_IS_LEARNER))
    return Listed(member.ID, member.name, tuple(member.peerURLs), tuple(member.clientURLs), learner)


def _last(fields: dict[int, list[Any]], number: int) -> int:
    return int(fields[number][-1]) if number in fields else 0


def _said(error: BaseException) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return reason_of(error)
    return str(error) or "it does not answer"


def _is_about_users(error: BaseException) -> bool:
    return isinstance(error, grpc.aio.AioRpcError) and is_about_users(error)
