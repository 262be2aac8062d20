"""The commands as they are started: what they answer without torch, refuse by name, and leave to the user's project."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from kits.launcher.harness import BIN

from rdzv_launcher.tools import cli as tools

RUN, TOOLS = [str(BIN / "rdzv-run")], [str(BIN / "rdzv")]
RUN_MODULE, TOOLS_MODULE = [sys.executable, "-m", "rdzv_launcher"], [sys.executable, "-m", "rdzv_launcher.tools"]
IMPORTED = 99
WATCH = f"""
import os, sys

def watch(event, arguments):
    if event == "import" and arguments[0].partition(".")[0] in ("torch", "numpy"):
        os.write(2, b"its C++ part logs at " + os.environ.get("TORCH_CPP_LOG_LEVEL", "its own").encode())
        os._exit({IMPORTED})

sys.addaudithook(watch)
"""


def ended(command: list[str], directory: Path, watched: bool = True, **variables: str) -> tuple[int, str]:
    """Exit code and output of a command; it ends when it imports torch, if that is ``watched``."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PET_", "RDZV_", "TORCH"))}
    if watched:
        (directory / "watch").mkdir(exist_ok=True)
        (directory / "watch" / "sitecustomize.py").write_text(WATCH)
        variables["PYTHONPATH"] = str(directory / "watch")
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
    done = subprocess.run(command, cwd=directory, env=kept | variables, text=True, timeout=120, **streams)
    assert "Traceback" not in done.stdout, done.stdout
    return done.returncode, done.stdout


def test_a_command_is_answered_without_torch(tmp_path: Path) -> None:
    for code, named, *arguments in (
        (0, "usage: rdzv-run ", "--help"),
        (2, "--bogus", "--bogus"),
        (2, "nothing.py", "nothing.py"),
        (2, "'etcd'", "--rdzv-backend=etcd", "--rdzv-conf=nothing=1", "--rdzv-endpoint=h:1", "--rdzv-id=a", "-"),
    ):
        found, text = ended([*RUN, *arguments], tmp_path)
        assert (found, named in text) == (code, True), text


@pytest.mark.thorough
def test_a_backend_of_torchs_imports_it(tmp_path: Path) -> None:
    """Else the test above would show nothing. The workers have torch's own level of its log."""
    command = [*RUN, "--standalone", "--rdzv-backend=c10d", "--no-python", "/bin/sh", "-c"]
    command.append("echo level ${TORCH_CPP_LOG_LEVEL-unset}")
    for variables, level in (({}, "FATAL"), ({"RDZV_DEBUG": "1"}, "its own")):
        code, text = ended(command, tmp_path, **variables)
        assert code == IMPORTED
        assert text.endswith(f"logs at {level}")
    code, text = ended(command, tmp_path, watched=False)
    assert (code, "level unset\n" in text) == (0, True), text


@pytest.mark.parametrize("words", [[], ["statsu"]])
def test_rdzv_without_a_command_names_those_that_there_are(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        sys.exit(tools.main(words))
    assert "status" in capsys.readouterr().err


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


@pytest.mark.thorough
def test_flags_that_a_later_torch_has(tmp_path: Path) -> None:
    """One that we do not know is called that; one of ours stays ours."""
    (tmp_path / "later.py").write_text(LATER_TORCH)
    code, text = ended([sys.executable, "later.py", "--of-a-later-torch=3", "t.py"], tmp_path, watched=False)
    assert (code, "--of-a-later-torch" in text) == (2, True), text
    command = [sys.executable, "later.py", "--exit-barrier-timeout=5", "--no-python", "/bin/echo", "it runs"]
    code, text = ended(command, tmp_path, watched=False)
    assert (code, "it runs\n" in text) == (0, True), text


def test_version_and_help(tmp_path: Path) -> None:
    """A script keeps its own."""
    ours, torchs = map(importlib.metadata.version, ("rdzv-plugins", "torch"))
    expected = f"rdzv-plugins {ours}, torch {torchs}, Python {platform.python_version()}"
    for command in (RUN, TOOLS_MODULE):
        code, text = ended([*command, "--version"], tmp_path)
        assert (code, text.startswith(expected)) == (0, True), text
    code, text = ended([*RUN_MODULE, "--help"], tmp_path, COLUMNS="200")
    assert (code, text.startswith("usage: rdzv-run ")) == (0, True), text
    (tmp_path / "train.py").write_text("import sys; print('mine', sys.argv[1:])")
    assert ended([*RUN, "train.py", "--version"], tmp_path) == (0, "mine ['--version']\n")


@pytest.mark.thorough
def test_a_users_project_may_call_its_modules_as_it_likes(tmp_path: Path) -> None:
    """None of ours is in its way, nor are they in ours."""
    names = ("launcher", "rdzv", "tools", "native", "run", "agent", "console", "signals", "status")
    for name in names:
        (tmp_path / f"{name}.py").write_text("WHOSE = 'the user'\n")
    (tmp_path / "train.py").write_text(
        f"import importlib, json\nprint(json.dumps({{n: importlib.import_module(n).WHOSE for n in {names}}}))\n"
    )
    for command in (RUN, RUN_MODULE):
        code, text = ended([*command, "train.py"], tmp_path, watched=False, PYTHONPATH=".")
        assert (code, json.loads(text.splitlines()[-1])) == (0, dict.fromkeys(names, "the user"))
    for command in (TOOLS, TOOLS_MODULE):
        code, text = ended([*command, "backends"], tmp_path, watched=False, PYTHONPATH=".")
        assert (code, "parallel" in text) == (0, True), text


def limited(directory: Path, limits: str, *arguments: str) -> tuple[int, str]:
    """A launch below these limits of open files; its workers say theirs."""
    (directory / "train.py").write_text(
        "import resource; print('may open', resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    command = f"{limits} && exec {' '.join([*RUN, *arguments])} train.py"
    return ended(["bash", "-c", command], directory, watched=False)


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
