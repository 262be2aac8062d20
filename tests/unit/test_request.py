"""From the command line to one frozen ``Request``; a contradictory one is refused before anything starts."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from kits.messages import check_message

from rdzv_launcher.run.cli import main
from rdzv_launcher.run.command_line.parsing import parse_arguments
from rdzv_launcher.run.command_line.variables import blaming_variables
from rdzv_launcher.run.request import build_request, check_meeting_point, flags_behind_script
from rdzv_plugins.assemble.create import prepare
from rdzv_plugins.elastic.domain import domain_of
from rdzv_plugins.endpoints import ALONE, Endpoint
from rdzv_plugins.errors import MissingDependency, RunIdMissing, UsageError
from rdzv_plugins.host import PluginHost


@pytest.fixture(autouse=True)
def no_variables(monkeypatch):
    for name in os.environ:
        if name.startswith(("PET_", "RDZV_")):
            monkeypatch.delenv(name)


@pytest.fixture(scope="module")
def host():
    return PluginHost.load()


@pytest.fixture
def checked(host):
    """argv to prepared request: all that the launcher does before it starts anything."""

    def check(*argv):
        args = parse_arguments([*argv, "train.py", "--lr=0.1"])
        with blaming_variables(args):
            request = build_request(args, meets_at=host.catalog.meets_at)
            entry = host.catalog.find(request.backend)
            check_meeting_point(request, vars(args), entry.backend.meets_at)
            return prepare(entry, request)

    return check


MEET = ("--nnodes=2", "--rdzv-endpoint=10.0.0.1:29500")

REFUSED = {
    "several nodes, no endpoint": ["--nnodes=2"],
    "up to several nodes, no endpoint": ["--nnodes=1:2", "--rdzv-backend=c10d"],
    "several nodes, only a port": ["--nnodes=2", "--master-port=1"],
    "two addresses": [*MEET, "--master-addr=10.0.0.2"],
    "two ports": [*MEET, "--master-addr=10.0.0.1", "--master-port=1"],
    "endpoint and another port": [*MEET, "--master-port=1", "--node-rank=0"],
    "several endpoints and one address": [
        "--nnodes=3",
        "--rdzv-endpoint=a:1,b:1",
        "--master-addr=c",
        "--master-port=1",
    ],
    "min above max": ["--nnodes=3:2"],
    "no nodes": ["--nnodes=0"],
    "nodes in words": ["--nnodes=two"],
    "half a range": ["--nnodes=2:"],
    "no workers": ["--nproc-per-node=0"],
    "negative workers": ["--nproc-per-node=-1"],
    "unknown workers": ["--nproc-per-node=many"],
    "port out of range": ["--master-port=65536"],
    "negative port": ["--master-port=-1"],
    "endpoint's port out of range": ["--rdzv-endpoint=h:70000"],
    "endpoint without port": ["--rdzv-endpoint=h"],
    "port 0 for several": ["--nnodes=2", "--rdzv-endpoint=h:0", "--node-rank=0"],
    "port 0 for several, c10d": ["--nnodes=2", "--rdzv-endpoint=h:0", "--rdzv-backend=c10d"],
    "bare IPv6": ["--rdzv-endpoint=fe80::1:29500"],
    "bare IPv6, c10d": ["--rdzv-backend=c10d", "--rdzv-endpoint=::1"],
    "bad address": ["--master-addr=my node"],
    "negative node rank": [*MEET, "--node-rank=-1"],
    "node rank too high": [*MEET, "--node-rank=2"],
    "node rank too high for one": ["--node-rank=1"],
    "no node rank": [*MEET],
    "two node ranks": [*MEET, "--node-rank=0", "--rdzv-conf=rank=1"],
    "standalone at an endpoint": ["--standalone", "--rdzv-endpoint=h:1", "--node-rank=1"],
    "standalone at an address": ["--standalone", "--master-addr=h"],
    "standalone for two": ["--standalone", "--nnodes=2"],
    "tiered and c10d": ["--enable_tiered_parallel_tcpstore=true", "--rdzv_backend=c10d"],
    "tiered and static": ["--enable_tiered_parallel_tcpstore=true", "--rdzv_backend=static"],
    "no tiers with static": ["--rdzv-conf=store=tiered"],
    "tiered in other words": ["--enable_tiered_parallel_tcpstore=on"],
    "negative restarts": ["--max-restarts=-1"],
    "run id of many bytes": ["--rdzv-id=" + 101 * "ö"],
    "run id with an escape": ["--rdzv-id=a\x1b[2J"],
    "run id that was not decoded": ["--rdzv-id=j\udcf6b"],
    "run id with a slash": ["--rdzv-id=team/job"],
    "no interval": ["--monitor-interval=0"],
    "no exit barrier": ["--exit-barrier-timeout=0"],
    "binary and module": ["--no-python", "-m"],
    "half a conf pair": ["--rdzv-conf=timeout"],
    "unknown conf key": ["--rdzv-backend=c10d", "--rdzv-conf=time=1"],
    "conf out of range": ["--rdzv-conf=timeout=0"],
    "unknown backend": ["--rdzv-backend=statik"],
}


@pytest.mark.parametrize("case", REFUSED)
def test_contradiction_is_refused(checked, case):
    with pytest.raises(UsageError) as refused:
        checked(*REFUSED[case])
    check_message(f"request: {case}", refused.value)


@pytest.mark.parametrize(
    "argv",
    [
        ["--rdzv-backend=tiered"],
        ["--rdzv_backend=Tiered_Proxy"],
        ["--enable_tiered_parallel_tcpstore=true"],
        ["--enable_tiered_parallel_tcpstore", "True", "--rdzv_backend=parallel"],
        ["--enable_tiered_parallel_tcpstore=1", "--rdzv_backend=rdzv-plugins.parallel_epoll"],
        ["--enable_tiered_parallel_tcpstore=true", "--rdzv_backend=tiered"],
    ],
)
def test_tiered_is_chosen_by_its_names_and_by_torch_npu_runs_switch(checked, host, argv):
    request = checked(*argv, "--nnodes=2", "--master_addr=10.0.0.1", "--master_port=29511", "--node_rank=1")
    assert host.catalog.find(request.backend).backend.name == "tiered"
    assert (request.endpoint, request.node_rank) == ("10.0.0.1:29511", 1)
    assert (request.options.store, request.options.worker_transport, request.options.fanout) == (
        "tiered",
        "loopback",
        0,
    )


def test_switch_that_is_off_changes_nothing(checked):
    argv = ["--nnodes=2", "--master_addr=10.0.0.1", "--master_port=29511", "--node_rank=1", "--rdzv_backend=parallel"]
    request = checked(*argv, "--enable_tiered_parallel_tcpstore=false")
    assert (request.backend, request.options.store) == ("parallel", "parallel")


@pytest.mark.parametrize("backend", ["parallel", "tiered", "etcd"])
def test_every_elastic_backend_takes_the_options_of_tiered(checked, backend):
    conf = "store=tiered,worker_transport=unix,trunk_grace=0.5,fanout=8"
    options = checked(f"--rdzv-backend={backend}", "--rdzv-endpoint=h", "--rdzv-id=job", f"--rdzv-conf={conf}").options
    assert (options.worker_transport, options.trunk_grace, options.fanout) == ("unix", 0.5, 8)


@pytest.mark.parametrize(
    "conf",
    [
        "store=parallel,fanout=2",
        "store=torch,worker_transport=unix",
        "store=parallel,trunk_grace=1",
        "fanout=2,worker_transport=direct",
        "fanout=2,worker_ports=29501",
        "fanout=-1",
        "trunk_grace=61",
        "worker_transport=tcp",
    ],
)
def test_tiered_refuses_what_cannot_work(checked, conf):
    with pytest.raises(UsageError) as refused:
        checked("--rdzv-backend=tiered", "--rdzv-endpoint=h", f"--rdzv-conf={conf}")
    check_message(f"tiered: {conf}", refused.value)


@pytest.mark.parametrize("name", ["parallel", "parallel-epoll", "parallel_epoll", "rdzv-plugins.parallel"])
def test_parallel_takes_torch_npu_runs_flags(checked, host, name):
    request = checked(
        f"--rdzv_backend={name}", "--nnodes=2", "--master_addr=10.0.0.1", "--master_port=29511", "--node_rank=1"
    )
    assert host.catalog.find(request.backend).backend.name == "parallel"
    assert (request.endpoint, request.node_rank) == ("10.0.0.1:29511", 1)
    assert request.options.store == "parallel"


def test_parallel_does_without_a_node_rank(checked):
    request = checked("--rdzv-backend=parallel", "--nnodes=2:4", "--rdzv-endpoint=10.0.0.1")
    assert (request.min_nodes, request.max_nodes, request.node_rank) == (2, 4, None)


@pytest.mark.parametrize(
    "argv",
    [
        ["--nnodes=2:4", "--rdzv-endpoint=h", "--node-rank=4"],
        ["--nnodes=2", "--rdzv-endpoint=h:0"],
        ["--nnodes=2"],
        ["--rdzv-conf=ttl=0.1"],
        ["--nnodes=3:9", "--rdzv-endpoint=h", "--rdzv-conf=node_unit=4"],
        ["--nnodes=6", "--rdzv-endpoint=h", "--rdzv-conf=node_unit=4"],
        ["--nnodes=2", "--rdzv-endpoint=h", "--rdzv-conf=min_per_domain=3"],
        ["--nnodes=2", "--rdzv-endpoint=h", "--rdzv-conf=domain=a\tb"],
    ],
)
def test_parallel_refuses_what_cannot_work(checked, argv):
    with pytest.raises(UsageError) as refused:
        checked("--rdzv-backend=parallel", *argv)
    check_message(f"parallel: {' '.join(argv)!r}", refused.value)


def test_domain_is_said_by_option_before_variable_before_scheduler(checked, monkeypatch):
    def domain(*conf: str, scheduler: str = "") -> str:
        request = checked("--rdzv-backend=parallel", "--nnodes=2", "--rdzv-endpoint=h", *conf)
        return domain_of(replace(request, domain=scheduler))

    assert domain() == ""
    assert domain(scheduler="leaf") == "leaf"
    monkeypatch.setenv("RDZV_DOMAIN", " zone-b ")
    assert domain(scheduler="leaf") == "zone-b"
    assert domain("--rdzv-conf=domain=rack-1", scheduler="leaf") == "rack-1"


@pytest.mark.parametrize("backend", ["static", "c10d"])
@pytest.mark.parametrize("option", ["node_unit=2", "domain=r", "min_per_domain=2"])
def test_backends_without_domains_refuse_their_options(checked, backend, option):
    with pytest.raises(UsageError, match=option.partition("=")[0]):
        checked(f"--rdzv-backend={backend}", "--nnodes=2", "--rdzv-endpoint=h:1", f"--rdzv-conf={option}")


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("PET_NNODES", "4:2"),
        ("PET_NNODES", "abc"),
        ("PET_NNODES", "2"),
        ("PET_NPROC_PER_NODE", "two"),
        ("PET_MASTER_PORT", "99999"),
        ("PET_RDZV_ID", "a/b"),
        ("PET_RDZV_CONF", "time=1"),
        ("PET_STANDALONE", "yes"),
        ("PET_RDZV_STRICT", "on"),
    ],
)
def test_variable_is_refused_like_the_flag(checked, monkeypatch, variable, value):
    monkeypatch.setenv(variable, value)
    with pytest.raises(UsageError, match=variable) as refused:
        checked()
    check_message(f"request: {variable}={value}", refused.value)


def test_variable_of_the_wrong_type_is_blamed_itself_unless_a_flag_takes_its_place(checked, monkeypatch, capsys):
    monkeypatch.setenv("PET_NODE_RANK", "first")
    with pytest.raises(UsageError, match="PET_NODE_RANK=first: not a valid int"):
        checked()
    assert checked(*MEET, "--node-rank=1").node_rank == 1
    with pytest.raises(SystemExit) as end:
        checked("--node-rank=second")
    assert end.value.code == 2
    assert "invalid int value: 'second'" in capsys.readouterr().err


def test_variable_that_torch_does_not_know_is_blamed_with_its_choices(checked, monkeypatch):
    monkeypatch.setenv("PET_START_METHOD", "teleport")
    with pytest.raises(UsageError, match="PET_START_METHOD=teleport is none of spawn, fork, forkserver"):
        checked()


def test_job_without_a_name_is_refused_where_others_meet_too(checked):
    where = ("--rdzv-backend=etcd", "--rdzv-endpoint=h:2379")
    with pytest.raises(RunIdMissing, match="other jobs may meet at h:2379, too"):
        checked(*where)
    assert checked(*where, "--rdzv-id=none").run_id == "none"
    assert checked(*MEET, "--node-rank=1").run_id == "none"


def test_npu_without_torch_npu_says_how_to_install_it(checked):
    with pytest.raises(MissingDependency, match="torch_npu") as caught:
        checked("--nproc_per_node=npu")
    assert "pip install torch_npu" in caught.value.remedy


def test_request_has_what_was_given(checked):
    request = checked(*MEET, "--node-rank=1", "--nproc-per-node=3", "--rdzv-id=job", "--rdzv-conf=timeout=5")
    assert (request.backend, request.run_id, request.endpoint) == ("static", "job", "10.0.0.1:29500")
    assert (request.min_nodes, request.max_nodes, request.nproc_per_node, request.node_rank) == (2, 2, 3, 1)
    assert request.options.timeout == 5
    assert request.entrypoint == ("train.py", "--lr=0.1")
    assert {"run_id", "endpoint", "node_rank"} <= request.given
    assert "backend" not in request.given


def test_master_address_and_port_are_the_endpoint(checked):
    assert checked("--nnodes=2", "--node-rank=0", "--master-addr=h", "--master-port=1").endpoint == "h:1"


@pytest.mark.parametrize(("address", "endpoint"), [("h", "h:29500"), ("::1", "[::1]:29500"), ("[::1]", "[::1]:29500")])
def test_master_address_alone_has_torchruns_port(checked, address, endpoint):
    assert checked("--nnodes=2", "--node-rank=0", f"--master-addr={address}").endpoint == endpoint


def test_endpoint_and_the_same_address_are_no_contradiction(checked):
    assert checked(*MEET, "--node-rank=0", "--master-addr=10.0.0.1", "--master-port=29500")


@pytest.mark.parametrize("argv", [["--standalone"], ["--standalone", "--rdzv-backend=static"]])
def test_standalone_needs_nothing_of_torch(checked, argv):
    """torchrun takes c10d for it, whose rendezvous is torch's."""
    request = checked(*argv)
    assert (request.backend, request.standalone, request.target) == ("static", True, ALONE)


