"""Theme ``failure``: of the service, of the network, of nodes; and nothing is left behind."""

from __future__ import annotations

from rdzv_plugins.testing.faults.leaks import Leaks
from rdzv_plugins.testing.faults.nodes import NodeFailures
from rdzv_plugins.testing.faults.service import ServiceFaults
from rdzv_plugins.testing.faults.state import StateFaults


class FailureTheme(ServiceFaults, StateFaults, NodeFailures, Leaks):
    """Killed, frozen, parted, slow: who is told what, and what goes on."""

    theme = "failure"
