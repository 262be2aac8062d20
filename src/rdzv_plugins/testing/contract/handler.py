"""What a ``RendezvousHandler`` promises before and after its rounds: part of the theme ``backend``.

Its rounds are those of the theme ``rendezvous``.
"""

from __future__ import annotations

from typing import Any

from rdzv_plugins.interfaces import Capability
from rdzv_plugins.testing.contract.job import ContractJob, JobTheme, of_kind
from rdzv_plugins.testing.contract.parts import bounded
from rdzv_plugins.testing.suite.ground import ground


def handler_of(job: ContractJob, nodes: int) -> Any:
    """The handler of the first of ``nodes`` nodes, with the others absent."""
    ranks = Capability.NODE_RANK in job.capabilities
    return job.created(min_nodes=nodes, max_nodes=nodes, node_rank=0 if ranks else None)


class HandlerContract(JobTheme):
    """Promises of a handler, tried through the interface alone."""

    @ground(1, "it hangs")
    @of_kind("handler")
    def test_what_has_to_return_at_once_does_while_the_others_are_away(self, job: ContractJob) -> None:
        # All calls except ``next_rendezvous``, which is not made here.
        handler = handler_of(job, nodes=2)
        assert bounded("get_run_id()", handler.get_run_id) == job.run_id
        assert bounded("get_backend()", handler.get_backend)
        assert isinstance(bounded("use_agent_store", lambda: handler.use_agent_store), bool)
        assert bounded("is_closed()", handler.is_closed) is False
        assert bounded("num_nodes_waiting()", handler.num_nodes_waiting) == 0
        assert bounded("shutdown()", handler.shutdown) is True

    @of_kind("handler")
    def test_a_job_of_one_node_is_complete_at_once_and_can_be_closed(self, job: ContractJob) -> None:
        # Afterwards it is closed.
        handler = handler_of(job, nodes=1)
        info = bounded("next_rendezvous()", handler.next_rendezvous)
        assert (info.rank, info.world_size) == (0, 1)
        info.store.set("key", "value")
        assert info.store.get("key") == b"value"
        assert bounded("num_nodes_waiting()", handler.num_nodes_waiting) == 0
        assert bounded("is_closed()", handler.is_closed) is False
        bounded("set_closed()", handler.set_closed)
        assert bounded("is_closed()", handler.is_closed) is True
        assert bounded("shutdown()", handler.shutdown) is True
