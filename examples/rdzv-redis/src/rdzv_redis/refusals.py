"""What is wrong with a Redis, in words, and what to do about it: from redis-py's errors and what Redis says."""

from __future__ import annotations

import re

from rdzv_plugins.kit import HANGS_UP, Reason, Security, network_reason
from redis.exceptions import (
    AuthenticationError,
    BusyLoadingError,
    InvalidResponse,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    RedisError,
)

from rdzv_redis import ACCOUNT

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
    if isinstance(error, InvalidResponse) or isinstance(error.__cause__ or error.__context__, InvalidResponse):
        return STRANGE
    reason = network_reason(error, "Redis", security)
    return reason if reason not in (None, HANGS_UP) else _of_answer(error, security, prefix)


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
        return HANGS_UP
    return Reason(f"it says: {text}", final=isinstance(error, RedisError))


def _of_login(text: str, security: Security) -> Reason:
    if not security.password:
        return Reason(
            "it wants a password, and this node has none",
            f"Give --rdzv-conf credentials=FILE (one line, user:password), or set {ACCOUNT.user_variable} and "
            f"{ACCOUNT.password_variable}.",
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
        f"Check the file of --rdzv-conf credentials, or {ACCOUNT.user_variable} and {ACCOUNT.password_variable}.",
        final=True,
        access=True,
    )
