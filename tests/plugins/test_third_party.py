"""Packages of a stranger, really installed: a backend launched by name, and every optional hook."""

import json
import re

import pytest

from rdzv_plugins.testing import free_port

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
RDZV_RUN = ("-m", "rdzv_launcher.run.cli")
TORCHRUN = ("-m", "torch.distributed.run")
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
    """The directory that toy nodes share."""
    path = tmp_path / "shared"
    path.mkdir()
    return path


@pytest.fixture
def out(tmp_path):
    """Where workers write, by rank."""
    path = tmp_path / "out"
    path.mkdir()
    return path


def facts(out):
    return {int(file.name): json.loads(file.read_text()) for file in out.iterdir()}


def log(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def ended_well(agents):
    for agent in agents:
        assert agent.wait(LIMIT_S) == 0, agent.text


def test_backend_is_listed_with_all_that_it_declares(toy_env):
    listed = json.loads(toy_env.run("-m", "rdzv_launcher.tools", "backends", "--json").stdout)
    (toy,) = [backend for backend in listed["backends"] if backend["name"] == "toy"]
    assert (toy["distribution"], toy["version"], toy["entry_point"]) == ("rdzv-toy", "2.1", "toy = rdzv_toy")
    assert (toy["aliases"], toy["capabilities"]) == (["toy-file"], ["elastic"])
    assert [option["name"] for option in toy["options"]] == ["suffix", "mode"]
    assert listed["failed"] == []


def test_rdzv_run_launches_it_by_name(start, script, shared, out):
    options = ["--nnodes=2", f"--rdzv-endpoint={shared}", "--rdzv-id=job", "--rdzv-conf=mode=640", script(GLOO)]
    variables = {"TOY_OUT": str(out), "GLOO_SOCKET_IFNAME": "lo"}
    names = "--rdzv_backend=toy", "--rdzv-backend=Toy_File"
    ended_well([start(*RDZV_RUN, name, *options, **variables) for name in names])
    assert {file.name: file.read_text() for file in out.iterdir()} == {"0": "3 of 2", "1": "3 of 2"}
    assert {file.name: oct(file.stat().st_mode)[-3:] for file in shared.iterdir()} == {"job.state": "640"}


def test_torchrun_launches_it_by_prefixed_name(start, script, shared, out, tmp_path):
    options = ["--rdzv-backend=rdzv-plugins.toy", f"--rdzv-endpoint={shared}", "--rdzv-id=job", "--nnodes=2"]
    options += ["--nproc-per-node=2", "--rdzv-conf=suffix=blob", script(PLAIN)]
    logs = [tmp_path / f"log{number}" for number in range(2)]
    ended_well([start(*TORCHRUN, *options, TOY_OUT=str(out), TOY_LOG=str(each)) for each in logs])
    found = {rank: (f["WORLD_SIZE"], f["GROUP_RANK"], f["LOCAL_RANK"]) for rank, f in facts(out).items()}
    assert found == {rank: ("4", str(rank // 2), str(rank % 2)) for rank in range(4)}
    assert [file.name for file in shared.iterdir()] == ["job.blob"]
    hooks = [[entry["hook"] for entry in log(each)] for each in logs]
    assert hooks == [["before_join", "after_join", "shutdown"]] * 2


def test_resolve_hook_fills_in_what_was_not_given_and_another_adds_to_the_environment(start, script, out):
    endpoint = f"127.0.0.1:{free_port()}"
    resolve = f"min_nodes=2 max_nodes=2 endpoint={endpoint} node_rank="
    variables = [{"TOY_OUT": str(out), "TOY_RESOLVE": f"{resolve}{rank}"} for rank in range(2)]
    ended_well([start(*RDZV_RUN, script(PLAIN), **each) for each in variables])
    assert {rank: fact["GROUP_RANK"] for rank, fact in facts(out).items()} == {0: "0", 1: "1"}
    assert {rank: fact["TOY_ENV"] for rank, fact in facts(out).items()} == {0: "0 of 2", 1: "1 of 2"}


@pytest.mark.thorough
def test_given_flags_win_over_the_resolve_hook_and_a_plugin_that_is_switched_off_has_none(toy_env, script, out):
    flags = ["--node-rank=0", "--rdzv-endpoint=127.0.0.1:0", "--rdzv-id=mine", "--rdzv-backend=static", "--nnodes=1"]
    resolve = "node_rank=5 endpoint=10.0.0.1:1 run_id=theirs backend=toy max_nodes=9"
    result = toy_env.rdzv_run(*flags, script(PLAIN), TOY_OUT=str(out), TOY_RESOLVE=resolve)
    assert result.returncode == 0, result.stderr
    assert [(fact["TORCHELASTIC_RUN_ID"], fact["TOY_ENV"]) for fact in facts(out).values()] == [("mine", "0 of 1")]
    result = toy_env.rdzv_run("--rdzv-no-plugin=rdzv-toy-hooks", script(PLAIN), TOY_OUT=str(out), TOY_VETO="no")
    assert result.returncode == 0, result.stderr
    assert facts(out)[0]["TOY_ENV"] is None


VETO = {"TOY_VETO": "GPU 3 has fallen off the bus"}


@pytest.mark.parametrize(
    ("flags", "variables", "code", "message", "remedy"),
    [
        (["--rdzv-backend=toy", "--rdzv-endpoint=/no/dir"], {}, 2, "'toy' needs .* '/no/dir'", "--rdzv-endpoint"),
        ([], {"TOY_RESOLVE": "x"}, 69, "'toy-hooks' of rdzv-toy-hooks 0.7 .* ValueError", "--rdzv-no-plugin toy-hooks"),
        ([], VETO, 77, "GPU 3 has fallen off the bus", "Drain it."),
    ],
    ids=["wrong endpoint", "error in a hook", "veto"],
)
def test_what_a_plugin_refuses_ends_the_launch(toy_env, tmp_path, flags, variables, code, message, remedy):
    result = toy_env.rdzv_run(*flags, "never.py", TOY_LOG=str(tmp_path / "log"), **variables)
    said = [line for line in result.stderr.splitlines() if "s to import. RDZV_DISABLE_PLUGINS" not in line]  # if busy
    assert (result.returncode, len(said)) == (code, 2), result.stderr
    assert re.match(f"rdzv-run: error: .*{message}", said[0])
    assert remedy in said[1]
    if variables == VETO:
        assert [entry["hook"] for entry in log(tmp_path / "log")] == ["before_join", "shutdown"]
        assert log(tmp_path / "log")[-1]["end"] == "lost"


def test_hooks_are_called_around_every_round_and_once_at_the_end(toy_env, script, out, tmp_path):
    variables = {"TOY_OUT": str(out), "TOY_LOG": str(tmp_path / "log"), "TOY_RESOLVE": "max_restarts=1"}
    result = toy_env.rdzv_run("--rdzv-id=job", script(FAILS_ONCE), **variables)
    assert result.returncode == 0, result.stderr
    entries = log(tmp_path / "log")
    round_ = ["before_join", "after_join"]
    assert [entry["hook"] for entry in entries] == [*round_, *round_, "shutdown"]
    assert (entries[1]["rank"], entries[1]["world_size"]) == (0, 1)
    assert entries[-1]["end"] == "done"


@pytest.mark.thorough
def test_shutdown_hook_hears_of_a_failure(toy_env, script, out, tmp_path):
    result = toy_env.rdzv_run(script(FAILS_ONCE), TOY_OUT=str(out), TOY_LOG=str(tmp_path / "log"))
    assert result.returncode == 3
    last = log(tmp_path / "log")[-1]
    assert (last["hook"], last["end"]) == ("shutdown", "failed")
    assert all(words in last["reason"] for words in ("rank 0", "exit code 3"))


def test_check_asks_the_plugins_and_starts_nothing(toy_env, script, shared, out, tmp_path):
    variables = VETO | {"TOY_LOG": str(tmp_path / "log"), "TOY_OUT": str(out), "TOY_RESOLVE": "run_id=resolved"}
    toy = ("--rdzv-backend=toy", f"--rdzv-endpoint={shared}")
    result = toy_env.rdzv_run("--check", *toy, script(PLAIN), **variables)
    assert result.returncode == 77, result.stderr
    for line in (
        "ok       arguments: run 'resolved': ",
        "skipped  endpoint: backend 'toy' ",
        "FAILED   health: .*GPU 3 has fallen off the bus",
    ):
        assert re.search(f"^{line}", result.stdout, re.MULTILINE), result.stdout
    assert log(tmp_path / "log") == [{"hook": "before_join", "run_id": "resolved"}]
    assert list(shared.iterdir()) == list(out.iterdir()) == []
