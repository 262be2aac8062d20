"""The commands as they are started: what they answer without torch, refuse by name, and leave to the user's project."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch.distributed.run as torch_run
from kits.launcher.elastic_kit import Job, Meeting, in_one_round
from kits.launcher.harness import BIN, AgentProcess, Cluster, error_of

from rdzv_launcher.run.cli import main
from rdzv_launcher.run.parser import parse_arguments
from rdzv_launcher.tools import cli as tools

RUN = [str(BIN / "rdzv-run")]
RUN_MODULE, TOOLS_MODULE = [sys.executable, "-m", "rdzv_launcher"], [sys.executable, "-m", "rdzv_launcher.tools"]
IMPORTED = 99
WATCH = f"""
import os, sys

def watch(event, arguments):
    if event == "import" and arguments[0].partition(".")[0] in ("torch", "numpy") and "RANK" not in os.environ:
        os.write(2, b"its C++ part logs at " + os.environ.get("TORCH_CPP_LOG_LEVEL", "its own").encode())
        os._exit({IMPORTED})

sys.addaudithook(watch)
"""


@pytest.fixture
def watched(tmp_path: Path) -> dict[str, str]:
    """Variables of a command that ends when it imports torch or numpy. Its workers may."""
    place = tmp_path / "watch"
    place.mkdir()
    (place / "sitecustomize.py").write_text(WATCH)
    return {"PYTHONPATH": str(place)}


def ended(command: list[str], directory: Path, **variables: str) -> tuple[int, str]:
    """Exit code and output of a command."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PET_", "RDZV_", "TORCH"))}
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run(command, cwd=directory, env=kept | variables, text=True, timeout=120, **streams)
    assert "Traceback" not in done.stdout, done.stdout
    return done.returncode, done.stdout


def test_a_command_is_answered_without_torch(tmp_path: Path, watched: dict[str, str]) -> None:
    """A script keeps its own ``--version``."""
    (tmp_path / "train.py").write_text("import sys; print('mine', sys.argv[1:])")
    ours, torchs = map(importlib.metadata.version, ("rdzv-plugins", "torch"))
    version = f"rdzv-plugins {ours}, torch {torchs}, Python {platform.python_version()}"
    for code, named, *command in (
        (0, "usage: rdzv-run ", *RUN_MODULE, "--help"),
        (0, version, *RUN, "--version"),
        (0, version, *TOOLS_MODULE, "--version"),
        (0, "mine ['--version']\n", *RUN, "train.py", "--version"),
        (2, "'etcd'", *RUN, "--rdzv-backend=etcd", "--rdzv-conf=nothing=1", "--rdzv-endpoint=h:1", "--rdzv-id=a", "-"),
    ):
        found, text = ended(command, tmp_path, **watched)
        assert (found, named in text) == (code, True), text


@pytest.mark.thorough
def test_a_backend_of_torchs_imports_it(tmp_path: Path, watched: dict[str, str]) -> None:
    """Else these tests would show nothing. The workers have torch's own level of its log."""
    command = [*RUN, "--standalone", "--rdzv-backend=c10d", "--no-python", "/bin/sh", "-c"]
    command.append("echo level ${TORCH_CPP_LOG_LEVEL-unset}")
    for variables, level in (({}, "FATAL"), ({"RDZV_DEBUG": "1"}, "its own")):
        code, text = ended(command, tmp_path, **watched, **variables)
        assert code == IMPORTED
        assert text.endswith(f"logs at {level}")
    code, text = ended(command, tmp_path)
    assert (code, "level unset\n" in text) == (0, True), text


def test_no_agent_imports_torch(meeting: Meeting, watched: dict[str, str]) -> None:
    """A crash, a restart, the loss of rank 0's node, and with it of the workers' store; and the end, well or not."""
    options = ["--tee=3", "--redirects=3", f"--log-dir={meeting.directory}/logs"]
    fails = meeting.run("plain.py", "fail", 4, nproc=2, restarts=1, options=options, **watched)
    meeting.serve()
    job = Job(meeting, "1:2", script="says.py", conf="last_call_timeout=80")
    first, second = job.node(0, **watched), job.node(1, **watched)
    in_one_round(first, second)
    job.kill_node(first)
    in_one_round(second)
    job.finish(second)
    assert fails.wait() == 4, fails.text
    assert "restart 1 of 1" in fails.text


