"""The token of a job: only those that know it may take part.

Read from a file or the environment before anything starts. The text of a token is used only to derive a key from it,
and no object here shows either. Decision 0054 describes the handshake by which nodes prove to each other that they know
it. Everything here may be called from any thread.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass, field

from rdzv_plugins.endpoints import is_loopback_address
from rdzv_plugins.errors import UsageError
from rdzv_plugins.interfaces import Request
from rdzv_plugins.runtime import SYSTEM, Runtime

logger = logging.getLogger(__name__)

VARIABLE = "RDZV_TOKEN"
FILE_VARIABLE = "RDZV_TOKEN_FILE"
OPTION = "token_file"

OPEN_VARIABLE = "RDZV_ALLOW_OPEN"
OPEN = (
    f"anyone who can connect to it can read and change its data. To prevent that, give all nodes the same {VARIABLE} "
    f"(if the backend supports it); {OPEN_VARIABLE}=1 hides this warning"
)
"""What is logged if anybody is let in."""


MOST_RUN_ID = 1024
"""The most bytes of a run id for which a token can be proved."""

_LABEL = b"rdzv-plugins token"
_LEAST, _MOST = 16, 1024
_MOST_FILE = 1 << 20
_MOST_OF_A_JOB = 2
_KEY = "hmac:"
_MAKE_ONE = "Create one: (umask 077; openssl rand -hex 32 > FILE), and give it to every node of the job."


@dataclass(frozen=True)
class AcceptedToken:
    """What a server knows about a token that it accepts."""

    name: str
    """Several tokens of one name are one token that is being changed: a run belongs to all of them."""
    key: bytes = field(repr=False)
    runs: str
    """A pattern of the run ids that it opens, as in a shell."""
    whole: bool
    """Whether it also opens the keys of the server's ports, and its statistics, which cover all runs."""


@dataclass(frozen=True)
class JobToken:
    """What a node knows: one token, or two while it is being changed, the new one first."""

    keys: tuple[bytes, ...] = field(repr=False)

    def accepted(self, run_id: str) -> tuple[AcceptedToken, ...]:
        """The tokens for a server of this run alone."""
        pattern = re.sub(r"([*?\[\]\\])", r"\\\1", run_id)
        return tuple(AcceptedToken("", key, pattern, True) for key in self.keys)


def say_open(host: str) -> None:
    """Log that anybody can take part in the job whose workers' store this process serves at ``host``.

    Nothing is logged if only this machine can reach it, or if the user knows.
    """
    if not is_loopback_address(host) and not is_meant_to_be_open():
        logger.warning("this job is open: %s", OPEN)


def is_meant_to_be_open() -> bool:
    """Whether the user has said that anybody may connect."""
    return os.environ.get(OPEN_VARIABLE, "") not in ("", "0")


def token_of(request: Request, runtime: Runtime = SYSTEM) -> JobToken | None:
    """The token that the nodes of ``request`` share; None if there is none. A file is read anew each time.

    Raises ``UsageError`` for a file that cannot be read, or that others may read, and for what is not a token.
    """
    source = _source(_option(request), runtime)
    if source is None:
        return None
    where, lines = source
    if len(lines) > _MOST_OF_A_JOB or any(len(line.split()) != 1 for line in lines):
        raise UsageError(
            f"{where} must hold one token, or two during a change, each on its own line",
            remedy="Tokens have no blanks. Files with names and patterns are for rdzv serve.",
        )
    return JobToken(tuple(_key(line, where) for line in lines))


def accepted_tokens(path: str | None) -> tuple[AcceptedToken, ...] | None:
    """The tokens of ``rdzv serve``: each opens all runs, or those that its line names. None if there are none.

    A line is a token, or it consists of a name, a token or its key (``hmac:`` and 64 hexadecimal digits), and a pattern
    of run ids. Raises ``UsageError`` as ``token_of`` does.
    """
    source = _source(path, SYSTEM)
    if source is None:
        return None
    where, lines = source
    return tuple(_accepted(line, where, number) for number, line in enumerate(lines, 1))


