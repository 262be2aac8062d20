"""The manifests of examples/kubernetes: as their schemas have them, each part names what is in the others, and started.

The schemas are those that two packages have in classes: those of Kubernetes are in lightkube-models, made from its API
specification, those of JobSet and Kubeflow Trainer in kubeflow-trainer-api. What is started are each pod's own command
and environment, as processes.
"""

from __future__ import annotations

import argparse
import http.client
import importlib
import inspect
import re
import shlex
import shutil
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml
from kits import ROOT
from kits.etcd import etcd_kit
from kits.etcd.etcd_processes import NEEDED_MIB, require_programs
from kits.eventually import eventually
from kits.examples.guides import block
from kits.launcher.harness import AgentProcess, Cluster, error_of, free_port
from kits.launcher.quick_digits import DIGITS, quick_digits
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

from rdzv_launcher.run.parser import build_parser, parse_arguments
from rdzv_plugins import errors
from rdzv_plugins.schedulers.facts import GRACE
from rdzv_plugins.testing.builtin import data_directory

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(600)]  # three launchers and three workers, each with torch

FOLDER = ROOT / "examples/kubernetes"
ETCD = "etcd-0.etcd:2379,etcd-1.etcd:2379,etcd-2.etcd:2379"
"""The endpoint in all manifests."""

Manifest = dict[str, Any]


def documents(name: str) -> list[Manifest]:
    return [document for document in yaml.safe_load_all((FOLDER / name).read_text()) if document]


def one(name: str, kind: str) -> Manifest:
    """The only manifest of that kind in a file."""
    (found,) = (document for document in documents(name) if document["kind"] == kind)
    return found


def job_of(manifest: Manifest) -> Manifest:
    """What is like a Job in a manifest with pods: that of a JobSet, or of a runtime of Trainer, and a Job itself."""
    spec = manifest["spec"]
    if manifest["kind"] == "TrainingRuntime":
        spec = spec["template"]["spec"]
    if "replicatedJobs" not in spec:
        return manifest
    (job,) = spec["replicatedJobs"]
    found: Manifest = job["template"]
    return found


def pod_of(manifest: Manifest) -> Manifest:
    """The pod's spec in a manifest with pods."""
    spec: Manifest = job_of(manifest)["spec"]["template"]["spec"]
    return spec


def container_of(manifest: Manifest) -> Manifest:
    (container,) = pod_of(manifest)["containers"]
    assert isinstance(container, dict)
    return container


class Pod:
    """Command and environment of a container, as the kubelet makes them of a manifest.

    ``fields`` is what the downward API knows of the pod. ``here`` replaces what is elsewhere in a cluster: addresses,
    the folders that volumes are mounted on.
    """

    def __init__(self, manifest: Manifest, fields: Mapping[str, str], here: Mapping[str, str]) -> None:
        container = container_of(manifest)
        self.env: dict[str, str] = {}
        for each in container.get("env", ()):
            # a value may name the variables above it
            value = fields[each["valueFrom"]["fieldRef"]["fieldPath"]] if "valueFrom" in each else each["value"]
            self.env[each["name"]] = self._expand(value)
        if manifest["spec"].get("completionMode") == "Indexed":  # the Job controller adds it, after the others
            index = fields["metadata.annotations['batch.kubernetes.io/job-completion-index']"]
            self.env.setdefault("JOB_COMPLETION_INDEX", index)
        self.command = [self._here(self._expand(part), here) for part in container["command"]]
        self.env = {name: self._here(value, here) for name, value in self.env.items()}

    def _expand(self, text: str) -> str:
        return re.sub(r"\$\((\w+)\)", lambda found: self.env.get(found[1], found[0]), text)

    def _here(self, text: str, here: Mapping[str, str]) -> str:
        for there, value in here.items():
            text = text.replace(there, value)
        return text


def pods(manifest: Manifest, here: Mapping[str, str]) -> list[Pod]:
    """All pods of an Indexed Job."""
    uid = {"metadata.labels['batch.kubernetes.io/controller-uid']": "5b1c0a2e-77aa-4d0f-9d6e-2f4f0d4a9c11"}
    index = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
    return [Pod(manifest, uid | {index: str(each)}, here) for each in range(manifest["spec"]["completions"])]


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
    """What its command says is tried below."""
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


