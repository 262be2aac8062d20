"""Questions that the nodes of a job answer while it runs: what a handler may offer, and what the asker gets.

A question has a kind (``stacks``) and arguments in JSON, and each node's agent answers in JSON, on a thread of its own:
its main thread may be in a rendezvous, in the exit barrier, or held up. If the arguments have ``of``, the host and the
agent's pid of a node, the question is for that node alone, and no other is waited for. A handler that can carry
questions has an attribute ``questions``; the nodes of a handler without one cannot be asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

from msgspec import Struct, ValidationError, convert

from rdzv_plugins.plain_text import printable

T = TypeVar("T")
_SHOWN = 200

STACKS = "stacks"
"""The kind of question that asks where this node's workers are: see ``rdzv_launcher.run.stacks``."""

VITALS = "vitals"
"""The kind that asks what this node's agent and workers are doing and using: see ``rdzv_launcher.run.node_stats``."""

LOG = "log"
"""The kind that asks what a worker of one node has printed last: see ``rdzv_launcher.run.node_stats``."""

NOTICE = "notice"
"""The kind of what nodes tell and ask each other before one of them leaves: see ``rdzv_launcher.run.preemption``."""
STANDSTILL, HANG = "standstill", "hang"
"""The kinds about a hanging job: see ``rdzv_launcher.run.hangs``.

They ask how long this node's workers have made no progress, and announce that the job hangs.
"""


class RpcRequest(Struct, frozen=True):
    """A question to a node, which its agent answers."""

    id: str
    """32 hexadecimal digits, different each time."""
    kind: str
    """A node that does not know the kind says so."""
    arguments: Mapping[str, Any]
    """JSON from somebody who can reach the service: it has to be checked."""


class RpcResponse(Struct, frozen=True):
    """What one node of the job has answered, or why there is no answer."""

    node_rank: int | None
    """Its rank in the newest round; None if it has none."""
    host: str
    pid: int
    """The pid of its agent."""
    answer: Any = None
    """JSON from somebody who can reach the service: it has to be checked."""
    problem: str = ""
    """A sentence on why there is no answer; empty if there is one."""
    is_silent: bool = False
    """The node is there, and has not answered in time."""


def checked(data: Any, kind: type[T], own: Callable[[type, Any], Any] | None = None) -> T:
    """Arguments or an answer as typed values; ``own`` reads types that JSON does not have, like ``dec_hook``.

    Raises ``ValueError`` that names the key and what was said.
    """
    try:
        return convert(data, kind, dec_hook=own)
    except ValidationError as error:
        name = kind.__name__.strip("_")
        raise ValueError(f"not a {name}: {error}, in {printable(repr(data), _SHOWN)}") from None
    except RecursionError as error:
        raise ValueError(str(error)) from None


Answer = Callable[[RpcRequest], Any]
"""Returns JSON. Raises ``UnknownKind``; any other exception becomes the problem that the asker is told."""


class UnknownKind(LookupError):
    """A node is asked something it does not know: by another version, or by somebody who is just trying."""


class NodeRpc(Protocol):
    """Carries questions and answers between the nodes of a job. Thread-safe."""

    def ask(self, kind: str, arguments: Mapping[str, Any], timeout: float) -> list[RpcResponse]:
        """Ask all nodes of the job, including this one; waits at most ``timeout`` seconds for them.

        There is one answer for each known node, in order of rank. Raises ``ConnectionLost`` or ``TimeoutError`` if the
        service does not answer.
        """

    def answer_with(self, answer: Answer) -> None:
        """Call ``answer`` with each question from now on, on threads of its own."""
