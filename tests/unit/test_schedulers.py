"""What a launch is that a scheduler has started, from the variables that its documentation shows."""

from __future__ import annotations

import os
import socket
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from kits.messages import check_message
from kits.unit import scheduler_variables as of

from rdzv_launcher.run.parser import blaming, parse_arguments
from rdzv_launcher.run.request import build_request
from rdzv_plugins.endpoints import parse_endpoint
from rdzv_plugins.errors import UsageError
from rdzv_plugins.interfaces import Request
from rdzv_plugins.registry import PluginHost
from rdzv_plugins.schedulers import facts, flux, indexed_job, kubeflow, slurm
from rdzv_plugins.schedulers.facts import expand
from rdzv_plugins.testing.processes import clean_environment

LOCAL = {"max_nodes": 1, "node_rank": None, "nproc_per_node": 1, "idle": ""}
PARALLEL = "--rdzv-backend=parallel"
SLURM = {"max_nodes": 2, "node_rank": 1, "nproc_per_node": 8, "run_id": "big-4711.0-0", "endpoint": "node002:24711"}


class Launch:
    """rdzv-run as far as the request, in an environment with these variables alone."""

    def __init__(self, host: PluginHost, monkeypatch: pytest.MonkeyPatch) -> None:
        self.host, self.monkeypatch = host, monkeypatch

    def __call__(self, variables: dict[str, str], *flags: str) -> Request:
        for name in os.environ.keys() - clean_environment().keys():
            self.monkeypatch.delenv(name)
        for name, value in variables.items():
            self.monkeypatch.setenv(name, value)
        args = parse_arguments([*flags, "train.py"])
        with blaming(args):
            return build_request(args, self.host.resolve_request, self.host.catalog.meets_at)


@pytest.fixture(scope="module")
def host() -> PluginHost:
    return PluginHost.load()


@pytest.fixture
def launch(host: PluginHost, monkeypatch: pytest.MonkeyPatch) -> Launch:
    """On no terminal, and as the command of its container."""
    monkeypatch.setattr(slurm, "has_terminal", lambda: False)
    monkeypatch.setattr(kubeflow, "is_of_the_container", lambda: True)
    monkeypatch.setattr(flux, "_HOSTS", ("printf", "fluke%s\\n", "0", "1", "2"))
    return Launch(host, monkeypatch)


def expect(request: Request, wanted: dict[str, Any]) -> None:
    """``at`` is the host of the endpoint, where its port is one of the job."""
    wanted = dict(wanted)
    if at := wanted.pop("at", ""):
        endpoint = parse_endpoint(request.endpoint, None)
        assert endpoint.host == at
        assert facts.FIRST_PORT <= endpoint.port < facts.FIRST_PORT + facts.PORTS
    assert {name: getattr(request, name) for name in wanted} == wanted


def place(nodes: int, rank: int, **others: Any) -> dict[str, Any]:
    return {"max_nodes": nodes, "node_rank": rank, **others}


