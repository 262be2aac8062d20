"""What an error reported by gRPC means for the caller: ask another member, log in again, or give up."""

from __future__ import annotations

import enum
from typing import Any

from rdzv_plugins.backends.etcd.api import grpc
from rdzv_plugins.backends.etcd.security import PASSWORD, USER, EtcdSecurity
from rdzv_plugins.errors import AccessRefused, EndpointUnreachable, RendezvousFailed

MAKE_ROOM = (
    "Make room there: etcdctl compact REVISION, etcdctl defrag, then etcdctl alarm disarm. "
    "--auto-compaction-retention=1h avoids this."
)
NO_LEADER = "no leader: too few members of the cluster live, or reach each other, for a majority"


class Verdict(enum.Enum):
    """What to do about a request that etcd has refused."""

    ELSEWHERE = "this member cannot answer now"
    LATER = "the cluster is too busy, or has no space left"
    LOG_IN = "the token is no longer known"


_ELSEWHERE = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
)


_OF_THE_REQUEST = (
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.OUT_OF_RANGE,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
)
"""These concern the request: another one may succeed."""

_OLD_TOKEN = ("invalid auth token", "revision of auth store is old", "user name is empty")
"""The token has expired, or users were changed or authentication was switched on since."""
_FULL = "space exceeded"
_FOR_NOW = ("too many requests", _FULL)
"""Temporary refusals: reads, and requests that keep leases alive, are still answered."""
_WRONG_PASSWORD = "authentication failed"


def verdict(error: Any, *, has_user: bool) -> Verdict | None:
    """What to do about an ``AioRpcError``; None if asking again is pointless."""
    code, text = error.code(), error.details() or ""
    if has_user and (code == grpc.StatusCode.UNAUTHENTICATED or any(each in text for each in _OLD_TOKEN)):
        return Verdict.LOG_IN
    if any(each in text for each in _FOR_NOW):
        return Verdict.LATER
    return Verdict.ELSEWHERE if code in _ELSEWHERE else None


def is_about_users(error: Any) -> bool:
    """Whether it answers, but not everybody."""
    code, text = error.code(), error.details() or ""
    denied = (grpc.StatusCode.PERMISSION_DENIED, grpc.StatusCode.UNAUTHENTICATED)
    return code in denied or any(each in text for each in _OLD_TOKEN)


def is_wrong_password(error: Any) -> bool:
    """Whether etcd has refused a login because it does not know the user or the password."""
    return _WRONG_PASSWORD in (error.details() or "")


def reason_of(error: Any) -> str:
    """Why etcd has refused, in one line."""
    text = (error.details() or error.code().name).splitlines()[0].removeprefix("etcdserver: ")
    if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED and "Deadline" in text:
        return "it does not answer"
    if text == "no leader":
        return NO_LEADER
    return str(text)


def denied(path: str, security: EtcdSecurity) -> AccessRefused:
    """The error for lacking permission for the keys under ``path``."""
    folder = path.rstrip("/").rpartition("/")[0] + "/"
    return AccessRefused(
        f"etcd does not let {security.who} read and write under {path}",
        remedy=f"For a role of that user, as root: etcdctl role grant-permission ROLE --prefix=true readwrite {folder}",
    )


def refusal(error: Any, what: str, path: str, security: EtcdSecurity) -> RendezvousFailed:
    """The error for the user; ``path`` is where the run's keys are.

    ``EndpointUnreachable`` (``AccessRefused`` is one) if nothing else will succeed either.
    """
    text = reason_of(error)
    if "user name is empty" in text:
        return AccessRefused(
            "etcd wants a user and a password, and this node has none",
            remedy=f"Give --rdzv-conf credentials=FILE (one line, user:password), or set {USER} and {PASSWORD}.",
        )
    if _WRONG_PASSWORD in text:
        return AccessRefused(
            f"etcd does not accept the password of {security.who}, or does not know that user",
            remedy=f"Check the file of --rdzv-conf credentials, or {USER} and {PASSWORD}.",
        )
    if error.code() == grpc.StatusCode.PERMISSION_DENIED:
        return denied(path, security)
    if _FULL in text:
        return EndpointUnreachable(f"etcd takes no more writes: {text}", remedy=MAKE_ROOM)
    if "too many requests" in text:
        return EndpointUnreachable(f"etcd is too busy for {what}: {text}", remedy="It wants faster disks.")
    kind = RendezvousFailed if error.code() in _OF_THE_REQUEST else EndpointUnreachable
    return kind(f"etcd refuses {what}: {text}")
