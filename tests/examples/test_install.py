"""tests/install.sh: what it does where a service is, where it may install it, and where it may not."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

pytestmark = pytest.mark.thorough

SCRIPT = Path(__file__).parents[1] / "install.sh"
NEEDED = ("bash", "env", "rm", "chmod", "sh")


class Service(NamedTuple):
    name: str
    programs: tuple[str, ...]
    packages: tuple[str, ...]
    """Of each program."""


ETCD = Service("etcd", ("etcd", "etcdctl"), ("etcd-server", "etcd-client"))
REDIS = Service("redis", ("redis-server", "redis-cli"), ("redis-server", "redis-tools"))
SLURM = Service(
    "slurm",
    ("slurmctld", "slurmd", "srun", "munged"),
    ("slurmctld", "slurmd", "slurm-client", "munge"),
)
OPENMPI = Service("openmpi", ("orted",), ("openmpi-bin",))
SERVICES = [ETCD, REDIS, SLURM, OPENMPI]


class Machine:
    """Programs that the script finds on PATH; ``apt-get`` notes how it was called, and whether services may start."""

    def __init__(self, folder: Path, service: Service, *programs: str, uid: int = 0) -> None:
        self.bin, self.log, self.policy = folder / "bin", folder / "log", folder / "policy-rc.d"
        self.service = service
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
        command = [self.bin / "bash", SCRIPT, self.service.name]
        return subprocess.run(command, capture_output=True, text=True, env=env, timeout=60)

    def calls(self) -> list[str]:
        return self.log.read_text().splitlines() if self.log.exists() else []


@pytest.fixture(params=SERVICES, ids=lambda service: service.name)
def service(request: pytest.FixtureRequest) -> Service:
    return request.param


def test_nothing_where_it_is(tmp_path: Path, service: Service) -> None:
    machine = Machine(tmp_path, service, *service.programs).with_apt()
    done = machine.run()
    assert (done.returncode, done.stdout, done.stderr, machine.calls()) == (0, "", "", [])


def test_as_root_it_is_installed_and_no_service_starts(tmp_path: Path, service: Service) -> None:
    machine = Machine(tmp_path, service).with_apt(*service.programs)
    done = machine.run()
    assert (done.returncode, done.stderr.count("\n")) == (0, 1), done.stderr
    assert machine.calls() == [
        "-qq update; services: 101",
        f"-qq install --yes --no-install-recommends {' '.join(service.packages)}; services: 101",
    ]
    assert not machine.policy.exists()


@pytest.mark.parametrize(
    ("service", "missing"),
    [(each, number) for each in SERVICES for number in range(len(each.programs))],
    ids=lambda each: getattr(each, "name", str(each)),
)
def test_only_what_is_missing_and_a_policy_of_the_machine_stays(tmp_path: Path, service: Service, missing: int) -> None:
    absent = service.programs[missing]
    there = [each for each in service.programs if each != absent]
    machine = Machine(tmp_path, service, *there).with_apt(absent)
    machine.policy.write_text("#!/bin/sh\nexit 7\n")
    machine.policy.chmod(0o755)
    assert machine.run().returncode == 0
    installed = f"-qq install --yes --no-install-recommends {service.packages[missing]}; services: 7"
    assert machine.calls()[1] == installed
    assert machine.policy.exists()


@pytest.mark.parametrize("apt", [True, False])
def test_where_it_may_not_it_says_what_to_install(tmp_path: Path, service: Service, apt: bool) -> None:
    machine = Machine(tmp_path, service, uid=1000 if apt else 0)
    if apt:
        machine.with_apt(*service.programs)
    done = machine.run()
    assert (done.returncode, done.stderr.count("\n"), machine.calls()) == (0, 1, [])
    assert f"apt-get install {' '.join(service.packages)};" in done.stderr
    assert done.stderr.endswith(f"put {' '.join(service.programs)} on PATH\n")


@pytest.mark.parametrize("code", [0, 100])
def test_an_apt_that_fails_does_not_end_the_tests(tmp_path: Path, service: Service, code: int) -> None:
    done = Machine(tmp_path, service).with_apt(code=code).run()
    assert done.returncode == 0
    assert "could not be installed" in done.stderr
    assert "apt says so" in done.stderr
    assert not os.path.exists(tmp_path / "policy-rc.d")