RESOLVED = {
    "slurm, topology/tree": (of.SRUN | of.SLURM_TREE, PARALLEL, {"domain": "s2", "node_rank": 1, "rank_moves": True}),
    "slurm, topology/block": (of.SRUN | of.SLURM_BLOCK, PARALLEL, {"domain": "b1"}),
    "slurm, no topology": (of.SRUN | of.SLURM_FLAT, PARALLEL, {"domain": ""}),
    "slurm": (of.SRUN, "", SLURM | {"min_nodes": 2, "idle": ""}),
    "no GPUs": (of.SRUN | {"SLURM_GPUS_ON_NODE": "0"}, "", SLURM | {"nproc_per_node": 1}),
    "a later step has another port": (of.SRUN | {"SLURM_STEP_ID": "1"}, "", place(2, 1, endpoint="node002:29714")),
    "a requeued array job": (of.SBATCH_ARRAY, "", place(2, 1, run_id="big-4713.0-1", endpoint="node002:24713")),
    "a heterogeneous job": (of.SRUN_HET, "", place(3, 2, endpoint="cpu1:24711")),
    "a step of some of a heterogeneous job's nodes": (
        of.SRUN_HET | {"SLURM_JOB_NODELIST_HET_GROUP_0": "gpu[05-08]", "SLURM_JOB_NODELIST_HET_GROUP_1": "cpu[1-9]"},
        "",
        place(3, 2, endpoint="gpu07:24711"),
    ),
    "many tasks, one agent": (of.SRUN_TASKS, "", place(2, 1, nproc_per_node=2, idle="")),
    "one node": (
        of.SRUN | {"SLURM_STEP_NUM_NODES": "1", "SLURM_NODEID": "0", "SLURM_STEP_TASKS_PER_NODE": "1"},
        "",
        {"max_nodes": 1, "nproc_per_node": 8, "standalone": True},
    ),
    "a flag wins: nodes": (of.SRUN, "--nnodes=1:4", {"min_nodes": 1, "max_nodes": 4, "endpoint": "node002:24711"}),
    "a flag wins: port": (of.SRUN, "--master-port=1234", SLURM | {"endpoint": "node002:1234"}),
    "a flag wins: rank": (of.SRUN | of.SLURM_TREE, "--node-rank=0", SLURM | {"node_rank": 0, "rank_moves": False}),
    "a service has its own endpoint": (of.SRUN, "--rdzv-backend=etcd", place(2, 1, endpoint="", run_id="big-4711.0-0")),
    "a backend that assigns the ranks": (of.SRUN, "--rdzv-backend=c10d", SLURM | {"node_rank": None}),
    "one node by a flag": (of.SRUN, "--nnodes=1 --rdzv-backend=parallel", LOCAL | {"run_id": "none"}),
    "mpirun": (of.MPIRUN, "", place(2, 1, at="head-node", run_id="mpirun-head-node-12345", nproc_per_node=1)),
    "mpirun of Open MPI 4": (of.MPIRUN_4, "", place(2, 1, at="10.96.0.1", run_id="mpirun-613089280-10.96.0.1")),
    "prterun": (of.PRTERUN, "--nnodes=2", {"node_rank": 1, "run_id": "mpirun-head-node-12345"}),
    "prterun does not say how many": (of.PRTERUN, "", LOCAL),
    "mpirun within Slurm": (of.SRUN | of.MPIRUN, "", place(2, 1, at="node001", run_id="mpirun-head-node-12345")),
    "srun --mpi=pmix": (of.SRUN | {"PMIX_NAMESPACE": "slurm.pmix.4711.0", "PMIX_RANK": "1"}, "", SLURM),
    "flux": (of.FLUX, "", place(2, 1, at="fluke0", run_id="flux-f2FyQT3T", nproc_per_node=4)),
    "sagemaker": (of.SAGEMAKER, "", place(2, 1, at="algo-1", nproc_per_node=8)),
    "a PyTorchJob": (of.PYTORCHJOB, "", place(3, 1, endpoint="bert-master-0:23456", run_id="bert")),
    "its name may come again": (of.PYTORCHJOB, "--rdzv-backend=etcd", place(3, 1, endpoint="", run_id="none")),
    "Kubeflow Trainer": (
        of.TRAINER,
        "",
        place(2, 1, endpoint="bert-node-0-0.bert:29500", run_id="none", nproc_per_node=4),
    ),
    "a JobSet": (
        of.JOBSET,
        "--nnodes=4",
        place(4, 3, at="pytorch-workers-0-0.pytorch.default.svc.cluster.local", run_id="pytorch-workers-0"),
    ),
    "Indexed Jobs are not one training": (of.JOBSET, "", LOCAL),
    "torchx": (of.TORCHX, "--nnodes=2", place(2, 1, at="10.1.2.3", run_id="trainer-x7k2p")),
    "torchx, the first": (of.TORCHX | {"TORCHX_RANK0_HOST": "localhost"}, "--nnodes=2", {"at": socket.gethostname()}),
    "torchx on one machine": (
        of.TORCHX | {"TORCHX_RANK0_HOST": "localhost", "TORCHX_JOB_ID": "local_cwd://torchx/app"},
        "--nnodes=2",
        {"at": "localhost"},
    ),
    "torchx on Slurm": (of.SRUN | of.TORCHX, "", SLURM),
    "the script of sbatch": (of.SBATCH_SCRIPT, "", LOCAL),
    "the shell of salloc": (of.SALLOC_SHELL, "", LOCAL),
    "the script of a PBS job": (of.PBS_SCRIPT, "", LOCAL),
    "a shell of flux alloc": ({"FLUX_URI": "local:///run/flux/local"}, "", LOCAL),
    "variables that somebody has set": (of.PYTORCHJOB | {"HOSTNAME": "notebook"}, "", LOCAL),
    "a worker of torchrun": (of.SRUN | {"TORCHELASTIC_RUN_ID": "outer"}, "", LOCAL),
    "--standalone": (of.SRUN, "--standalone", {"max_nodes": 1, "node_rank": None}),
}


