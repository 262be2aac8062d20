"""What it costs to keep and to show the output of a worker that floods: CPU time, beside plain redirection to a file.

``python examples/log_cost.py [--mib N] [--turns N] [--nproc N]``. Each way runs in turn, several times; the CPU time is
that of the agent, its keeper and its workers together. The files are written to a temporary directory (TMPDIR).
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

PLAIN = "plain redirection"
WAYS = {
    PLAIN: ["--redirects=3"],
    "--log-prefix": ["--log-prefix"],
    "--log-rotate": ["--redirects=3", "--log-rotate=64MiB:3"],
    "--log-timestamps=files": ["--redirects=3", "--log-timestamps=files"],
    "--tee": ["--tee=3"],
}
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
    parser.add_argument("--mib", type=int, default=1024, help="how much each worker writes (default 1024)")
    parser.add_argument("--turns", type=int, default=5, help="how often each way runs (default 5)")
    parser.add_argument("--nproc", type=int, default=1, help="workers (default 1)")
    parser.add_argument("--ways", default=",".join(WAYS), help="beside plain redirection, separated by commas")
    args = parser.parse_args()
    ways = [PLAIN, *(way for way in args.ways.split(",") if way != PLAIN)]
    found: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    for turn in range(args.turns):
        for way in ways if turn % 2 == 0 else reversed(ways):
            found[way].append(cpu_of([f"--nproc-per-node={args.nproc}", *WAYS[way]], args.mib))
    plain = statistics.median(cpu for cpu, _ in found[PLAIN])
    for way, turns in found.items():
        cpu, wall = (statistics.median(column) for column in zip(*turns, strict=True))
        print(f"{way:<24} {cpu:6.2f} s CPU  {cpu / plain - 1:+6.1%}  {wall:6.2f} s")


if __name__ == "__main__":
    main()
