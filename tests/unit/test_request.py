"""From the command line to one frozen ``Request``; a contradictory one is refused before anything starts."""

import operator
import os
import types
from dataclasses import replace
from pathlib import Path

import pytest
from kits.messages import check_message

from rdzv_launcher.run.cli import main
from rdzv_launcher.run.parser import blaming, parse_arguments, read_keys
from rdzv_launcher.run.request import build_request, check_meeting_point, flags_behind_script
from rdzv_plugins import Backend, hookimpl
from rdzv_plugins.elastic.options import domain_of
from rdzv_plugins.endpoints import ALONE, Endpoint
from rdzv_plugins.errors import MissingDependency, RunIdMissing, UsageError
from rdzv_plugins.registry import PluginHost
from rdzv_plugins.registry.create import prepare
from rdzv_plugins.registry.discovery import PluginRecord, validate


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
        with blaming(args):
            read_keys(args)
            request = build_request(args, meets_at=host.catalog.meets_at)
            entry = host.catalog.find(request.backend)
            check_meeting_point(request, args, entry.backend.meets_at)
            return prepare(entry, request)

    return check


MEET = ("--nnodes=2", "--rdzv-endpoint=10.0.0.1:29500")

TIERED = ["--rdzv-backend=tiered", "--rdzv-endpoint=h"]
REFUSED = {
    "several nodes, no endpoint": ["--nnodes=2"],
    "several nodes, only a port": ["--nnodes=2", "--master-port=1"],
    "two addresses": [*MEET, "--master-addr=10.0.0.2"],
    "two ports": [*MEET, "--master-addr=10.0.0.1", "--master-port=1"],
    "endpoint and another port": [*MEET, "--master-port=1", "--node-rank=0"],
    "several endpoints and one address": ["--nnodes=3", "--rdzv-endpoint=a:1,b:1", "--master-addr=c"],
    "min above max": ["--nnodes=3:2"],
    "no nodes": ["--nnodes=0"],
    "half a range": ["--nnodes=2:"],
    "negative workers": ["--nproc-per-node=-1"],
    "unknown workers": ["--nproc-per-node=many"],
    "port out of range": ["--master-port=65536"],
    "endpoint's port out of range": ["--rdzv-endpoint=h:70000"],
    "endpoint without port": ["--rdzv-endpoint=h"],
    "port 0 for several": ["--nnodes=2", "--rdzv-endpoint=h:0", "--node-rank=0"],
    "bare IPv6": ["--rdzv-endpoint=fe80::1:29500"],
    "bad address": ["--master-addr=my node"],
    "node rank too high": [*MEET, "--node-rank=2"],
    "node rank too high for one": ["--node-rank=1"],
    "no node rank": [*MEET],
    "two node ranks": [*MEET, "--node-rank=0", "--rdzv-conf=rank=1"],
    "standalone at an endpoint": ["--standalone", "--rdzv-endpoint=h:1", "--node-rank=1"],
    "standalone at an address": ["--standalone", "--master-addr=h"],
    "standalone for two": ["--standalone", "--nnodes=2"],
    "tiered and c10d": ["--enable_tiered_parallel_tcpstore=true", "--rdzv_backend=c10d"],
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
    "conf out of range": ["--rdzv-conf=timeout=0"],
    "unknown backend": ["--rdzv-backend=statik"],
}

REFUSED_BY_TIERED = [
    "store=parallel,fanout=2",
    "store=torch,worker_transport=unix",
    "store=parallel,trunk_grace=1",
    "fanout=2,worker_transport=direct",
    "answered_writes=true,worker_transport=direct",
    "fanout=2,worker_ports=29501",
    "fanout=-1",
    "trunk_grace=61",
    "worker_transport=tcp",
]
REFUSED_BY_PARALLEL = [
    ["--nnodes=2:4", "--rdzv-endpoint=h", "--node-rank=4"],
    ["--nnodes=2", "--rdzv-endpoint=h:0"],
    ["--nnodes=2"],
    ["--rdzv-conf=ttl=0.1"],
    ["--nnodes=3:9", "--rdzv-endpoint=h", "--rdzv-conf=node_unit=4"],
    ["--nnodes=6", "--rdzv-endpoint=h", "--rdzv-conf=node_unit=4"],
    ["--nnodes=2", "--rdzv-endpoint=h", "--rdzv-conf=min_per_domain=3"],
    ["--nnodes=2", "--rdzv-endpoint=h", "--rdzv-conf=domain=a\tb"],
]
REFUSED_AS_VARIABLES = (
    *("PET_NNODES=abc", "PET_NNODES=2", "PET_NPROC_PER_NODE=two", "PET_MASTER_PORT=99999", "PET_RDZV_ID=a/b"),
    *("PET_RDZV_CONF=time=1", "PET_STANDALONE=yes", "PET_RDZV_STRICT=on", "PET_NODE_RANK=first"),
    "PET_START_METHOD=teleport",
)
REFUSED_BY_ALL = (
    {f"request: {case}": argv for case, argv in REFUSED.items()}
    | {f"request: {given}": [given] for given in REFUSED_AS_VARIABLES}
    | {f"tiered: {conf}": [*TIERED, f"--rdzv-conf={conf}"] for conf in REFUSED_BY_TIERED}
    | {f"parallel: {' '.join(argv)!r}": ["--rdzv-backend=parallel", *argv] for argv in REFUSED_BY_PARALLEL}
)


