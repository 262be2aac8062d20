"""Asks the nodes of a job, through the place where they meet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rdzv_launcher.tools.meeting import Meeting
from rdzv_plugins.errors import EndpointUnreachable
from rdzv_plugins.interfaces import Request
from rdzv_plugins.questions import NodeAnswer


def ask_job(
    request: Request, kind: str, arguments: Mapping[str, Any], timeout: float, *, otherwise: str
) -> list[NodeAnswer]:
    """What the nodes of the job answer. Raises ``RdzvError``.

    ``otherwise`` is a sentence that says what to do if they cannot be asked.
    """
    from rdzv_plugins.elastic.asking import ask_from_outside

    try:
        service, run = Meeting(request, timeout, who=kind, otherwise=otherwise).service()
        answers = ask_from_outside(service, kind, arguments, timeout)
    except TimeoutError as error:
        raise EndpointUnreachable(
            f"{request.endpoint}: {error}", remedy=f"--timeout=SECONDS waits longer. Or: {otherwise}"
        ) from error
    if not answers:
        raise EndpointUnreachable(
            f"no node of run {run!r} is at {request.endpoint}"
            if "of" not in arguments
            else f"that node is not in run {run!r} any more",
            remedy="`rdzv status` says who is there. Check --rdzv-id.",
        )
    return answers
