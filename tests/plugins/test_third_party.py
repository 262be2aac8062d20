"""Packages of a stranger, really installed: a backend launched by name, and every optional hook."""

import json

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


def said(result):
    """The lines of stderr, but for one that only a busy machine makes the launcher write."""
    return [line for line in result.stderr.splitlines() if "s to import. RDZV_DISABLE_PLUGINS" not in line]


def log(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_backend_is_listed_with_all_that_it_declares(toy_env):
    listed = json.loads(toy_env.run("-m", "rdzv_launcher.tools", "backends", "--json").stdout)
    (toy,) = [backend for backend in listed["backends"] if backend["name"] == "toy"]
    assert (toy["distribution"], toy["version"], toy["entry_point"]) == ("rdzv-toy", "2.1", "toy = rdzv_toy")
    assert (toy["aliases"], toy["capabilities"]) == (["toy-file"], ["elastic"])
    assert [option["name"] for option in toy["options"]] == ["suffix", "mode"]
    assert listed["failed"] == []


def test_rdzv_run_launches_it_by_name(agents, script, shared, out):
    options = ["--nnodes=2", f"--rdzv-endpoint={shared}", "--rdzv-id=job", script(GLOO)]
    variables = {"TOY_OUT": str(out), "GLOO_SOCKET_IFNAME": "lo"}
    agents.start(*RDZV_RUN, "--rdzv_backend=toy", *options, **variables)
    agents.start(*RDZV_RUN, "--rdzv-backend=Toy_File", *options, **variables)
    results = agents.finish()
    assert [code for code, _ in results] == [0, 0], results
    assert {file.name: file.read_text() for file in out.iterdir()} == {"0": "3 of 2", "1": "3 of 2"}
    assert [file.name for file in shared.iterdir()] == ["job.state"]


def test_torchrun_launches_it_by_prefixed_name(agents, script, shared, out, tmp_path):
    options = ["--rdzv-backend=rdzv-plugins.toy", f"--rdzv-endpoint={shared}", "--rdzv-id=job", "--nnodes=2"]
    options += ["--nproc-per-node=2", "--rdzv-conf=suffix=blob", script(PLAIN)]
    for number in range(2):
        agents.start(*TORCHRUN, *options, TOY_OUT=str(out), TOY_LOG=str(tmp_path / f"log{number}"))
    results = agents.finish()
    assert [code for code, _ in results] == [0, 0], results
    assert {
        rank: (fact["WORLD_SIZE"], fact["GROUP_RANK"], fact["LOCAL_RANK"]) for rank, fact in facts(out).items()
    } == {
        0: ("4", "0", "0"),
        1: ("4", "0", "1"),
        2: ("4", "1", "0"),
        3: ("4", "1", "1"),
    }
    assert [file.name for file in shared.iterdir()] == ["job.blob"]
    hooks = [[entry["hook"] for entry in log(tmp_path / f"log{number}")] for number in range(2)]
    assert hooks == [["before_join", "after_join", "shutdown"]] * 2


@pytest.mark.thorough
def test_option_reaches_the_backend(toy_env, script, shared, out):
    options = [f"--rdzv-endpoint={shared}", "--rdzv-id=job", "--rdzv-conf=suffix=blob,mode=640"]
    result = toy_env.rdzv_run("--rdzv-backend=toy", *options, script(PLAIN), TOY_OUT=str(out))
    assert result.returncode == 0, result.stderr
    (file,) = shared.iterdir()
    assert (file.name, oct(file.stat().st_mode)[-3:]) == ("job.blob", "640")


def test_backends_own_check_of_the_endpoint_is_a_usage_error(toy_env):
    result = toy_env.rdzv_run("--rdzv-backend=toy", "--rdzv-endpoint=/no/such/dir", "never.py")
    assert result.returncode == 2
    assert said(result) == [
        "rdzv-run: error: backend 'toy' needs a directory, not '/no/such/dir'",
        "rdzv-run: Give --rdzv-endpoint=DIRECTORY.",
    ]


def test_resolve_hook_fills_in_what_was_not_given_and_another_adds_to_the_environment(agents, script, out):
    endpoint = f"127.0.0.1:{free_port()}"
    for rank in range(2):
        resolve = f"min_nodes=2 max_nodes=2 node_rank={rank} endpoint={endpoint}"
        agents.start(*RDZV_RUN, script(PLAIN), TOY_OUT=str(out), TOY_RESOLVE=resolve)
    results = agents.finish()
    assert [code for code, _ in results] == [0, 0], results
    assert {rank: fact["GROUP_RANK"] for rank, fact in facts(out).items()} == {0: "0", 1: "1"}
    assert {rank: fact["TOY_ENV"] for rank, fact in facts(out).items()} == {0: "0 of 2", 1: "1 of 2"}


@pytest.mark.thorough
def test_given_flags_win_over_the_resolve_hook(toy_env, script, out):
    flags = ["--node-rank=0", "--rdzv-endpoint=127.0.0.1:0", "--rdzv-id=mine", "--rdzv-backend=static", "--nnodes=1"]
    resolve = "node_rank=5 endpoint=10.0.0.1:1 run_id=theirs backend=toy max_nodes=9"
    result = toy_env.rdzv_run(*flags, script(PLAIN), TOY_OUT=str(out), TOY_RESOLVE=resolve)
    assert result.returncode == 0, result.stderr
    assert {rank: fact["TORCHELASTIC_RUN_ID"] for rank, fact in facts(out).items()} == {0: "mine"}


def test_error_in_a_hook_is_put_down_to_the_plugin(toy_env):
    result = toy_env.rdzv_run("never.py", TOY_RESOLVE="no-equals-sign")
    assert result.returncode == 69
    message, remedy = said(result)
    assert "plug-in 'toy-hooks' of rdzv-toy-hooks 0.7" in message
    assert "raised ValueError in rdzv_resolve_request" in message
    assert "--rdzv-no-plugin toy-hooks" in remedy


def test_veto_keeps_the_node_out_with_its_reason(toy_env, tmp_path):
    variables = {"TOY_VETO": "GPU 3 has fallen off the bus", "TOY_LOG": str(tmp_path / "log")}
    result = toy_env.rdzv_run("never.py", **variables)
    assert result.returncode == 77
    assert said(result) == [
        "rdzv-run: error: this node is not healthy: GPU 3 has fallen off the bus",
        "rdzv-run: Drain it.",
    ]
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
    assert "rank 0" in last["reason"]
    assert "exit code 3" in last["reason"]


def test_check_asks_the_plugins_and_starts_nothing(toy_env, script, shared, out, tmp_path):
    variables = {"TOY_VETO": "GPU 3 has fallen off the bus", "TOY_LOG": str(tmp_path / "log"), "TOY_OUT": str(out)}
    toy = ("--rdzv-backend=toy", f"--rdzv-endpoint={shared}")
    result = toy_env.rdzv_run("--check", *toy, script(PLAIN), TOY_RESOLVE="run_id=resolved", **variables)
    assert result.returncode == 77, result.stderr
    lines = result.stdout.splitlines()
    assert any(line.startswith("ok       arguments: run 'resolved': ") for line in lines)
    assert "skipped  endpoint: backend 'toy' does not say what it finds there" in lines
    assert lines[-2:] == [
        "FAILED   health: this node is not healthy: GPU 3 has fallen off the bus. Drain it.",
        "The job would not start here: it would end with exit code 77 (health).",
    ]
    assert log(tmp_path / "log") == [{"hook": "before_join", "run_id": "resolved"}]
    assert list(shared.iterdir()) == list(out.iterdir()) == []


@pytest.mark.thorough
def test_switched_off_plugin_has_no_hooks(toy_env, script, out):
    result = toy_env.rdzv_run("--rdzv-no-plugin=rdzv-toy-hooks", script(PLAIN), TOY_OUT=str(out), TOY_VETO="no")
    assert result.returncode == 0, result.stderr
    assert facts(out)[0]["TOY_ENV"] is None
