"""A preloaded worker is as one that was started by itself: each script is run both ways, and compared."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from kits.supervisor.supervisor_kit import LIMIT_S, Agents

from rdzv_plugins.testing.processes import before_exec

IDENTITY = """
import gc, inspect, json, os, signal, subprocess, sys, threading
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
streams = [sys.stdin, sys.stdout, sys.stderr]
main = sys.modules["__main__"]
print(json.dumps({
    "argv": sys.argv, "orig_argv": sys.orig_argv, "path": sys.path, "flags": list(sys.flags), "prefix": sys.prefix,
    "xoptions": sys._xoptions, "warnoptions": sys.warnoptions, "executable": sys.executable,
    "globals": sorted(globals()), "file": __file__, "name": __name__, "package": __package__,
    "spec": __spec__ and __spec__.name,
    "loader": type(__loader__).__name__, "builtins": str(__builtins__), "cached": globals().get("__cached__"),
    "main": main.__dict__ is globals(), "frames": [frame.filename for frame in inspect.stack()],
    "environment": sorted(os.environ.items()),
    "c_environment": sorted(subprocess.run(["env"], capture_output=True, text=True).stdout.splitlines()),
    "cwd": os.getcwd(), "umask": os.umask(0), "thread": threading.current_thread() is threading.main_thread(),
    "signals": [status[name].strip() for name in ("SigBlk", "SigIgn", "SigCgt")],
    "interrupt": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
    "leads": [os.getsid(0) == os.getpid(), os.getpgid(0) == os.getpid()],
    "streams": [[s.name, s.mode, s.encoding, s.errors, s.line_buffering, s.write_through, s.isatty()] for s in streams],
    "same": [sys.stdout is sys.__stdout__, sys.stderr is sys.__stderr__, sys.stdin is sys.__stdin__],
    "files": sorted(os.listdir("/proc/self/fd")), "input": sys.stdin.read(),
    "ours": [name for name in sys.modules if name.startswith(("rdzv", "sitecustomize", "usercustomize"))],
    "gc": [gc.isenabled(), gc.get_threshold()], "bytecode": sys.dont_write_bytecode,
    "comm": open("/proc/self/comm").read(),
    "hook": [str(sys.excepthook), str(sys.displayhook), sys.gettrace(), str(threading.excepthook)],
}))
"""
MULTIPROCESSING = """
import multiprocessing, os, sys

def square(number):
    return number * number, __name__, os.environ.get("NAME"), sys.argv[1:]

