"""A worker that writes its stacks when it is asked, and everybody else, whom the signal would end."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from rdzv_launcher.run.keeper.in_worker import ROOTS, hooked
from rdzv_launcher.run.keeper.in_worker import VARIABLE as IN_WORKER
from rdzv_launcher.run.stacks import processes, reading
from rdzv_plugins.stacks_on_request import SIGNAL, VARIABLE

PATIENCE_S = 60.0
REGISTERS = {
    "worker": ("import rdzv_plugins.worker", {}),
    "hook": ("", hooked({IN_WORKER: ROOTS})),  # its job has --worker-stacks
    "fork": ("from rdzv_launcher.run.keeper.in_worker import arrange; arrange()", {IN_WORKER: ROOTS}),  # of a template
}


@contextmanager
def process(directory: Path, code: str, **more: str) -> Iterator[int]:
    """One that runs ``code`` and then waits in a function called ``here``; gives the process id that it says."""
    code += "\nimport os, sys, time\ndef here():\n    sys.stdout.write(f'{os.getpid()}\\n'); sys.stdout.flush()\n"
    code += "    time.sleep(600)\nhere()"
    env = os.environ | {VARIABLE: f"{directory},{os.getpid()}"} | more
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, env=env) as started:
        assert started.stdout is not None
        try:
            yield int(started.stdout.readline())
        finally:
            started.kill()


def functions(pid: int, directory: Path) -> list[str]:
    found = processes.look(pid)
    assert found is not None
    main, *_ = reading.by_request(found, directory, timeout=PATIENCE_S)
    assert main.is_main
    return [frame.function for frame in main.frames]


@pytest.mark.parametrize("how", REGISTERS)
def test_a_worker_writes_where_its_main_thread_is_each_time(how: str, tmp_path: Path) -> None:
    threads = "import threading, time; threading.Thread(target=time.sleep, args=(600,), daemon=True).start()"
    code, variables = REGISTERS[how]
    with process(tmp_path, f"{code}\n{threads}", **variables) as pid:
        for _ in range(3):
            assert functions(pid, tmp_path) == ["here", "<module>"]


def test_a_forked_child_writes_into_a_file_of_its_own(tmp_path: Path) -> None:
    fork = "import os, sys\nread, write = os.pipe()\nif pid := os.fork():\n    os.close(write); os.read(read, 1)"
    code = f"{REGISTERS['worker'][0]}\n{fork}\n    os.waitpid(pid, 0); sys.exit()"
    with process(tmp_path, code) as child:
        try:
            assert functions(child, tmp_path) == ["here", "<module>"]
            assert len(list(tmp_path.iterdir())) == 2
        finally:
            os.kill(child, 9)


def test_nothing_of_the_hook_is_left_for_the_program_and_its_own_hook_is_run(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("theirs = True")
    program = "import os, sys; print(os.environ.get('PYTHONPATH'), 'RDZV_IN_WORKER' in os.environ, *sys.path)"
    program += "; import sitecustomize; print(sitecustomize.theirs)"
    said = []
    for more in ({}, {IN_WORKER: ROOTS, VARIABLE: f"{tmp_path},{os.getpid()}"}):
        env = hooked(os.environ | {"PYTHONPATH": str(tmp_path)} | more)
        said.append(subprocess.check_output([sys.executable, "-c", program], env=env, text=True))
    assert said[0] == said[1]
    assert said[0].startswith(f"{tmp_path} False ")


@pytest.mark.parametrize(
    "code",
    [
        "pass",
        f"import signal; signal.signal({SIGNAL}, lambda *_: None); import rdzv_plugins.worker",
        f"import os; os.environ.pop('{VARIABLE}'); import rdzv_plugins.worker",
        f"import os; os.environ['{VARIABLE}'] = '/no/such/directory,1'; import rdzv_plugins.worker",
        f"import os; os.environ['{VARIABLE}'] = 'x'; import rdzv_plugins.worker",
    ],
)
def test_who_has_not_said_so_gets_no_signal(code: str, tmp_path: Path) -> None:
    with process(tmp_path, code) as pid:
        with pytest.raises(reading.NoStacks, match="does not write its stacks itself"):
            functions(pid, tmp_path)
        assert processes.is_there(processes.look(pid))