LONG_S = 180
direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def answers(url: str) -> bool:
    """As a probe sees it."""
    try:
        with direct.open(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except (OSError, http.client.HTTPException):
        return False


@contextmanager
def etcd_of_the_manifest(jobs: Cluster) -> Iterator[str]:
    """Its three pods, ready; the endpoint is on loopback."""
    require_programs()
    manifest = one("etcd.yaml", "StatefulSet")
    data = data_directory(jobs.directory, room_mib=NEEDED_MIB)
    names = [f"etcd-{number}" for number in range(manifest["spec"]["replicas"])]
    ports = {(name, port): free_port() for name in names for port in (2379, 2380, 2381)}
    hosts = {f"{name}.etcd:{port}": f"127.0.0.1:{ports[name, port]}" for name, port in ports}
    members = []
    try:
        for name in names:
            own = {f"0.0.0.0:{port}": f"127.0.0.1:{ports[name, port]}" for port in (2379, 2380, 2381)}
            here = hosts | own | {"/var/lib/etcd": str(data / name)}
            pod = Pod(manifest, {"metadata.name": name}, here)
            program = shutil.which(pod.command[0])
            members.append(
                jobs.start([program, *pod.command[1:]], before=("setpriv", "--pdeathsig", "KILL"), **pod.env)
            )
        for probe in ("livenessProbe", "readinessProbe"):
            path = container_of(manifest)[probe]["httpGet"]["path"]
            for name in names:
                url = f"http://127.0.0.1:{ports[name, 2381]}{path}"
                eventually(lambda url=url: answers(url), lambda: "\n".join(member.text for member in members))
        yield ",".join(hosts[member] for member in ETCD.split(","))
    finally:
        for member in members:
            jobs.kill(member.pid)
            member.process.wait(60)
        shutil.rmtree(data, ignore_errors=True)


def here(jobs: Cluster, endpoint: str, script: Path) -> dict[str, str]:
    """What is elsewhere in a cluster."""
    (jobs.directory / "checkpoints").mkdir(exist_ok=True)
    (jobs.directory / "secret").mkdir(exist_ok=True)
    return {
        ETCD: endpoint,
        "/checkpoints": str(jobs.directory / "checkpoints"),
        "/run/secrets/rdzv-etcd": str(jobs.directory / "secret"),
        DIGITS.name: str(script),
    }


def start(jobs: Cluster, pod: Pod, *more: str) -> AgentProcess:
    return jobs.start([*pod.command, *more], **pod.env)


def test_the_job_trains_at_the_etcd_of_the_manifest(jobs: Cluster) -> None:
    with etcd_of_the_manifest(jobs) as endpoint:
        job = pods(one("job.yaml", "Job"), here(jobs, endpoint, quick_digits(jobs.directory)))
        nodes = [start(jobs, pod, "--epochs=6") for pod in job]
        assert [node.wait(LONG_S) for node in nodes] == [0, 0, 0], nodes[0].text
        assert sum("test accuracy: 9" in node.text for node in nodes) == 1
        assert "world size 3" in nodes[0].text
        assert (jobs.directory / "checkpoints/digits.pt").exists()


def test_all_by_variables_and_a_secret(jobs: Cluster, etcd: etcd_kit.Cluster) -> None:
    script = block("schedulers.md", "auth enable")
    commands = re.findall(r"^kubectl exec etcd-0 -- etcdctl (.*)$", script, re.MULTILINE)
    for command in commands:
        etcd.etcdctl(*shlex.split(command))
    secret = re.search(r"--from-literal=(\w+)=(\S+)", script)
    assert secret
    job = pods(one("job-pet.yaml", "Job"), here(jobs, etcd.endpoint, jobs.script("report.py")))

    (jobs.directory / "secret" / secret[1]).write_text("trainer:GUESS")
    assert "password" in error_of(start(jobs, job[0]), 77)

    (jobs.directory / "secret" / secret[1]).write_text(secret[2])
    nodes = [start(jobs, pod) for pod in job]
    assert [node.wait(LONG_S) for node in nodes] == [0, 0, 0], nodes[0].text
    assert [[(each["RANK"], each["WORLD_SIZE"]) for each in node.reports()] for node in nodes] == [
        [(str(index), "3")] for index in range(3)
    ]
