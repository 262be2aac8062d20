"""Two ranks of a gloo group: the first takes SECONDS for each of several things, while the other waits for it.

Compiling (in processes of its own), loading (by a process that is waited for), evaluating, computing (one call of
native code), and saving.
"""

import multiprocessing
import os
import subprocess
import sys
import time

import quick_torch  # noqa: F401
import torch
import torch.distributed as dist

PROGRAM = "import time\nend = time.process_time() + 0.1\nwhile time.process_time() < end: pass"


def compile_(until):
    while time.monotonic() < until:
        subprocess.run([sys.executable, "-S", "-c", PROGRAM], check=True)
        time.sleep(0.2)


def load(until):
    context = multiprocessing.get_context("fork")
    batches = context.Queue()
    context.Process(target=load_one, args=(batches, until), daemon=True).start()
    batches.get()


def load_one(batches, until):
    while time.monotonic() < until:
        burst = time.process_time() + 0.05
        while time.process_time() < burst:
            pass
        time.sleep(0.1)
    batches.put("loaded")


def evaluate(until):
    right = 0
    while time.monotonic() < until:
        right += 1


def compute(until):
    matrix = torch.rand(150, 150)
    start = time.monotonic()
    torch.linalg.svdvals(matrix.expand(4, 150, 150))
    each = (time.monotonic() - start) / 4
    torch.linalg.svdvals(matrix.expand(max(1, int((until - start) / each)), 150, 150))


def save(until):
    with open(os.devnull, "wb") as file:
        while time.monotonic() < until:
            file.write(bytes(2**16))
            file.flush()
            time.sleep(0.1)


torch.set_num_threads(1)
dist.init_process_group("gloo")
for each in (compile_, load, evaluate, compute, save):
    if dist.get_rank() == 0:
        start = time.monotonic()
        each(start + float(sys.argv[1]))
        sys.stdout.write(f"done: {each.__name__} in {time.monotonic() - start:.1f} s\n")
        sys.stdout.flush()
    dist.barrier()
time.sleep(0.1)
dist.destroy_process_group()
