"""What ends an elastic node's waiting: the job has ended elsewhere, is about to, or goes on without it."""

from __future__ import annotations

from rdzv_plugins import errors
from rdzv_plugins.elastic.view import View
from rdzv_plugins.interfaces import Request
from rdzv_plugins.rounds.ends import ended_error


def raise_if_ended(view: View, problem: errors.RdzvError | None, request: Request) -> None:
    """Raise the reason if the job has failed elsewhere, or ``problem`` if the service is lost."""
    ended = view.ended
    if ended is not None and ended.end != "done":
        raise ended_error(ended, request)
    if problem is not None:
        raise problem


def raise_if_not_needed(view: View, request: Request, round_: int, *, spare: bool) -> None:
    """Raise what ends the waiting of a node whose last round was ``round_``: the job has ended or goes on without it.

    ``spare``: the node was in an earlier round, or has waited while others worked, ready to replace one of them.
    """
    if view.ended is not None:
        raise ended_error(view.ended, request)
    if view.round.state == "failed" and view.round.unfit and view.round.number > round_:
        raise errors.PreflightFailed(f"run {request.run_id!r} cannot go on: {view.round.reason}")
    if view.round.state == "failed" and view.round.number > round_:
        raise errors.RendezvousFailed(
            f"run {request.run_id!r}: round {view.round.number} failed: {view.round.reason}",
            remedy="Check the route and the firewall between these nodes (--rdzv-conf worker_ports=FIRST-LAST confines "
            "the ports), or name the right address with --local-addr.",
        )
    if is_finishing(view) and not _is_inside(view, round_):
        if spare:
            was = "was left out" if round_ else "was a spare"
            raise errors.SpareReleased(f"run {request.run_id!r} is done without this node, which {was}")
        raise errors.NotNeeded(
            f"run {request.run_id!r} at {request.endpoint} is about to end ({view.finishing.by} is done): this node "
            "has come too late to take part, and has not run its script",
            remedy="If it was meant for another job, start that one with another --rdzv-id, or when this one has "
            "ended.",
        )


def _is_inside(view: View, round_: int) -> bool:
    """Whether the node has a place in the round that is complete, or had one when it was complete."""
    place = view.assignment
    return round_ == view.round.number or (place is not None and place.is_place and place.round == view.round.number)


def is_finishing(view: View) -> bool:
    """Whether a node of the round was done and has left, so that the job is about to end."""
    return view.round.state == "complete" and view.finishing.round == view.round.number
