"""The workers' flags, streams, files, variables and ends: what follows from them is what torch makes of them."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from kits.launcher.specs import group_of, spec_of
from torch.distributed.elastic.agent.server.api import WorkerSpec
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std, to_map
from torch.distributed.elastic.multiprocessing.errors import ErrorHandler, ProcessFailure
from torch.distributed.elastic.utils import macros
from torch.distributed.run import config_from_args, get_args_parser

from rdzv_launcher.run.workers.environment import worker_variables
from rdzv_launcher.run.workers.failures import (
    WorkerFailure,
    hand_to_scheduler,
    read_error_file,
    record_own_error,
    worker_failure,
)
from rdzv_launcher.run.workers.output.log_files import LogFiles, Stream
from rdzv_launcher.run.workers.spec import RUNNER, bound, parse_streams
from rdzv_launcher.run.workers.worker_group import Worker
from rdzv_plugins.errors import MissingDependency, UsageError
from rdzv_plugins.interfaces import Failure

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


def test_program_that_wants_a_session_has_one_and_is_waited_for() -> None:
    """In a leader of a process group, setsid forks and ends at once."""
    for given, expected in (
        (["/usr/bin/setsid", "./prog", "-c", "${local_rank}"], ("./prog", "-c", "3")),
        (["setsid", "--wait", "./prog"], ("setsid", "--wait", "./prog")),
        (["setsid", "./prog"], ("./prog",)),
        (["setsid"], ("setsid",)),
    ):
        assert spec_of(["--no-python", *given]).program.command(3) == expected


def test_numa_binding_puts_torchs_numactl_in_front(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which processors, is what torch finds out from the hardware: here it is told."""
    from torch.numa import binding

    asked = []

    def processors(*, numa_options: binding.NumaOptions, **index: int) -> set[int]:
        asked.append((*index.values(), numa_options.affinity_mode.value))
        return {0, 1, 2, 5}

    monkeypatch.setattr(binding, "_get_logical_cpus_to_bind_to", processors)
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "numactl").write_text("#!/bin/sh\n")
    (tmp_path / "numactl").chmod(0o755)
    assert bound(("./train", "-x"), 2, "core-complex") == ("numactl", "--physcpubind=0-2,5", "./train", "-x")
    assert asked == [(2, "core-complex")]


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
            streams = (there.stdout, there.stderr)
            paths, teed, filtered = ([getattr(each, name) for each in streams] for name in Stream.__struct_fields__)
        else:
            args = get_args_parser().parse_args([*flags, "train.py"])
            ranks = {int(rank) for rank in args.local_ranks_filter.split(",") if rank}
            inner = DefaultLogsSpecs(directory, Std.from_str(args.redirects), Std.from_str(args.tee), ranks)
            there = inner.reify(variables)
            paths, teed = [there.stdouts, there.stderrs], [there.tee_stdouts, there.tee_stderrs]
            filtered = [there.filtered_stdout, there.filtered_stderr]
        if not files:  # torch follows /dev/null then, to no end, and collects lines in a file that cannot be
            teed, filtered = [{}, {}], ["", ""]
            assert there.error_files == dict.fromkeys(range(3), "" if who == "ours" else os.devnull)
        shown = [*paths, *teed, dict(enumerate(filtered)), there.error_files if files else {}]
        tree[who] = sorted(path.name for path in Path(directory).rglob("*") if path.is_dir()) if files else []
        found[who] = [{key: path.partition("attempt_2")[2] or path for key, path in each.items()} for each in shown]
        found[who].append({rank: each["TORCHELASTIC_ERROR_FILE"][-19:] for rank, each in variables.items()})
    assert found["ours"] == found["torch"]
    assert tree["ours"][:4] == tree["torch"][:4]


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


def test_spec_knows_all_that_torchs_worker_spec_does() -> None:
    """A field that a later torch adds is to be looked at here."""
    elsewhere = {"rdzv_handler", "fn", "entrypoint", "args", "master_port", "master_addr", "local_addr", "start_method"}
    names = {"local_world_size": "nproc", "monitor_interval": "monitor_interval_s", "numa_options": "numa_binding"}
    names |= {"duplicate_stdout_filters": "stdout_filters", "duplicate_stderr_filters": "stderr_filters"}
    theirs = {names.get(field.name, field.name) for field in dataclasses.fields(WorkerSpec)} - elsewhere
    assert theirs <= {*spec_of(["train.py"]).__struct_fields__}


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


def test_each_worker_with_a_virtual_local_rank_has_a_device_of_its_own() -> None:
    """ROCm as torch 2.15 does; torch 2.13 knows CUDA's only."""
    spec, group = spec_of(["--nproc-per-node=2", "--virtual-local-rank", "train.py"]), group_of(2)
    for environ, expected in (
        ({}, {"CUDA": ["0", "1"]}),
        ({"CUDA": "4, GPU-ab"}, {"CUDA": ["4", "GPU-ab"]}),
        ({"HIP": "6, 7", "CUDA": "1"}, {"HIP": ["6", "7"], "CUDA": ["6", "7"]}),
        ({"HIP": "", "CUDA": "3,4"}, {"CUDA": ["3", "4"]}),
        ({"ASCEND_RT": "2,5"}, {"ASCEND_RT": ["2", "5"], "CUDA": ["0", "1"]}),
    ):
        given = {f"{name}_VISIBLE_DEVICES": value for name, value in environ.items()}
        for rank, worker in enumerate(group.workers):
            own = worker_variables(spec, group, worker, given)
            assert (own["LOCAL_RANK"], own["RANK"]) == ("0", str(rank))
            found = {name: own[name] for name in own if name.endswith("_VISIBLE_DEVICES")}
            assert found == {f"{name}_VISIBLE_DEVICES": devices[rank] for name, devices in expected.items()}
    with pytest.raises(UsageError, match="local rank 1"):
        worker_variables(spec, group, group.workers[1], {"CUDA_VISIBLE_DEVICES": "4"})


