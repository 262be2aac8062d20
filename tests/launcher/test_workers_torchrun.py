"""What workers get from rdzv-run beside what they get from torchrun, and what is torch's by its nature if asked for."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kits.distribution import leave
from kits.eventually import eventually
from kits.launcher.harness import BIN, WORKERS
from kits.launcher.specs import spec_of

from rdzv_launcher.run.workers.torch_classes import ThirdPartyLogs
from rdzv_plugins.errors import PluginError, UsageError
from rdzv_plugins.testing.processes import clean_environment

LAUNCHERS = ("torchrun", "rdzv-run")
ALONE = ["--nnodes=1", "--rdzv-backend=c10d", "--rdzv-endpoint=localhost:0", "--rdzv-id=job"]
DIFFER = {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_ERROR_FILE", "PWD"}
"""The first two are the rendezvous's; the path of the error file has a part that is drawn by chance."""


@dataclass
class Ended:
    """A launcher that has ended."""

    directory: Path
    code: int
    stdout: str
    stderr: str

    def said(self, stream: str) -> list[str]:
        """Lines of workers, in whatever order they came."""
        return sorted(line for line in getattr(self, stream).splitlines() if "says" in line)

    @property
    def run_directory(self) -> Path:
        (found,) = (self.directory / "logs").iterdir()
        return found

    def files(self) -> set[str]:
        paths = (path for path in self.run_directory.rglob("*.*") if path.is_file() and path.name != "index.jsonl")
        return {str(path.relative_to(self.run_directory)) for path in paths}

    def log(self, name: str) -> list[str]:
        return sorted(line for line in (self.run_directory / name).read_text().splitlines() if "says" in line)


def ended(launcher: str, place: Path, arguments: list[object], **variables: str) -> Ended:
    """A launcher to its end, in this directory."""
    environment = {k: v for k, v in clean_environment().items() if k != "OMP_NUM_THREADS"} | variables
    done = subprocess.run(
        [BIN / launcher, *map(str, arguments)],
        cwd=place,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=180,
    )
    return Ended(place, done.returncode, done.stdout, done.stderr)


def both(directory: Path, arguments: list[object], **variables: str) -> list[Ended]:
    """torchrun and rdzv-run, each in a directory of its own."""
    for launcher in LAUNCHERS:
        (directory / launcher / "said").mkdir(parents=True)
    return [ended(each, directory / each, [*ALONE, *arguments], **variables) for each in LAUNCHERS]


def assert_variables_are_alike(theirs: dict[str, str], ours: dict[str, str]) -> None:
    names = {name for name in (theirs | ours) if not name.startswith("RDZV_")} - DIFFER
    assert {name: ours.get(name) for name in names} == {name: theirs.get(name) for name in names}


@pytest.mark.thorough
def test_variables_arguments_files_and_lines_are_torchruns(tmp_path: Path) -> None:
    """Four workers, each with its streams in another way; the second fails once, and all are started again."""
    torchs, ours = both(
        tmp_path,
        [
            "--nproc-per-node=4",
            "--max-restarts=1",
            "--role=trainer",
            "--log-dir=logs",
            "--tee=0:3,1:1",
            "--redirects=1:2,2:3",
            "--local-ranks-filter=0,1,3",
            "--duplicate-stdout-filters=apple,, x,kiwi",
            "--duplicate-stderr-filters=pear",
            "--signals-to-handle=SIGTERM,SIGUSR1",
            WORKERS / "writes.py",
            "said",
            "${local_rank}",
            "$$x",
            "${other}",
        ],
        TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE="<${role_name} ${rank} ${local_rank} ${what}> ",
        CUDA_VISIBLE_DEVICES="7,6,5,4",
    )
    assert (ours.code, torchs.code) == (0, 0), ours.stderr
    for attempt, rank in itertools.product((0, 1), range(4)):
        path = f"said/{attempt}.{rank}.json"
        told = [json.loads((each.directory / path).read_text()) for each in (torchs, ours)]
        theirs, own = (each["environ"] for each in told)
        assert own["TORCHELASTIC_RESTART_COUNT"] == str(attempt)
        assert_variables_are_alike(theirs, own)
        ends = {each["TORCHELASTIC_ERROR_FILE"].partition("/attempt_")[2] for each in (own, theirs)}
        assert ends == {f"{attempt}/{rank}/error.json"}
        assert [each["argv"] for each in told] == [[str(rank), "$x", "${other}"]] * 2
    assert ours.files() == torchs.files()
    names = {name for name in ours.files() if name.endswith(".log")}
    assert (len(names), ours.run_directory.name[:4]) == (16, "job_")
    for name in names:
        assert ours.log(name) == torchs.log(name) != [], name
    for stream in ("stdout", "stderr"):
        assert ours.said(stream) == torchs.said(stream)
        assert "<trainer 0 0 ${what}> says 0 0 kiwi \u00e9" in ours.said(stream)
        assert ("<trainer 1 1 ${what}> says 1 1 pear" in ours.said(stream)) == (stream == "stdout")


LOGS = """
import json
import os
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, LogsDest, LogsSpecs

class Apart(DefaultLogsSpecs):
    def reify(self, envs):
        there = super().reify(envs)
        for rank, env in envs.items():
            env["SET_BY_THE_CLASS"] = str(rank)
            there.stdouts[rank] = os.path.join(self.root_log_dir, f"{rank}.txt")
        return there

class Nothing(LogsSpecs):
    def reify(self, envs):
        return LogsDest()
    root_log_dir = ""

class Broken(Apart):
    def __init__(self, **settings):
        raise ValueError("not today")
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A directory with a package of three such classes, as pip would leave it."""
    points = "".join(f"{name.lower()} = log_classes:{name}\n" for name in ("Apart", "Nothing", "Broken"))
    path = str(leave(tmp_path / "site", "log-classes", f"[torchrun.logs_specs]\n{points}", log_classes=LOGS))
    monkeypatch.syspath_prepend(path)
    return path


