"""What a node raises when it hears that the job has ended elsewhere."""

from __future__ import annotations

from rdzv_plugins import errors
from rdzv_plugins.interfaces import Outcome, Request


def ended_error(outcome: Outcome, request: Request) -> errors.RendezvousFailed:
    """The error of a node that hears how the job ended elsewhere."""
    if outcome.failure is not None:
        failed = outcome.failure
        return errors.PeerFailed(
            f"run {request.run_id!r} failed on node {failed.node_rank} ({failed.host}): {outcome.reason}",
            failed,
        )
    return errors.RendezvousClosed(
        f"run {request.run_id!r} at {request.endpoint} has ended: {outcome.reason or outcome.end}",
        remedy="" if outcome.end == "lost" else "To start it again, use another --rdzv-id.",
    )
