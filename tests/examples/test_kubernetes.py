"""The manifests of examples/kubernetes: as their schemas have them, and each part names what is in the others."""

from __future__ import annotations

import argparse
import inspect
import re

import pytest
import yaml
from kits.examples import schemas
from kits.examples.guides import HOW_TO
from kits.examples.manifests import (
    ETCD,
    FOLDER,
    Manifest,
    container_of,
    documents,
    job_of,
    of_trainer,
    one,
    pod_of,
)
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

from rdzv_launcher.run.command_line.parser import build_parser
from rdzv_launcher.run.command_line.parsing import parse_arguments
from rdzv_plugins import errors
from rdzv_plugins.schedulers.grace import GRACE

pytestmark = pytest.mark.thorough

EVERYTHING = [document for path in sorted(FOLDER.glob("*.yaml")) for document in documents(path.name)]
AT_PODS = [one("jobset.yaml", "JobSet"), of_trainer()]
JOBS = [manifest for manifest in EVERYTHING if manifest["kind"] == "Job"] + AT_PODS


def name_of(manifest: Manifest) -> str:
    return str(manifest["metadata"]["name"])


def arguments_of(job: Manifest, monkeypatch: pytest.MonkeyPatch) -> argparse.Namespace:
    """What rdzv-run makes of a pod's command and environment."""
    container = container_of(job)
    for each in container["env"]:
        monkeypatch.setenv(each["name"], each.get("value", "0"))
    program, *rest = container["command"]
    assert program == "rdzv-run"
    return parse_arguments([part.replace("$(JOB_COMPLETION_INDEX)", "0") for part in rest])


@pytest.mark.parametrize("manifest", EVERYTHING, ids=lambda each: f"{each['kind']}-{name_of(each)}")
def test_manifests_are_as_their_schemas_have_them(manifest: Manifest) -> None:
    schemas.check(manifest)


def test_the_parts_of_etcd_meet() -> None:
    """What its command says is tried by test_kubernetes_pods.py."""
    service, members, budget = documents("etcd.yaml")
    labels = members["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"] == members["spec"]["selector"]["matchLabels"] == labels
    assert budget["spec"]["selector"]["matchLabels"] == labels
    assert members["spec"]["serviceName"] == name_of(service)
    assert (service["spec"]["clusterIP"], service["spec"]["publishNotReadyAddresses"]) == ("None", True)
    count, container = members["spec"]["replicas"], container_of(members)
    assert count - budget["spec"]["maxUnavailable"] >= count // 2 + 1
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert {each["name"]: each["port"] for each in service["spec"]["ports"]}.items() < ports.items()
    hosts = [f"{name_of(members)}-{number}.{name_of(service)}" for number in range(count)]
    assert ",".join(f"{host}:{ports['client']}" for host in hosts) == ETCD
    assert {container[probe]["httpGet"]["port"] for probe in ("readinessProbe", "livenessProbe")} <= ports.keys()


@pytest.mark.parametrize("manifest", [*JOBS, one("etcd.yaml", "StatefulSet")], ids=name_of)
def test_what_is_mounted_is_there(manifest: Manifest) -> None:
    claims = {each["metadata"]["name"] for each in manifest["spec"].get("volumeClaimTemplates", ())}
    volumes = {each["name"]: each for each in pod_of(manifest).get("volumes", ())}
    assert {each["name"] for each in container_of(manifest).get("volumeMounts", ())} == claims | set(volumes)
    made = {name_of(each) for each in EVERYTHING if each["kind"] == "PersistentVolumeClaim"}
    assert {v["persistentVolumeClaim"]["claimName"] for v in volumes.values() if "persistentVolumeClaim" in v} <= made