def _accepted(line: str, where: str, number: int) -> AcceptedToken:
    # it is not known which word of a wrong line is the token: none is shown
    words = line.split()
    if len(words) == 1:
        return AcceptedToken("", _key(words[0], where, f"token {number}"), "*", True)
    if len(words) != 3:
        raise UsageError(
            f"{where}: the line of token {number} has {len(words)} words",
            remedy="A line is a token; or a name, a token and a run-id pattern, separated by blanks.",
        )
    name, secret, pattern = words
    return AcceptedToken(name, _key(secret, where, f"token {number}"), pattern, pattern == "*")


def _key(text: str, where: str, which: str = "the token") -> bytes:
    import hmac  # slow to import, and needed only with a token

    if text.startswith(_KEY):
        with contextlib.suppress(ValueError):
            if len(key := bytes.fromhex(text.removeprefix(_KEY))) == 32:
                return key
        raise UsageError(f"{where}: {which} is not a valid key", remedy=f"Write {_KEY} and 64 hexadecimal digits.")
    if not text.isascii() or not text.isprintable() or " " in text:
        raise UsageError(
            f"{where}: {which} contains a line break, a blank or another invalid character",
            remedy="Tokens are printable ASCII without blanks. " + _MAKE_ONE,
        )
    if not _LEAST <= len(text) <= _MOST:
        raise UsageError(f"{where}: {which} has {len(text)} characters, not {_LEAST} to {_MOST}", remedy=_MAKE_ONE)
    return hmac.digest(_LABEL, text.encode(), "sha256")


def _option(request: Request) -> str | None:
    if request.options is not None:
        return getattr(request.options, OPTION, None)
    return request.conf.get(OPTION)


def _source(path: str | None, runtime: Runtime) -> tuple[str, Sequence[str]] | None:
    """Where the tokens come from, in words, and their lines."""
    given = runtime.single(Environment).token()
    by_variable = os.environ.get(FILE_VARIABLE)
    if path is not None:
        return f"--rdzv-conf {OPTION}={path}", _read(path, f"--rdzv-conf {OPTION}={path}")
    if given is not None and by_variable is not None:
        raise UsageError(f"{VARIABLE} and {FILE_VARIABLE} are both set", remedy="Keep one of them.")
    if by_variable is not None:
        return f"{FILE_VARIABLE}={by_variable}", _read(by_variable, f"{FILE_VARIABLE}={by_variable}")
    if given is None:
        return None
    if not given:
        raise UsageError(f"{VARIABLE} is set but empty", remedy="Unset it, or set it to the job's token.")
    return VARIABLE, [given]


def _read(path: str, where: str) -> list[str]:
    try:
        # do not wait for a pipe that nobody writes to
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        with open(descriptor, "rb") as file:
            found = os.fstat(descriptor)
            _check_mode(found.st_mode, path, where)
            if found.st_size > _MOST_FILE:
                raise UsageError(f"{where} is larger than {_MOST_FILE} bytes", remedy=_MAKE_ONE)
            text = file.read(_MOST_FILE).decode(errors="replace")
    except OSError as error:
        why = "the path is empty" if not path else (error.strerror or str(error)).lower()
        raise UsageError(
            f"{where} cannot be read: {why}",
            remedy="Give the path of a file on this node that this user may read."
            if error.errno != errno.EISDIR
            else "Give the path of a file.",
        ) from None
    lines = [line for line in (each.strip() for each in text.split("\n")) if line and not line.startswith("#")]
    if not lines:
        raise UsageError(f"{where} holds no token", remedy=_MAKE_ONE)
    return lines


def _check_mode(mode: int, path: str, where: str) -> None:
    if not stat.S_ISREG(mode):
        raise UsageError(f"{where} is not a file", remedy="Give the path of a file with the token.")
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        raise UsageError(
            f"{where} can be read or written by every user of this machine (mode {stat.S_IMODE(mode):04o})",
            remedy=f"chmod 600 {path}; for a mounted Kubernetes secret: defaultMode: 0440 and the pod's fsGroup.",
        )


class Environment:
    """Takes the token out of the environment when it is first asked for: workers inherit that, and print it."""

    def __init__(self, runtime: Runtime) -> None:
        self._lock = runtime.Lock()
        self._token: str | None = None

    def token(self) -> str | None:
        with self._lock:
            self._token = os.environ.pop(VARIABLE, self._token)
            return self._token
