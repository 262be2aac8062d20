"""What is wrong with a Redis, in words, and what to do about it: from redis-py's errors and what Redis says."""

from __future__ import annotations

import re
import ssl

from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.kit import HANGS_UP, Reason, Security, answer_of, network_reason, unchecked_context
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
    "something other than Redis listens there", "Check host and port: Redis' is 6379 by default.", final=True
)
CLUSTER = Reason(
    "it is a member of a Redis Cluster, which is not supported",
    "Use a single Redis, not in cluster mode: a run's keys have to be changed in one step.",
    final=True,
)
SENTINEL = Reason(
    "it is a Redis Sentinel, which holds no keys", "Name the Redis that it watches: 6379 is its usual port.", final=True
)
REPLICA = Reason("it is a replica, which accepts no writes", "Name the Redis that it replicates.", final=True)

_BY_TEXT = {
    # in scripts the code of an error stands in the midst of its text, in some versions of Redis
    r"\bOOM\b|used memory >": Reason(
        "its memory is full: maxmemory is reached", "Raise maxmemory, or delete keys of others.", final=True
    ),
    r"\bMISCONF\b|unable to persist": Reason(
        "it cannot save to its disk, and accepts no writes", "Free its disk: its log says more.", final=True
    ),
    r"\bNOREPLICAS\b|enough good replicas": Reason(
        "too few of its replicas are there (min-replicas-to-write)", "Start them."
    ),
    r"\bBUSY\b|busy running a script": Reason(
        "it is busy with a script", "Somebody's script runs too long: SCRIPT KILL."
    ),
    r"\bLOADING\b|is loading the dataset": Reason("it is loading its data", "Wait: it answers when it has done so."),
    r"max number of clients": Reason(
        "it has reached its limit of clients (maxclients)", "Raise maxclients: a node needs two."
    ),
    r"\bMASTERDOWN\b|Link with MASTER": Reason(
        "it is a replica that has lost its master", "Name the Redis that it replicates."
    ),
    r"CLUSTERDOWN|\bMOVED\b|CROSSSLOT|cluster": CLUSTER,
    r"\bREADONLY\b|read only replica": REPLICA,
    r"DB index": Reason(
        "it has no database of that number", "Its databases are numbered from 0: --rdzv-conf db=NUMBER.", final=True
    ),
}
_CODES = {BusyLoadingError: "LOADING", OutOfMemoryError: "OOM", ReadOnlyError: "READONLY"}  # cut off by redis-py
LIMIT_S = 0.9


def diagnose(endpoint: Endpoint, *, tls: bool) -> Reason | None:
    """Whether a Redis that hangs up or keeps silent speaks TLS, or does not: redis-py cannot tell.

    None if this cannot tell either. Blocks, for ``LIMIT_S`` at most; never raises.
    """
    try:
        # QUIT, because it is read until Redis hangs up; each of its three steps has a third of the time
        answer = answer_of(endpoint, b"PING\r\nQUIT\r\n", LIMIT_S / 3, None if tls else unchecked_context())
    except ssl.SSLError as error:
        # it has answered in TLS, for example: where is your certificate?
        return WANTS_TLS if not tls and "ALERT" in (error.reason or "") else None
    except OSError:
        return None
    if answer[:1] in (b"+", b"-"):
        return NO_TLS if tls else WANTS_TLS
    return STRANGE if answer and not tls else None


def reason_of(error: BaseException, security: Security, prefix: str) -> Reason:
    """What ``error`` of redis-py, of a socket or of TLS means. ``prefix`` is where this run's keys lie."""
    if isinstance(error, InvalidResponse) or isinstance(error.__cause__ or error.__context__, InvalidResponse):
        return STRANGE
    reason = network_reason(error, "Redis", security)
    if reason is not None and reason is not HANGS_UP:
        return reason
    text = " ".join(str(error).split())
    if isinstance(error, AuthenticationError) or re.search(r"NOAUTH|WRONGPASS", text):
        return _of_login(text, security)
    if "DENIED" in text and "protected mode" in text:
        return Reason(
            "it is in protected mode, and answers only its own machine",
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
    text = " ".join([*(code for kind, code in _CODES.items() if isinstance(error, kind)), text])
    for pattern, reason in _BY_TEXT.items():
        if re.search(pattern, text):
            return reason
    if isinstance(error, (OSError, EOFError)) or "onnection" in text:
        return HANGS_UP
    return Reason(f"it says: {text}", final=isinstance(error, RedisError))


def _of_login(text: str, security: Security) -> Reason:
    if not security.password:
        words, remedy = "it needs a password, but this node has none", ACCOUNT.remedy_if_missing
    elif "without any password configured" in text:
        words = "it has no password set, but this node gives one"
        remedy = "Set one in Redis (requirepass, or ACL), or give none."
    else:
        words = f"it does not accept the password of {security.who}, or does not know that user"
        remedy = ACCOUNT.remedy_if_wrong
    return Reason(words, remedy, final=True, access=True)
