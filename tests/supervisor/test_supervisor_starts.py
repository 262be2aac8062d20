"""Workers start as torch's do, all or none, and an error says which one and why."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from kits.supervisor.supervisor_kit import Agents, executable

PROBE = """
import json, os, resource, signal, sys
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(json.dumps({
    "leads": [os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()],
    "signals": [status[name].strip() for name in ("SigBlk", "SigIgn", "SigCgt")],
    "files": sorted(os.listdir("/proc/self/fd")),
    "input": os.readlink("/proc/self/fd/0"),
    "cwd": os.getcwd(),
    "umask": os.umask(0),
    "limits": [resource.getrlimit(each) for each in range(16)],
    "nice": os.nice(0),
    "environment": sorted(item for item in os.environ.items() if item[0] != "_"),
    "arguments": sys.argv,
}))
"""


def test_a_worker_is_as_torch_starts_it(agents: Agents) -> None:
    """Also by an agent in the background of nohup, which ignores SIGHUP and SIGINT, and that holds files open."""
    (agents.directory / "probe.py").write_text(PROBE)
    source = f"""
import resource, subprocess
signal.signal(signal.SIGHUP, signal.SIG_IGN)
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.signal(signal.SIGUSR2, lambda *_: None)
os.umask(0o027)
os.dup2(0, 77, inheritable=True)
command = ({sys.executable!r}, "probe.py", "a", "")
variables = env | {{"NAME": "value", "ODD": "\\udcff\\n"}}
with open("by-popen", "w") as output:
    subprocess.run(command, env=variables, stdout=output, start_new_session=True, check=True)
for threads in (1, 2):
    if threads == 2:
        import threading
        threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
    supervisor = Supervisor()
    supervisor.start([Start(0, command, variables, stdout=f"by-supervisor-{{threads}}")])
    hear(supervisor, 1)
    say(supervisor.close())
"""
    assert [said for said in agents.run(source) if said[0] != "WorkerEnded"] == [[[]], [[]]]
    plain, forked, spawned = (
        json.loads((agents.directory / name).read_text()) for name in ("by-popen", "by-supervisor-1", "by-supervisor-2")
    )
    assert plain["files"] == ["0", "1", "2", "3"]  # the last is the list's
    assert forked == plain
    assert spawned == plain


@pytest.mark.parametrize(
    ("worker", "named"),
    [
        ('("./no-interpreter",), env', "./no-interpreter"),
        *(
            pytest.param(*each, marks=pytest.mark.thorough)
            for each in (
                ('("no-such-program",), env', "no-such-program"),
                ('("./plain",), env', "./plain"),
                ('("./empty",), env', "./empty"),
                ('("/bin/true", "x" * 200_000), {}', "200009"),
                ('("true", "a\\0b"), env', "NUL"),
                ('("true",), env, "no-such-directory/out"', "no-such-directory/out"),
            )
        ),
    ],
)
def test_a_worker_that_cannot_be_started(agents: Agents, worker: str, named: str) -> None:
    """Is named, with the reason; the others have ended, and the next round starts."""
    (agents.directory / "plain").write_text("#!/bin/sh\n")
    executable(agents.directory / "no-interpreter", "#!/no/such/interpreter\n")
    executable(agents.directory / "empty", "text without a first line\n")
    source = f"""
supervisor = Supervisor()
sleeper = ("sleep", "1000"), env
try:
    supervisor.start([Start(0, *sleeper), Start(1, {worker}), Start(2, *sleeper)])
except RdzvError as error:
    say(type(error).__name__, str(error), error.remedy, error.exit_code)
say(supervisor.leftovers(daemons=True, timeout=60))
supervisor.start([Start(0, ("sh", "-c", "exit 5"), env)])
while not any(each.exit_code == 5 for each in supervisor.events(60)):
    pass
say(supervisor.close())
"""
    (name, text, advice, code), left, closed = agents.run(source)
    assert (name, code) == ("WorkerNotStarted", 71)
    assert all(each in text for each in ("local rank 1", named)), text
    assert advice
    assert left == closed == [[]]


@pytest.mark.thorough
def test_many_workers_with_large_environments(agents: Agents) -> None:
    """More than any socket takes at once, and one string as long as the system allows."""
    source = """
