"""A mistake on the command line is answered before torch is imported: real commands, which end when they import it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from kits.launcher.harness import BIN, Cluster

from rdzv_launcher.tools import cli as tools

IMPORTED = 99
WATCH = f"""
import os, sys

def watch(event, arguments):
    if event == "import" and arguments[0].partition(".")[0] in ("torch", "numpy"):
        os.write(2, b"its C++ part logs at " + os.environ.get("TORCH_CPP_LOG_LEVEL", "its own").encode())
        os._exit({IMPORTED})

sys.addaudithook(watch)
"""
LATER_TORCH = """
import sys
import torch.distributed.run as run
from rdzv_launcher.run.cli import main

before = run.get_args_parser

def get_args_parser():
    parser = before()
    parser.add_argument("--exit-barrier-timeout", "--exit_barrier_timeout", type=float, default=300)
    parser.add_argument("--of-a-later-torch", type=int, default="7")
    return parser

run.get_args_parser = get_args_parser
sys.exit(main())
"""


def ended(command: list[str], directory: Path, watched: bool = True, **variables: str) -> tuple[int, str]:
    """Exit code and output of a command."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PET_", "RDZV_", "TORCH"))}
    if watched:
        (directory / "watch").mkdir(exist_ok=True)
        (directory / "watch" / "sitecustomize.py").write_text(WATCH)
        variables["PYTHONPATH"] = str(directory / "watch")
    done = subprocess.run(
        command,
        cwd=directory,
        env=kept | variables,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
    )
    assert "Traceback" not in done.stdout, done.stdout
    return done.returncode, done.stdout


def test_a_command_is_answered_without_torch(tmp_path: Path) -> None:
    for code, named, *arguments in (
        (0, "usage: rdzv-run ", "--help"),
        (0, "native part: ", "--version"),
        (2, "--bogus", "--bogus"),
        (2, "nothing.py", "nothing.py"),
        (2, "nobody", "--rdzv-backend=nobody", "-"),
        (2, "'etcd'", "--rdzv-backend=etcd", "--rdzv-conf=nothing=1", "--rdzv-endpoint=h:1", "--rdzv-id=a", "-"),
    ):
        found, text = ended([str(BIN / "rdzv-run"), *arguments], tmp_path)
        assert (found, named in text) == (code, True), text


def test_a_backend_of_torchs_imports_it(tmp_path: Path) -> None:
    """Else the test above would show nothing. The workers have torch's own level of its log."""
    command = [str(BIN / "rdzv-run"), "--standalone", "--rdzv-backend=c10d", "--no-python", "/bin/sh", "-c"]
    command.append("echo level ${TORCH_CPP_LOG_LEVEL-unset}")
    for variables, level in (({}, "FATAL"), ({"RDZV_DEBUG": "1"}, "its own")):
        code, text = ended(command, tmp_path, **variables)
        assert code == IMPORTED
        assert text.endswith(f"logs at {level}")
    code, text = ended(command, tmp_path, watched=False)
    assert (code, "level unset\n" in text) == (0, True), text


REFUSED: list[tuple[str, list[str], dict[str, str]]] = [
    ("--preload", ["--preload=no-module"], {}),
    ("--preload", ["--preload=csv", "--no-python", "/bin/true"], {}),
    ("--hang-timeout", ["--hang-timeout=0.5"], {}),
    ("RDZV_HANG_TIMEOUT", [], {"RDZV_HANG_TIMEOUT": "-1"}),
    ("hang_timeout", ["--rdzv-conf=hang_timeout=0.1"], {}),
    ("--health-port", ["--health-port=65536"], {}),
    ("TORCHELASTIC_HEALTH_CHECK_PORT", [], {"TORCHELASTIC_HEALTH_CHECK_PORT": "http"}),
    ("--preempt-grace", ["--preempt-grace=0.5"], {}),
    ("--notice-signals", ["--notice-signals=USR1"], {}),
    ("--notice-signals", ["--preempt-grace=9", "--notice-signals=ALRM"], {}),
    ("NONE", ["--rdzv-conf=preempt_grace=9,notice_signals=TERM:NONE"], {}),
    ("store", ["--rdzv-conf=store=native"], {}),
    ("store_threads", ["--rdzv-conf=store=parallel,store_threads=65"], {}),
    ("PET_MAX_RESTARTS", [], {"PET_MAX_RESTARTS": "x"}),
    ("TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT", [], {"TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT": "0"}),
    ("--rdzv-id", ["--rdzv-backend=etcd", "--rdzv-endpoint=h:1"], {}),
    ("RDZV_ETCD_PASSWORD", ["--rdzv-backend=etcd", "--rdzv-endpoint=h:1", "--rdzv-id=a"], {"RDZV_ETCD_USER": "u"}),
]
"""What is named, the flags, and the variables."""


def test_what_cannot_be_is_refused_by_name(cluster: Cluster) -> None:
    agents = [cluster.start(["rdzv-run", *flags, cluster.script("report.py")], **env) for _, flags, env in REFUSED]
    for (named, *_), agent in zip(REFUSED, agents, strict=True):
        assert agent.wait() == 2, agent.text
        assert named in agent.text.partition("rdzv-run: error: ")[2]


@pytest.mark.parametrize("words", [[], ["statsu"]])
def test_rdzv_without_a_command_names_those_that_there_are(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        sys.exit(tools.main(words))
    assert "status" in capsys.readouterr().err


@pytest.mark.thorough
def test_flags_that_a_later_torch_has(tmp_path: Path) -> None:
    """One that we do not know is called that; one of ours stays ours."""
    (tmp_path / "later.py").write_text(LATER_TORCH)
    code, text = ended([sys.executable, "later.py", "--of-a-later-torch=3", "t.py"], tmp_path, watched=False)
    assert (code, "--of-a-later-torch" in text) == (2, True), text
    command = [sys.executable, "later.py", "--exit-barrier-timeout=5", "--no-python", "/bin/echo", "it runs"]
    code, text = ended(command, tmp_path, watched=False)
    assert (code, "it runs\n" in text) == (0, True), text
