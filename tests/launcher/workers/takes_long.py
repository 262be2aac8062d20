"""Two ranks of a gloo group: the first takes SECONDS for each of several things, while the other waits for it.

Compiling (in processes of its own), loading (by a process that is waited for), computing (one call of native code), and
saving.
"""

import multiprocessing
import os
import subprocess
import sys
import time

import quick_torch  # noqa: F401
import torch
import torch.distributed as dist


def burn(seconds):
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass


def compile_(until):
    while time.monotonic() < until:
        subprocess.run([sys.executable, "-S", "-c", "for _ in range(1_000_000): pass"], check=True)
        time.sleep(0.2)


def load(until):
    def one():
        while time.monotonic() < until:
            burn(0.05)
            time.sleep(0.1)

    process = multiprocessing.get_context("fork").Process(target=one, daemon=True)
    process.start()
    process.join()


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
for each in (compile_, load, compute, save):
    if dist.get_rank() == 0:
        each(time.monotonic() + float(sys.argv[1]))
    dist.barrier()
time.sleep(0.1)
dist.destroy_process_group()