@pytest.fixture(autouse=True)
def pod_with_a_domain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """/etc/hosts as kubelet writes it."""
    hosts = tmp_path / "hosts"
    pod = "pytorch-workers-0-3"
    hosts.write_text(f"# Kubernetes-managed hosts file.\n10.2.0.7\t{pod}.pytorch.default.svc.cluster.local\t{pod}\n")
    monkeypatch.setattr(indexed_job, "_HOSTS", str(hosts))


@pytest.mark.parametrize("case", RESOLVED)
def test_launch_is_what_the_scheduler_says(launch: Launch, case: str) -> None:
    variables, flags, wanted = RESOLVED[case]
    expect(launch(variables, *flags.split()), wanted)


SLURM_THREE = of.SRUN | {
    "SLURM_STEP_NUM_NODES": "4",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NODELIST": "node[002-005]",
    "SLURM_STEP_TASKS_PER_NODE": "1(x4)",
}
FOUR_POD_DOMAIN = "pytorch.default.svc.cluster.local"
PLACES = {
    "elastic": (SLURM_THREE, "--nnodes=2:4", "node002:24711,node003:24711,node004:24711"),
    "spares": (SLURM_THREE, "--nnodes=3", "node002:24711,node003:24711,node004:24711"),
    "a flag wins: port": (SLURM_THREE, "--nnodes=2:4 --master-port=9", "node002:9,node003:9,node004:9"),
    "no node to spare": (SLURM_THREE, "", "node002:24711"),
    "nodes share hosts": (SLURM_THREE | {"SLURM_STEP_NODELIST": "a,a,b,c"}, "--nnodes=2:4", "a:24711"),
    "flux": (of.FLUX | {"FLUX_JOB_SIZE": "3", "FLUX_JOB_NNODES": "3"}, "--nnodes=2:3", "fluke0,fluke1,fluke2"),
    "sagemaker": (of.SAGEMAKER | {"SM_HOSTS": '["a", "b", "algo-2"]'}, "--nnodes=2:3", "a,b,algo-2"),
    "a pod comes again": (
        of.JOBSET,
        "--nnodes=4",
        ",".join(f"pytorch-workers-0-{index}.{FOUR_POD_DOMAIN}" for index in range(3)),
    ),
    "mpirun names one": (SLURM_THREE | of.MPIRUN | {"OMPI_COMM_WORLD_SIZE": "4"}, "--nnodes=2:4", "node001"),
}


@pytest.mark.parametrize("case", PLACES)
def test_a_job_that_can_lose_the_first_node_has_further_places_to_meet(launch: Launch, case: str) -> None:
    """Wanted without a port: any, the same for all."""
    variables, flags, wanted = PLACES[case]
    found = launch(variables, PARALLEL, *flags.split()).endpoint.split(",")
    assert len({place.rpartition(":")[2] for place in found}) == 1, found
    hosts = [place if ":" in wanted else place.rpartition(":")[0] for place in found]
    assert ",".join(hosts) == wanted


