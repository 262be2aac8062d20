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
from rdzv_launcher.tools.doctor import command, machine, network
from rdzv_launcher.tools.doctor.findings import Finding, findings_of
from rdzv_plugins import Backend, Request, ServiceCheck
from rdzv_plugins.errors import EndpointUnreachable
from rdzv_plugins.host import PluginHost, PluginRecord
from rdzv_plugins.kvstore.native.server import StoreServer
from rdzv_plugins.linux import cgroups
from rdzv_plugins.linux.cgroups import Group
from rdzv_plugins.linux.process_stat import read_stat
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
    monkeypatch.setattr(command, "_findings", lambda args: iter(found.values()))  # another look may find other things
    assert cli.main(["doctor"]) == code
    *lines, last = capsys.readouterr().out.splitlines()
    assert len(lines) == len(found)
    doubtful = [name for name, each in found.items() if each.verdict == "warning"]
    assert all(name in last for name in doubtful)
    assert cli.main(["doctor", "--strict"]) == bool(code or doubtful)


def test_one_check_keeps_no_other_from_being_made() -> None:
    def breaks() -> Iterator[Finding]:
        yield Finding("ok", "a", "before")
        raise OSError(5, "no such luck")

    before, after = findings_of("b", breaks)
    assert before.text == "before"
    assert (after.verdict, after.name) == ("skipped", "b")
    assert "no such luck" in after.line


def test_limits_of_a_control_group(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    step = tmp_path / "step"
    step.mkdir()
    for directory, most, used, cache in ((tmp_path, f"{4000 * 2**20}", 3990 * 2**20, 290 * 2**20), (step, "max", 9, 0)):
        (directory / "memory.max").write_text(f"{most}\n")
        (directory / "memory.current").write_text(f"{used}\n")
        (directory / "memory.stat").write_text(f"anon 1\ninactive_file {cache}\n")
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    (tmp_path / "pids.max").write_text("100\n")
    for module in (machine, cgroups):
        monkeypatch.setattr(module, "directories_of", lambda controller: [Group(2, step, "/job/step")])
    (memory,), (processors,), (processes,) = machine.memory(), machine.processors(), machine.processes()
    assert {memory.verdict, processors.verdict, processes.verdict} == {"warning"}
    assert all(each in memory.text for each in ("4000 MiB", "3700")), "without what the kernel can drop"
    assert "0.5" in processors.text
    assert "100" in processes.text
    for name in ("memory.max", "cpu.max", "pids.max"):
        (tmp_path / name).write_text("max\n")
    assert "4000 MiB" not in next(iter(machine.memory())).text


def test_the_name_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "gethostname", lambda: "a-host")
    unknown = Mock(side_effect=socket.gaierror(-2, "not known"))
    for resolve, verdict, says in (
        (lambda *_: [(0, 0, 0, "", ("10.1.2.3", 0))], "ok", "10.1.2.3"),
        (lambda *_: [(0, 0, 0, "", (each, 0)) for each in ("127.0.1.1", "::1")], "warning", "127.0.1.1"),
        (unknown, "warning", "not known"),
    ):
        monkeypatch.setattr(network, "resolve", resolve)
        (found,) = network.host_name()
        assert (found.verdict, says in found.text) == (verdict, True), found


def test_which_backend_nccl_means(monkeypatch: pytest.MonkeyPatch) -> None:
    for torch, given, is_nccl2 in (
        ("2.13.0+cpu", "", None),
        ("2.14.1", "", False),
        ("2.14.1", "1", True),
        ("2.15.0", "", True),
        ("2.15.0", "0", False),
    ):
        monkeypatch.setattr(command, "version_of", lambda _, torch=torch: torch)
        monkeypatch.setenv("TORCH_DIST_USE_NCCL2", given)
        if not given:
            monkeypatch.delenv("TORCH_DIST_USE_NCCL2")
        found = list(command.nccl())
        assert [each.name for each in found] == ([] if is_nccl2 is None else ["nccl"])
        assert is_nccl2 is None or ("means nccl2" in found[0].text) == is_nccl2


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
    env = {**os.environ, "TORCHELASTIC_RUN_ID": "a-run"}
    assert all("a-run" not in each.text for each in machine.leftovers())
    shell = ["sh", "-c", "TORCHELASTIC_RUN_ID=lost sleep 600 >/dev/null & echo $!"]
    orphan = int(subprocess.run(shell, stdout=subprocess.PIPE, check=True).stdout)
    with subprocess.Popen(["sleep", "600"], env=env) as worker:
        try:
            # a process that has just begun may not show its variables yet
            eventually(lambda: machine._run_of(orphan) == "lost", lambda: "it shows no variables")
            eventually(lambda: machine._run_of(worker.pid) == "a-run", lambda: "it shows no variables")
            taken_in = eventually(lambda: getattr(read_stat(orphan), "parent", 0), lambda: "it is gone")
            monkeypatch.setattr(machine, "_takes_orphans", lambda pid: pid == taken_in)
            jobs, left = machine.leftovers()
            assert (jobs.verdict, left.verdict) == ("ok", "wrong")
            assert "a-run" in jobs.text
            assert f"{orphan} (run lost)" in left.text
            assert f"{worker.pid} " not in left.text
            assert f"kill {orphan}" in left.remedy
            monkeypatch.setattr(machine, "_run_of", lambda pid: "a-run" if pid in (orphan, worker.pid) else None)
            assert [each.text for each in machine.leftovers()][1] == "none", "what a worker has started may stay"
        finally:
            os.kill(orphan, signal.SIGKILL)
            worker.kill()


def test_a_service_that_answers(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with StoreServer("127.0.0.1") as server:
        flags = (f"--rdzv-endpoint=127.0.0.1:{server.port}", "--rdzv-backend=parallel", "--rdzv-id=job")
        _, found = doctor(capsys, *flags)
        assert [found[name].verdict for name in ("name", "service", "backend")] == ["ok"] * 3
        assert all("doctor" not in each.line for each in found.values()), "nobody is told of a run of our own"
        assert [each for each in server.stats()["keyspaces"] if each["keys"]] == [], "nothing is left there"
        monkeypatch.setattr(network, "version", lambda: "9.9")
        found = doctor(capsys, *flags)[1]
        assert found["service"].verdict == "warning"
        wrong = doctor(
            capsys, f"--rdzv-endpoint=127.0.0.1:{server.port}", "--rdzv-backend=etcd", "--rdzv-conf=timeout=5"
        )
        assert (wrong[0], wrong[1]["who answers"].verdict) == (1, "wrong")


def test_a_service_is_as_its_backend_says_also_where_nodes_cannot_meet() -> None:
    def preflight(request: Request, held: object) -> str:
        raise EndpointUnreachable("it takes no more jobs")

    backend = Backend(
        name="toy",
        summary="a toy",
        create=lambda request: pytest.fail("nothing is made"),
        preflight=preflight,
        health=lambda request, timeout: [
            ServiceCheck("room", "none", "wrong", "Make some."),
            ServiceCheck("fan", "on"),
        ],
    )
    host = PluginHost([PluginRecord("toy", "toy_module", "dist-toy", "1.0", backends=(backend,))])
    request = Request("toy", "run", "127.0.0.1:1", 1, 1, 0)
    found = list(findings_of("who answers", lambda: network.who_answers(host, request)))
    assert found == [
        Finding("wrong", "room", "none", "Make some."),
        Finding("ok", "fan", "on"),
        Finding("wrong", "who answers", "it takes no more jobs", found[-1].remedy),
    ]


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
