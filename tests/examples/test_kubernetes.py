"""The manifests of examples/kubernetes: as their schemas have them, and each part names what is in the others.

The schemas are those that two packages have in classes: those of Kubernetes are in lightkube-models, made from its API
specification, those of JobSet and Kubeflow Trainer in kubeflow-trainer-api.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from kits.examples.manifests import (
    ETCD,
    FOLDER,
    Manifest,
    container_of,
    documents,
    job_of,
    one,
    pod_of,
)
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

from rdzv_launcher.run.parser import build_parser, parse_arguments
from rdzv_plugins import errors
from rdzv_plugins.schedulers.facts import GRACE

pytestmark = pytest.mark.thorough

EVERYTHING = [document for path in sorted(FOLDER.glob("*.yaml")) for document in documents(path.name)]
JOBS = [manifest for manifest in EVERYTHING if manifest["kind"] == "Job"] + [one("jobset.yaml", "JobSet")]
OTHERS = {
    "JobSet": "jobset_v1alpha2_job_set",
    "TrainJob": "trainer_v1alpha1_train_job",
    "TrainingRuntime": "trainer_v1alpha1_training_runtime",
}
"""Kind to the module of its model, of those that are not of Kubernetes itself."""


def read(manifest: Manifest) -> Any:
    """What the model of its kind has of it, and its defaults. Raises an error for a value of a wrong type."""
    if name := OTHERS.get(manifest["kind"]):
        module = importlib.import_module(f"kubeflow_trainer_api.models.{name}")
        classes = {each.__name__.lower(): each for each in vars(module).values() if isinstance(each, type)}
        return classes[name.replace("_", "")].from_dict(manifest).to_dict()
    version = manifest["apiVersion"].replace("/", "_")
    models = importlib.import_module(f"lightkube.models.{'core_v1' if version == 'v1' else version}")
    return msgspec.to_builtins(msgspec.convert(manifest, getattr(models, manifest["kind"])))


def lost(given: Any, had: Any, path: str = "") -> Iterator[str]:
    """What is not in the model that has read it: the models leave out what they do not know."""
    if isinstance(given, dict) and isinstance(had, dict):
        for key, value in given.items():
            yield from lost(value, had.get(key), f"{path}.{key}")
    elif isinstance(given, list) and isinstance(had, list):
        for number, (one_of, other) in enumerate(zip(given, had, strict=True)):
            yield from lost(one_of, other, f"{path}[{number}]")
    elif given != had:
        yield path


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
    assert [*lost(manifest, read(manifest))] == []


def test_the_parts_of_etcd_meet() -> None:
    """What its command says is tried by test_kubernetes_pods.py."""
    service, members, budget = documents("etcd.yaml")
    labels = members["spec"]["template"]["metadata"]["labels"]
    selectors = members["spec"]["selector"]["matchLabels"], budget["spec"]["selector"]["matchLabels"]
    assert (service["spec"]["selector"], *selectors) == (labels, labels, labels)
    count, ports = members["spec"]["replicas"], {each["name"]: each["port"] for each in service["spec"]["ports"]}
    assert count - budget["spec"]["maxUnavailable"] >= count // 2 + 1
    hosts = [f"{name_of(members)}-{number}.{members['spec']['serviceName']}" for number in range(count)]
    assert ",".join(f"{host}:{ports['client']}" for host in hosts) == ETCD


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


@pytest.mark.parametrize("job", [one("jobset.yaml", "JobSet"), one("trainjob.yaml", "TrainingRuntime")], ids=name_of)
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
    assert runtime["spec"]["mlPolicy"]["numNodes"] == trainer["numNodes"]
    assert job_of(runtime)["metadata"]["labels"] == {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    places = ",".join(f"{name}-node-0-{index}.{name}:29500" for index in range(3))
    assert f"--rdzv-endpoint={places}" in trainer["command"]
