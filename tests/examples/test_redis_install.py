"""tests/install_redis.sh: what it does where Redis is, where it may install it, and where it may not."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "install_redis.sh"
NEEDED = ("bash", "env", "rm", "chmod", "sh")


class Machine:
    """Programs that the script finds on PATH; ``apt-get`` notes how it was called, and whether services may start."""

    def __init__(self, folder: Path, *programs: str, uid: int = 0) -> None:
        self.bin, self.log, self.policy = folder / "bin", folder / "log", folder / "policy-rc.d"
        self.bin.mkdir()
        for name in NEEDED:
            (self.bin / name).symlink_to(str(shutil.which(name)))
        self.add("id", f"echo {uid}")
        for name in programs:
            self.add(name, "exit 0")

    def add(self, name: str, script: str) -> None:
        (self.bin / name).write_text(f"#!/bin/sh\n{script}\n")
        (self.bin / name).chmod(0o755)

    def with_apt(self, *installs: str, code: int = 0) -> Machine:
        makes = "; ".join(f"echo '#!/bin/sh' > {self.bin / name}; chmod +x {self.bin / name}" for name in installs)
        note = f'echo "$*; services: $({self.policy} 2>/dev/null; echo $?)" >> {self.log}'
        self.add("apt-get", f"{note}; case $* in *install*) {makes or ':'};; esac; echo apt says so; exit {code}")
        return self

    def run(self) -> subprocess.CompletedProcess[str]:
        env = {"PATH": str(self.bin), "POLICY_RC_D": str(self.policy)}
        return subprocess.run([self.bin / "bash", SCRIPT], capture_output=True, text=True, env=env, timeout=60)

    def calls(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


def test_nothing_where_it_is(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "redis-server", "redis-cli").with_apt()
    done = machine.run()
    assert (done.returncode, done.stdout, done.stderr, machine.calls()) == (0, "", "", [])


def test_as_root_it_is_installed_and_no_service_starts(tmp_path: Path) -> None:
    machine = Machine(tmp_path).with_apt("redis-server", "redis-cli")
    done = machine.run()
    assert (done.returncode, done.stderr.count("\n")) == (0, 1), done.stderr
    assert machine.calls() == [
        "-qq update; services: 101",
        "-qq install --yes --no-install-recommends redis-server redis-tools; services: 101",
    ]
    assert not machine.policy.exists()


def test_a_policy_of_the_machine_stays(tmp_path: Path) -> None:
    machine = Machine(tmp_path, "redis-cli").with_apt("redis-server")
    machine.policy.write_text("#!/bin/sh\nexit 7\n")
    machine.policy.chmod(0o755)
    assert machine.run().returncode == 0
    assert machine.calls()[1] == "-qq install --yes --no-install-recommends redis-server redis-tools; services: 7"
    assert machine.policy.exists()


@pytest.mark.parametrize("apt", [True, False])
def test_where_it_may_not_it_says_what_to_install(tmp_path: Path, apt: bool) -> None:
    machine = Machine(tmp_path, uid=1000 if apt else 0)
    if apt:
        machine.with_apt("redis-server", "redis-cli")
    done = machine.run()
    assert (done.returncode, done.stderr.count("\n"), machine.calls()) == (0, 1, [])
    assert "apt-get install redis-server redis-tools" in done.stderr


@pytest.mark.parametrize("code", [0, 100])
def test_an_apt_that_fails_does_not_end_the_tests(tmp_path: Path, code: int) -> None:
    done = Machine(tmp_path).with_apt(code=code).run()
    assert done.returncode == 0
    assert "could not be installed" in done.stderr
    assert "apt says so" in done.stderr
    assert not os.path.exists(tmp_path / "policy-rc.d")
