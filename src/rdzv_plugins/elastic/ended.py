"""What a node raises when it hears that the job has ended elsewhere, or will."""

from __future__ import annotations

from torch.distributed.elastic.rendezvous.api import RendezvousGracefulExitError

from rdzv_plugins import errors
from rdzv_plugins.elastic.torch_errors import as_torch
from rdzv_plugins.elastic.view import View
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


def raise_if_ended(view: View, problem: errors.EndpointLost | None, request: Request) -> None:
    """Raise the reason if the job has failed elsewhere, or the service is lost (``problem``)."""
    ended = view.ended
    if ended is not None and ended.end != "done":
        raise as_torch(ended_error(ended, request))
    if problem is not None:
        raise as_torch(problem)


def raise_if_not_needed(view: View, request: Request, round_: int) -> None:
    """Raise what ends the waiting of a node whose last round was ``round_``: the job has ended, or does without it."""
    if view.ended is not None:
        raise ended_error(view.ended, request)
    if view.round.state == "failed" and view.round.number > round_:
        raise errors.RendezvousFailed(
            f"run {request.run_id!r}: round {view.round.number} failed: {view.round.reason}",
            remedy="Check the route and the firewall between these nodes (--rdzv-conf worker_ports=FIRST-LAST confines "
            "the ports), or name the right address with --local-addr.",
        )
    finishing = view.round.state == "complete" and view.finishing.round == view.round.number
    if finishing and round_ == 0:
        raise RendezvousGracefulExitError(
            f"run {request.run_id!r} is about to end: {view.finishing.by} is done. This node was not needed"
        )
