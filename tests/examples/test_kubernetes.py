"""The manifests of examples/kubernetes: whole, and each part names what is in the others."""

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
    everything,
    job_of,
    of_trainer,
    one,
    pod_of,
)
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent

from rdzv_launcher.run.command_line.parser import build_parser
from rdzv_launcher.run.command_line.parsing import parse_arguments
from rdzv_plugins import errors
from rdzv_plugins.schedulers.facts import GRACE

pytestmark = pytest.mark.thorough

AT_ETCD = [manifest for _, manifest in everything() if manifest["kind"] == "Job"]
AT_PODS = [one("jobset.yaml", "JobSet"), of_trainer()]
JOBS = AT_ETCD + AT_PODS
WITH_PODS = [*JOBS, one("etcd.yaml", "StatefulSet")]


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


def test_files_are_manifests() -> None:
    assert {path.name: [each["kind"] for each in documents(path.name)] for path in FOLDER.glob("*.yaml")} == {
        "etcd.yaml": ["Service", "StatefulSet", "PodDisruptionBudget"],
        "job.yaml": ["PersistentVolumeClaim", "Job"],
        "job-pet.yaml": ["Job"],
        "jobset.yaml": ["JobSet"],
        "trainjob.yaml": ["TrainingRuntime", "TrainJob"],
    }


@pytest.mark.parametrize(
    "manifest", [each for _, each in everything()], ids=lambda each: f"{each['kind']}-{name_of(each)}"
)
def test_manifests_are_as_their_schemas_have_them(manifest: Manifest) -> None:
    schemas.check(manifest)


def test_what_a_schema_does_not_have_is_found() -> None:
    """In the deepest place: the pods of a JobSet in a runtime."""
    wrong = of_trainer()
    container_of(wrong)["livenessProbes"] = container_of(wrong).pop("livenessProbe")
    with pytest.raises(ValueError, match=r"containers\[0\]\.livenessProbes"):
        schemas.check(wrong)
    wrong = one("etcd.yaml", "StatefulSet")
    wrong["spec"]["replicas"] = "3"
    with pytest.raises(ValueError, match="replicas"):
        schemas.check(wrong)


def test_names_and_labels_of_etcd_meet() -> None:
    service, members, budget = documents("etcd.yaml")
    labels = members["spec"]["template"]["metadata"]["labels"]
    assert service["spec"]["selector"] == labels
    assert members["spec"]["selector"]["matchLabels"] == labels
    assert budget["spec"]["selector"]["matchLabels"] == labels
    assert members["spec"]["serviceName"] == name_of(service)
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["publishNotReadyAddresses"] is True
    quorum = members["spec"]["replicas"] // 2 + 1
    assert members["spec"]["replicas"] - budget["spec"]["maxUnavailable"] >= quorum


def test_members_and_ports_of_etcd_meet() -> None:
    service, members, _ = documents("etcd.yaml")
    container = container_of(members)
    flags = dict(part.removeprefix("--").split("=", 1) for part in container["command"][1:])
    name = name_of(members)
    hosts = [f"{name}-{number}.{name_of(service)}" for number in range(members["spec"]["replicas"])]
    ports = {each["name"]: each["containerPort"] for each in container["ports"]}
    assert [(each["name"], each["port"]) for each in service["spec"]["ports"]] == [("client", 2379), ("peer", 2380)]
    assert ports == {"client": 2379, "peer": 2380, "metrics": 2381}
    assert flags["initial-cluster"] == ",".join(f"{host.partition('.')[0]}=http://{host}:2380" for host in hosts)
    for kind, flag in (
        ("client", "listen-client-urls"),
        ("peer", "listen-peer-urls"),
        ("metrics", "listen-metrics-urls"),
    ):
        assert flags[flag] == f"http://0.0.0.0:{ports[kind]}"
    assert flags["advertise-client-urls"] == f"http://$(POD_NAME).{name_of(service)}:2379"
    assert flags["initial-advertise-peer-urls"] == f"http://$(POD_NAME).{name_of(service)}:2380"
    assert flags["name"] == "$(POD_NAME)"
    assert ",".join(f"{host}:2379" for host in hosts) == ETCD
    for probe in ("readinessProbe", "livenessProbe"):
        assert container[probe]["httpGet"]["port"] in ports
    (mount,) = container["volumeMounts"]
    assert flags["data-dir"].startswith(mount["mountPath"] + "/")


@pytest.mark.parametrize("manifest", WITH_PODS, ids=name_of)
def test_what_is_mounted_is_there(manifest: Manifest) -> None:
    claims = {each["metadata"]["name"] for each in manifest["spec"].get("volumeClaimTemplates", ())}
    volumes = {each["name"]: each for each in pod_of(manifest).get("volumes", ())}
    mounted = {each["name"] for each in container_of(manifest).get("volumeMounts", ())}
    assert mounted == claims | set(volumes)
    made = {name_of(each) for _, each in everything() if each["kind"] == "PersistentVolumeClaim"}
    assert {v["persistentVolumeClaim"]["claimName"] for v in volumes.values() if "persistentVolumeClaim" in v} <= made


