"""What it costs to keep and to show the output of a worker that floods: CPU time, beside plain redirection to a file.

``python examples/log_cost.py [--mib N] [--turns N]``. Each way runs in turn, several times; the CPU time is that of
the agent, its keeper and the worker together. The files are written to a temporary directory (TMPDIR).
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time

WAYS = {
    "plain redirection": ["--redirects=3"],
    "--log-prefix": ["--log-prefix"],
    "--log-prefix, two workers": ["--log-prefix", "--nproc-per-node=2"],
    "--log-rotate": ["--redirects=3", "--log-rotate=64MiB:3"],
    "--log-timestamps=files": ["--redirects=3", "--log-timestamps=files"],
    "--tee": ["--tee=3"],
}
"""The first one is what the others are compared with."""
FLOOD = """
import os, sys, time
block = b"".join(b"step %06d loss 2.7182818 rate 0.001 tokens 123456789\\n" % number for number in range(1200))
count, start = int(sys.argv[1]) * 2**20 // len(block), time.monotonic()
for number in range(count):
    os.write(1, block)
    ahead = number * len(block) / 100e6 - (time.monotonic() - start)  # 100 MB/s
    if ahead > 0.01:
        time.sleep(ahead)
"""


def cpu_of(options: list[str], mib: int) -> tuple[float, float]:
    """CPU and wall time of one job, in seconds."""
    with tempfile.TemporaryDirectory() as directory:
        worker = os.path.join(directory, "flood.py")
        with open(worker, "w") as file:
            file.write(FLOOD)
        command = [sys.executable, "-m", "rdzv_launcher", f"--log-dir={directory}", *options, worker, str(mib)]
        before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, time.monotonic() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=1024, help="how much the worker writes (default 1024)")
    parser.add_argument("--turns", type=int, default=3, help="how often each way runs (default 3)")
    args = parser.parse_args()
    found: dict[str, list[tuple[float, float]]] = {way: [] for way in WAYS}
    for _ in range(args.turns):
        for way, options in WAYS.items():
            found[way].append(cpu_of(options, args.mib))
    plain = 0.0
    for way, turns in found.items():
        workers = 2 if "two workers" in way else 1
        cpu = statistics.median(cpu for cpu, _ in turns) / workers
        plain = plain or cpu
        wall = statistics.median(wall for _, wall in turns)
        print(f"{way:<28} {cpu:6.2f} s CPU per worker  {cpu / plain - 1:+6.0%}  {wall:6.2f} s")


if __name__ == "__main__":
    main()
