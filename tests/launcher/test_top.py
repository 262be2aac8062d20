"""``rdzv top``: a real job that restarts a worker and loses a node, and an endpoint that is wrong, frozen or gone."""

from __future__ import annotations

import asyncio
import fcntl
import html
import json
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager
from typing import Any

import pytest
from kits.eventually import eventually
from kits.launcher.elastic_kit import Job, Meeting, Serve, in_one_round, outputs, parallel_only
from kits.launcher.harness import BIN, server
from textual.pilot import Pilot

from rdzv_launcher.tools.top.endpoint import EndpointWatch
from rdzv_launcher.tools.top.screen import Screen
from rdzv_launcher.tools.top.watching import is_well
from rdzv_plugins.interfaces import Request
from rdzv_plugins.testing.harness import free_port


def top(endpoint: str, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [str(BIN / "rdzv"), "top", f"--rdzv-endpoint={endpoint}", *flags]
    return subprocess.run(command, capture_output=True, text=True, timeout=150, check=False)


def in_terminal(endpoint: str) -> str:
    """What the command writes on a terminal without colours, from its start until q ends it well."""
    primary, secondary = pty.openpty()
    fcntl.ioctl(secondary, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    env = os.environ | {"NO_COLOR": "1", "TERM": "xterm-256color"}
    command = [str(BIN / "rdzv"), "top", f"--rdzv-endpoint={endpoint}"]
    with subprocess.Popen(command, stdin=secondary, stdout=secondary, stderr=secondary, env=env) as shown:
        os.close(secondary)
        written = b""
        try:
            while select.select([primary], [], [], 60)[0]:
                written += os.read(primary, 65536)
                if b"works" in written and b"Quit" in written:
                    os.write(primary, b"q")
            shown.kill()
        except OSError:  # it has ended
            pass
        finally:
            os.close(primary)
    assert shown.returncode == 0, written
    return written.decode(errors="replace")


def wait_seen(watch: EndpointWatch, is_seen: Callable[[dict[str, Any]], bool], job: int = 0) -> dict[str, Any]:
    """Until the job is seen so."""
    return eventually(lambda: found if is_seen(found := watch.data()["jobs"][job]) else None, lambda: str(watch.data()))


@contextmanager
def watching(meeting: Meeting) -> Iterator[tuple[EndpointWatch, Shown]]:
    request = Request(backend="", run_id="none", endpoint=meeting.endpoint, min_nodes=1, max_nodes=1, nproc_per_node=0)
    watch = EndpointWatch(request, 8.0)
    try:
        watch.start()
        with closing(Shown(watch, request)) as shown:
            yield watch, shown
    finally:
        watch.close()


class Shown:
    """The screen, driven by Textual's pilot on a thread of its own, at 80 columns."""

    def __init__(self, watch: EndpointWatch, request: Request) -> None:
        self._app = Screen(watch, request, 4.0)
        self._loop = asyncio.new_event_loop()
        self._asked: asyncio.Queue[tuple[Callable[[Pilot[None]], Any], Future[Any]] | None] = asyncio.Queue()
        self._thread = threading.Thread(target=self._loop.run_until_complete, args=(self._live(),))
        self._thread.start()

    async def _live(self) -> None:
        """All in the context of the one task, as Textual wants it."""
        async with self._app.run_test(size=(80, 24)) as pilot:
            while (asked := await self._asked.get()) is not None:
                work, answer = asked
                done = work(pilot)
                answer.set_result(await done if asyncio.iscoroutine(done) else done)

    def _do(self, work: Callable[[Pilot[None]], Any]) -> Any:
        answer: Future[Any] = Future()
        self._loop.call_soon_threadsafe(self._asked.put_nowait, (work, answer))
        return answer.result(60)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._asked.put_nowait, None)
        self._thread.join()
        self._loop.close()

    def press(self, *names: str) -> None:
        self._do(lambda pilot: pilot.press(*names))

    def text(self) -> str:
        """What stands on the screen, line by line."""
        found: dict[str, str] = {}
        shot = self._do(lambda pilot: self._app.export_screenshot())
        for y, text in re.findall(r'<text [^>]*?y="([\d.]+)"[^>]*>(.*?)</text>', shot):
            found[y] = found.get(y, "") + html.unescape(text).replace("\xa0", " ")
        return "\n".join(found.values())

    def wait(self, pattern: str) -> str:
        """Until it is there; the whole text."""
        return eventually(
            lambda: text if re.search(pattern, text := self.text(), re.MULTILINE) else None,
            lambda: f"no {pattern} in\n{self.text()}",
        )


def states(job: dict[str, Any]) -> list[tuple[int | None, str]]:
    return [(each["rank"], each["state"]) for each in job["nodes"]]


@pytest.mark.thorough
@parallel_only
def test_a_job_that_restarts_and_loses_a_node_and_a_service_that_freezes_and_goes(meeting: Meeting) -> None:
    serve = Serve(meeting)
    job = Job(meeting, "1:2", script="says.py", restarts=1, nproc=1, conf="outage_timeout=60")
    logs = meeting.directory / "logs"
    first, second = (job.node(flags=["--redirects=2", f"--log-dir={logs}"]) for _ in range(2))
    reports = in_one_round(first, second)
    with watching(meeting) as (watch, shown):
        seen = wait_seen(watch, is_well)
        assert states(seen) == [(0, "works"), (1, "works")]
        assert seen["round"]["number"] == 1
        seen = wait_seen(watch, lambda job: all(each["workers"] for each in job["nodes"]))
        assert {each["pid"] for each in seen["nodes"]} == {first.pid, second.pid}
        assert {worker["pid"] for each in seen["nodes"] for worker in each["workers"]} == {
            int(report["PID"]) for report in reports
        }
        assert all(worker["memory_bytes"] > 2**20 for each in seen["nodes"] for worker in each["workers"])

        text = shown.wait(r"rank 0 \(local 0, pid \d+, S\): CPU")
        assert "round 1 is complete: 2 nodes, 2 workers" in text
        assert re.search(r"^ 0 .* works .*$\n^ 1 .* works ", text, re.MULTILINE)
        shown.press("down", "s")  # of the second node
        shown.wait(r"Stacks of the workers on .*\n(.*\n)*.*says\.py")
        shown.press("escape", "l")
        shown.wait(r"Last lines of rank 1 \(local 0, pid \d+\) on ")
        shown.wait(r"stdout goes to the screen of its node alone(.*\n)+stderr(.*\n)+.*nothing yet")
        for each in logs.rglob("stderr.log"):  # as its worker has it
            each.write_text("".join(f"step {number}\n" for number in range(1000)))
        shown.press("l")
        shown.wait(r"  step 998 *\n  step 999")
        shown.press("n")  # there is no other worker
        shown.wait(r"Last lines of rank 1 (.*\n)+  step 999")
        shown.press("escape", "w")
        shown.wait("nobody waits in the workers' store")
        shown.press("escape", "r")
        shown.wait("no round has ended yet")
        shown.press("escape")

        plain = in_terminal(meeting.endpoint)
        assert "Traceback" not in plain
        assert all(red == green == blue for red, green, blue in re.findall(r"[34]8;2;(\d+);(\d+);(\d+)", plain))

        once = top(meeting.endpoint, "--json")
        assert once.returncode == 0, once.stderr
        [data] = json.loads(once.stdout)["jobs"]
        assert states(data) == states(seen)
        assert all(worker["cpu_percent"] is not None for each in data["nodes"] for worker in each["workers"])

        late = Job(meeting, 2, script="says.py", run_id="late").node()  # another job, for which a node is missing
        waits = wait_seen(watch, lambda job: job["run"] == "late" and bool(job["nodes"]), job=-1)
        assert states(waits) == [(None, "waits")]
        shown.wait(r"JOB +ROUND +STATE(.*\n)+.*late +0 +none")
        both = top(meeting.endpoint, "--once")
        assert both.returncode == 1, both.stderr
        assert [line.split()[0] for line in both.stdout.splitlines()[:3]] == ["JOB", "late", "none"]
        assert "run 'late' at " in both.stdout
        assert "no round yet: 1 of 2 nodes have joined" in both.stdout
        assert top(meeting.endpoint, "--once", "--rdzv-id=none").returncode == 0
        meeting.kill(late.pid)
        eventually(lambda: len(watch.data()["jobs"]) == 1, lambda: str(watch.data()))

        [worker] = job.workers(second)
        os.kill(worker, signal.SIGKILL)
        reports = in_one_round(first, second, after=reports)
        seen = wait_seen(watch, lambda job: job["round"]["number"] == 2 and is_well(job))
        assert f"pid {worker}) ended with signal 9 (SIGKILL)" in str(seen["events"])
        assert "round 1 is over: " in seen["last_end"]
        shown.wait("round 1 is over: ")
        shown.press("r")
        shown.wait("How the last round ended\n.*round 1 is over: ")
        shown.press("q")
        by_pid = wait_seen(watch, lambda job: {each["restarts"] for each in job["nodes"]} == {0, 1})["nodes"]
        assert {each["pid"]: each["restarts"] for each in by_pid} == {first.pid: 0, second.pid: 1}

        job.kill_node(second)
        in_one_round(first, after=reports)
        seen = wait_seen(watch, lambda job: job["round"]["number"] == 3 and is_well(job))
        assert states(seen) == [(0, "works")]
        assert f"pid {second.pid}) is gone" in str(seen["events"])
        shown.wait(rf"pid {second.pid}\) is gone")
        text = top(meeting.endpoint, "--once")
        assert text.returncode == 0, text.stderr
        assert "run 'none' at " in text.stdout
        assert "round 3 is complete: 1 node, 1 worker" in text.stdout
        assert all(len(line) <= 80 for line in text.stdout.splitlines() if line[:4] in ("RANK", "0   "))

        # frozen: what was seen last stays, with how long it has been out of sight
        os.kill(serve.agent.pid, signal.SIGSTOP)
        frozen = wait_seen(watch, lambda job: bool(job["problem"]))
        assert frozen["problem"].startswith("out of sight for ")
        shown.wait(r"out of sight for \d+ s: ")
        assert states(frozen) == [(0, "works")]
        silent = top(meeting.endpoint, "--once", "--timeout=1")
        assert silent.returncode == 68, silent.stdout
        assert "Traceback" not in silent.stderr
        assert meeting.endpoint in silent.stderr
        os.kill(serve.agent.pid, signal.SIGCONT)
        wait_seen(watch, is_well)

        # gone, and back
        serve.kill()
        wait_seen(watch, lambda job: bool(job["problem"]))
        Serve(meeting)
        seen = wait_seen(watch, is_well)
        assert states(seen) == [(0, "works")]

        # a node that is stopped is silent, and nobody waits for its answer to see the others
        os.kill(first.pid, signal.SIGSTOP)
        wait_seen(watch, lambda job: "silent" in {each["state"] for each in job["nodes"]} or not is_well(job))
        os.kill(first.pid, signal.SIGCONT)
        wait_seen(watch, is_well)
    job.finish(first)
    eventually(lambda: top(meeting.endpoint, "--once").returncode == 68, lambda: outputs([first]))


def test_a_job_that_meets_at_a_service_of_its_own(meeting: Meeting) -> None:
    job = Job(meeting, 1, script="says.py", conf="ttl=60")
    node = job.node()
    in_one_round(node)
    found = top(meeting.endpoint, f"--rdzv-id={meeting.run_id}", "--json")  # the backend is found by what answers
    assert found.returncode == 0, found.stdout + found.stderr
    [seen] = json.loads(found.stdout)["jobs"]
    assert [(each["pid"], each["state"], len(each["workers"])) for each in seen["nodes"]] == [(node.pid, "works", 1)]
    job.finish(node)


def test_an_endpoint_that_is_something_else_is_said() -> None:
    port = free_port()
    nobody = top(f"127.0.0.1:{port}", "--once", "--timeout=1")
    assert nobody.returncode == 68
    assert f"127.0.0.1:{port}" in nobody.stderr
    with server(port, b"HTTP/1.1 400 Bad Request\r\n\r\n"):
        other = top(f"127.0.0.1:{port}", "--json", "--timeout=1")
    assert other.returncode == 68
    piped = top(f"127.0.0.1:{port}")
    assert piped.returncode == 2
    assert "--once" in piped.stderr
