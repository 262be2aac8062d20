"""Who works on a node, and where: for those who ask the agent, and for a file before the workers are killed.

The modules that read, group and show stacks are imported when stacks are wanted: most launches do not need them.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from rdzv_launcher.run import names
from rdzv_plugins.errors import RdzvError
from rdzv_plugins.questions import STACKS, NodeRpc, RpcRequest, UnknownKind
from rdzv_plugins.runtime import OwnThread
from rdzv_plugins.stacks_on_request import VARIABLE

if TYPE_CHECKING:
    from rdzv_launcher.run.stacks.reports import Silent, WorkerReport

logger = logging.getLogger(__name__)


class StackedWorker(Struct, frozen=True):
    """A worker of this node, and its ranks."""

    rank: int
    local_rank: int
    pid: int


class NodeSnapshot(Struct, frozen=True):
    """This node, as its agent knows it now. Usable from any thread."""

    host: str
    agent: int
    """The process id of the agent."""
    node_rank: int | None = None
    workers: tuple[StackedWorker, ...] = ()
    own_stacks: Path | None = None
    """The directory into which its workers write their stacks on request, if they have been told of one."""
    nodes: int = 0
    """The number of nodes in the round."""
    generation: int = 0
    """Counts the starts of workers on this node."""
    works: bool = False
    """Its workers are running, or have finished and wait for those of other nodes."""


_LEAST_S, _MOST_S = 0.5, 120.0
_WITHIN_S = 10.0
_PEERS_S = 20.0
"""The time limit for answers of other nodes; nobody waits for these."""


class NodeStacks:
    """Answers where this node's workers are. One per agent.

    Thread-safe: it is asked on separate threads, whatever the agent's main thread is doing.
    """

    def __init__(self, node: Callable[[], NodeSnapshot], directory: str, *, logs: str = "", on_request: bool) -> None:
        """``node`` says who works here now; ``directory`` is the agent's own, for what workers write.

        ``logs``: the directory of the workers' logs, where files go if there are any. ``on_request``: workers are told
        to write their stacks themselves when they are asked.
        """
        self.node = node
        self.own = Path(directory, "stacks") if on_request else None
        """The directory where workers write their stacks on request, if they do."""
        self._logs = directory if logs in ("", os.devnull) else logs
        self.debugging = threading.Lock()
        """Held while a worker is being read: a process can have only one debugger at a time."""
        self._stored = 0
        self._make_own()

    def _make_own(self) -> None:
        if self.own is None:
            return
        try:
            os.makedirs(self.own, mode=0o700, exist_ok=True)
            os.chmod(self.own, 0o700)  # whatever the umask takes away
        except OSError as error:
            logger.debug("workers cannot write their stacks: %s", error)

    @property
    def environment(self) -> Mapping[str, str]:
        """Variables for the workers that are being started."""
        self._make_own()  # a cleaner of temporary files may have removed it
        return {} if self.own is None else {VARIABLE: f"{self.own},{os.getpid()}"}

    def answer(self, question: RpcRequest) -> Any:
        """Like ``questions.Answer``: for ``stacks``, with the arguments ``within`` (s), ``children`` and ``native``."""
        if question.kind != STACKS:
            raise UnknownKind(question.kind)
        within = question.arguments.get("within", _WITHIN_S)
        if not isinstance(within, int | float) or not _LEAST_S <= within <= _MOST_S:
            raise ValueError(f"within={within!r} is not a time")
        from rdzv_launcher.run.stacks.reports import answer_of

        node, native = self.node(), within if question.arguments.get("native") else None
        return answer_of(node, self.gather(node, within, bool(question.arguments.get("children")), native))

    def store(self, why: str, within: float) -> None:
        """Store where the live workers are, because they ``why``. For any thread; raises nothing.

        One log line says where the file is. What cannot be written goes to the log itself, so that it is not lost.
        """
        from rdzv_launcher.run.stacks import processes

        try:
            node = self.node()
            if any(processes.is_there(processes.look(worker.pid)) for worker in node.workers):
                self.store_reports(self.gather(node, within, native=0), (), f"workers of this node {why}")
        except Exception as error:
            logger.warning("could not read the stacks of the workers: %s", error)

    def store_of_peers(self, questions: NodeRpc | None, why: str) -> None:
        """Store the same for other nodes' workers, by asking the nodes, on a separate thread; returns at once."""
        if questions is not None:
            OwnThread(target=self._ask_peers, args=(questions, why), name="rdzv-stacks-of-peers").start()

    def gather(
        self, node: NodeSnapshot, within: float, children: bool = False, native: float | None = None
    ) -> list[WorkerReport]:
        """See ``reading.gather``; None for ``native``: its default. Any thread."""
        from rdzv_launcher.run.stacks.reading import NATIVE_S, gather

        native = NATIVE_S if native is None else native
        with self.debugging:
            return gather(node, within=within, children=children, native=native)

    def _ask_peers(self, questions: NodeRpc, why: str) -> None:
        try:
            answers = questions.ask(STACKS, {"within": _PEERS_S - 2}, _PEERS_S)
        except (RdzvError, TimeoutError) as error:
            logger.debug("the other nodes could not be asked for their stacks: %s", error)
            return
        from rdzv_launcher.run.stacks.reports import read

        workers, silent = read(answers)
        self.store_reports([each for each in workers if each.process.state != "ended"], silent, why)

    def store_reports(self, workers: Iterable[WorkerReport], silent: Iterable[Silent], why: str) -> None:
        """Store what was gathered, and log in one line where, and why."""
        from rdzv_launcher.run.stacks.reports import report_text

        text = report_text(list(workers), list(silent), threads=True)
        self._stored += 1
        path = Path(self._logs, f"stacks-{names.word(self.node().host)}-{os.getpid()}-{self._stored}.log")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # an existing file may be anybody's: it is not followed, and not written to
            with path.open("x") as file:
                file.write(f"{why}\n{text}\n")
        except OSError as error:
            logger.warning("%s; their stacks (cannot write %s: %s):\n%s", why, path, error.strerror, text)
        else:
            logger.warning("%s; their stacks are in %s: %s", why, path, text.partition("\n")[0])
