"""Questions that the nodes of a job answer while it runs: what a handler may offer, and who asks is given.

A question is of a kind (``stacks``), with arguments in JSON, and each node's agent answers in JSON, on a thread of its
own: its main thread may be in a rendezvous, in the exit barrier, or held up. If the arguments have ``of``, the host and
the agent's pid of a node, it is for that one alone, and no other is waited for. A handler that can carry questions has
an attribute ``questions``; of one that has none, its nodes cannot be asked.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

from msgspec import Struct

STACKS = "stacks"
"""The kind of question to which the answer is where this node's workers are: see ``rdzv_launcher.run.stacks``."""

VITALS = "vitals"
"""The kind to which the answer is what this node's agent and workers do, and use: see ``rdzv_launcher.run.vitals``."""

LOG = "log"
"""The kind to which the answer is what a worker of one node has printed last: see ``rdzv_launcher.run.log_tails``."""

NOTICE = "notice"
"""The kind of what nodes tell and ask each other before one of them goes: see ``rdzv_launcher.run.notice``."""
STANDSTILL, HANG = "standstill", "hang"
"""How long this node's workers have made no progress; and that the job hangs, which is told: see
``rdzv_launcher.run.hangs``."""


class Question(Struct, frozen=True):
    """A question to a node, which its agent answers."""

    id: str
    """32 hexadecimal digits, another one each time."""
    kind: str
    """A node that does not know it says so."""
    arguments: Mapping[str, Any]
    """JSON, from somebody who can reach the service: to be checked."""


class NodeAnswer(Struct, frozen=True):
    """What one node of the job has answered, or why there is no answer."""

    node_rank: int | None
    """Its rank in the newest round, None if it has none."""
    host: str
    pid: int
    """Its agent's."""
    answer: Any = None
    """JSON, from somebody who can reach the service: to be checked."""
    problem: str = ""
    """Why there is no answer, a sentence; empty if there is one."""
    is_silent: bool = False
    """The node is there, and has not answered in time."""


Answer = Callable[[Question], Any]
"""Returns JSON. Raises ``UnknownKind``; what else it raises becomes the problem that the asker is told."""


class UnknownKind(LookupError):
    """A node is asked what it knows nothing of: by another version, or by somebody who tries."""


class Questions(Protocol):
    """Carries questions and answers between the nodes of a job. Thread-safe."""

    def ask(self, kind: str, arguments: Mapping[str, Any], timeout: float) -> list[NodeAnswer]:
        """Ask all nodes of the job, this one among them; waits at most ``timeout`` seconds for them.

        There is one for each node that is known, in the order of their ranks. Raises ``ConnectionLost`` or
        ``TimeoutError`` if the service does not answer.
        """
        ...

    def answer_with(self, answer: Answer) -> None:
        """From now on ``answer`` is called with each question, on threads of its own."""
        ...
