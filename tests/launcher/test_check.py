"""``rdzv-run --check``: what can be known before the start, as the launch itself would say it; nothing is started."""

from __future__ import annotations

import os
import re
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kits.etcd import etcd_kit
from kits.launcher.harness import BIN, Agent, Cluster, free_port, server, wait_until

from rdzv_launcher.run import limits
from rdzv_launcher.run.checks import CHECKS
from rdzv_launcher.run.preparation import STEPS
from rdzv_plugins.endpoints import Endpoint
from rdzv_plugins.kvstore.native.framing import ask_statistics
from rdzv_plugins.kvstore.native.server import StoreServer

MARK = "import os, pathlib; pathlib.Path('started-' + os.environ['RANK']).touch()\n"
NAMES = [each.name for each in CHECKS]
BACKENDS = ("static", "c10d", "parallel", "tiered")
LINE = re.compile(r"^(ok|warning|FAILED|skipped) +([a-z -]+): (.+)$", re.MULTILINE)


class Checks:
    """Runs the command on a script that leaves a trace, and reads what it says."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.script = cluster.directory / "train.py"
        self.script.write_text(MARK)

    def start(self, *arguments: object, script: str = "train.py", **env: str) -> Agent:
        return self.cluster.start(["rdzv-run", *arguments, script], **env)

    def __call__(self, *arguments: object, code: int = 0, script: str = "train.py", **env: str) -> Lines:
        before = sorted(self.cluster.directory.rglob("*"))
        agent = self.start("--check", *arguments, script=script, **env)
        assert agent.wait() == code, agent.text
        assert "Traceback" not in agent.text
        left = set(self.cluster.directory.rglob("*")) - {*before, agent.output}
        assert not left, f"it has left {left}"
        last = agent.text.splitlines()[-1]
        assert last == "The job could start here." if code == 0 else f"end with exit code {code} (" in last, agent.text
        return Lines(agent.text)

    def launch(self, *arguments: object, **options: str) -> tuple[int, str]:
        """Exit code and error of the same command without --check, with the remedy behind it as there."""
        agent = self.start(*arguments, **options)
        code = agent.wait()
        error, _, remedy = agent.text.partition("rdzv-run: error: ")[2].strip().partition("\nrdzv-run: ")
        return code, f"{error}{'' if error.endswith(('.', '?', '!')) else '.'} {remedy}".strip()


class Lines(dict[str, tuple[str, str]]):
    """By the name of a check: its verdict, and what it says."""

    def __init__(self, text: str) -> None:
        super().__init__({name: (verdict, said) for verdict, name, said in LINE.findall(text)})
        assert list(self) == NAMES, text  # each has one line, in that order

    def verdicts(self, verdict: str) -> list[str]:
        return [name for name, (found, _) in self.items() if found == verdict]


@pytest.fixture
def checks(cluster: Cluster) -> Checks:
    """What ``rdzv-run --check`` says."""
    return Checks(cluster)


def is_free(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


@contextmanager
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def runs(port: int) -> list[dict[str, Any]]:
    return ask_statistics(Endpoint("127.0.0.1", port), 60)["runs"]


def test_each_step_of_a_launch_is_a_check_in_the_same_order() -> None:
    assert [each.find for each in CHECKS if each.find in STEPS] == list(STEPS)


@pytest.mark.parametrize("name", BACKENDS)
def test_a_good_command(checks: Checks, name: str) -> None:
    command = [
        f"--rdzv-backend={name}",
        f"--rdzv-endpoint={checks.cluster.endpoint}",
        f"--rdzv-conf=worker_ports={free_port()}",
        "--log-dir=logs/of/this",
        "-r3",
    ]
    lines = checks(*command)
    assert lines.verdicts("ok") == NAMES
    assert lines["endpoint"][1] == f"this node is to serve {checks.cluster.endpoint}, and can"
    assert "torch 2." in lines["versions"][1]
    assert is_free(checks.cluster.port)
    assert checks.launch(*command)[0] == 0
    assert (checks.cluster.directory / "started-0").exists()


def test_it_leaves_nothing_where_temporary_files_go(checks: Checks, tmp_path_factory: pytest.TempPathFactory) -> None:
    checks.cluster.warm = False
    temporary = tmp_path_factory.mktemp("temporary")
    lines = checks("--rdzv-backend=tiered", TMPDIR=str(temporary), PET_LOG_DIR=str(temporary / "logs"))
    assert lines.verdicts("ok") == NAMES
    assert lines["directories"][1] == f"temporary files go to {temporary}, logs to {temporary}"
    assert not list(temporary.iterdir())


LACKS = """
from rdzv_plugins import Backend, hookimpl

