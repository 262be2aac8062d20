"""Has a node been lost, or has a worker failed by itself? The sessions are asked, so that nobody has to guess.

When a worker fails, its node asks for a probe; the leader asks every node of the round for a sign of life, and
announces when all have given one. A node that does not answer is lost when its session ends, at most its time to live
later. An answer counts only if it was asked for after the failure: probes are numbered.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rdzv_plugins.elastic.keys import Member, Probe


class Probing:
    """The leader's part. No clock, no sockets; not thread-safe."""

    def __init__(self, newest: Probe | None = None) -> None:
        # a probe that an earlier leader has not seen to its end is begun again when its asker is met
        known = newest or Probe()
        self._number = known.number if known.answered else known.number - 1
        self._round = 0
        self._silent: set[str] = set()

    def changed(self, member: Member, working: Callable[[], Sequence[Member]], round_: int) -> Probe | None:
        """A member has changed; returns the probe to publish, if any.

        ``working`` returns the nodes of round ``round_``. If there are none, the round is over, which is an answer,
        too.
        """
        if member.probe > self._number and (nodes := working()):
            self._number, self._round = member.probe, round_
            self._silent = {each.node_id for each in nodes if each.alive < self._number}
            return Probe(self._number, round_, answered=not self._silent)
        return self._heard(member.node_id) if member.alive >= self._number else None

    def gone(self, node: str) -> Probe | None:
        """A member has left or is lost: its answer is no longer waited for."""
        return self._heard(node)

    def _heard(self, node: str) -> Probe | None:
        if node not in self._silent:
            return None
        self._silent.discard(node)
        return None if self._silent else Probe(self._number, self._round, answered=True)
