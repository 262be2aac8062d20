"""``rdzv doctor``: what it finds on this machine, and on its way to the place where nodes meet."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import Mock

import pytest
from kits.eventually import eventually

from rdzv_launcher.tools import cli
from rdzv_launcher.tools import doctor as tool
from rdzv_launcher.tools.doctor import machine, network
from rdzv_launcher.tools.doctor.checks import Finding, line, run_check
from rdzv_plugins.kvstore.native.server import StoreServer
from rdzv_plugins.system import cgroups
from rdzv_plugins.system.cgroups import Cgroup
from rdzv_plugins.system.processes import read_stat
from rdzv_plugins.testing.harness import free_port

MACHINE = """versions, plug-ins, host name, reverse look-up, interfaces, default port, ports of connections, open files,
somaxconn, processes, processors, memory, /dev/shm, temporary files, clock, jobs, leftover processes"""


def doctor(capsys: pytest.CaptureFixture[str], *flags: str) -> tuple[int, dict[str, Finding]]:
    """The exit code, and the findings by name."""
    code = cli.main(["doctor", "--json", *flags])
    found = [Finding(**each) for each in json.loads(capsys.readouterr().out)["findings"]]
    return code, {each.name: each for each in found}


def test_all_of_this_machine_is_looked_at(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    code, found = doctor(capsys)
    assert found.keys() >= set(re.split(r",\s", MACHINE))
    assert {each.verdict for each in found.values()} <= {"ok", "warning", "wrong"}, found
    assert code == any(each.verdict == "wrong" for each in found.values())
    monkeypatch.setattr(tool, "_findings", lambda args: iter(found.values()))  # another look may find other things
    assert cli.main(["doctor"]) == code
    *lines, last = capsys.readouterr().out.splitlines()
    assert len(lines) == len(found)
    doubtful = [name for name, each in found.items() if each.verdict == "warning"]
    assert all(name in last for name in doubtful)
    assert cli.main(["doctor", "--strict"]) == bool(code or doubtful)


def test_one_check_keeps_no_other_from_being_made() -> None:
    def breaks() -> Iterator[Finding]:
        yield Finding("a", "before")
        raise OSError(5, "no such luck")

    before, after = run_check("b", breaks)
    assert before.text == "before"
    assert (after.verdict, after.name) == ("skipped", "b")
    assert "no such luck" in line(after)


def test_limits_of_a_control_group(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    step, mib = tmp_path / "step", 2**20
    step.mkdir()
    for directory, most, used, cache in ((tmp_path, 4000 * mib, 3990 * mib, 290 * mib), (step, "max", 9, 0)):
        (directory / "memory.max").write_text(f"{most}\n")
        (directory / "memory.current").write_text(f"{used}\n")
        (directory / "memory.stat").write_text(f"anon 1\ninactive_file {cache}\n")
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    (tmp_path / "pids.max").write_text("100\n")
    for module in (machine, cgroups):
        monkeypatch.setattr(module, "directories_of", lambda controller: [Cgroup(2, step, "/job/step")])
    found = [each for look in (machine.memory, machine.processors, machine.processes) for each in look()]
    assert {each.verdict for each in found} == {"warning"}
    for each, named in zip(found, (("4000 MiB", "3700"), ("0.5",), ("100",)), strict=True):
        assert all(text in each.text for text in named), "of memory: without what the kernel can drop"
    (tmp_path / "memory.max").write_text("max\n")
    assert "4000 MiB" not in next(iter(machine.memory())).text


def addresses(*found: str) -> list[tuple[object, ...]]:
    return [(0, 0, 0, "", (each, 0)) for each in found]


def test_the_name_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for resolve, verdict, says in (
        (Mock(return_value=addresses("10.1.2.3")), "ok", "10.1.2.3"),
        (Mock(return_value=addresses("127.0.1.1", "::1")), "warning", "127.0.1.1"),
        (Mock(side_effect=socket.gaierror(-2, "not known")), "warning", "not known"),
    ):
        monkeypatch.setattr(network, "resolve", resolve)
        (found,) = network.host_name()
        assert (found.verdict, says in found.text) == (verdict, True), found


@pytest.mark.parametrize(
    ("torch", "given", "nccl2"),
    [
        ("2.13.0+cpu", "", None),
        ("2.14.1", "", False),
        ("2.14.1", "1", True),
        ("2.15.0", "", True),
        ("2.15.0", "0", False),
    ],
)
def test_which_backend_nccl_means(monkeypatch: pytest.MonkeyPatch, torch: str, given: str, nccl2: bool | None) -> None:
    monkeypatch.setattr(tool, "version_of", lambda _: torch)
    monkeypatch.setenv("TORCH_DIST_USE_NCCL2", given)
    if not given:
        monkeypatch.delenv("TORCH_DIST_USE_NCCL2")
    found = ["means nccl2" in each.text for each in tool.nccl()]
    assert found == ([] if nccl2 is None else [nccl2])


def test_interfaces_that_collectives_are_told_of(monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, text, verdict in (
        ("GLOO_SOCKET_IFNAME", "lo", "ok"),
        ("GLOO_SOCKET_IFNAME", "nosuch0,lo", "wrong"),
        ("TP_SOCKET_IFNAME", "nosuch0,nosuch1", "wrong"),
        ("NCCL_SOCKET_IFNAME", "^docker,lo", None),
        ("NCCL_SOCKET_IFNAME", "nosuch0,l", "ok"),
        ("NCCL_SOCKET_IFNAME", "=l", "wrong"),
    ):
        monkeypatch.setenv(variable, text)
        found = {each.name: each for each in network.interfaces()}
        assert (found[variable].verdict if variable in found else None) == verdict, text
        assert "lo 127.0.0.1" in found["interfaces"].text


def test_workers_whose_launcher_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    shell = ["sh", "-c", "TORCHELASTIC_RUN_ID=lost sleep 600 >/dev/null & echo $!"]
    orphan = int(subprocess.run(shell, stdout=subprocess.PIPE, check=True).stdout)
    with subprocess.Popen(["sleep", "600"], env={**os.environ, "TORCHELASTIC_RUN_ID": "a-run"}) as worker:
        try:
            taken_in = eventually(lambda: getattr(read_stat(orphan), "parent", 0), lambda: "it is gone")
            monkeypatch.setattr(machine, "_takes_orphans", lambda pid: pid == taken_in)

            def looked() -> tuple[Finding, Finding] | None:
                """A process that has just begun may not show its variables yet."""
                jobs, left = machine.leftovers()
                return (jobs, left) if "a-run" in jobs.text and "lost" in left.text else None

            jobs, left = eventually(looked, lambda: str([*machine.leftovers()]))
            assert (jobs.verdict, left.verdict) == ("ok", "wrong")
            assert f"{orphan} (run lost)" in left.text
            assert f"{worker.pid} " not in left.text
            assert f"kill {orphan}" in left.remedy
        finally:
            os.kill(orphan, signal.SIGKILL)
            worker.kill()


def test_a_service_that_answers(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with StoreServer("127.0.0.1") as server:
        flags = (f"--rdzv-endpoint=127.0.0.1:{server.port}", "--rdzv-backend=parallel", "--rdzv-id=job")
        _, found = doctor(capsys, *flags)
        assert [found[name].verdict for name in ("name", "service", "backend")] == ["ok"] * 3
        assert all("doctor" not in line(each) for each in found.values()), "nobody is told of a run of our own"
        assert [each for each in server.stats()["keyspaces"] if each["keys"]] == [], "nothing is left there"
        monkeypatch.setattr(network, "version", lambda: "9.9")
        found = doctor(capsys, *flags)[1]
        assert found["service"].verdict == "warning"
        wrong = doctor(
            capsys, f"--rdzv-endpoint=127.0.0.1:{server.port}", "--rdzv-backend=etcd", "--rdzv-conf=timeout=5"
        )
        assert (wrong[0], wrong[1]["who answers"].verdict) == (1, "wrong")


def test_nobody_and_strangers(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", free_port())) as silent:
        endpoint = f"127.0.0.1:{silent.getsockname()[1]}"
        assert endpoint in doctor(capsys, f"--rdzv-endpoint={endpoint}")[1]["who answers"].text
    with StoreServer("127.0.0.1") as server:
        both = f"--rdzv-endpoint=127.0.0.1:{server.port},{endpoint}"
        cli.main(["doctor", both])
        shown = capsys.readouterr().out
        assert endpoint in shown
        assert "service: rdzv-plugins" in shown
    code, found = doctor(capsys, f"--rdzv-endpoint={endpoint}")
    assert code == 0
    assert "who answers" not in found
    assert doctor(capsys, f"--rdzv-endpoint={endpoint}", "--strict")[0] == 1
    assert doctor(capsys, "--rdzv-endpoint=no..name:1")[0] == 1
    assert cli.main(["doctor", "--rdzv-backend=parallel"]) == 2
