"""What is wrong with a Redis, in words, and what to do about it: from redis-py's errors and what Redis says."""

from __future__ import annotations

import errno
import re
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass

from rdzv_plugins.errors import AccessRefused, EndpointUnreachable
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    InvalidResponse,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
)

from rdzv_redis.security import PASSWORD, USER, Security

_REFUSED = f"[Errno {errno.ECONNREFUSED}]"


@dataclass(frozen=True)
class Reason:
    """``final``: it will not become right by waiting. ``access``: it answers, but not to this user."""

    text: str
    remedy: str = ""
    final: bool = False
    access: bool = False

    def error(self, lead: str) -> EndpointUnreachable:
        """As an exception; ``lead`` says what was tried."""
        kind = AccessRefused if self.access else EndpointUnreachable
        return kind(f"{lead}: {self.text}", remedy=self.remedy or DEFAULT_REMEDY)


DEFAULT_REMEDY = "Check that Redis runs there, and the address, the route and the firewalls between."
SILENT = Reason("it accepts connections, but does not answer (it stands still, or is something else)")
NO_ANSWER = Reason("no answer (machine down, or a firewall drops the packets)")
NO_TLS = Reason(
    "it does not speak TLS",
    "Leave out rediss://, cacert and cert, or switch TLS on in Redis (tls-port).",
    final=True,
)
WANTS_TLS = Reason(
    "it speaks TLS",
    "Write rediss:// in front of the endpoint, and --rdzv-conf cacert=FILE for your own authority.",
    final=True,
)
STRANGE = Reason(
    "something else than Redis listens there", "Check host and port: Redis' is 6379 by default.", final=True
)
CLUSTER = Reason(
    "it is a member of a Redis Cluster, which is not supported",
    "Use a single Redis, not in cluster mode: a run's keys have to be changed in one step.",
    final=True,
)
SENTINEL = Reason(
    "it is a Redis Sentinel, which holds no keys", "Name the Redis that it watches: 6379 is its usual port.", final=True
)
REPLICA = Reason("it is a replica, which takes no writes", "Name the Redis that it replicates.", final=True)

_BY_TEXT = (
    # in scripts the code of an error stands in the midst of its text, in some versions of Redis
    (
        r"\bOOM\b|used memory >",
        "its memory is full: maxmemory is reached",
        "Raise maxmemory, or delete keys of others.",
    ),
    (
        r"\bMISCONF\b|unable to persist",
        "it cannot save to its disk, and takes no writes",
        "Free its disk: its log says more.",
    ),
    (
        r"\bNOREPLICAS\b|enough good replicas",
        "too few of its replicas are there (min-replicas-to-write)",
        "Start them.",
    ),
    (r"\bBUSY\b|busy running a script", "it is busy with a script", "Somebody's script runs too long: SCRIPT KILL."),
    (r"\bLOADING\b|is loading the dataset", "it is loading its data", "Wait: it answers when it has done so."),
    (
        r"max number of clients",
        "it has as many clients as it takes (maxclients)",
        "Raise maxclients: a node needs two.",
    ),
    (
        r"\bMASTERDOWN\b|Link with MASTER",
        "it is a replica that has lost its master",
        "Name the Redis that it replicates.",
    ),
    (r"CLUSTERDOWN|\bMOVED\b|CROSSSLOT|cluster", CLUSTER.text, CLUSTER.remedy),
    (r"\bREADONLY\b|read only replica", REPLICA.text, REPLICA.remedy),
    (r"DB index", "it has no database of that number", "Its databases are numbered from 0: --rdzv-conf db=NUMBER."),
)
_TEMPORARY = ("busy", "loading", "as many clients", "master", "replicas are there")