@pytest.mark.parametrize("case", REFUSED_BY_ALL)
def test_contradiction_is_refused_whether_flags_or_variables_say_it(checked, monkeypatch, case):
    argv = [word for word in REFUSED_BY_ALL[case] if not word.startswith("PET_")]
    variables = [word.split("=", 1) for word in REFUSED_BY_ALL[case] if word.startswith("PET_")]
    for name, value in variables:
        monkeypatch.setenv(name, value)
    with pytest.raises(UsageError) as refused:
        checked(*argv)
    assert all(name in str(refused.value) for name, _ in variables)
    check_message(case, refused.value)


def test_a_flag_takes_the_place_of_a_variable_that_cannot_be_read(checked, monkeypatch):
    monkeypatch.setenv("PET_NODE_RANK", "first")
    assert checked(*MEET, "--node-rank=1").node_rank == 1


NPU = ["--nnodes=2", "--master_addr=10.0.0.1", "--master_port=29511", "--node_rank=1"]
AT_MASTER = {"endpoint": "10.0.0.1:29511", "node_rank": 1}
ALONE_ON_STATIC = {"backend": "static", "standalone": True, "endpoint": "", "target": ALONE, "is_named": True}
OF_TIERED = "store=tiered,worker_transport=unix,trunk_grace=0.5,fanout=8"
SWITCH = "--enable_tiered_parallel_tcpstore"
ACCEPTED = [
    (
        [*MEET, "--node-rank=1", "--nproc-per-node=3", "--rdzv-id=job", "--rdzv-conf=timeout=5"],
        {"backend": "static", "run_id": "job", "endpoint": "10.0.0.1:29500", "min_nodes": 2, "max_nodes": 2}
        | {"nproc_per_node": 3, "node_rank": 1, "options.timeout": 5, "entrypoint": ("train.py", "--lr=0.1")},
    ),
    ([*MEET, "--node-rank=0", "--master-addr=10.0.0.1", "--master-port=29500"], {"endpoint": "10.0.0.1:29500"}),
    (["--rdzv-backend=c10d", "--rdzv-endpoint=h", "--nnodes=2:4"], {"min_nodes": 2, "max_nodes": 4}),
    ([*MEET, "--rdzv-backend=parallel"], {"target": Endpoint("10.0.0.1", 29500), "node_rank": None}),
    # the master
    (["--nnodes=2", "--node-rank=0", "--master-addr=h", "--master-port=1"], {"endpoint": "h:1"}),
    (["--nnodes=2", "--node-rank=0", "--master-addr=h"], {"endpoint": "h:29500"}),
    (["--nnodes=2", "--node-rank=0", "--master-addr=::1"], {"endpoint": "[::1]:29500"}),
    (["--nnodes=2", "--node-rank=0", "--master-addr=[::1]"], {"endpoint": "[::1]:29500"}),
    # one node needs no endpoint, and nothing of torch, whose choice for it would be c10d
    ([], ALONE_ON_STATIC),
    (["--standalone"], ALONE_ON_STATIC),
    (["--standalone", "--rdzv-backend=static"], ALONE_ON_STATIC),
    (
        ["--standalone", "--rdzv-backend=parallel", "--node-rank=0"],
        {"backend": "parallel", "standalone": True, "target": ALONE, "node_rank": None},
    ),
    (
        ["--standalone", "--rdzv-backend=c10d", "--rdzv-conf=store_type=file"],  # nobody has named a file
        {"standalone": True, "endpoint": "", "target": None},
    ),
    # torch_npu_run's command lines
    *(
        ([f"--rdzv_backend={name}", *NPU], AT_MASTER | {"backend": "parallel", "options.store": "parallel"})
        for name in ("parallel", "parallel-epoll", "parallel_epoll", "rdzv-plugins.parallel")
    ),
    ([f"{SWITCH}=false", "--rdzv_backend=parallel", *NPU], {"backend": "parallel", "options.store": "parallel"}),
    *(
        (
            [*argv, *NPU],
            AT_MASTER
            | {"backend": "tiered", "options.store": "tiered"}
            | {"options.worker_transport": "loopback", "options.fanout": 0},
        )
        for argv in (
            ["--rdzv-backend=tiered"],
            ["--rdzv_backend=Tiered_Proxy"],
            [f"{SWITCH}=true"],
            [SWITCH, "True", "--rdzv_backend=parallel"],
            [f"{SWITCH}=1", "--rdzv_backend=rdzv-plugins.parallel_epoll"],
            [f"{SWITCH}=true", "--rdzv_backend=tiered"],
        )
    ),
    *(
        (
            [f"--rdzv-backend={backend}", "--rdzv-endpoint=h", "--rdzv-id=job", f"--rdzv-conf={OF_TIERED}"],
            {"options.worker_transport": "unix", "options.trunk_grace": 0.5, "options.fanout": 8},
        )
        for backend in ("parallel", "tiered", "etcd")
    ),
]


