"""Packages of a stranger, really installed: a backend launched by name, and every optional hook."""

import json
import re
from contextlib import closing

import pytest

from rdzv_plugins.testing import free_port
from rdzv_plugins.testing.launched import Agents

pytestmark = pytest.mark.timeout(600)  # the first test installs them
PLAIN = """
import json, os, pathlib
names = "RANK", "WORLD_SIZE", "GROUP_RANK", "LOCAL_RANK", "TOY_ENV", "TORCHELASTIC_RUN_ID"
facts = {name: os.environ.get(name) for name in names}
pathlib.Path(os.environ["TOY_OUT"], os.environ["RANK"]).write_text(json.dumps(facts))
"""
GLOO = """
import os, pathlib, torch, torch.distributed as dist
dist.init_process_group("gloo")
total = torch.tensor(dist.get_rank() + 1)
dist.all_reduce(total)
pathlib.Path(os.environ["TOY_OUT"], os.environ["RANK"]).write_text(f"{total.item()} of {dist.get_world_size()}")
dist.destroy_process_group()
"""
FAILS_ONCE = """
import os, pathlib, sys
marker = pathlib.Path(os.environ["TOY_OUT"], "marker")
sys.exit(0 if marker.exists() else marker.write_text("") or 3)
"""
LIMIT_S = 300


@pytest.fixture
def script(tmp_path):
    """Writes the worker's program."""

    def write(source):
        path = tmp_path / "worker.py"
        path.write_text(source)
        return str(path)

    return write


@pytest.fixture
def shared(tmp_path):
    """The directory that the nodes share."""
    path = tmp_path / "shared"
    path.mkdir()
    return path


@pytest.fixture
def out(tmp_path):
    """Where workers write, by rank."""
    path = tmp_path / "out"
    path.mkdir()
    return path


@pytest.fixture
def launched(good, tmp_path):
    """Launches nodes of a job side by side, each by a program with arguments and variables; all end well."""

    def launch(program, *nodes):
        with closing(Agents(tmp_path, {"PYTHONPATH": str(good.path), "GLOO_SOCKET_IFNAME": "lo"})) as agents:
            for agent in [agents.launch(program, arguments, **variables) for arguments, variables in nodes]:
                assert agent.wait(LIMIT_S) == 0, agent.text

    return launch


def facts(out):
    return {int(file.name): json.loads(file.read_text()) for file in out.iterdir()}