def reason_of(error: BaseException, security: Security, prefix: str) -> Reason:
    """What ``error`` of redis-py, of a socket or of TLS means. ``prefix`` is where this run's keys lie."""
    for each in _chain(error):
        if isinstance(each, ssl.SSLError) and not isinstance(each, ssl.SSLEOFError):
            return _of_tls(each, security)
        if isinstance(each, socket.gaierror):
            return Reason(f"the name does not resolve ({each.strerror})", "Check the name, or give an IP address.")
        if isinstance(each, ConnectionRefusedError) or _REFUSED in str(each):
            return Reason("connection refused (nobody listens there yet)", "Is Redis running there, on that port?")
        if isinstance(each, InvalidResponse):
            return STRANGE
        if isinstance(each, OSError) and each.errno in (errno.ENETUNREACH, errno.EHOSTUNREACH):
            return Reason((each.strerror or str(each)).lower(), "Check the address and the route.")
    return _of_answer(error, security, prefix)


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


def _of_answer(error: BaseException, security: Security, prefix: str) -> Reason:
    text = " ".join(str(error).split())
    if isinstance(error, AuthenticationError) or re.search(r"NOAUTH|WRONGPASS", text):
        return _of_login(text, security)
    if "DENIED" in text and "protected mode" in text:
        return Reason(
            "it is in protected mode, and answers its own machine alone",
            "Set a password in Redis (requirepass, or ACL), and give it by --rdzv-conf credentials=FILE.",
            final=True,
        )
    if isinstance(error, NoPermissionError) or re.search(r"NOPERM|no permissions|The user executing the script", text):
        return Reason(
            f"it does not let {security.who} do what is needed for keys under {prefix}: {text}",
            f"As its administrator: ACL SETUSER {security.user or 'NAME'} ~{prefix}* +@all -@admin -@dangerous",
            final=True,
            access=True,
        )
    if isinstance(error, BusyLoadingError):
        text = f"LOADING {text}"
    elif isinstance(error, OutOfMemoryError):
        text = f"OOM {text}"
    elif isinstance(error, ReadOnlyError):
        text = f"READONLY {text}"
    for pattern, words, remedy in _BY_TEXT:
        if re.search(pattern, text):
            return Reason(words, remedy, final=not any(each in words for each in _TEMPORARY))
    if isinstance(error, (OSError, EOFError)) or "onnection" in text:
        return Reason("it hangs up")
    return Reason(f"it says: {text}", final=isinstance(error, RedisError))


def _of_login(text: str, security: Security) -> Reason:
    if not security.password:
        return Reason(
            "it wants a password, and this node has none",
            f"Give --rdzv-conf credentials=FILE (one line, user:password), or set {USER} and {PASSWORD}.",
            final=True,
            access=True,
        )
    if "without any password configured" in text:
        return Reason(
            "it knows no password, but this node gives one",
            "Set one in Redis (requirepass, or ACL), or give none.",
            final=True,
            access=True,
        )
    return Reason(
        f"it does not accept the password of {security.who}, or does not know that user",
        f"Check the file of --rdzv-conf credentials, or {USER} and {PASSWORD}.",
        final=True,
        access=True,
    )


def _of_tls(error: ssl.SSLError, security: Security) -> Reason:
    if isinstance(error, ssl.SSLCertVerificationError):
        text = error.verify_message
        if "mismatch" in text.lower():
            remedy = "Its certificate needs this name or address as subject alternative name."
        elif "expired" in text or "not yet valid" in text:
            remedy = "Renew it, or set the clock of this machine."
        else:
            whose = security.cacert or "the system's authorities"
            remedy = f"It was not signed by {whose}: --rdzv-conf cacert=FILE names the right authority."
        return Reason(f"TLS: its certificate is refused: {text.rstrip('.').lower()}", remedy, final=True)
    reason = (error.reason or str(error)).replace("_", " ").lower()
    if "alert" in reason:
        mine = f"this node's certificate {security.cert}" if security.cert else "this node has no certificate"
        return Reason(
            f"TLS: it refuses this node ({reason}); {mine}",
            "Give a client certificate that it trusts: --rdzv-conf cert=FILE,key=FILE.",
            final=True,
        )
    if "wrong version" in reason or "record layer" in reason:
        return NO_TLS
    return Reason(f"TLS: {reason}")
