"""srun, scontrol and scancel for one machine: as much of them as an example uses, with a real process for each task.

What an example does not say is decided against it, as the configuration of a cluster may: a task that fails ends the
step (KillOnBadExit=1), and so do a task that has ended (WaitTime) and a node that is lost. The exit code is as seen
with Slurm 22.05: the highest of the tasks on nodes that were not lost.

A node N is lost when its task is killed and the test has made a file ``lost-N``. The variables STAND_IN_DIR (a folder
for that, and for what happens) and STAND_IN_GPUS (of each node, as 2,1) come from the test.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

FOLDER = Path(os.environ["STAND_IN_DIR"])


def srun(argv: list[str]) -> int:
    parser = argparse.ArgumentParser("srun", allow_abbrev=False)
    for name in ("nodes", "ntasks", "ntasks-per-node", "cpus-per-task"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--no-kill", action="store_true")
    parser.add_argument("--kill-on-bad-exit", type=int, default=1)
    parser.add_argument("--wait", type=int, default=30)
    parser.add_argument("--label", action="store_true")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args(argv)
    assert args.nodes == args.ntasks == args.ntasks_per_node * int(os.environ["SLURM_JOB_NUM_NODES"])
    tasks = [_task(node, args.command) for node in range(args.nodes)]
    readers = [threading.Thread(target=_show, args=(node, task)) for node, task in enumerate(tasks)]
    for reader in readers:
        reader.start()
    codes: dict[int, int] = {}
    while len(codes) < len(tasks):
        pid, status = os.wait()
        node, code = [task.pid for task in tasks].index(pid), os.waitstatus_to_exitcode(status)
        lost = code == -signal.SIGKILL and (FOLDER / f"lost-{node}").exists()
        codes[pid] = 0 if lost else code
        _say(f"srun: error: Node failure on {node}" if lost else f"srun: task {node} ended: {code}")
        if (not args.no_kill if lost else code != 0 and args.kill_on_bad_exit) or args.wait:
            for task in tasks:
                if task.pid not in codes:
                    os.kill(task.pid, signal.SIGKILL)  # Popen's kill() would wait for one that has just ended: we do
    for reader in readers:
        reader.join()
    return max(code if code >= 0 else 128 - code for code in codes.values())


def _task(node: int, command: list[str]) -> subprocess.Popen[str]:
    gpus = os.environ.get("STAND_IN_GPUS", "").split(",")
    env = dict(os.environ) | {"SLURM_NODEID": str(node), "SLURM_PROCID": str(node), "SLURM_LOCALID": "0"}
    if node < len(gpus) and gpus[node]:
        env["SLURM_GPUS_ON_NODE"] = gpus[node]
    task = subprocess.Popen(command, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    (FOLDER / f"task-{node}").write_text(str(task.pid))
    return task


def _show(node: int, task: subprocess.Popen[str]) -> None:
    assert task.stdout
    for line in task.stdout:
        _say(f"{node}: {line.rstrip()}")


def _say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


def scontrol(argv: list[str]) -> int:
    match argv:
        case ["show", "hostnames", nodes]:
            print("\n".join(nodes.split(",")))
        case ["requeue", job]:
            (FOLDER / "requeued").write_text(job)
        case _:
            raise SystemExit(f"scontrol: {argv}")
    return 0


def scancel(argv: list[str]) -> int:
    """A signal to all processes of the steps of a job, and not to its script."""
    match argv:
        case [option, job] if option.startswith("--signal=") and job == os.environ["SLURM_JOB_ID"]:
            number = signal.Signals[f"SIG{option.removeprefix('--signal=')}"]
        case _:
            raise SystemExit(f"scancel: {argv}")
    for file in FOLDER.glob("task-*"):
        for pid in _descendants(int(file.read_text())):
            with contextlib.suppress(ProcessLookupError):  # one may end with the one before
                os.kill(pid, number)
    return 0


def _descendants(pid: int) -> list[int]:
    children = [int(child) for file in Path(f"/proc/{pid}/task").glob("*/children") for child in _read(file).split()]
    return [pid, *(each for child in children for each in _descendants(child))]


def _read(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:  # the thread has just ended
        return ""


if __name__ == "__main__":
    program = {"srun": srun, "scontrol": scontrol, "scancel": scancel}[sys.argv[1]]
    sys.exit(program(sys.argv[2:]))
