"""Ranks of a gloo group that hang: each where its arguments say (RANK=FUNCTION ...), the others in an all_reduce.

``RANK@ROUND=FUNCTION``: only in this round.

``--plain``: without torch, and the others sleep. ``--hidden``: no debugger may look that has not CAP_SYS_PTRACE.
"""

import ctypes
import os
import signal
import subprocess
import sys
import threading
import time

PR_SET_DUMPABLE = 4


def endless_loop():
    os.nice(19)
    while True:
        pass


def wait_for_lock():
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()


def wait_for_child():
    subprocess.run(["sleep", "600"], check=True)


def skip_collective():
    dist.barrier()


def stop_here():
    os.kill(os.getpid(), signal.SIGSTOP)


def ignore_sigterm():
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    say()
    while True:
        time.sleep(600)


def end():
    sys.exit(0)


def python_child():
    subprocess.run([sys.executable, "-c", "import time\ndef in_child():\n    time.sleep(600)\nin_child()"], check=True)


def stand():
    if "--plain" in sys.argv:
        time.sleep(600)
    else:
        dist.all_reduce(torch.ones(1))


def say():
    sys.stdout.write(f"rank {rank} stands\n")
    sys.stdout.flush()


rank = os.environ["RANK"]
if "--plain" not in sys.argv:
    import quick_torch  # noqa: F401
    import torch
    import torch.distributed as dist

    dist.init_process_group("gloo")
    dist.all_reduce(torch.ones(1))
if "--hidden" in sys.argv:
    ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0, 0, 0, 0)
where = dict(each.split("=") for each in sys.argv[1:] if "=" in each)
place = where.get(f"{rank}@{os.environ.get('RDZV_ROUND')}", where.get(rank, "stand"))
if place != "ignore_sigterm":
    say()
globals()[place]()
