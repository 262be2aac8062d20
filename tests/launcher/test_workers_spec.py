"""The workers' flags: the commands, streams and files that follow from them are those that torch makes of them."""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from kits.launcher.starts_workers import group_of, spec_of
from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std, to_map
from torch.distributed.elastic.utils import macros
from torch.distributed.run import config_from_args, get_args_parser

from rdzv_launcher.run.workers.environment import variables_of, worker_variables
from rdzv_launcher.run.workers.output.log_files import LogFiles
from rdzv_launcher.run.workers.program import RUNNER
from rdzv_launcher.run.workers.spec import parse_streams
from rdzv_plugins.errors import MissingDependency, UsageError

SCRIPT = ["train.py", "--lr", "0.1", "${local_rank}", "a$$b", "$local_rank/$x", "-m"]


@pytest.fixture(autouse=True)
def threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # else torch sets it, for good


@pytest.mark.parametrize("flags", [["-m"], ["--no-python"], ["--run-path"]], ids=" ".join)
def test_command_is_torchs(flags: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHON_EXEC", "/opt/python")
    argv = [*flags, "--nproc-per-node=2", *SCRIPT]
    args = get_args_parser().parse_args(argv)
    args.rdzv_endpoint, args.log_dir = "localhost:0", os.devnull
    _, entrypoint, arguments = config_from_args(args)
    for local_rank in range(2):
        theirs = macros.substitute(list(arguments), str(local_rank))
        start = [sys.executable, "-u", RUNNER] if "--run-path" in flags else [entrypoint]
        assert spec_of(argv).program.command(local_rank) == (*start, *theirs)


def test_streams_are_torchs() -> None:
    for value in ("0", "1", "2", "3", "0:1", "0:1,1:2", "1:3,0:0", "0:1,0:2", "2:3"):
        theirs, ours = to_map(Std.from_str(value), 3), parse_streams("--tee", value)
        assert {rank: int(ours.of(rank)) for rank in range(3)} == {rank: int(std) for rank, std in theirs.items()}


FLAGS = [
    ["--tee=3"],
    ["--redirects=0:1,1:2", "--tee=1:1,2:3"],
    ["--tee=0:3,2:1", "--redirects=1:3", "--local-ranks-filter=1,2"],
    ["--local-ranks-filter=0"],
]


@pytest.mark.parametrize(("flags", "files"), [*((each, True) for each in FLAGS), (FLAGS[0], False)])
def test_destinations_are_torchs(flags: list[str], files: bool, tmp_path: Path) -> None:
    tree, found = {}, {}
    for who in ("torch", "ours"):
        directory = str(tmp_path / who) if files else os.devnull
        variables = {rank: {"TORCHELASTIC_RUN_ID": "job", "TORCHELASTIC_RESTART_COUNT": "2"} for rank in range(3)}
        if who == "ours":
            spec = spec_of([f"--log-dir={directory}", "--nproc-per-node=3", "--rdzv-id=job", *flags, "train.py"])
            there: Any = LogFiles(spec, "").begin(variables)
            teed, filtered = (there.teed_stdouts, there.teed_stderrs), (there.filtered_stdout, there.filtered_stderr)
        else:
            args = get_args_parser().parse_args([*flags, "train.py"])
            ranks = {int(rank) for rank in args.local_ranks_filter.split(",") if rank}
            inner = DefaultLogsSpecs(directory, Std.from_str(args.redirects), Std.from_str(args.tee), ranks)
            there = inner.reify(variables)
            teed, filtered = (there.tee_stdouts, there.tee_stderrs), (there.filtered_stdout, there.filtered_stderr)
        if not files:  # torch follows /dev/null then, to no end, and collects lines in a file that cannot be
            teed, filtered = ({}, {}), ("", "")
            assert there.error_files == dict.fromkeys(range(3), "" if who == "ours" else os.devnull)
        shown = [there.stdouts, there.stderrs, *teed, dict(enumerate(filtered)), there.error_files if files else {}]
        tree[who] = sorted(path.name for path in Path(directory).rglob("*") if path.is_dir()) if files else []
        found[who] = [{key: path.partition("attempt_2")[2] or path for key, path in each.items()} for each in shown]
        found[who].append({rank: each["TORCHELASTIC_ERROR_FILE"][-19:] for rank, each in variables.items()})
    assert found["ours"] == found["torch"]
    assert tree["ours"][:4] == tree["torch"][:4]


def test_what_was_printed_in_an_earlier_round_of_an_attempt_stays(tmp_path: Path) -> None:
    logs = LogFiles(spec_of([f"--log-dir={tmp_path}", "--redirects=3", "train.py"]), "")
    for number in (4, 5):
        found = logs.begin({0: {"TORCHELASTIC_RESTART_COUNT": "0", "RDZV_ROUND": str(number)}})
        Path(found.stdouts[0]).write_text(f"round {number}")
    assert (found.round, found.moved) == (5, ("attempt_0", "attempt_0.round_4"))
    (run,) = tmp_path.iterdir()
    assert (run / "attempt_0.round_4/0/stdout.log").read_text() == "round 4"
    assert (run / "attempt_0/0/stdout.log").read_text() == "round 5"


def test_bad_value_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    for flag in (
        *("--tee=4", "--redirects=0:1,1", "--redirects=", "--local-ranks-filter=a,1", "--ranks-filter=5-3"),
        *("--log-rotate=100MiB:5", "--log_rotate=1G", "--signals-to-handle=SIGKILL", "--signals-to-handle=,"),
        *("--shutdown-timeout=-1", "--monitor-interval=0"),
    ):
        with pytest.raises(UsageError, match=flag.partition("=")[0]):
            spec_of(["--nproc-per-node=2", flag, "train.py"])
    with pytest.raises(UsageError, match="--log-prefix"):
        spec_of(["--log-prefix", "--log-dir=/dev/null", "train.py"])
    monkeypatch.setenv("PATH", "")
    with pytest.raises(MissingDependency, match="--numa-binding=node"):
        spec_of(["--numa-binding=node", "train.py"])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with pytest.raises(UsageError, match="CUDA_VISIBLE_DEVICES=0"):
        spec_of(["--nproc-per-node=2", "--virtual-local-rank", "train.py"])


def test_values_are_read_as_torch_reads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "7")
    monkeypatch.setenv("TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT", "1.5")
    spec = spec_of(["--monitor-interval=2", "--duplicate-stderr-filters=a,,b,c", "--local-ranks-filter=1", "train.py"])
    assert (spec.shutdown_timeout_s, spec.stuck_timeout_s, spec.monitor_interval_s) == (7, 1.5, 2.0)
    assert spec.stderr_filters == ("a,b", "c")
    assert [spec.shows(rank) for rank in range(2)] == [False, True]
    for value in ("nonsense", "-1"):
        monkeypatch.setenv("TORCHELASTIC_UNINTERRUPTIBLE_STATE_TIMEOUT", value)
        assert spec_of(["--shutdown-timeout=3", "train.py"]).stuck_timeout_s == 0
    assert spec_of(["--shutdown-timeout=3", "train.py"]).shutdown_timeout_s == 3


