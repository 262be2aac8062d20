"""Theme ``failure``: the service, the network or nodes fail, and nothing is left behind."""

from __future__ import annotations

from rdzv_plugins.testing.faults.leaks import Leaks
from rdzv_plugins.testing.faults.nodes import NodeFailures
from rdzv_plugins.testing.faults.service import ServiceFaults
from rdzv_plugins.testing.faults.state import StateFaults


class FailureTheme(ServiceFaults, StateFaults, NodeFailures, Leaks):
    """Services and nodes are killed, frozen, partitioned and slowed down: who is told what, and what keeps working."""

    theme = "failure"