def test_a_launch_that_describes_itself_is_left_alone(launch: Launch) -> None:
    """Not one field: not the rank, either, which several agents on a node would share."""
    flags = ("--nnodes=2", "--rdzv-endpoint=h:1", PARALLEL)
    assert launch(of.SRUN, *flags) == launch({}, *flags)
    alone = launch(of.SRUN, "--nnodes=1"), launch({}, "--nnodes=1")  # each has a name by chance
    assert replace(alone[0], run_id="") == replace(alone[1], run_id="")
    etcd = ("--nnodes=2", "--rdzv-endpoint=h:1", "--rdzv-backend=etcd")
    assert launch(of.SRUN, *etcd, "--rdzv-id=a") == launch({}, *etcd, "--rdzv-id=a")
    assert launch(of.SRUN, *etcd).run_id == "big-4711.0-0"


def test_further_tasks_and_pods_of_a_job_are_idle_or_spares(launch: Launch) -> None:
    assert "SLURM_LOCALID=1" in launch(of.SRUN_TASKS | {"SLURM_LOCALID": "1", "SLURM_PROCID": "5"}).idle
    expect(launch(of.JOBSET, "--nnodes=2:3", PARALLEL), {"max_nodes": 3, "node_rank": None})


def test_pbs_has_a_file_of_its_hosts(launch: Launch, tmp_path: Path) -> None:
    file = tmp_path / "nodes"
    variables = of.PBS | {"PBS_NODEFILE": str(file)}
    with pytest.raises(UsageError, match=f"PBS_NODEFILE={file} cannot be read"):
        launch(variables)
    assert launch(variables, "--nnodes=2", "--rdzv-endpoint=n1:1").endpoint == "n1:1"
    file.write_text("n1\nn1\nn2\nn2\n")
    expect(launch(variables), place(2, 1, endpoint="n1:24711", run_id="pbs-4711.server"))