def test_standalone_keeps_a_backend_that_is_asked_for(checked):
    request = checked("--standalone", "--rdzv-backend=parallel", "--node-rank=0")
    assert (request.backend, request.standalone, request.target) == ("parallel", True, ALONE)
    assert request.node_rank is None


@pytest.mark.parametrize("argv", [[], ["--rdzv-backend=static"], ["--rdzv-backend=STATIC"]])
def test_one_node_without_an_address_needs_no_endpoint(checked, argv):
    request = checked(*argv)
    assert (request.standalone, request.endpoint, request.target) == (True, "", ALONE)
    assert request.is_named


def test_standalone_in_a_pod_of_kubeflow(checked, monkeypatch):
    monkeypatch.setenv("PET_MASTER_ADDR", "pod-0")
    assert checked("--standalone").target == ALONE


def test_standalone_job_meets_in_no_file_of_a_name_that_nobody_gave(checked):
    request = checked("--standalone", "--rdzv-backend=c10d", "--rdzv-conf=store_type=file")
    assert (request.standalone, request.endpoint, request.target) == (True, "", None)


def test_standalone_is_refused_for_every_service_in_the_same_words(host, checked):
    for entry in host.catalog.entries():
        if entry.backend.meets_at == "service":
            with pytest.raises(UsageError, match=f"--standalone needs no {entry.backend.name}: a single node"):
                checked("--standalone", f"--rdzv-backend={entry.backend.name.upper()}")


