"""A mistake on the command line is answered before torch is imported: real commands, which end when they import it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from rdzv_launcher.tools import cli as tools
from rdzv_launcher.tools.job import run_of
from rdzv_plugins.errors import EndpointUnreachable

RDZV_RUN = str(Path(sys.executable).parent / "rdzv-run")
IMPORTED = 99
WATCH = f"""
import os, sys

def watch(event, arguments):
    if event == "import" and arguments[0].partition(".")[0] in ("torch", "numpy"):
        level = os.environ.get("TORCH_CPP_LOG_LEVEL", "its own")
        os.write(2, f"imported {{arguments[0]}}, whose C++ part logs at {{level}}".encode())
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
LOOKING = """
import sys
from rdzv_launcher.run.command_line.installed_torch import knows

assert not knows("--bogus") and not knows("--nnode")
assert "torch" not in sys.modules
assert knows("--nnodes") and knows("--nproc_per_node") and knows("-t") and not knows("--bogus")
"""


def ended(command: list[str], directory: Path, watched: bool = True, **variables: str) -> tuple[int, str]:
    """Exit code and output of a command."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("PET_", "RDZV_", "TORCH"))}
    if watched:
        (directory / "watch").mkdir()
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


def wrong(*arguments: str, says: str, code: int = 2, **variables: str):
    return pytest.param(arguments, variables, code, says, id=" ".join([*arguments, *variables]))


@pytest.mark.parametrize(
    ("arguments", "variables", "code", "says"),
    [
        wrong("--help", says="usage: rdzv-run ", code=0),
        wrong("--version", says="native part: ", code=0),
        wrong("--bogus", says="unrecognized arguments: --bogus\n"),
        wrong(says="usage: rdzv-run [flag ...] script"),
        wrong("nothing.py", says="the script nothing.py cannot be run: there is no such file"),
        wrong("watch", says="the script watch cannot be run: it is a directory without __main__.py"),
        wrong("--no-python", "nothing", says="there is no such program"),
        wrong("--nnodes=x", "t.py", says="--nnodes=x is not N or MIN:MAX"),
        wrong("t.py", says="PET_NNODES=x is not N or MIN:MAX", PET_NNODES="x"),
        wrong("t.py", says="PET_MAX_RESTARTS=x: not a valid int", PET_MAX_RESTARTS="x"),
        wrong("t.py", says="PET_STANDALONE=yes: not a value", PET_STANDALONE="yes"),
        wrong(
            "t.py",
            says="error: TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT=0 must be more than 0",
            TORCH_ELASTIC_EXIT_BARRIER_TIMEOUT="0",
        ),
        wrong("--exit-barrier-timeout=nan", "t.py", says="--exit-barrier-timeout=nan must be more than 0"),
        wrong("--signals-to-handle=SIGNONE", "-", says="--signals-to-handle: there is no signal 'SIGNONE'"),
        wrong("-", says="PET_SIGNALS_TO_HANDLE: SIGKILL cannot be handled", PET_SIGNALS_TO_HANDLE="SIGTERM,SIGKILL"),
        wrong("--signals-to-handle=,", "-", says="--signals-to-handle is empty"),
        wrong("--rdzv-backend=nobody", "-", says="there is no rendezvous backend 'nobody'"),
        *(
            wrong(
                f"--rdzv-backend={name}", "--rdzv-conf=nothing=1", "--rdzv-endpoint=h:1", "--rdzv-id=a", "-", says=says
            )
            for name, says in (
                ("static", "backend 'static' has no option 'nothing'"),
                ("c10d", "backend 'c10d' has no option 'nothing'"),
                ("tiered", "backend 'tiered' has no option 'nothing'"),
                ("etcd", "backend 'etcd' has no option 'nothing'"),
            )
        ),
    ],
)
def test_mistake_is_answered_without_torch(arguments, variables, code, says, tmp_path: Path) -> None:
    found, text = ended([RDZV_RUN, *arguments], tmp_path, **variables)
    assert says in text
    assert found == code, text


def test_script_that_may_not_be_read_is_answered_without_torch(tmp_path: Path) -> None:
    (tmp_path / "secret.py").touch(0o000)
    like_others = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []
    code, text = ended([*like_others, RDZV_RUN, "secret.py"], tmp_path)
    assert (code, "the script secret.py cannot be run: " in text) == (2, True), text


@pytest.mark.parametrize(
    ("variables", "level"),
    [({}, "FATAL"), ({"TORCH_CPP_LOG_LEVEL": "ERROR"}, "ERROR"), ({"RDZV_DEBUG": "1"}, "its own")],
    ids=lambda each: str(each),
)
def test_backend_that_is_torchs_imports_it(variables, level, tmp_path: Path) -> None:
    """Else the tests above would show nothing."""
    command = [RDZV_RUN, "--rdzv-backend=c10d", "--rdzv-endpoint=127.0.0.1:0", "--no-python", "/bin/true"]
    code, text = ended(command, tmp_path, **variables)
    assert code == IMPORTED
    assert text.endswith(f", whose C++ part logs at {level}")


def test_workers_have_torchs_own_level_of_its_log(tmp_path: Path) -> None:
    command = [
        RDZV_RUN,
        "--standalone",
        "--rdzv-backend=c10d",
        "--no-python",
        "/bin/sh",
        "-c",
        "echo level ${TORCH_CPP_LOG_LEVEL-unset}",
    ]
    code, text = ended(command, tmp_path, watched=False)
    assert code == 0, text
    assert "level unset\n" in text


def test_flag_of_the_installed_torch_is_found_and_torch_not_imported_for_another(tmp_path: Path) -> None:
    assert ended([sys.executable, "-c", LOOKING], tmp_path, watched=False) == (0, "")


def test_flag_that_only_the_installed_torch_has_is_called_that(tmp_path: Path) -> None:
    (tmp_path / "later.py").write_text(LATER_TORCH)
    command = [sys.executable, "later.py", "--nnodes=1", "--of-a-later-torch=3", "t.py"]
    code, text = ended(command, tmp_path, watched=False)
    assert code == 2
    assert (
        "rdzv-run: error: --of-a-later-torch is a flag of the installed torchrun, and this rdzv-run is too old" in text
    )


def test_flag_of_ours_that_a_later_torch_has_too_stays_ours(tmp_path: Path) -> None:
    (tmp_path / "later.py").write_text(LATER_TORCH)
    command = [sys.executable, "later.py", "--exit-barrier-timeout=5", "--no-python", "/bin/echo", "it runs"]
    code, text = ended(command, tmp_path, watched=False)
    assert code == 0, text
    assert "it runs\n" in text


@pytest.mark.parametrize(("words", "hint"), [([], "status"), (["statsu"], "did you mean 'status'?")])
def test_rdzv_without_a_command_that_there_is(words, hint, capsys) -> None:
    try:
        code = tools.main(words)
    except SystemExit as ended:
        code = ended.code
    assert code == 2
    assert hint in capsys.readouterr().err


def test_a_run_id_with_a_typing_error() -> None:
    request = SimpleNamespace(is_named=True, run_id="digit")
    with pytest.raises(EndpointUnreachable, match="did you mean 'digits'"):
        run_of(request, "127.0.0.1:1", ["letters", "digits"])