def log(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_backend_is_listed_with_all_that_it_declares(good):
    listed = json.loads(good.run("-m", "rdzv_launcher.tools", "backends", "--json").stdout)
    (found,) = [backend for backend in listed["backends"] if backend["name"] == "file"]
    assert (found["distribution"], found["version"], found["entry_point"]) == ("rdzv-file", "0.1.0", "file = rdzv_file")
    assert found["capabilities"] == ["elastic"]
    assert {"fsync", "mode", "lock_timeout"} < {option["name"] for option in found["options"]}
    assert listed["failed"] == []


def test_rdzv_run_launches_it_by_name(launched, script, shared, out):
    options = ["--nnodes=2", f"--rdzv-endpoint={shared}", "--rdzv-id=job", "--rdzv-conf=mode=660", script(GLOO)]
    names = "--rdzv_backend=file", "--rdzv-backend=File"
    launched("rdzv-run", *(([name, *options], {"TOY_OUT": str(out)}) for name in names))
    assert {file.name: file.read_text() for file in out.iterdir()} == {"0": "3 of 2", "1": "3 of 2"}
    assert {oct(file.stat().st_mode)[-3:] for file in shared.iterdir()} == {"660"}


def test_torchrun_launches_it_by_prefixed_name(launched, script, shared, out, tmp_path):
    options = ["--rdzv-backend=rdzv-plugins.file", f"--rdzv-endpoint={shared}", "--rdzv-id=job", "--nnodes=2"]
    options += ["--nproc-per-node=2", script(PLAIN)]
    logs = [tmp_path / f"log{number}" for number in range(2)]
    launched("torchrun", *((options, {"TOY_OUT": str(out), "TOY_LOG": str(each)}) for each in logs))
    found = {rank: (f["WORLD_SIZE"], f["GROUP_RANK"], f["LOCAL_RANK"]) for rank, f in facts(out).items()}
    assert found == {rank: ("4", str(rank // 2), str(rank % 2)) for rank in range(4)}
    assert "job.rdzv" in {file.name for file in shared.iterdir()}
    hooks = [[entry["hook"] for entry in log(each)] for each in logs]
    assert hooks == [["before_join", "after_join", "shutdown"]] * 2


def test_resolve_hook_fills_in_what_was_not_given_and_another_adds_to_the_environment(launched, script, out):
    resolve = f"min_nodes=2 max_nodes=2 endpoint=127.0.0.1:{free_port()} node_rank="
    nodes = [([script(PLAIN)], {"TOY_OUT": str(out), "TOY_RESOLVE": f"{resolve}{rank}"}) for rank in range(2)]
    launched("rdzv-run", *nodes)
    assert {rank: fact["GROUP_RANK"] for rank, fact in facts(out).items()} == {0: "0", 1: "1"}
    assert {rank: fact["TOY_ENV"] for rank, fact in facts(out).items()} == {0: "0 of 2", 1: "1 of 2"}


@pytest.mark.thorough
def test_given_flags_win_over_the_resolve_hook_and_a_plugin_that_is_switched_off_has_none(good, script, out):
    flags = ["--node-rank=0", "--rdzv-endpoint=127.0.0.1:0", "--rdzv-id=mine", "--rdzv-backend=static", "--nnodes=1"]
    resolve = "node_rank=5 endpoint=10.0.0.1:1 run_id=theirs backend=toy max_nodes=9"
    result = good.rdzv_run(*flags, script(PLAIN), TOY_OUT=str(out), TOY_RESOLVE=resolve)
    assert result.returncode == 0, result.stderr
    assert [(fact["TORCHELASTIC_RUN_ID"], fact["TOY_ENV"]) for fact in facts(out).values()] == [("mine", "0 of 1")]
    result = good.rdzv_run("--rdzv-no-plugin=rdzv-toy-hooks", script(PLAIN), TOY_OUT=str(out), TOY_VETO="no")
    assert result.returncode == 0, result.stderr
    assert facts(out)[0]["TOY_ENV"] is None


VETO = {"TOY_VETO": "GPU 3 has fallen off the bus"}


@pytest.mark.parametrize(
    ("flags", "variables", "code", "message", "remedy"),
    [
        (["--rdzv-backend=file", "--rdzv-endpoint=/no/dir"], {}, 2, "'file' needs .* '/no/dir'", "--rdzv-endpoint"),
        ([], {"TOY_RESOLVE": "x"}, 69, "'toy-hooks' of rdzv-toy-hooks 0.7 .* ValueError", "--rdzv-no-plugin toy-hooks"),
        ([], VETO, 77, "GPU 3 has fallen off the bus", "Drain it."),
    ],
    ids=["wrong endpoint", "error in a hook", "veto"],
)
def test_what_a_plugin_refuses_ends_the_launch(good, tmp_path, flags, variables, code, message, remedy):
    result = good.rdzv_run(*flags, "never.py", TOY_LOG=str(tmp_path / "log"), **variables)
    said = [line for line in result.stderr.splitlines() if "s to import. RDZV_DISABLE_PLUGINS" not in line]  # if busy
    assert (result.returncode, len(said)) == (code, 2), result.stderr
    assert re.match(f"rdzv-run: error: .*{message}", said[0])
    assert remedy in said[1]
    if variables == VETO:
        assert [(entry["hook"], entry.get("end")) for entry in log(tmp_path / "log")] == [
            ("before_join", None),
            ("shutdown", "lost"),
        ]


@pytest.mark.parametrize(
    ("restarts", "end"), [(1, "done"), pytest.param(0, "failed", marks=pytest.mark.thorough)], ids=["done", "failed"]
)
def test_hooks_are_called_around_every_round_and_once_at_the_end(good, script, out, tmp_path, restarts, end):
    variables = {"TOY_OUT": str(out), "TOY_LOG": str(tmp_path / "log"), "TOY_RESOLVE": f"max_restarts={restarts}"}
    result = good.rdzv_run("--rdzv-id=job", script(FAILS_ONCE), **variables)
    assert result.returncode == (0 if end == "done" else 3), result.stderr
    entries = log(tmp_path / "log")
    assert [entry["hook"] for entry in entries] == [*["before_join", "after_join"] * (1 + restarts), "shutdown"]
    assert (entries[1]["rank"], entries[1]["world_size"]) == (0, 1)
    assert entries[-1]["end"] == end
    assert end == "done" or all(words in entries[-1]["reason"] for words in ("rank 0", "exit code 3"))


def test_check_asks_the_plugins_and_starts_nothing(good, script, shared, out, tmp_path):
    variables = VETO | {"TOY_LOG": str(tmp_path / "log"), "TOY_OUT": str(out), "TOY_RESOLVE": "run_id=resolved"}
    named = ("--rdzv-backend=file", f"--rdzv-endpoint={shared}")
    result = good.rdzv_run("--check", *named, script(PLAIN), **variables)
    assert result.returncode == 77, result.stderr
    for line in (
        "ok       arguments: run 'resolved': ",
        "skipped  endpoint: backend 'file' ",
        "FAILED   health: .*GPU 3 has fallen off the bus",
    ):
        assert re.search(f"^{line}", result.stdout, re.MULTILINE), result.stdout
    assert log(tmp_path / "log") == [{"hook": "before_join", "run_id": "resolved"}]
    assert list(shared.iterdir()) == list(out.iterdir()) == []