@hookimpl
def rdzv_register_backends():
    return Backend(name="lacks", summary="its client is not installed", create=print, imports=("absent_client",))
"""


def test_a_module_that_a_plugin_declares_and_that_is_missing(checks: Checks, tmp_path: Path) -> None:
    """That of its entry point, and one that its backend imports: told once, as by the launch that selects it."""
    for name in ("gone", "lacks"):
        info = tmp_path / f"rdzv_{name}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: rdzv-{name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[rdzv_plugins]\n{name} = rdzv_{name}_module\n")
    (tmp_path / "rdzv_lacks_module.py").write_text(LACKS)
    checks.cluster.warm = False
    site = {"PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
    for name, where, missing in (("gone", "backend", "rdzv_gone_module"), ("lacks", "options", "absent_client")):
        lines = checks(f"--rdzv-backend={name}", code=69, **site)
        assert lines.verdicts("FAILED") == [where]
        assert missing in lines[where][1]
        assert (69, lines[where][1]) == checks.launch(f"--rdzv-backend={name}", **site)
        assert ("rdzv-gone" in lines["other plug-ins"][1]) == (name != "gone")
    assert "rdzv-gone" in checks(**site)["other plug-ins"][1]


REFUSED = {
    "arguments: nodes": (2, "arguments", ["--nnodes=3:2"]),
    "arguments: run id": (2, "arguments", ["--rdzv-id=a/b"]),
    "arguments: conf": (2, "arguments", ["--rdzv-conf=timeout"]),
    "arguments: devices": (2, "arguments", ["--nproc-per-node=gpu"]),
    "arguments: standalone": (2, "arguments", ["--standalone", "--node-rank=1"]),
    "backend: unknown": (2, "backend", ["--rdzv-backend=parallell"]),
    "backend: switched off": (2, "backend", ["--rdzv-backend=c10d", "--rdzv-no-plugin=c10d"]),
    "backend: dropped": (69, "backend", ["--rdzv-backend=etcd-v2"]),
    "backend: nowhere": (2, "backend", ["--rdzv-backend=parallel", "--nnodes=2"]),
    "options: unknown": (2, "options", ["--rdzv-conf=timeuot=3"]),
    "options: value": (2, "options", ["--rdzv-backend=parallel", "--rdzv-conf=ttl=soon"]),
    "options: together": (2, "options", ["--rdzv-backend=parallel", "--rdzv-conf=fanout=2"]),
    "options: rank": (2, "options", ["--nnodes=2", "--rdzv-endpoint=localhost:1", "--node-rank=2"]),
    "options: name": (2, "options", ["--rdzv-backend=etcd", "--rdzv-endpoint=localhost:1"]),
    "options: file": (
        2,
        "options",
        ["--rdzv-backend=etcd", "--rdzv-endpoint=localhost:1", "--rdzv-id=a", "--rdzv-conf=cacert=nothing.pem"],
    ),
    "script: program": (2, "script", ["--no-python"]),
    "directories: a file": (2, "directories", ["--log-dir=train.py/logs"]),
    "directories: not writable": (2, "directories", ["--log-dir=/proc/1/logs"]),
    "flags: redirects": (2, "flags", ["--redirects=9"]),
    "flags: ranks": (2, "flags", ["--local-ranks-filter=first"]),
    "signals": (2, "signals", ["--signals-to-handle=SIGTERM,SIGNONE"]),
    "signals: one that cannot be handled": (2, "signals", ["--signals-to-handle=SIGKILL"]),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_a_launch_refuses_is_told_in_its_words(checks: Checks, case: str) -> None:
    code, name, arguments = REFUSED[case]
    lines = checks(*arguments, code=code)
    assert lines.verdicts("FAILED") == [name]
    assert checks.launch(*arguments) == (code, lines[name][1])
    assert not list(checks.cluster.directory.glob("started*"))


def test_all_that_is_wrong_is_told_at_once_and_the_first_decides(checks: Checks) -> None:
    wrong = ["--rdzv-backend=etcd-v2", "--log-dir=train.py/logs"]
    lines = checks(*wrong, script="nothing.py", code=69)
    assert lines.verdicts("FAILED") == ["backend", "script", "directories"]
    assert lines.verdicts("skipped") == ["options", "flags", "endpoint", "worker ports", "health"]
    assert lines["endpoint"][1] == "it builds on: options"
    assert lines["script"][1].startswith("the script nothing.py cannot be run: there is no such file. Its path is ")
    assert checks.launch(*wrong, script="nothing.py")[0] == 69
    assert not list(checks.cluster.directory.glob("started*"))


def test_an_interpreter_that_is_not_there(checks: Checks) -> None:
    lines = checks(code=2, PYTHON_EXEC="/no/python")
    assert lines["script"] == (
        "FAILED",
        "the workers' Python, PYTHON_EXEC=/no/python, is not there, or may not be run. "
        "Name another one, or unset the variable: it is then that of rdzv-run.",
    )
    assert checks.launch(PYTHON_EXEC="/no/python") == (2, lines["script"][1])


def limited(checks: Checks, limits: str, *arguments: str, before: Sequence[str] = ()) -> str:
    """What the check of the limits says, which fails, and the launch too."""
    said = []
    for option in ("--check", ""):
        command = f"{limits} && exec {BIN}/rdzv-run {option} {' '.join(arguments)} train.py"
        done = subprocess.run(
            [*before, "bash", "-c", command],
            cwd=checks.cluster.directory,
            env=checks.cluster.env,
            capture_output=True,
            text=True,
            timeout=150,
        )
        assert done.returncode == 71, done.stderr
        said.append(done)
    lines = Lines(said[0].stdout)
    assert lines.verdicts("FAILED") == ["limits"]
    assert said[1].stderr.startswith("rdzv-run: error: this ")
    assert not list(checks.cluster.directory.glob("started*"))
    return lines["limits"][1]


def test_too_few_open_files(checks: Checks) -> None:
    said = limited(checks, "ulimit -n 40", "--nproc-per-node=8")
    assert said.startswith("this node may open 40 files at once, and needs up to ")


ANOTHER_USER = ("unshare", "--user", "--map-user=65533")
"""Who is root does not feel the limit."""


def test_too_few_processes(checks: Checks) -> None:
    if os.getuid() == 0 and subprocess.run([*ANOTHER_USER, "true"], capture_output=True).returncode:
        pytest.skip("root cannot be another user here")
    before = ANOTHER_USER if os.getuid() == 0 else ()
    used = limits._threads_of(os.getuid())
    said = limited(checks, f"ulimit -u {used // 2 + 1}", "--nproc-per-node=64", before=before)
    assert said.startswith(f"this user may have {used // 2 + 1} processes and threads at once and has ")
    assert "the agent and 64 workers need at least 264 more. Allow more: ulimit -u " in said


def test_ports_that_are_taken(checks: Checks) -> None:
    with taken() as port:
        lines = checks(f"--rdzv-endpoint=127.0.0.1:{port}", code=68)
        assert lines.verdicts("FAILED") == ["endpoint"]
        assert f"cannot listen on port {port} of this machine" in lines["endpoint"][1]
        assert f"in use by pid {os.getpid()} (" in lines["endpoint"][1]
        assert checks.launch(f"--rdzv-endpoint=127.0.0.1:{port}") == (68, lines["endpoint"][1])

        mine = ["--rdzv-backend=tiered", f"--rdzv-conf=worker_ports={port}"]
        lines = checks(*mine, code=68)
        assert lines.verdicts("FAILED") == ["worker ports"]
        assert "in use by pid" in lines["worker ports"][1]

        several = ["--nnodes=2", f"--rdzv-endpoint=127.0.0.1:{free_port()}"]
        lines = checks(*mine, *several)
        assert lines.verdicts("warning") == ["address", "worker ports"]
        assert lines["worker ports"][1].endswith("; that ends the job if this node gets rank 0")
        lines = checks(*mine, *several, "--node-rank=1")
        assert lines["worker ports"][0] == "skipped"
    one = ["--rdzv-backend=parallel", f"--rdzv-endpoint=127.0.0.1:{port}", f"--rdzv-conf=worker_ports={port}"]
    lines = checks(*one, code=68)
    assert lines.verdicts("FAILED") == ["worker ports"]
    assert "this very process: it serves something else there" in lines["worker ports"][1]
    assert is_free(port)


def test_one_port_is_too_few_for_a_second_tier(checks: Checks) -> None:
    first = free_port()
    conf = f"--rdzv-conf=fanout=2,worker_ports={first}-{first + 1}"
    with socket.create_server(("127.0.0.1", first + 1)):
        assert checks("--rdzv-backend=tiered", conf, code=68).verdicts("FAILED") == ["worker ports"]


def test_endpoints_that_cannot_be_reached(checks: Checks) -> None:
    client = ["--nnodes=2", "--node-rank=1"]
    lines = checks(*client, "--rdzv-endpoint=no-such-host.invalid:29500", code=68)
    assert lines.verdicts("FAILED") == ["endpoint"]
    assert "the name does not resolve" in lines["endpoint"][1]
    assert lines["endpoint"][1].endswith("Check the name, or give an IP address.")

    nobody = f"127.0.0.1:{free_port()}"
    lines = checks(*client, f"--rdzv-endpoint={nobody}")
    assert lines["endpoint"] == (
        "warning",
        f"nobody listens at {nobody} yet: this node would wait there for node rank 0",
    )
    away = ["--rdzv-backend=parallel", "--nnodes=2", f"--rdzv-endpoint={nobody}", "--rdzv-conf=is_host=false"]
    assert checks(*away)["endpoint"][0] == "warning"

    port = free_port()
    with server(port, b"HTTP/1.1 400 Bad Request\r\n\r\n"):
        other = f"--rdzv-endpoint=127.0.0.1:{port}"
        lines = checks(*client, other, code=68)
        assert f"127.0.0.1:{port} is not a torch TCPStore: it answered " in lines["endpoint"][1]
        lines = checks("--rdzv-backend=parallel", "--nnodes=2", other, code=68)
        assert "is not a native store of rdzv-plugins" in lines["endpoint"][1]


def test_an_address_of_another_machine(checks: Checks) -> None:
    lines = checks("--local-addr=192.0.2.7", "--nnodes=2", f"--rdzv-endpoint={socket.gethostname()}:0", code=2)
    assert lines["options"][0] == "FAILED"  # port 0 is for one node
    assert lines["address"] == (
        "warning",
        "--local-addr=192.0.2.7 is not an address of this machine, which is right only behind address translation",
    )


@pytest.mark.parametrize("name", BACKENDS)
def test_beside_a_node_that_waits(checks: Checks, name: str) -> None:
    """Its job hears nothing of it."""
    port, native = checks.cluster.port, name in ("parallel", "tiered")
    there = [f"--rdzv-backend={name}", f"--rdzv-endpoint={checks.cluster.endpoint}", "--rdzv-id=mine"]
    first = checks.start(*there, "--nnodes=2", "--node-rank=0")
    checks.cluster.wait_listening()
    lines = checks(*there, "--nnodes=2", "--node-rank=1")
    assert lines["endpoint"][0] == "ok"
    if native:
        wait_until(lambda: [run for run in runs(port) if run["keys"]], 60, lambda: first.text)
        lines = checks(*there, "--nnodes=2")
        assert lines["endpoint"][1].endswith("and run 'mine' is there, with the same settings")
        # the server sees the end of a connection a moment later
        alone = [("mine", 1)]
        wait_until(lambda: [(r["name"], r["sessions"]) for r in runs(port)] == alone, 60, lambda: str(runs(port)))
    else:
        lines = checks("--rdzv-backend=parallel", *there[1:], "--nnodes=2", code=68)
        assert f"is the rendezvous of run 'mine' by {name}" in lines["endpoint"][1]
    if name != "c10d":
        lines = checks(*there, "--nnodes=3", "--node-rank=1", code=78)
        assert "this node was started with " in lines["endpoint"][1]
        lines = checks(*there, "--rdzv-id=other", "--nnodes=2", "--node-rank=1", code=76)
        assert "serves run 'mine'" in lines["endpoint"][1]
        assert "refused" not in first.text
        assert checks.launch(*there, "--nnodes=3", "--node-rank=1")[0] == 78


def test_at_rdzv_serve(checks: Checks) -> None:
    with StoreServer("127.0.0.1", threads=1) as service:
        there = ["--rdzv-backend=parallel", f"--rdzv-endpoint=127.0.0.1:{service.port}", "--nnodes=2"]
        assert "its run id is the default" in checks(*there, code=2)["endpoint"][1]
        lines = checks(*there, "--rdzv-id=mine")
        assert lines["endpoint"][1].endswith("and run 'mine' has no node yet")
        wait_until(lambda: service.stats()["runs"] == [], 60, lambda: str(service.stats()["runs"]))


def test_etcd(checks: Checks, one_etcd: etcd_kit.Cluster, tmp_path: Path) -> None:
    there = ["--rdzv-backend=etcd", f"--rdzv-endpoint={one_etcd.endpoint}", "--rdzv-id=checked"]
    lines = checks(*there)
    assert lines.verdicts("ok") == NAMES
    assert lines["endpoint"][1] == f"etcd answers at {one_etcd.endpoint}, and run 'checked' has no node yet"
    assert not one_etcd.keys("/rdzv-plugins/checked/")

    one_etcd.etcdctl("put", "/rdzv-plugins/old/k/job", "what a job that was killed has left")
    assert checks(*there[:2], "--rdzv-id=old")["endpoint"][1].endswith("and run 'old' has no node yet")
    assert list(one_etcd.keys("/rdzv-plugins/old/")) == ["/rdzv-plugins/old/k/job"]

    secret = tmp_path / "secret"
    secret.write_text("node:the password of a node")
    secret.chmod(0o644)
    lines = checks(*there, f"--rdzv-conf=credentials={secret}")
    assert lines.verdicts("warning") == ["options"]
    assert "can be read by every user of this machine (mode 0644)" in lines["options"][1]

    def there_now() -> dict[str, int]:
        return one_etcd.keys("/rdzv-plugins/checked/")

    first = checks.start(*there, "--nnodes=2")
    wait_until(lambda: any(key.endswith("/k/all/progress") for key in there_now()), 60, lambda: first.text)
    before = there_now()
    assert checks(*there, "--nnodes=2")["endpoint"][1].endswith("and run 'checked' is there, with the same settings")
    assert "--nnodes: here 3, there 2" in checks(*there, "--nnodes=3", code=78)["endpoint"][1]
    assert there_now().keys() == before.keys()
    assert "refused" not in first.text


def test_the_variable_and_the_scripts_own_flag(checks: Checks) -> None:
    agent = checks.start(PET_CHECK="1")
    assert agent.wait() == 0
    assert list(Lines(agent.text)) == NAMES
    assert not list(checks.cluster.directory.glob("started*"))
    agent = checks.cluster.start(["rdzv-run", "train.py", "--check"])  # behind the script it is the script's
    assert (agent.wait(), agent.text) == (0, "")
    assert (checks.cluster.directory / "started-0").exists()