@pytest.mark.parametrize("words", [[], ["statsu"]])
def test_rdzv_without_a_command_names_those_that_there_are(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        sys.exit(tools.main(words))
    assert "status" in capsys.readouterr().err


def test_a_flag_that_a_later_torch_has_is_called_that(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One of ours stays ours."""
    before = torch_run.get_args_parser

    def later() -> argparse.ArgumentParser:
        parser = before()
        parser.add_argument("--exit-barrier-timeout", "--exit_barrier_timeout", type=float, default=300)
        parser.add_argument("--of-a-later-torch", type=int, default="7")
        return parser

    monkeypatch.setattr(torch_run, "get_args_parser", later)
    assert parse_arguments(["--exit-barrier-timeout=5", "t.py"]).exit_barrier_timeout == 5
    assert main(["--of-a-later-torch=3", "t.py"]) == 2
    assert "torch" in capsys.readouterr().err.replace("--of-a-later-torch", "")


def limited(directory: Path, limits: str, *arguments: str) -> tuple[int, str]:
    """A launch below these limits of open files; its workers say theirs."""
    (directory / "train.py").write_text(
        "import resource; print('may open', resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    command = f"{limits} && exec {' '.join([*RUN, *arguments])} train.py"
    return ended(["bash", "-c", command], directory)


def test_a_limit_of_open_files_is_raised_as_far_as_it_has_to_be_or_refused(tmp_path: Path) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    code, text = limited(tmp_path, "ulimit -n 24", "--standalone")
    assert (code, "ulimit -n" in text, "may open (" in text) == (71, True, False), text
    code, text = limited(tmp_path, "ulimit -S -n 24", "--standalone")
    assert (code, f", {hard})" in text) == (0, True), text
    assert 40 < int(text.partition("(")[2].partition(",")[0]) < 100


@pytest.mark.thorough
def test_the_limit_of_open_files_that_it_asks_for_is_enough(tmp_path: Path) -> None:
    job = ["--rdzv-backend=tiered", "--nproc-per-node=4"]
    needed = limited(tmp_path, "ulimit -n 30", *job)[1].partition("needs up to ")[2].partition(" ")[0]
    code, text = limited(tmp_path, f"ulimit -n {needed}", *job, "-r3", "-t3", "--log-dir=logs")
    assert (code, text.count("may open")) == (0, 4), text


@pytest.mark.thorough
@pytest.mark.parametrize("command", ["rdzv-run --rdzv-backend=", "torchrun --rdzv-backend=rdzv-plugins."])
def test_one_node_needs_no_endpoint(cluster: Cluster, command: str) -> None:
    for backend in ("static --rdzv-conf=rank=0", "c10d --rdzv-conf=store_type=FILE"):
        agent = cluster.start([*f"{command}{backend}".split(), "--no-python", "/bin/echo", "it runs"])
        assert agent.wait() == 0, agent.text
        assert "it runs" in agent.text


MAIN = """
import logging, os, signal
from rdzv_launcher.run.cli import main
names = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT]
logs = [logging.getLogger(name) for name in ('rdzv_plugins', 'rdzv_launcher')]
def logging_now(): return [(list(log.handlers), log.level, log.propagate) for log in logs]
def state(): return [signal.getsignal(name) for name in names], logging_now(), dict(os.environ)
signal.signal(signal.SIGHUP, lambda *_: None)
before = state()
codes = [main(['--nproc-per-node=2', '--no-python', '/bin/sh', '-c', f'exit {code}']) for code in (0, 3)]
print('codes', codes, 'unchanged', state() == before)
"""


@pytest.mark.thorough
def test_main_gives_back_what_it_has_changed(tmp_path: Path) -> None:
    code, text = ended([sys.executable, "-c", MAIN], tmp_path)
    assert (code, "codes [0, 3] unchanged True" in text) == (0, True), text


def in_namespaces(cluster: Cluster, prepared: str, *arguments: str) -> AgentProcess:
    """A launch by root in a network and a mount namespace of its own, after the shell commands ``prepared``."""
    namespaces = ["/usr/bin/unshare", "--net", "--mount"]
    if os.getuid() or subprocess.run([*namespaces, "ip", "link", "set", "lo", "up"], capture_output=True).returncode:
        pytest.skip("needs to be root, and allowed to make namespaces")
    return cluster.start([*namespaces, "sh", "-c", f'{prepared}\nexec {BIN}/rdzv-run "$@"', "sh", *arguments])


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("backend", "endpoint"),
    [("tiered", "localhost:29707"), ("parallel", "localhost:29707,localhost:29708,localhost:29709")],
)
def test_localhost_may_be_of_ipv6_alone(cluster: Cluster, backend: str, endpoint: str) -> None:
    prepared = "ip link set lo up"
    for name, text in (("hosts", "::1 localhost"), ("nsswitch.conf", "hosts: files")):
        (cluster.directory / name).write_text(f"{text}\n")
        prepared += f"; mount --bind {cluster.directory}/{name} /etc/{name}"
    nodes = endpoint.count(",") + 1
    prepared += f'\nfor each in $(seq 2 {nodes}); do {BIN}/rdzv-run "$@" & done'
    flags = [f"--rdzv-backend={backend}", f"--rdzv-endpoint={endpoint}", f"--nnodes={nodes}"]
    agent = in_namespaces(cluster, prepared, *flags, "--rdzv-id=ipv6", "--no-python", "/bin/echo", "it runs")
    assert agent.wait() == 0, agent.text
    assert "it runs" in agent.text


@pytest.mark.thorough
def test_without_a_loopback_it_is_named_at_once(cluster: Cluster) -> None:
    assert "127.0.0.1" in error_of(in_namespaces(cluster, ":", "--rdzv-backend=tiered", "--no-python", "/bin/true"), 68)