def test_signal_that_is_ignored_stays_ignored_for_the_workers() -> None:
    before = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    try:
        spec = spec_of(["--signals-to-handle=SIGTERM,SIGUSR1", "train.py"])
        nothing = spec_of(["--signals-to-handle=SIGUSR1", "train.py"])
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert spec.signals == (signal.SIGTERM,)
    group = group_of(1)
    variables = [worker_variables(each, group, group.workers[0], {}) for each in (spec, nothing)]
    assert [each["TORCHELASTIC_SIGNALS_TO_HANDLE"] for each in variables] == ["SIGTERM", "SIGURG"]


@pytest.mark.parametrize(
    ("environ", "expected"),
    [
        ({}, {"CUDA": ["0", "1"]}),
        ({"CUDA_VISIBLE_DEVICES": "4, GPU-ab"}, {"CUDA": ["4", "GPU-ab"]}),
        ({"HIP_VISIBLE_DEVICES": "6, 7", "CUDA_VISIBLE_DEVICES": "1"}, {"HIP": ["6", "7"], "CUDA": ["6", "7"]}),
        ({"HIP_VISIBLE_DEVICES": "", "CUDA_VISIBLE_DEVICES": "3,4"}, {"CUDA": ["3", "4"]}),
        ({"ASCEND_RT_VISIBLE_DEVICES": "2,5"}, {"ASCEND_RT": ["2", "5"], "CUDA": ["0", "1"]}),
    ],
)
def test_each_worker_with_a_virtual_local_rank_has_a_device_of_its_own(
    environ: dict[str, str], expected: dict[str, list[str]]
) -> None:
    """ROCm as torch 2.15 does; torch 2.13 knows CUDA's only."""
    spec, group = spec_of(["--nproc-per-node=2", "--virtual-local-rank", "train.py"]), group_of(2)
    variables = [worker_variables(spec, group, worker, environ) for worker in group.workers]
    assert [(each["LOCAL_RANK"], each["RANK"]) for each in variables] == [("0", "0"), ("0", "1")]
    for rank, each in enumerate(variables):
        found = {name[: -len("_VISIBLE_DEVICES")]: it for name, it in each.items() if name.endswith("_VISIBLE_DEVICES")}
        assert found == {name: devices[rank] for name, devices in expected.items()}
    with pytest.raises(UsageError, match="local rank 1"):
        worker_variables(spec, group, group.workers[1], {"CUDA_VISIBLE_DEVICES": "4"})


