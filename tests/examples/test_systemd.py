"""examples/systemd/rdzv-serve.service: systemd takes it, and its command serves and ends as a service does.

systemd itself does not run here: of what it would confine the service to, the test has what ``setpriv`` and the limits
of a process can do.
"""

from __future__ import annotations

import configparser
import os
import resource
import shlex
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from kits.launcher.harness import BIN, Cluster, file_limit, free_port

pytestmark = pytest.mark.thorough

ROOT = Path(__file__).parents[2]
UNIT = ROOT / "examples/systemd/rdzv-serve.service"
PORT = "29400"


@pytest.fixture
def service() -> configparser.SectionProxy:
    """The section of the unit that says what runs, and how."""
    unit = configparser.ConfigParser(delimiters="=", interpolation=None)  # strict: no key is there twice
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(UNIT.read_text())
    return unit["Service"]


def test_systemd_takes_it(tmp_path: Path, service: configparser.SectionProxy) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze")
    copy = tmp_path / UNIT.name
    copy.write_text(UNIT.read_text().replace(shlex.split(service["ExecStart"])[0], str(BIN / "rdzv")))
    done = subprocess.run(["systemd-analyze", "verify", copy], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_its_command_serves_and_ends_well(jobs: Cluster, service: configparser.SectionProxy) -> None:
    program, *arguments = shlex.split(service["ExecStart"])
    assert Path(program).is_absolute()
    assert sum(argument.endswith(f":{PORT}") for argument in arguments) == 1
    port = str(free_port())
    arguments = [argument.replace(PORT, port) for argument in arguments]
    confined = ["setpriv", "--no-new-privs"] + (["--bounding-set=-all"] if os.geteuid() == 0 else [])
    server = jobs.start([Path(program).name, *arguments], before=confined)
    server.wait_for("serving a store at")
    wanted, (_, most) = int(service["LimitNOFILE"]), resource.getrlimit(resource.RLIMIT_NOFILE)
    assert file_limit(server) == most  # it takes what it is given
    assert wanted > 4096  # and is given more than a login has
    asked = jobs.start(["rdzv", "status", f"--rdzv-endpoint=127.0.0.1:{port}"])
    assert asked.wait() == 0, asked.text
    assert "libtorch" not in Path(f"/proc/{server.pid}/maps").read_text()  # so the page installs it without
    server.process.send_signal(signal.SIGTERM)  # systemctl stop
    assert server.wait() == 0, server.text


def test_a_wrong_flag_is_not_tried_again(jobs: Cluster, service: configparser.SectionProxy) -> None:
    assert service["Restart"] == "always"
    wrong = jobs.start(["rdzv", "serve", f"--rdzv-endpoint=*:{free_port()}", "--no-such-flag"])
    assert str(wrong.wait()) == service["RestartPreventExitStatus"]
