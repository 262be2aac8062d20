"""What an error reported by gRPC means for the caller: ask another member, log in again, or give up."""

from __future__ import annotations

from typing import Any

from rdzv_plugins.backends.etcd import ACCOUNT
from rdzv_plugins.backends.etcd.api import grpc
from rdzv_plugins.errors import AccessRefused, EndpointUnreachable, RendezvousFailed
from rdzv_plugins.kit.client import SessionEnded
from rdzv_plugins.kit.loop import TIMEOUTS
from rdzv_plugins.kit.reasons import Reason, Unusable
from rdzv_plugins.kit.security import Security

MAKE_ROOM = (
    "Make room there: etcdctl compact REVISION, etcdctl defrag, then etcdctl alarm disarm. "
    "--auto-compaction-retention=1h avoids this."
)
NO_LEADER = "no leader: too few members of the cluster live, or reach each other, for a majority"
_HUNG_UP, SILENT_NOW = "it has hung up", "it does not answer"

_ELSEWHERE = (
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.ABORTED,
    grpc.StatusCode.INTERNAL,
    grpc.StatusCode.UNKNOWN,
)
"""This member cannot answer now."""
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
"""A temporary refusal: reads, and requests that keep leases alive, are still answered."""
_WRONG_PASSWORD = "authentication failed"


def is_old_token(error: Any) -> bool:
    """Whether the token is no longer known, if there is a user."""
    return error.code() == grpc.StatusCode.UNAUTHENTICATED or any(
        each in (error.details() or "") for each in _OLD_TOKEN
    )


def is_about_users(error: Any) -> bool:
    """Whether it answers, but not everybody."""
    return error.code() == grpc.StatusCode.PERMISSION_DENIED or is_old_token(error)


def is_wrong_password(error: Any) -> bool:
    """Whether etcd has refused a login because it does not know the user or the password."""
    return _WRONG_PASSWORD in (error.details() or "")


def text_of(error: Any) -> str:
    """Why etcd has refused, or has not answered, in one line."""
    if not isinstance(error, grpc.aio.AioRpcError):
        return SILENT_NOW if isinstance(error, TIMEOUTS) else str(error) or _HUNG_UP
    text = (error.details() or error.code().name).splitlines()[0].removeprefix("etcdserver: ")
    if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED and "Deadline" in text:
        return SILENT_NOW
    if text == "no leader":
        return NO_LEADER
    return str(text)


def denied(path: str, security: Security) -> AccessRefused:
    """The error for lacking permission for the keys under ``path``."""
    folder = path.rstrip("/").rpartition("/")[0] + "/"
    return AccessRefused(
        f"etcd does not let {security.who} read and write under {path}",
        remedy=f"For a role of that user, as root: etcdctl role grant-permission ROLE --prefix=true readwrite {folder}",
    )


def translated(error: Any, what: str, path: str, security: Security) -> Exception:
    """An ``AioRpcError`` as what a client may raise; ``path`` is where the run's keys are.

    ``EOFError`` if this member cannot answer now, ``Unusable`` if the cluster cannot, ``SessionEnded``; and for users
    ``EndpointUnreachable`` (``AccessRefused`` is one) if nothing else will succeed either, or ``RendezvousFailed``.
    """
    text = text_of(error)
    if "lease not found" in text:
        return SessionEnded(text)
    if _FULL in text:
        return Unusable(Reason(f"etcd accepts no more writes: {text}", MAKE_ROOM))
    if "too many requests" in text:
        return Unusable(Reason(f"etcd is too busy for {what}: {text}", "Give it faster disks."))
    if error.code() in _ELSEWHERE:
        return EOFError(text)
    if "user name is empty" in text:
        return AccessRefused(
            "etcd needs a user and a password, but this node has none",
            remedy=ACCOUNT.remedy_if_missing,
        )
    if is_wrong_password(error):
        return AccessRefused(
            f"etcd does not accept the password of {security.who}, or does not know that user",
            remedy=ACCOUNT.remedy_if_wrong,
        )
    if error.code() == grpc.StatusCode.PERMISSION_DENIED:
        return denied(path, security)
    kind = RendezvousFailed if error.code() in _OF_THE_REQUEST else EndpointUnreachable
    return kind(f"etcd refuses {what}: {text}")