def test_what_validate_returns_is_the_target(checked):
    assert checked(*MEET, "--rdzv-backend=parallel").target == Endpoint("10.0.0.1", 29500)
    assert checked("--standalone").target == ALONE


def test_two_standalone_jobs_have_ids_of_their_own(checked):
    assert checked("--standalone").run_id != checked("--standalone").run_id


def test_range_of_nodes_is_kept(checked):
    request = checked("--rdzv-backend=c10d", "--rdzv-endpoint=h", "--nnodes=2:4")
    assert (request.min_nodes, request.max_nodes) == (2, 4)


@pytest.mark.parametrize(
    ("argv", "variables", "message"),
    [
        (["--nnodes=2", "never.py"], {}, "rdzv-run: error: --nnodes asks for 2 nodes"),
        (["never.py"], {}, "rdzv-run: error: the script never.py cannot be run: there is no such file"),
        (["/"], {}, "rdzv-run: error: the script / cannot be run: it is a directory without __main__.py"),
        (["--no-python", "never-there"], {}, "rdzv-run: error: the script never-there cannot be run: there is no such"),
        (["never.py"], {"PET_NNODES": "abc"}, "rdzv-run: error: PET_NNODES=abc is not N or MIN:MAX"),
        (["never.py"], {"PET_STANDALONE": "yes"}, "rdzv-run: error: PET_STANDALONE=yes: not a value"),
        (["--rdzv-backend=c10d", "--rdzv-conf=time=1", "never.py"], {}, "rdzv-run: error: --rdzv-conf: backend"),
    ],
)
def test_command_ends_with_one_message_and_exit_code_2(argv, variables, message, monkeypatch, capfd):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert main(argv) == 2
    printed, said = capfd.readouterr()
    assert printed == ""
    assert said.startswith(message)
    assert len(said.splitlines()) <= 2
    assert "Traceback" not in said


@pytest.mark.parametrize(
    ("argv", "hint"),
    [
        ((), "rdzv-run --help"),
        (("--preflight", "all", "s.py"), "--preflight=all"),
        (("--no-python", "s.py"), "--no-python python s.py"),
        (("-m", "s.py"), "-m out"),
    ],
)
def test_a_likely_mistake_gets_a_hint(argv, hint, monkeypatch, tmp_path, capfd):
    monkeypatch.chdir(tmp_path)
    Path("s.py").touch()
    try:
        code = main(argv)
    except SystemExit as ended:
        code = ended.code
    assert code == 2
    assert hint in capfd.readouterr().err


def test_flags_that_the_script_gets_by_mistake(checked):
    args = parse_arguments(["--nnodes=1", "s.py", "--nproc-per-node=2", "--nnodes=2", "--lr=1", "--rdzv_id", "7"])
    assert flags_behind_script(args) == ["--nproc-per-node=2", "--rdzv_id"]


def test_process_of_the_command_ends_so():
    command = [sys.executable, "-m", "rdzv_launcher.run.cli", "never.py"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 2
    assert result.stderr.startswith("rdzv-run: error: the script never.py cannot be run: there is no such file")
    assert len(result.stderr.splitlines()) <= 2