def test_what_is_added_sees_what_a_worker_has_so_far_and_takes_precedence() -> None:
    spec, group = spec_of(["--nproc-per-node=2", "train.py"]), group_of(2)
    found = variables_of(
        spec,
        group,
        {},
        use_agent_store=False,
        additions=[
            lambda group, worker, own: {"PORT": own["MASTER_PORT"], "MASTER_PORT": "7"},
            lambda group, worker, own: {"PLACE": f"{group.group_rank}.{worker.local_rank} {own['MASTER_PORT']}"},
        ],
    )
    told = [(each["PORT"], each["MASTER_PORT"], each["PLACE"]) for each in found.values()]
    assert told == [("29500", "7", "0.0 7"), ("29500", "7", "0.1 7")]
    assert {each["TORCHELASTIC_USE_AGENT_STORE"] for each in found.values()} == {"False"}


def test_spec_knows_all_that_torchs_worker_spec_does() -> None:
    """A field that a later torch adds is to be looked at here."""
    elsewhere = {"rdzv_handler", "fn", "entrypoint", "args", "master_port", "master_addr", "local_addr"}
    names = {"local_world_size": "nproc", "monitor_interval": "monitor_interval_s", "numa_options": "numa_binding"}
    names |= {"duplicate_stdout_filters": "stdout_filters", "duplicate_stderr_filters": "stderr_filters"}
    theirs = {names.get(field.name, field.name) for field in dataclasses.fields(WorkerSpec)} - elsewhere
    assert theirs <= {*spec_of(["train.py"]).__struct_fields__}


def test_round_is_made_ready_without_torch(tmp_path: Path) -> None:
    """From the flags to what is started, and to what is read of its end."""
    program = f"""
import os, sys
from rdzv_launcher.run.parser import parse_arguments
from rdzv_launcher.run.workers import causes, environment, failures, file_timer, logs_specs, spec
from rdzv_launcher.run.workers.output import log_files, output
from rdzv_launcher.run.workers.worker_group import Worker, WorkerGroup
from rdzv_plugins.interfaces import Failure, Request
from rdzv_plugins.interfaces import StoreInfo
args = parse_arguments(['--tee=3', '--log-dir={tmp_path}', 'train.py'])
request = Request(backend="static", run_id="job", endpoint="", min_nodes=1, max_nodes=1, nproc_per_node=1)
spec = spec.read_spec(args, request)
ours = output.Output(spec, log_files.LogFiles(spec, ""))
group = WorkerGroup("default", 0, 1, (Worker(0, 0, 0, 1, 1),), StoreInfo("127.0.0.1", 29500))
timer = file_timer.FileTimer("job", os.environ, os.getcwd())
(start,) = environment.prepare_starts(spec, group, ours, True, [lambda *_: timer.start()])
ours.end()
timer.stop()
failures.worker_failure(Failure(0, "", 0, 0, 1, 1), 0.0, start.stdout)
loaded = sorted(name for name in sys.modules if name.partition(".")[0] in ("torch", "numpy"))
assert not loaded, loaded
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_program_that_wants_a_session_has_one_and_is_waited_for() -> None:
    """In a leader of a process group, setsid forks and ends at once."""
    for given, expected in (
        (["/usr/bin/setsid", "./prog", "-c", "${local_rank}"], ("./prog", "-c", "3")),
        (["setsid", "./prog"], ("./prog",)),
        (["setsid", "--wait", "./prog"], ("setsid", "--wait", "./prog")),
        (["setsid"], ("setsid",)),
    ):
        assert spec_of(["--no-python", *given]).program.command(3) == expected
