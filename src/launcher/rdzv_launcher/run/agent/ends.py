"""How an agent ends by an error or a preemption: the step, the exit code, and the sentence that everybody sees."""

from __future__ import annotations

from rdzv_launcher.run.agent.steps import End
from rdzv_plugins.errors import PeerFailed, Preempted, RdzvError, WorkersStuck
from rdzv_plugins.interfaces import Outcome
from rdzv_plugins.runtime import Signals

LEFT = "what the workers of this node have started does not end, not even by SIGKILL"


class AgentEnds:
    """The ways in which one agent ends. Not thread-safe."""

    def __init__(self, host: str, pid: int) -> None:
        self._host, self._pid = host, pid

    def who(self, node_rank: int | None) -> str:
        """This agent, as the others know it; None: it has not had a place yet."""
        rank = "" if node_rank is None else f", node {node_rank}"
        return f"the agent on {self._host} (pid {self._pid}{rank})"

    def by_error(self, error: Exception, node_rank: int | None) -> End:
        """The end by an error; the error's exit code becomes the agent's if it is one of ours."""
        code = error.exit_code if isinstance(error, RdzvError) else RdzvError.exit_code
        reason = str(error) if isinstance(error, PeerFailed) else f"{self.who(node_rank)} ended: {error}"
        return End(code, Outcome("lost", reason), error)

    def preempted(self, others_go_on: bool | None, node_rank: int | None, number: Signals | None = None) -> End:
        """The end because the machine is taken away. ``others_go_on``: enough nodes are left; None: nobody has said.

        ``number`` is the last signal that said so; None: there was none, its grace is over or was not needed.
        """
        reason = f"{self.who(node_rank)} was preempted"
        outcome = Outcome("failed" if others_go_on is False else "lost", reason, exit_code=Preempted.exit_code)
        others = {None: "", True: ": enough nodes are left to go on", False: ": too few nodes are left to go on"}
        error = Preempted(f"{reason}{others[others_go_on]}")
        return End(Preempted.exit_code, outcome, error, signal=number or Signals.SIGTERM)

    def stuck(self, reason: str, node_rank: int | None) -> End:
        """The end because the kernel does not release something that a worker started."""
        error = WorkersStuck(
            f"{reason}: the workers are not restarted on this node",
            remedy="Look at its state (ps). In state D the kernel holds it, often for a device, a network card or a "
            "file system: look at dmesg, the machine may have to be restarted. A process of another user has to be "
            "ended by that user.",
        )
        return self.by_error(error, node_rank)