if __name__ == "__main__":
    for method in ("fork", "spawn", "forkserver"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            print(method, pool.map(square, range(3)))
"""
ENDS = {
    "exception": "import atexit\natexit.register(print, 'at exit')\ndef f():\n    1 / 0\ntry:\n    f()\n"
    "except ArithmeticError as error:\n    raise RuntimeError('no\\nway') from error\n",
    "exit-none": "import sys\nprint('not flushed yet', end='')\nsys.exit()\n",
    "exit-text": "import sys\nsys.exit('a reason')\n",
    "interrupt": "import os, signal\nos.kill(os.getpid(), signal.SIGINT)\nsignal.pause()\n",
    "terminated": "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)\nsignal.pause()\n",
    "abort": "import faulthandler, os\nfaulthandler.enable()\ndef f():\n    os.abort()\nf()\n",
    "_exit": "import os\nprint('lost without -u')\nos._exit(9)\n",
    "thread": "import threading\nthreading.Thread(target=print, args=('in a thread',)).start()\nraise SystemExit(3)\n",
    "pdb": "import pdb\nx = 5\npdb.set_trace()\nprint('behind')\n",
    "dump": "import faulthandler, sys, traceback\ndef f():\n    traceback.print_stack(file=sys.stdout)\n"
    "    sys.stdout.flush()\n    faulthandler.dump_traceback(sys.stdout)\nf()\n",
    "unraisable": "class A:\n    def __del__(self):\n        raise ValueError\na = A()\ndel a\n",
}
SCRIPTS = {"identity": IDENTITY, "multiprocessing": MULTIPROCESSING, **ENDS}
IN_GATE = ("identity", "exception")
REST = [
    *((name, "") for name in SCRIPTS if name not in IN_GATE),
    *((name, how) for name in ("identity", "multiprocessing") for how in ("-u", "-m")),
]
PRELOADS = ("json", "multiprocessing", "logging", "threading")


def run_plain(directory: Path, command: list[str], env: dict[str, str]) -> tuple[int, str, str]:
    """What a worker of torch's agent would write, and its exit code."""
    with (directory / "input").open() as given:
        done = subprocess.run(
            command,
            cwd=directory,
            env=env,
            stdin=given,
            capture_output=True,
            text=True,
            start_new_session=True,
            preexec_fn=before_exec(),
            timeout=LIMIT_S,
            check=False,
        )
    return done.returncode, done.stdout, done.stderr


def run_preloaded(
    agents: Agents, command: list[str], env: dict[str, str], preloads: tuple[str, ...] = PRELOADS
) -> tuple[int, str, str]:
    """The same by a worker of a supervisor, which is forked for it: the agent has to say so."""
    template = {name: value for name, value in env.items() if name != "NAME"} | {"OF_TEMPLATE": "only"}
    source = f"""
given = os.open("input", os.O_RDONLY)
os.dup2(given, 0)
os.close(given)
supervisor = Supervisor(Preload({preloads!r}, {tuple(command[:-1])!r}, {template!r}))
supervisor.start([Start(0, {tuple(command)!r}, {env!r}, "out", "err")])
hear(supervisor, 1)
supervisor.close()
"""
    said = agents.run(source)
    assert [name for name, *_ in said] == ["Preloaded", "WorkerEnded"], said
    out, err = ((agents.directory / name).read_text() for name in ("out", "err"))
    return said[1][1]["exit_code"], out, err


def without_addresses(text: str) -> str:
    return re.sub("0x[0-9a-f]+", "0x", text)


@pytest.mark.parametrize(
    ("name", "how"),
    [
        *((name, "") for name in IN_GATE),
        *(pytest.param(name, how, marks=pytest.mark.thorough) for name, how in REST),
    ],
)
def test_a_preloaded_worker_is_like_any_other(agents: Agents, name: str, how: str) -> None:
    project = agents.directory / "project"
    (project / "part").mkdir(parents=True)
    (project / "part" / "__init__.py").write_text("")
    (project / "part" / "script.py").write_text(SCRIPTS[name])
    (agents.directory / "input").write_text("" if name == "pdb" else "given\n")
    env = {**agents.env, "NAME": "value of its own", "PYTHONPATH": str(project)}
    env.pop("PYTHONUNBUFFERED")
    program = ["-u", "-m", "part.script"] if how == "-m" else [*filter(None, [how]), "project/part/script.py"]
    command = [sys.executable, *program, "first", "--second", ""]
    plain, preloaded = run_plain(agents.directory, command, env), run_preloaded(agents, command, env)
    if name == "identity":
        assert plain[0] == 0, plain[2]
        assert json.loads(preloaded[1]) == json.loads(plain[1])  # a failure of this names what differs
    assert [preloaded[0], *map(without_addresses, preloaded[1:])] == [plain[0], *map(without_addresses, plain[1:])]
    if name not in ("exit-none", "terminated", "interrupt", "_exit"):
        assert plain[1] + plain[2]


@pytest.mark.thorough
def test_the_users_own_sitecustomize_is_run_by_each_worker(agents: Agents) -> None:
    """As it is by itself: with the worker's environment, and with threads that no fork would survive."""
    (agents.directory / "input").write_text("")
    (agents.directory / "sitecustomize.py").write_text(
        "import os, threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
        "print('custom', os.environ['NAME'], threading.active_count())\n"
    )
    (agents.directory / "script.py").write_text("import sys\nprint(sys.modules['sitecustomize'].__file__)\n")
    env = {**agents.env, "NAME": "its own", "PYTHONPATH": str(agents.directory)}
    command = [sys.executable, "-u", "script.py", ""]
    plain = run_plain(agents.directory, command, env)
    assert "custom its own 2" in plain[1]
    assert run_preloaded(agents, command, env) == plain


@pytest.mark.thorough
def test_workers_share_what_is_imported_and_nothing_else(agents: Agents) -> None:
    """Random numbers of their own, but for those that are seeded; numpy's, too."""
    (agents.directory / "script.py").write_text(
        "import multiprocessing, numpy, os, random, sys, time, torch, uuid\n"
        "loader = torch.utils.data.DataLoader(range(4), num_workers=2)\n"
        "sys.stdout.write(f'{random.random()} {numpy.random.rand()} {uuid.uuid4()} '\n"
        "    f'{bytes(multiprocessing.current_process().authkey).hex()} {sys.argv[1]}\\n')\n"
        "assert [int(each) for each in loader] == [0, 1, 2, 3]\n"
        "assert torch.initial_seed() == torch.default_generator.initial_seed()\n"
        "sys.stdout.write(f'{torch.ones(300, 300).matmul(torch.ones(300, 300)).sum().item()}\\n')\n"
    )
    source = f"""
command = ({sys.executable!r}, "-u", "script.py")
env.pop("OMP_NUM_THREADS")  # libraries start their threads when they are loaded
supervisor = Supervisor(Preload(("torch",), command, env))
supervisor.start([Start(rank, (*command, f"of-{{rank}}"), env, f"out-{{rank}}", "err") for rank in range(2)])
hear(supervisor, 2)
supervisor.close()
"""
    said = agents.run(source)
    assert [name for name, *_ in said] == ["Preloaded", "WorkerEnded", "WorkerEnded"], said
    assert [what["exit_code"] for name, what, _ in said[1:]] == [0, 0], (agents.directory / "err").read_text()
    texts = [(agents.directory / f"out-{rank}").read_text().splitlines() for rank in range(2)]
    (first, sums), (second, other_sums) = texts
    assert not {*first.split()} & {*second.split()}
    assert sums == other_sums == "27000000.0"
