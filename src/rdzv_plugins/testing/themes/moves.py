"""``MovesTheme``: nodes that were given several endpoints meet at another one when the serving one is lost."""

from __future__ import annotations

from rdzv_plugins.interfaces import Capability
from rdzv_plugins.testing.nodes import NodeProcess, NodesJob, NodeTheme, needs, regroup, take_in, told

_ENDPOINTS = 3
"""This many can lose one, whatever decides among those that are left."""
_OUTAGE_S = 20
"""A backend that looks only for the lost endpoint must not take more seconds than this."""
_several = needs(
    lambda theme: theme.declares(Capability.SEVERAL_ENDPOINTS), "not tried: several_endpoints is not declared"
)


class MovesTheme(NodeTheme):
    """Tests backends that declare ``SEVERAL_ENDPOINTS``, with three endpoints, each of which a node here may serve."""

    theme = "moves"

    @_several
    def test_node_that_serves_is_killed(self) -> None:
        """The others go on at another endpoint, with ranks that are still there; who comes later finds them there."""
        with self._job() as job:
            host, others = self._started(job)
            host.kill()
            self._go_on(others, host, "was killed")
            newcomer = job.node()
            before = [node.rank for node in others]
            take_in(others, newcomer.join())
            assert [node.rank for node in others] == before, "who stays keeps its rank"

    @_several
    def test_node_that_serves_stands_still_and_goes_on(self) -> None:
        """The others go on at another endpoint; when it goes on itself it finds itself replaced, and joins them."""
        with self._job() as job:
            host, others = self._started(job)
            host.freeze()
            self._go_on(others, host, "stands still")
            host.thaw()
            assert host.await_change(), f"{host} does not notice that another endpoint serves"
            take_in(others, host.join())

    def _job(self) -> NodesJob:
        endpoints = self.directory / "endpoints"
        endpoints.mkdir()
        conf = self.conf(last_call_timeout=1, outage_timeout=_OUTAGE_S)
        return self.nodes("2:3", conf=conf, endpoint=self.harness.endpoints(endpoints, _ENDPOINTS))

    def _started(self, job: NodesJob) -> tuple[NodeProcess, list[NodeProcess]]:
        """The node that serves, and the others by rank."""
        nodes = job.start(3)
        host = self.host_of(nodes)
        assert host is not None, "no node serves, of those whose endpoints they are"
        return host, self.others_than(host, nodes)

    def _go_on(self, others: list[NodeProcess], host: NodeProcess, how: str) -> None:
        told(others, f"{host}, which served, {how}")
        before = [node.rank for node in others]
        regroup(others, f"2 nodes in one round at another endpoint, as {host}, which served, {how}")
        for node, rank in zip(others, before, strict=True):
            assert node.rank == rank or rank >= len(others), f"{node} stays, and does not keep its rank"
