"""The scripts of --print-completion, in the shells that are installed."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from rdzv_launcher.run.parser import build_parser, parse_arguments
from rdzv_launcher.tools import cli
from rdzv_plugins.errors import MissingDependency


def script_of(capsys, program, shell):
    """As the command prints it."""
    with pytest.raises(SystemExit) as end:
        (parse_arguments if program == "rdzv-run" else cli.main)([f"--print-completion={shell}"])
    assert end.value.code == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("rdzv-run --start-m", ["--start-method"]),
        ("rdzv-run --start-method ", ["spawn", "fork", "forkserver"]),
        ("rdzv-run --role --tee --standalone --nnod", ["--nnodes"]),
        ("rdzv-run --preflight --nnod", ["--nnodes"]),
        ("rdzv-run --nnodes ", []),
        ("rdzv be", ["bench"]),
        ("rdzv bench rend", ["rendezvous"]),
        ("rdzv doctor --js", ["--json"]),
        ("rdzv backends --js", ["--json"]),
    ],
)
def test_bash_completes(words, expected, capsys):
    *_, last = words = words.split(" ")
    program = words[0]
    lines = [
        script_of(capsys, program, "bash"),
        f"COMP_WORDS=({' '.join(words[:-1])} {last or chr(39) * 2})",
        f"COMP_CWORD={len(words) - 1}",
        f"_shtab_{program.replace('-', '_')}",
        'printf "%s\\n" "${COMPREPLY[@]}"',
    ]
    found = subprocess.run(["bash", "-c", "\n".join(lines)], capture_output=True, text=True, check=True)
    assert (found.stdout.split(), found.stderr) == (expected, "")


@pytest.mark.parametrize("program", ["rdzv-run", "rdzv"])
@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
def test_every_shell_reads_its_script_which_has_every_flag(shell, program, capsys):
    script = script_of(capsys, program, shell)
    if program == "rdzv-run" and shell != "tcsh":
        flags = [each.option_strings[-1] for each in build_parser()._actions if each.option_strings]
        assert [flag for flag in flags if "_" not in flag and flag not in script] == []
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    before = {"zsh": "compdef() { :; }\n"}
    subprocess.run([shell, "-f"], input=before.get(shell, "") + script, text=True, check=True)


def test_without_shtab_it_ends_with_the_code_of_something_missing(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "shtab", None)
    with pytest.raises(SystemExit) as end:
        cli.main(["--print-completion=bash"])
    assert (end.value.code, capsys.readouterr().out) == (MissingDependency.exit_code, "")
