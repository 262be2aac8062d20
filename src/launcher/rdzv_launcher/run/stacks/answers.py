"""Puts together what the nodes of a job have answered to a question for stacks."""

from __future__ import annotations

from collections.abc import Iterable

from rdzv_launcher.run.stacks.reports import WorkerReport, workers_of
from rdzv_launcher.run.stacks.text import Silent
from rdzv_plugins.questions import NodeAnswer


def read(answers: Iterable[NodeAnswer]) -> tuple[list[WorkerReport], list[Silent]]:
    """The workers of all nodes, and the nodes that have said nothing about theirs."""
    workers, silent = [], []
    for each in answers:
        problem = each.problem
        rank = "a node" if each.node_rank is None else f"node {each.node_rank}"
        name = f"{rank} on {each.host} (pid {each.pid})"
        if not problem:
            try:
                found = workers_of(each.answer)
                workers += found
                if not found:
                    silent.append(Silent(name, "has no workers now: it is a spare, or waits for other nodes", "idle"))
                continue
            except ValueError as error:
                problem = f"has answered with something that cannot be read: {error}"
        silent.append(Silent(name, problem))
    return workers, silent
