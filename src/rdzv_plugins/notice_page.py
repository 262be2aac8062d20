"""What agent and workers of a node share about a notice: the agent says which step is the last, workers where they are.

A notice says that the job is about to lose a node. So that all ranks save the same step, the agents propose one, and
each checks whether a worker of its own has already passed it: a worker writes where it is before it looks at ``LIMIT``;
an agent writes ``LIMIT``, and looks ``SEEN_S`` later where the workers are. So if a worker has passed the step without
seeing the limit, this is known. A worker that arrives at a step that is only proposed waits for the decision.
"""

from __future__ import annotations

VARIABLE = "RDZV_NOTICE"
"""The variable in a worker's environment: the path of the page, its size in bytes, the number of the workers' start,
and the worker's first place, separated by commas."""
FILE = "RDZV_NOTICE_FILE"
"""The variable with the path of a file that exists once there is a notice.

It is a JSON object with the fields of ``Notice``, but ``deadline`` as a Unix time in seconds.
"""

START, NUMBER, DEADLINE, ROUND, NODE, LIMIT = range(6)
"""Places in the page.

START: how often workers have been started; NUMBER: 0 without a notice, otherwise it changes with each change of the
rest; DEADLINE: in nanoseconds of ``clock.now_ns``; ROUND; NODE: the rank of the node that is lost; LIMIT: 0, or the
step after which all save, or minus that step while it is only proposed.
"""
FIRST, WIDTH = 8, 2
AT, SAVED = range(2)
"""Places of each worker, from FIRST on.

AT: how many steps are done, -1 if it has never said; SAVED: 1 once it has said that it has saved.
"""

SEEN_S = 0.01
"""Seconds after which every processor sees a write by another: longer than it can remain hidden."""
VALID_S = 8.0
"""A proposal older than this is no longer agreed to."""
HOLD_S = 10.0
"""How many seconds a worker waits for a decision at most.

This is longer than ``VALID_S``, so that the worker passes no step that is agreed on after all.
"""
MOST_STEPS = 2**62


def size_of(workers: int) -> int:
    """The size of a page in bytes."""
    return 8 * (FIRST + WIDTH * workers)
