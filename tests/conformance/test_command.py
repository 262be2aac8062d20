"""``rdzv conformance BACKEND`` as a user types it: its exit codes, and what it says when nothing can be tested."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from kits.conformance.toy_kit import CONFORMANCE, environment, install, run

from rdzv_plugins.testing import free_port


def conformance(directory: Path, *arguments: str, **variables: str) -> tuple[int, str]:
    return run([*CONFORMANCE, *arguments], environment(**variables), directory)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (["nobody-has-it"], "'nobody-has-it'"),
        (["parallel", "--theme=plugin,shop"], "--theme: .* 'shop'"),
        (["parallel", "--theme="], "--theme: "),
        (["parallel", "--rdzv-conf=ttl"], "--rdzv-conf: 'ttl'"),
        (["static", "--rdzv-conf=ttl=2"], "--rdzv-conf: .*'static' .* 'ttl'"),
        (["parallel", "--rdzv-conf=ttl=long"], "--rdzv-conf: "),
        (["parallel", "--json=not/there.json"], "--json: .*not/there.json"),
        (["parallel", "--timeout=0"], "--timeout=0"),
        (["parallel", "--maxfail=0"], "--maxfail=0"),
        (["parallel", "--theme=plugin", "-k", "nothing_of_that_name"], "no test "),
        ([], "RDZV_CONFORMANCE_PATIENCE='abc'"),
    ],
)
def test_wrong_use_is_told_in_a_line_with_a_remedy(tmp_path: Path, arguments: list[str], named: str) -> None:
    variables = {} if arguments else {"RDZV_CONFORMANCE_PATIENCE": "abc"}
    code, text = conformance(tmp_path, *(arguments or ["parallel"]), **variables)
    assert code == 2, text
    error, _remedy = [line for line in text.splitlines() if line.startswith("rdzv: ")]
    assert re.match(f"rdzv: error: .*{named}", error)


def test_what_is_missing_ends_the_run(tmp_path: Path) -> None:
    program = "import sys; sys.modules['pytest'] = None; from rdzv_launcher.tools.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", program, "conformance", "parallel"]
    site, broken = install(tmp_path, "state-right", "BrokenHarness"), install(tmp_path, "plugin-is-broken")
    theme = "--theme=plugin"
    for (code, text), said in (
        (run(command, environment(), tmp_path), r"pip install 'rdzv-plugins\[testing\]'"),
        (conformance(tmp_path, "etcd", theme, PATH=str(tmp_path)), "apt-get install etcd-server"),
        (
            run([*CONFORMANCE, "state-right", theme], environment(site), tmp_path),
            "rdzv-state-right .*FileNotFoundError",
        ),
        (
            run([*CONFORMANCE, "plugin-is-broken"], environment(broken), tmp_path),
            "plug-in 'plugin-is-broken' of rdzv-plugin-is-broken 1.0 .*not today",
        ),
    ):
        assert code == 69, text
        assert re.search(said, text)
        assert "Traceback" not in text
        assert " passed" not in text


def test_all_passed_whatever_project_it_is_started_in(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.pytest.ini_options]\naddopts = '--no-such-option'\n")
    (tmp_path / "conftest.py").write_text("raise RuntimeError('this is not my test')\n")
    (tmp_path / "test_mine.py").write_text("def test_mine(): assert False\n")
    code, text = conformance(tmp_path, "parallel-epoll", "--theme= plugin", "-k", "option", "--json=here.json")
    assert code == 0, text
    assert "conformance of parallel (rdzv-plugins 0.1.0, elastic, " in text
    (backend,) = json.loads((tmp_path / "here.json").read_text())["backends"]
    assert list(backend["themes"]) == ["plugin"]
    left = {path.name for path in tmp_path.iterdir()} - {"output"}
    assert left == {"pyproject.toml", "conftest.py", "test_mine.py", "here.json"}


def test_service_that_runs_already(tmp_path: Path) -> None:
    where = f"127.0.0.1:{free_port()}"
    arguments = ["parallel", f"--rdzv-endpoint={where}", "--rdzv-conf=ttl=3,linger=1", "--theme=plugin,store"]
    code, text = conformance(tmp_path, *arguments, "-k", "endpoint or request or set_and_get", "--json=report.json")
    assert code == 0, text
    assert "not tried: the harness lists no wrong endpoints" in text
    (backend,) = json.loads((tmp_path / "report.json").read_text())["backends"]
    assert backend["themes"]["store"]["test_set_and_get"]["outcome"] == "passed"


def test_backend_without_a_harness_needs_an_endpoint(tmp_path: Path) -> None:
    env = environment(install(tmp_path, "state-right", None))
    command = [*CONFORMANCE, "state-right", "--theme=plugin", "-k", "request or nobody"]
    code, text = run(command, env, tmp_path)
    assert code == 2, text
    code, text = run([*command, f"--rdzv-endpoint={tmp_path}"], env, tmp_path)
    assert code == 0, text
    assert "conformance of state-right (rdzv-state-right 1.0, elastic)" in text
