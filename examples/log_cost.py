"""What it costs to keep and to show the output of workers that flood: CPU time, beside plain redirection to a file.

``python examples/log_cost.py [--mib N] [--turns N] [--nproc N] [--ways WAY,...]``. Each way runs in turn, and again.
Counted is what the workers and their agent use from the first byte to a second after the last, and not their start. The
files are written to a temporary directory (TMPDIR). For Linux.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile

PLAIN = "plain redirection"
WAYS = {
    PLAIN: ["--redirects=3"],
    "--log-prefix": ["--log-prefix"],
    "--tee": ["--tee=3"],
}
FLOOD = """
import glob, json, os, sys, time
def cpu(pid):  # of all its threads, in seconds
    return sum(int(open(path).read().split()[0]) for path in glob.glob(f"/proc/{pid}/task/*/schedstat")) / 1e9
def parent_of(pid):
    return int(open(f"/proc/{pid}/stat").read().rpartition(")")[2].split()[1])
agent = parent_of(os.getppid())  # the supervisor is in between
block = b"".join(b"step %06d loss 2.7182818 rate 0.001 tokens 123456789\\n" % number for number in range(1200))
before, start = (cpu(os.getpid()), cpu(agent)), time.monotonic()
for number in range(int(sys.argv[1]) * 2**20 // len(block)):
    os.write(1, block)
    ahead = number * len(block) / 100e6 - (time.monotonic() - start)  # 100 MB/s
    if ahead > 0.01:
        time.sleep(ahead)
seconds = time.monotonic() - start
time.sleep(1)
used = [after - was for after, was in zip((cpu(os.getpid()), cpu(agent)), before)]
with open(os.path.join(sys.argv[2], "rank" + os.environ["RANK"]), "w") as file:
    json.dump([*used, seconds], file)
"""


def flood(options: list[str], mib: int, nproc: int) -> tuple[float, float, float]:
    """CPU time of the workers and of the agent, and how long the first worker took, in seconds."""
    with tempfile.TemporaryDirectory() as directory:
        worker = os.path.join(directory, "flood.py")
        with open(worker, "w") as file:
            file.write(FLOOD)
        launcher = [sys.executable, "-m", "rdzv_launcher", f"--log-dir={directory}/logs", f"--nproc-per-node={nproc}"]
        command = [*launcher, *options, worker, str(mib), directory]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        ranks = []
        for rank in range(nproc):
            with open(os.path.join(directory, f"rank{rank}")) as file:
                ranks.append(json.load(file))
        return sum(each[0] for each in ranks), max(each[1] for each in ranks), ranks[0][2]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=1000, help="how much each worker writes (default 1000)")
    parser.add_argument("--turns", type=int, default=5, help="how often each way runs (default 5)")
    parser.add_argument("--nproc", type=int, default=1, help="workers (default 1)")
    parser.add_argument("--ways", default=",".join(WAYS), help="beside plain redirection, separated by commas")
    args = parser.parse_args()
    ways = [PLAIN, *(way for way in args.ways.split(",") if way != PLAIN)]
    found: dict[str, list[tuple[float, float, float]]] = {way: [] for way in ways}
    for turn in range(args.turns):
        for way in ways if turn % 2 == 0 else reversed(ways):
            found[way].append(flood(WAYS[way], args.mib, args.nproc))
    plain = statistics.median(workers + agent for workers, agent, _ in found[PLAIN])
    print(f"{'':<24} {'workers':>8} {'agent':>8} {'together':>16} {'took':>8}")
    for way, turns in found.items():
        workers, agent, seconds = (statistics.median(column) for column in zip(*turns, strict=True))
        both = statistics.median(workers + agent for workers, agent, _ in turns)
        print(f"{way:<24} {workers:6.3f} s {agent:6.3f} s {both:6.3f} s {both / plain - 1:+6.1%} {seconds:6.2f} s")


if __name__ == "__main__":
    main()
