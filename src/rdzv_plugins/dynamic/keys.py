"""Our own keys beside torch's state of a dynamic rendezvous, for readers without torch.

Under the run's prefix: ``settings``, ``refused/count`` and ``refused/<n>`` (``refusals``), and the job record
(``rounds.job_record``). Those of a round (the workers' store, and the keys of torch's agents) are below
``torch.rendezvous.<run id>.<round>/``; torch's state is a pickle, everything else is text.
"""

from __future__ import annotations

SETTINGS = "settings"
"""The key, under the run's prefix, of the first node's settings; the others compare theirs with them."""


def run_prefix(run_id: str) -> str:
    """The prefix of all our keys."""
    return f"rdzv_plugins.{run_id}"