def test_what_is_added_sees_what_a_worker_has_so_far_and_takes_precedence() -> None:
    spec, group = spec_of(["--nproc-per-node=2", "train.py"]), group_of(2)

    def additions(worker: Worker, own: Mapping[str, str]) -> Iterator[Mapping[str, str]]:
        yield {"PORT": own["MASTER_PORT"], "MASTER_PORT": "7"}
        yield {"PLACE": f"{worker.local_rank} {own['MASTER_PORT']}"}

    for worker in group.workers:
        own = worker_variables(spec, group, worker, {}, use_agent_store=False, additions=additions)
        assert (own["PORT"], own["MASTER_PORT"]) == ("29500", "7")
        assert own["PLACE"] == f"{worker.local_rank} 7"
        assert own["TORCHELASTIC_USE_AGENT_STORE"] == "False"


def raised() -> Exception:
    try:
        raise ValueError("on purpose")
    except ValueError as error:
        return error


def torch_records(path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """As a worker with @record leaves it."""
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(path))
    try:
        raise ValueError("on purpose")
    except ValueError as error:
        ErrorHandler().record_exception(error)
    monkeypatch.delenv("TORCHELASTIC_ERROR_FILE")
    return str(path)


def failure(error_file: str, *, code: int = 1, ended: float = 0.0) -> WorkerFailure:
    told = Failure(0, "here", global_rank=0, local_rank=0, pid=7, exit_code=code, stderr=("a line",))
    return worker_failure(told, ended, error_file)


def test_recorded_failure_is_as_torch_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = torch_records(tmp_path / "error.json", monkeypatch)
    theirs, ours = ProcessFailure(0, 7, 1, path), failure(path, ended=time.time() + 1000)
    assert ours.timestamp == theirs.timestamp
    assert ours.record is not None
    assert ours.traceback == ours.record.callstack == theirs.message["extraInfo"]["py_callstack"]
    assert ours.summary == theirs.message["message"] == "ValueError: on purpose"
    for name in ("local_rank", "pid", "exitcode", "error_file", "error_file_data", "message"):
        assert getattr(ours, name) == getattr(theirs, name), name
    for name in ("signal_name", "timestamp_isoformat"):
        assert getattr(ours, name)() == getattr(theirs, name)(), name


def test_message_of_a_signal_is_torchs(tmp_path: Path) -> None:
    nothing = str(tmp_path / "error.json")
    for number in (signal.SIGKILL, 99):
        theirs, ours = ProcessFailure(0, 7, -number, nothing), failure(nothing, code=-number)
        assert ours.message == ours.summary == theirs.message
        assert ours.signal_name() == theirs.signal_name()
        assert (ours.error_file, ours.record) == (theirs.error_file, None)


MESSAGES = [
    ({"message": "text", "timestamp": "12"}, 0),
    ({"message": "text"}, 1),
    ({"message": {"message": "text", "extraInfo": {"py_callstack": "a\nb", "timestamp": "13"}}, "other": [1]}, -11),
]


@pytest.mark.parametrize(("data", "code"), MESSAGES)
def test_scheduler_gets_what_torch_would_give_it(
    data: dict[str, object], code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker, theirs, ours = (tmp_path / name for name in ("worker.json", "theirs", "ours"))
    worker.write_text(json.dumps(data))
    record = read_error_file(str(worker))
    assert record is not None
    assert record.message == "text"
    assert int(record.timestamp) == ProcessFailure(0, 7, 1, str(worker)).timestamp
    theirs.write_text("of an earlier job")
    ours.write_text("of an earlier job")
    monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", str(theirs))
    ErrorHandler().dump_error_file(str(worker), code)
    hand_to_scheduler(str(worker), code, str(ours))
    assert json.loads(ours.read_text()) == json.loads(theirs.read_text())


def test_file_that_nobody_can_read_is_none(tmp_path: Path) -> None:
    path = tmp_path / "error.json"
    for content in (b"", b"[1]", b"{}", b'{"message": 3}', b"\xff\xfe", b"[" * 200000):
        path.write_bytes(content)
        assert read_error_file(str(path)) is None
        assert failure(str(path), code=-9).exitcode == -9
    path.unlink()
    os.mkfifo(path)  # keeps nobody waiting
    assert read_error_file(str(path)) is None


def test_nothing_to_hand_on_and_nowhere_to_put_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    target, worker = tmp_path / "target", tmp_path / "worker"
    hand_to_scheduler(str(worker), 1, str(target))
    assert not target.exists()
    worker.write_text('{"message": "text"}')
    hand_to_scheduler(str(worker), 1, "")
    assert not caplog.messages
    for nowhere in (str(tmp_path / "no" / "such"), "/dev/full"):
        hand_to_scheduler(str(worker), 1, nowhere)
        assert nowhere in caplog.messages.pop()


def test_own_error_is_recorded_as_torch_records_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    theirs = json.loads(Path(torch_records(tmp_path / "theirs", monkeypatch)).read_text())["message"]
    record_own_error(raised(), str(tmp_path / "ours"))
    ours = json.loads((tmp_path / "ours").read_text())["message"]
    assert ours["message"] == theirs["message"]
    assert ours["extraInfo"].keys() == theirs["extraInfo"].keys()
    assert ours["extraInfo"]["py_callstack"].splitlines()[-1] == theirs["extraInfo"]["py_callstack"].splitlines()[-1]
    assert ours["extraInfo"]["timestamp"].isdecimal()
    record_own_error(raised(), "")
    assert not caplog.messages, "where no file is wanted, none is missing"