@pytest.mark.parametrize("job", JOBS, ids=name_of)
def test_a_job_has_a_pod_for_each_node(job: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    low, _, high = arguments_of(job, monkeypatch).nnodes.partition(":")
    spec = job_of(job)["spec"]
    assert spec["completionMode"] == "Indexed"
    assert spec["completions"] == spec["parallelism"] == int(high or low)
    for rule in spec.get("successPolicy", {}).get("rules", ()):
        assert rule == {"succeededCount": int(low)}
    assert not high or "successPolicy" in spec


@pytest.mark.parametrize("job", AT_ETCD, ids=name_of)
def test_a_job_meets_at_etcd(job: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = arguments_of(job, monkeypatch)
    assert (arguments.rdzv_backend, arguments.rdzv_endpoint) == ("etcd", ETCD)
    assert {"rdzv_id", "node_rank", "nproc_per_node"} <= arguments.given


@pytest.mark.parametrize("job", JOBS, ids=name_of)
def test_a_job_knows_what_is_worth_another_try(job: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    assert pod_of(job)["restartPolicy"] == "Never"  # the policies below want it
    disrupted, preempted, hopeless = job_of(job)["spec"]["podFailurePolicy"]["rules"]
    again = {"operator": "In", "values": [errors.Preempted.exit_code]}
    assert preempted == {"action": "Ignore", "onExitCodes": again}
    assert disrupted == {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    classes = [
        errors.UsageError,
        errors.PluginError,
        errors.CrashLoop,
    ]  # not JoinVetoed: another machine may be healthy
    assert hopeless["onExitCodes"] == {"operator": "In", "values": sorted(each.exit_code for each in classes)}
    workers_have = inspect.signature(LocalElasticAgent).parameters["shutdown_timeout"].default
    assert arguments_of(job, monkeypatch).shutdown_timeout is None
    given = pod_of(job)["terminationGracePeriodSeconds"]
    assert given > workers_have
    variables = {each["name"]: each.get("value") for each in container_of(job)["env"]}
    assert variables[GRACE] == str(given), "a pod is told what it has"
    assert given - 10 <= arguments_of(job, monkeypatch).preempt_grace < given


@pytest.mark.parametrize("job", JOBS, ids=name_of)
def test_probes_ask_the_agent_at_its_port(job: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    port = arguments_of(job, monkeypatch).health_port
    assert port
    for probe, path in (("livenessProbe", "/healthz"), ("readinessProbe", "/readyz")):
        assert container_of(job)[probe]["httpGet"] == {"path": path, "port": port}


@pytest.mark.parametrize("job", AT_PODS, ids=name_of)
def test_a_set_that_would_fail_again_is_not_started_again(job: Manifest) -> None:
    spec = job["spec"]["template"]["spec"] if job["kind"] == "TrainingRuntime" else job["spec"]
    assert spec["network"]["publishNotReadyAddresses"] is True  # nodes meet before they are ready
    assert spec["failurePolicy"]["rules"] == [{"action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]}]


def test_the_trainjob_leaves_to_trainer_what_is_its() -> None:
    """It refuses a TrainJob with these variables; the places begin with the master that it names."""
    reserved = {"PET_NNODES", "PET_NPROC_PER_NODE", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT"}
    job, runtime = one("trainjob.yaml", "TrainJob"), one("trainjob.yaml", "TrainingRuntime")
    trainer = job["spec"]["trainer"]
    assert not reserved & {each["name"] for each in (*trainer.get("env", ()), *container_of(runtime)["env"])}
    assert job["spec"]["runtimeRef"] == {"apiGroup": "trainer.kubeflow.org", "kind": runtime["kind"], "name": "rdzv"}
    assert name_of(runtime) == "rdzv"
    assert runtime["spec"]["mlPolicy"]["numNodes"] == trainer["numNodes"]
    assert job_of(runtime)["metadata"]["labels"] == {"trainer.kubeflow.org/trainjob-ancestor-step": "trainer"}
    name = name_of(job)
    places = ",".join(f"{name}-node-0-{index}.{name}:29500" for index in range(3))
    assert f"--rdzv-endpoint={places}" in trainer["command"]


@pytest.mark.parametrize("job", JOBS, ids=name_of)
def test_variables_are_those_of_rdzv_run(job: Manifest) -> None:
    known = {f"PET_{action.dest.upper()}" for action in build_parser()._actions}
    given = {each["name"] for each in container_of(job)["env"]}
    assert {name for name in given if name.startswith("PET_")} <= known


def test_the_job_with_variables_has_those_of_kubeflow_trainer() -> None:
    job = one("job-pet.yaml", "Job")
    assert container_of(job)["command"] == ["rdzv-run", "train_digits.py"]
    names = [each["name"] for each in container_of(job)["env"]]
    trainer = ["PET_NNODES", "PET_NPROC_PER_NODE", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT"]
    assert names[: len(trainer)] == trainer


def test_kubeflow_trainer_lets_the_variables_of_the_guide_pass() -> None:
    blocks = re.findall(r"```yaml\n(.*?)```", (HOW_TO / "slurm-and-kubernetes.md").read_text(), re.DOTALL)
    (text,) = (block for block in blocks if "PET_" in block)
    trainer = yaml.safe_load(text)["trainer"]
    names = {each["name"] for each in trainer["env"]}
    assert names == {"PET_RDZV_BACKEND", "PET_RDZV_ENDPOINT", "PET_RDZV_ID"}
    same = [each for each in container_of(one("job-pet.yaml", "Job"))["env"] if each["name"] in names]
    assert same == trainer["env"]
    assert f"--nnodes=2:{trainer['numNodes']}" in trainer["command"]


def test_the_secret_is_the_one_that_the_command_makes() -> None:
    job = one("job-pet.yaml", "Job")
    (volume,) = (each for each in pod_of(job)["volumes"] if "secret" in each)
    (mount,) = (each for each in container_of(job)["volumeMounts"] if each["name"] == volume["name"])
    made = re.search(
        r"kubectl create secret generic (\S+) --from-literal=(\w+)=", (FOLDER / "job-pet.yaml").read_text()
    )
    assert made
    assert volume["secret"]["secretName"] == made[1]
    (conf,) = (each["value"] for each in container_of(job)["env"] if each["name"] == "PET_RDZV_CONF")
    assert conf == f"credentials={mount['mountPath']}/{made[2]}"
