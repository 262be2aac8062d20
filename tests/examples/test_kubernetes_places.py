"""The manifests without an etcd, each pod on a host of its own with the pod's name: any of them may be lost."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kits.eventually import eventually
from kits.examples.manifests import Manifest, Pod, of_trainer, one, pods
from kits.hosts.hosts import Host, Lan, require
from kits.launcher.harness import Agent, Cluster

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(300)]

SUBDOMAIN = "svc.cluster.local"
SETS = {"train-set": one("jobset.yaml", "JobSet"), "train-job": of_trainer()}


class Pods:
    """The pods of one set: hosts that know each other's names, as JobSet's headless Service gives them."""

    def __init__(self, jobs: Cluster, lan: Lan, name: str, manifest: Manifest) -> None:
        self.jobs, self.lan, self.name = jobs, lan, name
        self.stop = jobs.directory / "stop"
        here = {"train_digits.py": str(jobs.script("says.py")), "--checkpoint=/checkpoints/digits.pt": str(self.stop)}
        self._pods: list[Pod] = pods(manifest, here)
        self.hosts: list[Host] = []
        for index in range(len(self._pods)):
            self.add(index)

    def add(self, index: int) -> Host:
        """The host of a pod. One that replaces another has its name, and an address of its own."""
        host = self.lan.add(f"{self.name}-node-0-{index}")[0]
        self.hosts.append(host)
        domain = f"{self.name}.default.{SUBDOMAIN}"
        names = {f"{each.name}.{self.name}": each.address for each in self.hosts}
        for each in self.hosts:
            each.resolve({f"{other.name}.{domain}": other.address for other in self.hosts} | names)
        return host

    def start(self, index: int, host: Host) -> Agent:
        pod = self._pods[index]
        set_by_kubernetes = {"HOSTNAME": host.name, "KUBERNETES_SERVICE_HOST": "10.96.0.1"}
        before = host.enter(self.jobs.directory)
        command = [*pod.command, "0", "--rdzv-conf=ttl=4"]
        at = command.index(str(self.jobs.script("says.py")))
        return self.jobs.start(
            [*command[:at], command[-1], *command[at:-1]],
            before=before,
            inside=host.pid,
            **pod.env,
            **set_by_kubernetes,
        )


@pytest.fixture(params=SETS)
def a_set(request: pytest.FixtureRequest, jobs: Cluster, tmp_path: Path) -> Iterator[Pods]:
    (tmp_path / "etc").mkdir()
    require(tmp_path / "etc")
    (tmp_path / "hosts").mkdir()
    lan = Lan(tmp_path / "hosts")
    try:
        yield Pods(jobs, lan, request.param, SETS[request.param])
    finally:
        lan.close()


def test_any_pod_may_be_lost_and_comes_again(a_set: Pods) -> None:
    agents = [a_set.start(index, host) for index, host in enumerate(a_set.hosts)]
    for index, agent in enumerate(agents):
        agent.wait_for(r'"WORLD_SIZE": "3"')
        assert agent.reports()[0]["GROUP_RANK"] == str(index)
        assert agent.reports()[0]["TORCHELASTIC_RUN_ID"] == f"{a_set.name}-0"
    a_set.lan.cut(a_set.hosts[0])
    for agent in agents[1:]:
        agent.wait_for(r'"WORLD_SIZE": "2"')
    again = a_set.start(0, a_set.add(0))
    again.wait_for(r'"WORLD_SIZE": "3"')

    def all_are_back() -> bool:
        return all(agent.reports()[-1]["WORLD_SIZE"] == "3" for agent in agents[1:])

    eventually(all_are_back, lambda: "\n".join(agent.text for agent in agents))
    assert again.reports()[-1]["GROUP_RANK"] == "0"
    a_set.stop.touch()
    assert [agent.wait() for agent in (again, *agents[1:])] == [0, 0, 0], again.text
