"""What is torch's by its nature, when it is asked for: log classes of others, event handlers, the file timer, NUMA."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from kits.eventually import eventually
from kits.launcher.starts_workers import round_of, spec_of
from torch.distributed.elastic.timer import FileTimerClient

from rdzv_launcher.run.workers.file_timer import FileTimer
from rdzv_launcher.run.workers.logs_specs import ThirdPartyLogs
from rdzv_launcher.run.workers.output.output import Output
from rdzv_launcher.run.workers.program import bound
from rdzv_plugins.errors import PluginError, UsageError

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
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package with three such classes, as pip would leave it."""
    info = tmp_path / "site" / "log_classes-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: log-classes\nVersion: 1.0\n")
    points = "".join(f"{name.lower()} = log_classes:{name}\n" for name in ("Apart", "Nothing", "Broken"))
    (info / "entry_points.txt").write_text(f"[torchrun.logs_specs]\n{points}")
    (info.parent / "log_classes.py").write_text(LOGS)
    monkeypatch.syspath_prepend(str(info.parent))
    return tmp_path


@pytest.mark.thorough
def test_class_of_somebody_else_decides_on_the_files(
    installed: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    worker = installed / "worker.py"
    worker.write_text(
        "import os, sys\nsys.stdout.write(os.environ['SET_BY_THE_CLASS'] + '\\n')\nsys.stderr.write('aside\\n')\n"
    )
    logs = installed / "logs"
    spec = spec_of(["--logs-specs=apart", f"--log-dir={logs}", "--tee=0:2", "--nproc-per-node=2", str(worker)])
    assert round_of(spec, Output(spec, ThirdPartyLogs(spec)), 0) == []
    assert [(logs / f"{rank}.txt").read_text() for rank in range(2)] == ["0\n", "1\n"]
    assert sorted(capfd.readouterr().err.splitlines()) == ["[default0]:aside", "aside"]
    assert ThirdPartyLogs(spec).root == str(logs)


def test_class_that_is_not_there_or_broken_is_named(installed: Path) -> None:
    with pytest.raises(UsageError, match="--logs-specs=none"):
        ThirdPartyLogs(spec_of(["--logs-specs=none", "train.py"]))
    with pytest.raises(PluginError, match="--logs-specs=broken: ValueError: not today"):
        ThirdPartyLogs(spec_of(["--logs-specs=broken", "train.py"]))
    with pytest.raises(PluginError, match="--logs-specs=nothing"):
        ThirdPartyLogs(spec_of(["--logs-specs=nothing", "train.py"])).begin({0: {}})


def events_of(command: str, script: Path) -> list[dict[str, Any]]:
    """The events of a launch with a watchdog, in their order, without what is another in each run."""
    flags = ["--standalone", "--rdzv-backend=c10d", "--event-log-handler=console", script]
    env = os.environ | {"TORCHELASTIC_ENABLE_FILE_TIMER": "1"}
    ended = subprocess.run(
        [Path(sys.executable).parent / command, *flags], capture_output=True, text=True, env=env, check=False
    )
    assert ended.returncode != 0
    lines = [line for line in ended.stderr.splitlines() if '"source": ' in line]
    found: list[dict[str, Any]] = [json.loads(line[line.index("{") :]) for line in lines]
    for each in found:
        metadata = each["metadata"]
        metadata["metadata"] = json.loads(metadata["metadata"])
        given = (metadata["metadata"].get("worker_pid") or [None])[0]
        if each["source"] == "WORKER":
            assert given in (None, int(metadata["worker_id"]))
            assert metadata["raw_error"] is None or "message" in json.loads(metadata["raw_error"])
        for own in ("run_id", "worker_id", "hostname", "raw_error", "total_run_time"):
            metadata[own] = type(metadata[own]).__name__
        metadata["metadata"].pop("worker_pid", None)
        if metadata.get("duration_ms") is not None:
            assert metadata.pop("duration_ms") > 0
    return found


@pytest.mark.thorough
def test_events_are_torchs(tmp_path: Path) -> None:
    """Of rendezvous, watchdog, workers and agent: the same fields with the same values."""
    script = tmp_path / "script.py"
    script.write_text("raise SystemExit(3)\n")
    torchs, ours = events_of("torchrun", script), events_of("rdzv-run", script)
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
    by_name = sorted(ours, key=json.dumps)
    assert by_name == sorted(kept, key=json.dumps)
    assert {"AGENT watchdog started", "AGENT watchdog stopped"} <= {*named}
    assert len(ours) == 4, named


@pytest.mark.thorough
def test_file_timer_serves_one_round_after_the_other(tmp_path: Path) -> None:
    path, before = tmp_path / "timer", set(threading.enumerate())
    timer = FileTimer("job", {"TORCHELASTIC_ENABLE_FILE_TIMER": "1", "TORCHELASTIC_TIMER_FILE": str(path)}, "/")
    for _ in range(2):
        assert timer.start() == {"TORCHELASTIC_TIMER_FILE": str(path)}
        assert stat.S_ISFIFO(path.stat().st_mode)
        FileTimerClient(str(path)).release("scope")  # there is a server that reads
    timer.stop()
    assert not path.exists()
    for thread in set(threading.enumerate()) - before:
        thread.join(60)
        assert not thread.is_alive()


MISSES = """
import os, subprocess, sys
from rdzv_launcher.run.workers.file_timer import FileTimer
variables = FileTimer("job", {"TORCHELASTIC_ENABLE_FILE_TIMER": "1"}, os.getcwd()).start()
worker = "import os, time; from torch.distributed.elastic.timer import FileTimerClient; "
worker += "FileTimerClient(os.environ['TORCHELASTIC_TIMER_FILE']).acquire('step', 1.0); time.sleep(600)"
print(subprocess.Popen([sys.executable, "-c", worker], env=os.environ | variables).pid, flush=True)
os.wait()
"""


@pytest.mark.thorough
def test_worker_that_misses_its_deadline_is_killed_and_so_is_who_started_it(tmp_path: Path) -> None:
    """torch's server does so: with the signal that the worker has chosen."""
    ended = subprocess.run([sys.executable, "-c", MISSES], cwd=tmp_path, stdout=subprocess.PIPE, text=True, check=False)
    assert ended.returncode == -9
    eventually(lambda: not os.path.exists(f"/proc/{int(ended.stdout)}/exe"), lambda: "it lives")  # a zombie has none


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