REFUSED = {
    "a topology that contradicts itself": (of.SRUN | of.SLURM_TREE, {"SLURM_TOPOLOGY_ADDR": "node1"}, ""),
    "no number fits": (of.SRUN, {"SLURM_STEP_ID": "9" * 5000}, ""),
    "no nodes": (of.SRUN, {"SLURM_STEP_NUM_NODES": "0"}, ""),
    "a task too far": (of.SRUN, {"SLURM_PROCID": "2"}, ""),
    "SLURM_NODEID": (of.SRUN, {"SLURM_NODEID": "-1"}, ""),
    "not set": (of.SRUN, {"SLURM_NODEID": ""}, ""),
    "a step in words": (of.SRUN, {"SLURM_STEP_ID": "batch"}, ""),
    "a node too far": (of.SRUN, {"SLURM_NODEID": "2"}, ""),
    "another list": (of.SRUN, {"SLURM_STEP_NODELIST": "a,b,c"}, ""),
    "broken tasks": (of.SRUN, {"SLURM_STEP_TASKS_PER_NODE": "x"}, ""),
    "a flag": (of.SRUN, {}, "--node-rank=2"),
    "a variable": (of.SRUN, {"PET_NODE_RANK": "2"}, ""),
    "mpirun, several on a node": (of.MPIRUN, {"OMPI_COMM_WORLD_LOCAL_SIZE": "2"}, ""),
    "mpirun elsewhere": (of.MPIRUN, {"OMPI_COMM_WORLD_RANK": "0"}, ""),
    "flux, several on a node": (of.FLUX, {"FLUX_JOB_SIZE": "4"}, ""),
    "SM_CURRENT_HOST": (of.SAGEMAKER, {"SM_CURRENT_HOST": "algo-3"}, ""),
    "mpirun nowhere": (of.MPIRUN, {"PMIX_NAMESPACE": "1"}, ""),
    "SM_HOSTS": (of.SAGEMAKER, {"SM_HOSTS": "algo-1"}, ""),
    "RANK": (of.PYTORCHJOB, {"RANK": "3"}, ""),
    "JOB_COMPLETION_INDEX": (of.JOBSET, {"JOB_COMPLETION_INDEX": "x"}, "--nnodes=2"),
    "a pod without a domain": (of.JOBSET, {"HOSTNAME": "train-3"}, "--nnodes=4"),
    "TORCHX_JOB_ID": (of.TORCHX, {"TORCHX_JOB_ID": "k8s://s/"}, "--nnodes=2"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_right_is_refused_by_name(launch: Launch, case: str) -> None:
    variables, wrong, flags = REFUSED[case]
    with pytest.raises(UsageError) as refused:
        launch(variables | wrong, *flags.split())
    check_message(f"scheduler: {case}", refused.value)


@pytest.mark.parametrize(
    ("parents", "of_the_container"),
    [({7: 1}, True), ({7: 5, 5: 1}, True), ({7: 5, 5: 0}, False), ({7: 0}, False)],
    ids=["its command", "a child of it", "within an exec", "an exec"],
)
def test_what_kubectl_exec_has_started_is_not_of_the_container(
    monkeypatch: pytest.MonkeyPatch, parents: dict[int, int], of_the_container: bool
) -> None:
    monkeypatch.setattr(facts, "os", SimpleNamespace(getpid=lambda: 7))
    monkeypatch.setattr(facts, "read_stat", lambda pid: SimpleNamespace(parent=parents[pid]))
    assert facts.is_of_the_container() == of_the_container


def test_what_is_no_launch_of_the_scheduler(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    """An inner launcher that is switched off gives way to none, and a terminal or an exec is somebody at work."""
    expect(Launch(PluginHost.load(disabled=["openmpi"]), monkeypatch)(of.SRUN | of.MPIRUN), LOCAL)
    monkeypatch.setattr(slurm, "has_terminal", lambda: True)
    monkeypatch.setattr(kubeflow, "is_of_the_container", lambda: False)
    expect(launch(of.SRUN | {"SLURM_PTY_PORT": "34129"}), LOCAL)
    expect(launch(of.PYTORCHJOB), LOCAL)


def test_shares_of_a_node_are_warned_of(launch: Launch, caplog: pytest.LogCaptureFixture) -> None:
    cpus = str(len(os.sched_getaffinity(0)))
    launch(of.SRUN_TASKS | {"SLURM_CPUS_ON_NODE": cpus})
    assert not caplog.records
    launch(of.SRUN_TASKS | {"SLURM_CPUS_ON_NODE": cpus + "0"})
    assert f"{cpus} of {cpus}0 CPUs" in caplog.text


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("node1", ["node1"]),
        ("a,b.example.org,10.0.0.7", ["a", "b.example.org", "10.0.0.7"]),
        ("node[001-003,7]", ["node001", "node002", "node003", "node7"]),
        ("node[9-11]", ["node9", "node10", "node11"]),
        ("node[08-10]-ib", ["node08-ib", "node09-ib", "node10-ib"]),
        ("r[1-2]n[1,3],login", ["r1n1", "r1n3", "r2n1", "r2n3", "login"]),
        ("node[3,1-2]", ["node3", "node1", "node2"]),
        ("[1-2]", ["1", "2"]),
    ],
)
def test_names_come_in_their_order(text: str, hosts: list[str]) -> None:
    assert expand(text) == hosts


@pytest.mark.parametrize(
    "text",
    ["", "a,", ",a", "a,,b", "a[1-2", "a1-2]", "a[]", "a[2-1]", "a[x]", "a[1-]", "a b", "a[[1]]", "a[1,]", "é\n"],
)
def test_what_is_no_host_list_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        expand(text)


@pytest.mark.parametrize("text", ["a[0-99999999]", "a[0-9999]b[0-9999]", "a[0-999999],b[0-999999]"])
def test_too_many_are_refused_at_once(text: str) -> None:
    with pytest.raises(ValueError, match="more than 1000000 hosts"):
        expand(text)
