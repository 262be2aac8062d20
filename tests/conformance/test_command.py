"""``rdzv conformance BACKEND`` as a user types it: its exit codes, and what it says when nothing can be tested."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from kits.conformance.toy_kit import CONFORMANCE, environment, install, run

from rdzv_plugins.testing import free_port


def conformance(directory: Path, *arguments: str, **variables: str) -> tuple[int, str]:
    return run([*CONFORMANCE, *arguments], environment(**variables), directory)


@pytest.mark.parametrize(
    ("arguments", "code", "message", "remedy"),
    [
        (["nobody-has-it"], 2, "there is no rendezvous backend 'nobody-has-it'", "Available: "),
        (["parallel", "--theme=plugin,shop"], 2, "--theme: there is no theme 'shop'", "There are: plugin, backend,"),
        (["parallel", "--theme="], 2, "--theme: there is no theme ''", "There are: plugin, backend,"),
        (["parallel", "--theme", "plugin,"], 2, "--theme: there is no theme ''", "There are: plugin, backend,"),
        (["parallel", "--rdzv-conf=ttl"], 2, "--rdzv-conf: 'ttl' is not of the form key=value", "Write "),
        (["static", "--rdzv-conf=ttl=2"], 2, "--rdzv-conf: backend 'static' has no option 'ttl'", "It accepts: "),
        (["parallel", "--rdzv-conf=ttl=long"], 2, "--rdzv-conf: ", ""),
        (
            ["static", "--rdzv-endpoint=127.0.0.1:1", "--rdzv-conf=ttl=2"],
            2,
            "--rdzv-conf: backend 'static' has no option 'ttl'",
            "It accepts: ",
        ),
        (["parallel", "--json=not/there.json"], 2, "--json: cannot write not/there.json: No such file", "Name a file"),
        (["parallel", "--timeout=0"], 2, "--timeout=0 is no number of seconds", "Give more than 0."),
        (["parallel", "--maxfail=0"], 2, "--maxfail=0: give 1 or more", "Without it, all tests are run."),
        (["parallel", "--theme=plugin", "-k", "nothing_of_that_name"], 2, "no test has a name like", "See "),
    ],
)
def test_wrong_use(tmp_path: Path, arguments: list[str], code: int, message: str, remedy: str) -> None:
    result, text = conformance(tmp_path, *arguments)
    assert result == code, text
    error, then = [line for line in text.splitlines() if line.startswith("rdzv: ")]
    assert error.startswith(f"rdzv: error: {message}")
    assert then.startswith(f"rdzv: {remedy}")


def test_patience_that_is_no_number(tmp_path: Path) -> None:
    code, text = conformance(tmp_path, "parallel", RDZV_CONFORMANCE_PATIENCE="abc")
    assert code == 2, text
    assert text.splitlines() == [
        "rdzv: error: RDZV_CONFORMANCE_PATIENCE='abc' is no number of seconds",
        "rdzv: Set it to 60, say, or unset it.",
    ]


def test_harness_that_breaks_at_its_start_ends_the_run(tmp_path: Path) -> None:
    site = install(tmp_path, "state_right", "It")
    (site / "state_right_harness.py").write_text(
        "from rdzv_plugins.testing import Harness\n\n\n"
        "class It(Harness):\n    def start(self):\n        open('/no/such/server')\n"
    )
    (entries,) = site.glob("*.dist-info/entry_points.txt")
    entries.write_text(entries.read_text().replace("toy_harness:It", "state_right_harness:It"))
    code, text = run([*CONFORMANCE, "state-right", "--theme=plugin"], environment(site), tmp_path)
    assert code == 69, text
    assert "the harness of backend 'state-right', of rdzv-state-right, cannot be started: FileNotFoundError: " in text
    assert "give --rdzv-endpoint to do without it" in text
    assert "Traceback" not in text
    assert " failed" not in text


def test_without_pytest(tmp_path: Path) -> None:
    program = "import sys; sys.modules['pytest'] = None; from rdzv_launcher.tools.cli import main; sys.exit(main())"
    code, text = run([sys.executable, "-c", program, "conformance", "parallel"], environment(), tmp_path)
    assert code == 69
    assert text.splitlines() == [
        "rdzv: error: the conformance suite needs module 'pytest', which is not installed",
        "rdzv: Install it: pip install 'rdzv-plugins[testing]'",
    ]


def test_all_passed_whatever_project_it_is_started_in(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\naddopts = '--no-such-option'\n")
    (tmp_path / "conftest.py").write_text("raise RuntimeError('this is not my test')\n")
    (tmp_path / "test_mine.py").write_text("def test_mine(): assert False\n")
    code, text = conformance(tmp_path, "parallel-epoll", "--theme= plugin", "-k", "option", "--json=here.json")
    assert code == 0, text
    assert (
        "conformance of parallel (rdzv-plugins 0.1.0, elastic, node_rank, node_replacement, several_endpoints, token)"
        in text
    )
    (backend,) = json.loads((tmp_path / "here.json").read_text())["backends"]
    assert list(backend["themes"]) == ["plugin"]
    left = {path.name for path in tmp_path.iterdir()} - {"output"}
    assert left == {"pyproject.toml", "conftest.py", "test_mine.py", "here.json"}


def test_service_that_runs_already(tmp_path: Path) -> None:
    where = f"127.0.0.1:{free_port()}"
    arguments = ["parallel", f"--rdzv-endpoint={where}", "--rdzv-conf=ttl=3,linger=1", "--theme=plugin,store"]
    code, text = conformance(tmp_path, *arguments, "-k", "endpoint or request or set_and_get", "--json=report.json")
    assert code == 0, text
    assert "not tried: the harness names no wrong endpoint" in text
    (backend,) = json.loads((tmp_path / "report.json").read_text())["backends"]
    assert backend["themes"]["store"]["test_set_and_get"]["outcome"] == "passed"


def test_service_that_cannot_be_started(tmp_path: Path) -> None:
    code, text = conformance(tmp_path, "etcd", "--theme=plugin", PATH=str(tmp_path))
    assert code == 69, text
    assert "the program etcd is not installed" in text
    assert "apt-get install etcd-server" in text
    assert " passed" not in text


def test_backend_without_a_harness_needs_an_endpoint(tmp_path: Path) -> None:
    site = install(tmp_path, "state_right")
    (entries,) = site.glob("*.dist-info/entry_points.txt")
    entries.write_text(entries.read_text().partition("[rdzv_plugins.harnesses]")[0])
    where = tmp_path / "shared"
    where.mkdir()
    command = [*CONFORMANCE, "state-right", "--theme=plugin", "-k", "request or nobody"]
    code, text = run(command, environment(site), tmp_path)
    assert code == 2, text
    assert "names no harness of its own" in text
    code, text = run([*command, f"--rdzv-endpoint={where}"], environment(site), tmp_path)
    assert code == 0, text
    assert "conformance of state-right (rdzv-state-right 1.0, elastic)" in text