@pytest.mark.parametrize(("argv", "expected"), ACCEPTED, ids=lambda value: " ".join(value))
def test_request_has_what_was_given(checked, host, argv, expected):
    request = checked(*argv)
    found = {name: operator.attrgetter(name)(request) for name in expected}
    if "backend" in found:
        found["backend"] = host.catalog.find(request.backend).backend.name
    assert found == expected


def test_domain_is_said_by_option_before_variable_before_scheduler(checked, monkeypatch):
    def domain(*conf: str, scheduler: str = "") -> str:
        request = checked("--rdzv-backend=parallel", "--nnodes=2", "--rdzv-endpoint=h", *conf)
        return domain_of(replace(request, domain=scheduler))

    assert domain() == ""
    assert domain(scheduler="leaf") == "leaf"
    monkeypatch.setenv("RDZV_DOMAIN", " zone-b ")
    assert domain(scheduler="leaf") == "zone-b"
    assert domain("--rdzv-conf=domain=rack-1", scheduler="leaf") == "rack-1"


def test_what_a_service_or_a_device_needs_is_said(host, checked):
    where = ("--rdzv-backend=etcd", "--rdzv-endpoint=h:2379")
    with pytest.raises(RunIdMissing, match="h:2379"):  # others meet there, too
        checked(*where)
    assert checked(*where, "--rdzv-id=none").run_id == "none"
    with pytest.raises(MissingDependency, match="torch_npu") as caught:
        checked("--nproc_per_node=npu")
    assert "pip install torch_npu" in caught.value.remedy
    for backend in (entry.backend for entry in host.catalog.entries()):
        if backend.meets_at == "service":
            with pytest.raises(UsageError, match=f"--standalone and backend {backend.name}"):
                checked("--standalone", f"--rdzv-backend={backend.name.upper()}")


REFUSED_BY_NAME = [
    ("--nnodes", ["--nnodes=2"], {}),
    ("PET_MAX_RESTARTS", [], {"PET_MAX_RESTARTS": "x"}),
    ("'c10d'", ["--rdzv-backend=c10d", "--rdzv-conf=time=1"], {}),
    ("--preload", ["--preload=no-module"], {}),
    ("--preload", ["--preload=csv", "--no-python", "/bin/true"], {}),
    ("--rdzv-conf preload", ["--rdzv-conf=preload=no-module"], {}),
    ("--hang-timeout", ["--hang-timeout=0.5"], {}),
    ("RDZV_HANG_TIMEOUT", [], {"RDZV_HANG_TIMEOUT": "-1"}),
    ("--rdzv-conf hang_timeout", ["--rdzv-conf=hang_timeout=0.1"], {}),
    ("--health-port", ["--health-port=65536"], {}),
    ("TORCHELASTIC_HEALTH_CHECK_PORT", [], {"TORCHELASTIC_HEALTH_CHECK_PORT": "http"}),
    ("--preempt-grace", ["--preempt-grace=0.5"], {}),
    ("--preempt-grace", ["--preempt-grace=nan"], {}),
    ("--notice-signals", ["--notice-signals=USR1"], {}),
    ("--notice-signals", ["--preempt-grace=9", "--notice-signals=ALRM"], {}),
    ("NONE", ["--rdzv-conf=preempt_grace=9,notice_signals=TERM:NONE"], {}),
    ("--ranks-filter", ["--ranks-filter=8-1"], {}),
    ("--rdzv-conf preflight", ["--rdzv-conf=preflight=disk:cup"], {}),
    ("store", ["--rdzv-conf=store=native"], {}),
    ("store_threads", ["--rdzv-conf=store=parallel,store_threads=65"], {}),
    ("TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT", [], {"TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT": "0"}),
    ("--rdzv-id", ["--rdzv-backend=etcd", "--rdzv-endpoint=h:1"], {}),
    ("RDZV_ETCD_PASSWORD", ["--rdzv-backend=etcd", "--rdzv-endpoint=h:1", "--rdzv-id=a"], {"RDZV_ETCD_USER": "u"}),
]
"""What is named, the flags, and the variables."""