@pytest.mark.parametrize("job", JOBS, ids=name_of)
def test_a_job_has_a_pod_for_each_node_and_probes_of_its_agent(job: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    given, spec = arguments_of(job, monkeypatch), job_of(job)["spec"]
    low, _, high = given.nnodes.partition(":")
    assert spec["completionMode"] == "Indexed"
    assert spec["completions"] == spec["parallelism"] == int(high or low)
    rules = spec.get("successPolicy", {}).get("rules", [])
    assert rules == [{"succeededCount": int(low)}] * bool(rules)
    assert rules or not high
    for probe, path in (("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
        assert container_of(job)[probe]["httpGet"] == {"path": path, "port": given.health_port}
    known = {f"PET_{action.dest.upper()}" for action in build_parser()._actions}
    assert {each["name"] for each in container_of(job)["env"] if each["name"].startswith("PET_")} <= known


@pytest.mark.parametrize("job", JOBS, ids=name_of)
def test_a_job_knows_what_is_worth_another_try(job: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    assert pod_of(job)["restartPolicy"] == "Never"  # the policies below want it
    disrupted, preempted, hopeless = job_of(job)["spec"]["podFailurePolicy"]["rules"]
    again = {"operator": "In", "values": [errors.Preempted.exit_code]}
    assert preempted == {"action": "Ignore", "onExitCodes": again}
    assert disrupted == {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    classes = errors.UsageError, errors.PluginError, errors.CrashLoop  # not JoinVetoed: another machine may be healthy
    assert hopeless["onExitCodes"] == {"operator": "In", "values": sorted(each.exit_code for each in classes)}
    workers_have = inspect.signature(LocalElasticAgent).parameters["shutdown_timeout"].default
    given, arguments = pod_of(job)["terminationGracePeriodSeconds"], arguments_of(job, monkeypatch)
    assert arguments.shutdown_timeout is None
    assert given > workers_have
    variables = {each["name"]: each.get("value") for each in container_of(job)["env"]}
    assert variables[GRACE] == str(given), "a pod is told what it has"
    assert given - 10 <= arguments.preempt_grace < given


@pytest.mark.parametrize("job", AT_PODS, ids=name_of)
def test_a_set_that_would_fail_again_is_not_started_again(job: Manifest) -> None:
    spec = job["spec"]["template"]["spec"] if job["kind"] == "TrainingRuntime" else job["spec"]
    assert spec["network"]["publishNotReadyAddresses"] is True  # nodes meet before they are ready
    assert spec["failurePolicy"]["rules"] == [{"action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}]


def test_what_is_kubeflow_trainers_is_left_to_it() -> None:
    """It refuses a TrainJob with these variables; the places begin with the master that it names."""
    reserved = {"PET_NNODES", "PET_NPROC_PER_NODE", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT"}
    job, runtime = one("trainjob.yaml", "TrainJob"), one("trainjob.yaml", "TrainingRuntime")
    trainer, name = job["spec"]["trainer"], name_of(job)
    assert not reserved & {each["name"] for each in (*trainer.get("env", ()), *container_of(runtime)["env"])}
    assert job["spec"]["runtimeRef"] == {"apiGroup": "trainer.kubeflow.org", "kind": runtime["kind"], "name": "rdzv"}
    assert name_of(runtime) == "rdzv"
    assert runtime["spec"]["mlPolicy"]["numNodes"] == trainer["numNodes"]
    assert job_of(runtime)["metadata"]["labels"] == {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    places = ",".join(f"{name}-node-0-{index}.{name}:29500" for index in range(3))
    assert f"--rdzv-endpoint={places}" in trainer["command"]
    blocks = re.findall(r"```yaml\n(.*?)```", (HOW_TO / "slurm-and-kubernetes.md").read_text(), re.DOTALL)
    (text,) = (block for block in blocks if "PET_" in block)
    shown = yaml.safe_load(text)["trainer"]
    assert not reserved & {each["name"] for each in shown["env"]}
    assert [each for each in container_of(one("job-pet.yaml", "Job"))["env"] if each in shown["env"]] == shown["env"]
    assert f"--nnodes=2:{shown['numNodes']}" in shown["command"]


def test_the_secret_is_the_one_that_the_command_makes() -> None:
    job = one("job-pet.yaml", "Job")
    (volume,) = (each for each in pod_of(job)["volumes"] if "secret" in each)
    text = (FOLDER / "job-pet.yaml").read_text()
    made = re.search(r"kubectl create secret generic (\S+) --from-literal=(\w+)=", text)
    assert made
    assert volume["secret"]["secretName"] == made[1]
    (conf,) = (each["value"] for each in container_of(job)["env"] if each["name"] == "PET_RDZV_CONF")
    assert conf.endswith(f"/{made[2]}")