@pytest.mark.thorough
def test_class_of_somebody_else_decides_on_the_files(site: str, tmp_path: Path) -> None:
    worker = "import os, sys\nsys.stdout.write(os.environ['SET_BY_THE_CLASS'] + '\\n')\nsys.stderr.write('aside\\n')\n"
    (tmp_path / "worker.py").write_text(worker)
    flags = ["--logs-specs=apart", "--log-dir=logs", "--tee=0:2", "--nproc-per-node=2", "worker.py"]
    done = ended("rdzv-run", tmp_path, [*flags], PYTHONPATH=site)
    assert done.code == 0, done.stderr
    assert [(tmp_path / f"logs/{rank}.txt").read_text() for rank in range(2)] == ["0\n", "1\n"]
    assert sorted(line for line in done.stderr.splitlines() if "aside" in line) == ["[default0]:aside", "aside"]


def test_class_that_is_not_there_or_broken_is_named(site: str) -> None:
    with pytest.raises(UsageError, match="--logs-specs=none"):
        ThirdPartyLogs(spec_of(["--logs-specs=none", "train.py"]))
    with pytest.raises(PluginError, match="--logs-specs=broken: ValueError: not today"):
        ThirdPartyLogs(spec_of(["--logs-specs=broken", "train.py"]))
    with pytest.raises(PluginError, match="--logs-specs=nothing"):
        ThirdPartyLogs(spec_of(["--logs-specs=nothing", "train.py"])).begin({0: {}})


def events_of(launcher: str, place: Path) -> list[dict[str, Any]]:
    """The events of a launch with a watchdog, in their order, without what is another in each run."""
    flags = ["--standalone", "--rdzv-backend=c10d", "--event-log-handler=console", "script.py"]
    done = ended(launcher, place, [*flags], TORCHELASTIC_ENABLE_FILE_TIMER="1")
    assert done.code != 0
    lines = [line for line in done.stderr.splitlines() if '"source": ' in line]
    found: list[dict[str, Any]] = [json.loads(line[line.index("{") :]) for line in lines]
    for each in found:
        metadata = each["metadata"]
        metadata["metadata"] = json.loads(metadata["metadata"])
        given = (metadata["metadata"].pop("worker_pid", None) or [None])[0]
        if each["source"] == "WORKER":
            assert given in (None, int(metadata["worker_id"]))
            assert metadata["raw_error"] is None or "message" in json.loads(metadata["raw_error"])
        for own in ("run_id", "worker_id", "hostname", "raw_error", "total_run_time"):
            metadata[own] = type(metadata[own]).__name__
        if metadata.get("duration_ms") is not None:
            assert metadata.pop("duration_ms") > 0
    return found


@pytest.mark.thorough
def test_events_are_torchs(tmp_path: Path) -> None:
    """Of rendezvous, watchdog, workers and agent: the same fields with the same values."""
    (tmp_path / "script.py").write_text("raise SystemExit(3)\n")
    torchs, ours = (events_of(each, tmp_path) for each in LAUNCHERS)
    named = [f"{each['source']} {each['name']}" for each in ours]
    kept = [each for each in torchs if "ASSIGN_WORKER_RANKS" not in each["name"]]  # no step of its own here
    assert named[-1] == "AGENT torchelastic.worker.status.FAILED"
    last, of_torch = ours.pop(), kept.pop()
    for each in (last, of_torch):  # torch's agent has SUCCEEDED: it could tell of the failure
        each.pop("name")
        each["metadata"].pop("state")
    assert last == of_torch
    before, of_torch = ours.pop(0), kept.pop(0)
    for each in (before, of_torch):  # torch tells of it before it knows who has come
        each["metadata"].pop("group_rank")
        each["metadata"]["metadata"].pop("group_world_size")
    assert before == of_torch
    assert sorted(ours, key=json.dumps) == sorted(kept, key=json.dumps)
    assert {"AGENT watchdog started", "AGENT watchdog stopped"} <= {*named}
    assert len(ours) == 4, named


MISSES = """
import os, subprocess, sys
from rdzv_launcher.run.workers.torch_classes import FileTimer
variables = FileTimer("job", {"TORCHELASTIC_ENABLE_FILE_TIMER": "1"}, os.getcwd()).start()
worker = "import os, time; from torch.distributed.elastic.timer import FileTimerClient; "
worker += "FileTimerClient(os.environ['TORCHELASTIC_TIMER_FILE']).acquire('step', 1.0); time.sleep(600)"
print(subprocess.Popen([sys.executable, "-c", worker], env=os.environ | variables).pid, flush=True)
os.wait()
"""


@pytest.mark.thorough
def test_worker_that_misses_its_deadline_is_killed_and_so_is_who_started_it(tmp_path: Path) -> None:
    """torch's server does so: with the signal that the worker has chosen."""
    done = subprocess.run([sys.executable, "-c", MISSES], cwd=tmp_path, stdout=subprocess.PIPE, text=True, check=False)
    assert done.returncode == -9
    eventually(lambda: not os.path.exists(f"/proc/{int(done.stdout)}/exe"), lambda: "it lives")  # a zombie has none