@pytest.mark.parametrize(("named", "argv", "variables"), REFUSED_BY_NAME)
def test_command_ends_with_one_message_and_exit_code_2(named, argv, variables, monkeypatch, tmp_path, capfd):
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "train.py").touch()
    assert main([*argv, str(tmp_path / "train.py")]) == 2
    printed, said = capfd.readouterr()
    assert printed == ""
    assert named in said.partition("rdzv-run: error: ")[2]
    assert len(said.splitlines()) <= 2
    assert "Traceback" not in said


HINTS = {
    "never.py": "never.py",
    "/": "__main__.py",
    "--no-python never-there": "never-there",
    "--preflight all s.py": "--preflight=all",
    "--no-python s.py": "--no-python python s.py",
    "-m s.py": "-m out",
}


def test_a_likely_mistake_gets_a_hint(monkeypatch, tmp_path, capfd):
    monkeypatch.chdir(tmp_path)
    Path("s.py").touch()
    for words, hint in HINTS.items():
        assert main(words.split()) == 2
        assert hint in capfd.readouterr().err
    with pytest.raises(SystemExit, match="2"):
        main([])
    assert "rdzv-run --help" in capfd.readouterr().err


def test_flags_that_the_script_gets_by_mistake(checked):
    args = parse_arguments(["--nnodes=1", "s.py", "--nproc-per-node=2", "--nnodes=2", "--lr=1", "--rdzv_id", "7"])
    assert flags_behind_script(args) == ["--nproc-per-node=2", "--rdzv_id"]


MASTERS = [{"PET_MASTER_ADDR": "h"}, {"PET_MASTER_PORT": "29511"}, {"PET_MASTER_ADDR": "h", "PET_MASTER_PORT": "29511"}]


@pytest.fixture(params=MASTERS, ids=" ".join)
def asked(request, monkeypatch):
    """The request of rdzv-run where an operator has set the master's variables, and a site's plug-in fills in more."""
    for name, value in request.param.items():
        monkeypatch.setenv(name, value)

    def ask(*argv, **filled_in):
        at = {"service": "service", "static": "node"}
        both = [Backend(name=name, summary="a stranger's", create=print, meets_at=at[name]) for name in at]
        site = types.ModuleType("site_plugin")
        site.rdzv_register_backends = hookimpl(lambda: both)
        site.rdzv_resolve_request = hookimpl(lambda: filled_in)
        record = PluginRecord("site", "site_plugin", "dist", "1", plugin=site)
        validate(record)
        assert not record.error
        host = PluginHost([record])
        return build_request(parse_arguments([*argv, "train.py"]), host.resolve_request, host.catalog.meets_at)

    return ask


SERVICE = "--rdzv-backend=service"


@pytest.mark.parametrize(
    ("argv", "filled_in", "endpoint"),
    [
        (["--rdzv-backend=Service", "--nnodes=2"], {}, ""),
        ([SERVICE], {"endpoint": "site:6379"}, "site:6379"),
        ([SERVICE, "--rdzv-endpoint=there:1"], {"endpoint": "site:6379"}, "there:1"),
        (["--nnodes=2"], {"backend": "service"}, ""),  # a plug-in chooses it, and may say where it is
        (["--nnodes=2"], {"backend": "service", "endpoint": "site:6379"}, "site:6379"),
    ],
)
def test_nodes_meet_at_the_master_whatever_a_plug_in_knows_and_a_service_is_not_sought_there(
    asked, argv, filled_in, endpoint
):
    request = asked(*argv, **filled_in)
    assert (request.backend.lower(), request.endpoint) == ("service", endpoint)
    assert endpoint or "endpoint" not in request.given
    port, host = os.environ.get("PET_MASTER_PORT", "29500"), os.environ.get("PET_MASTER_ADDR", "first")
    assert asked("--nnodes=2", endpoint="first:1").endpoint == f"{host}:{port}"
