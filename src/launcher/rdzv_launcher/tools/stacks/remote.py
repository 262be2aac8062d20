"""The nodes of a job, asked through the place where they meet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rdzv_launcher.tools.meeting import Meeting
from rdzv_plugins.errors import EndpointUnreachable
from rdzv_plugins.interfaces import Request
from rdzv_plugins.questions import NodeAnswer

HERE = "`rdzv stacks` without --rdzv-endpoint, on each of its machines, reads the workers there."


def ask_job(request: Request, arguments: Mapping[str, Any], timeout: float) -> list[NodeAnswer]:
    """What the nodes of the job answer to ``stacks``. Raises ``RdzvError``."""
    from rdzv_plugins.elastic.asking import ask_from_outside
    from rdzv_plugins.questions import STACKS

    try:
        service, run = Meeting(request, timeout, who="stacks", otherwise=HERE).service()
        answers = ask_from_outside(service, STACKS, arguments, timeout)
    except TimeoutError as error:
        raise EndpointUnreachable(
            f"{request.endpoint}: {error}", remedy=f"--timeout=SECONDS waits longer. Or: {HERE}"
        ) from error
    if not answers:
        raise EndpointUnreachable(
            f"no node of run {run!r} is at {request.endpoint}",
            remedy="`rdzv status` says who is there. Check --rdzv-id.",
        )
    return answers
