"""Whatever becomes of a preload, the workers run, and one sentence says why they are fresh interpreters."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

import pytest
from kits.eventually import eventually
from kits.supervisor.supervisor_kit import Agents, alive

SCRIPT = "import sys\nsys.stdout.write(f\"ran {sys.argv[1:]} {'preloaded' in sys.modules}\\n\")\n"
RUN = """
command = ({python!r}, "-u", "script.py")
supervisor = Supervisor(Preload({modules!r}, command, env, {limit}))
supervisor.start([Start(rank, (*command, str(rank)), env{also}, f"out-{{rank}}") for rank in range(2)])
hear(supervisor, 2)
say(supervisor.close())
"""


def run(agents: Agents, module: str, *, limit: float = 60.0, also: str = "") -> list[str]:
    """Run two workers with a preload of this text; returns why they were not preloaded, and the preload's output."""
    directory = agents.directory
    (directory / "script.py").write_text(SCRIPT)
    (directory / "preloaded.py").write_text(module)
    agent = agents.start(RUN.format(python=sys.executable, modules=("json", "preloaded"), limit=limit, also=also))
    said = agent.rest()
    ends = [what["exit_code"] for name, what, *_ in said[:-1] if name == "WorkerEnded"]
    assert ends == [0, 0], agent.errors.read_text()
    reasons = [text for name, _, text in said[:-1] if name == "NotPreloaded"]
    assert also or ("Preloaded" in [name for name, *_ in said]) == (not reasons)
    for rank in range(2):
        assert (directory / f"out-{rank}").read_text() == f"ran ['{rank}'] {not reasons}\n"
    assert said[-1] == [[]]
    agents.wait_gone([])
    return [*reasons, agent.errors.read_text()]


THREAD = "import threading, time\nthreading.Thread(target=time.sleep, args=(1000,), name='pump', daemon=True).start()"
CUDA = (
    "import sys, types\nsys.modules['torch'] = torch = types.ModuleType('torch')\n"
    "torch.cuda = types.SimpleNamespace(is_initialized=lambda: True)"
)
ENDS = (  # as those of OpenBLAS do
    "import os, threading\nend = threading.Event()\nthread = threading.Thread(target=end.wait)\nthread.start()\n"
    "os.register_at_fork(before=lambda: (end.set(), thread.join()))\n"
)
THOROUGH: list[tuple[str, dict[str, Any], str]] = [
    ("raise SystemExit(4)", {}, "SystemExit: 4"),
    ("import os; os._exit(4)", {}, "exit code 4"),
    ("import ctypes; ctypes.string_at(0)", {}, "SIGSEGV"),
    ("import time\ntime.sleep(1000)", {"limit": 10.0}, "after 10 s"),
    (THREAD, {}, "pump"),
    (CUDA, {}, "torch.cuda"),
    ("x = 1", {"also": ' | {"PYTHONHASHSEED": str(rank + 1)}'}, "PYTHONHASHSEED"),
    (ENDS, {}, ""),
]


@pytest.mark.parametrize(
    ("module", "how", "reason"),
    [
        ("raise RuntimeError('no licence')", {}, "RuntimeError: no licence"),
        *(pytest.param(*each, marks=pytest.mark.thorough) for each in THOROUGH),
    ],
)
def test_a_module_that_cannot_be_preloaded(agents: Agents, module: str, how: dict[str, Any], reason: str) -> None:
    """Or can, as its threads have ended before a fork: without a reason."""
    first, *more = run(agents, module, **how)
    assert reason in first if reason else (first, more) == ("", [])


@pytest.mark.thorough
def test_what_a_module_prints_is_not_the_workers(agents: Agents) -> None:
    """It is shown once, on standard error; nor what C code has buffered."""
    (errors,) = run(agents, "import ctypes\nprint('hello')\nctypes.CDLL(None).puts(b'from C')")
    assert sorted(errors.split("\n")) == ["", "from C", "hello"]


def test_a_program_that_is_not_python(agents: Agents) -> None:
    source = """
supervisor = Supervisor(Preload(("json",), ("sh", "-c", "exit 4"), env))
supervisor.start([Start(0, ("sh", "-c", "exit 4"), env)])
hear(supervisor, 1)
supervisor.close()
"""
    (name, _, text), ended = agents.run(source)
    assert name == "NotPreloaded", text
    assert ended[1]["exit_code"] == 4


LOST = """
command = ({python!r}, "-u", "script.py")
supervisor = Supervisor(Preload(("json",), command, env))
for _ in range(3):
    supervisor.start([Start(rank, (*command, str(rank)), env, f"out-{{rank}}") for rank in range(2)])
    hear(supervisor, 2)
    say("next")
    sys.stdin.readline()
say(supervisor.close())
"""


@pytest.mark.thorough
def test_a_template_that_is_lost_is_replaced(agents: Agents) -> None:
    (agents.directory / "script.py").write_text(SCRIPT)
    agent = agents.start(LOST.format(python=sys.executable))

    def until_next() -> list[str]:
        said = []
        while (what := agent.read())[0] != "next":
            said.append(what)
        assert [what[1]["exit_code"] for what in said if what[0] == "WorkerEnded"] == [0, 0]
        return [what[0] for what in said]

    def template() -> int:
        found = [pid for pid, command in agents.processes().items() if command.endswith("-u script.py")]
        assert len(found) == 1
        return found[0]

    assert until_next() == ["Preloaded", "WorkerEnded", "WorkerEnded"]
    old = template()
    os.kill(old, signal.SIGKILL)
    agent.go_on()
    said = until_next()
    assert {*said} - {"Preloaded"} == {"WorkerEnded", "NotPreloaded"}
    eventually(lambda: not alive(old), lambda: "it is still there")
    new = eventually(lambda: [p for p, c in agents.processes().items() if c.endswith("-u script.py")], str)
    assert new != [old]
    agent.go_on()
    assert {"Preloaded"} & {*said, *until_next()}
    agent.go_on()
    assert agent.rest() == [[[]]]