supervisor = Supervisor()
large = env | {f"VARIABLE_{number}": "x" * 10_000 for number in range(10)} | {"LONG": "y" * 130_000}
command = ("sh", "-c", "exit $((${#LONG} / 10000 + LOCAL_RANK))")
pids = supervisor.start([Start(rank, command, large | {"LOCAL_RANK": str(rank)}) for rank in range(64)])
say(len(pids), len(set(pids.values())))
hear(supervisor, 64)
say(supervisor.close())
"""
    (count, different), *ended, left = agents.run(source)
    assert (count, different, left) == (64, 64, [[]])
    assert {said[1]["local_rank"]: said[1]["exit_code"] for said in ended} == {rank: rank + 13 for rank in range(64)}


@pytest.mark.thorough
def test_nobody_is_in_a_supervisor_that_follows_the_agents_children(agents: Agents) -> None:
    """A debugger, as VS Code starts the agent with, or a wrapper: it rewrites the commands of Python children."""
    (agents.directory / "os.py").write_text("raise SystemExit('the directory of the user')")
    source = """
import _posixsubprocess, subprocess, threading
def rewriting(real):
    def start(args, *rest):
        python = b"python" in os.path.basename(os.fsencode(args[0]))
        return real([args[0], "-c", "raise SystemExit(3)"] if python else args, *rest)
    return start
for module, name in ((_posixsubprocess, "fork_exec"), (subprocess, "_fork_exec")):
    if hasattr(module, name):
        setattr(module, name, rewriting(getattr(module, name)))
threading.Thread(target=time.sleep, args=(1000,), daemon=True).start()
supervisor = Supervisor()
supervisor.start([Start(0, ("sh", "-c", "exit 7"), env)])
say(len(os.listdir(f"/proc/{supervisor.pid}/task")))
hear(supervisor, 1)
say(supervisor.close())
"""
    others = {"PYTHONWARNINGS": "error", "PYTHONINSPECT": "1", "PYTHONVERBOSE": "", "PYTHONDONTWRITEBYTECODE": "1"}
    threads, ended, left = agents.start(source, **others).rest()
    assert (threads, ended[1]["exit_code"], left) == ([1], 7, [[]])


@pytest.mark.thorough
def test_descriptors_of_a_thread_in_the_fork_are_not_closed_for_the_supervisors(agents: Agents) -> None:
    """A debugger that follows forks connects in each of them, and closes its connections when it wants to."""
    source = """
import select, socket, threading
from rdzv_launcher.run.supervisor.messages import Inherited
agent = os.getpid()
def follow():
    if os.getppid() == agent:  # in the supervisor
        pairs = [socket.socketpair() for _ in range(20)]
        def leave():
            while not os.path.exists("go"):
                time.sleep(0.01)
            for one, other in pairs:
                for end in (one, other):
                    try:
                        end.close()
                    except OSError:
                        pass
            os.close(os.open("gone", os.O_CREAT))
        threading.Thread(target=leave, daemon=True).start()
os.register_at_fork(after_in_child=follow)
supervisor = Supervisor(inherited=Inherited(function=lambda rank: 7))
supervisor.start([Start(0, ("-",), env)])
hear(supervisor, 1)
open("go", "w").close()
while not os.path.exists("gone"):
    time.sleep(0.01)
supervisor.start([Start(1, ("-",), env)])
hear(supervisor, 1)
say(supervisor.close())
"""
    first, second, left = agents.run(source)
    assert [first[1]["exit_code"], second[1]["exit_code"], left] == [7, 7, [[]]]


def test_an_interpreter_without_site_finds_the_supervisor() -> None:
    """What is started where the agent has threads imports nothing but its own, and what the kernel says."""
    from rdzv_launcher.run.supervisor.in_worker import ROOTS
    from rdzv_launcher.run.supervisor.supervisor_process import BOOT

    statement = BOOT.replace("main()", "print(*sys.modules)")
    found = subprocess.run(
        [sys.executable, "-I", "-S", "-c", statement, ROOTS], capture_output=True, text=True, check=True
    )
    others = {name for name in found.stdout.split() if name.startswith("rdzv_plugins.")}
    assert {name.split(".")[1] for name in others} == {
        "clock",
        "system",
        "shared_numbers",
        "stacks_on_request",
    }
    assert not {"logging", "pathlib", "subprocess", "tempfile"} & {*found.stdout.split()}
