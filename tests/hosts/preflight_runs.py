"""--preflight on 16 hosts, many times: does it find the one that is wrong, in what time, and nobody else?

``python tests/hosts/preflight_runs.py [--runs=N] [--faulty=N] [--hosts=N]``, as root: so many runs in which all is
well, and so many each with a throttled host, a host that answers late, and a pair without a way to each other. Prints a
line for each, and how it went at all. Exit code 1 if somebody was blamed who is well, or somebody was not found.
"""

from __future__ import annotations

import argparse
import re
import statistics
import sys
import tempfile
from pathlib import Path

from kits.eventually import eventually

if __name__ == "__main__":  # as the tests find them
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from kits.hosts.fleet import PORT, Fleet, outputs
from kits.hosts.hosts import Lan, why_not
from kits.launcher.harness import new_cluster

RATE = 2_000_000
LATE_S = 0.02
BLAMED = re.compile(
    r"(h\d+) \(pid \d+\)(?: and (h\d+) \(pid \d+\))? "
    r"(?:is slow|are slow|has no way|have no way|cannot|is left out for now)"
)
SAID = re.compile(r"(?<=warning: ).*(?:slow|no way|differs|cannot|left out).*")
TESTED = re.compile(r"nodes were tested in ([\d.]+) s")


def once(fleet: Fleet, number: int, kind: str, first: int, other: int) -> tuple[set[str], float, str]:
    """One job of all hosts. Returns who is blamed, the seconds that the trial took, and what was said."""
    hosts = fleet.lan.hosts
    victim = hosts[first]
    if kind == "throttled":
        fleet.lan.slow(victim, 0.0, RATE)
    elif kind == "late":
        fleet.lan.slow(victim, LATE_S)
    elif kind == "pair":
        fleet.lan.hide(victim, hosts[other])
    stop = fleet.cluster.directory / f"stop-{number}"
    agents = [
        fleet.node(
            host,
            f"{hosts[0].address}:{PORT}",
            f"{len(hosts) - 1}:{len(hosts)}",
            conf="last_call_timeout=120",
            flags=("--preflight", f"--rdzv-id=run{number}"),
            stop=stop,
        )
        for host in hosts
    ]
    try:

        def begun() -> bool:
            ended = [agent for agent in agents if agent.process.poll() is not None]
            assert not ended, outputs(ended)
            return sum(bool(agent.reports()) for agent in agents) >= len(hosts) - 1

        eventually(begun, lambda: f"no round:\n{outputs(agents)}")
        text = "\n".join(agent.text for agent in agents)
        blamed = {name for found in BLAMED.findall(text) for name in found if name}
        said = "; ".join(sorted({found[0] for found in SAID.finditer(text)}))
        return blamed, max(float(seconds) for seconds in TESTED.findall(text)), said
    finally:
        if kind in ("throttled", "late"):
            fleet.lan.hasten(victim)
        elif kind == "pair":
            fleet.lan.show(victim, hosts[other])
        stop.touch()
        for agent in agents:
            agent.wait()


def main() -> int:
    """All runs."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=50)
    parser.add_argument("--faulty", type=int, default=5)
    parser.add_argument("--hosts", type=int, default=16)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rdzv-preflight-") as name:
        directory = Path(name)
        (directory / "try").mkdir()
        if reason := why_not(directory / "try"):
            print(f"hosts cannot be made here: {reason}", file=sys.stderr)
            return 2
        (directory / "etc").mkdir()
        lan = Lan(directory / "etc")
        try:
            lan.add(*(f"h{number}" for number in range(args.hosts)))
            for cluster in new_cluster(directory):
                return _all(Fleet(lan, cluster), args)
        finally:
            lan.close()
    return 2


def _all(fleet: Fleet, args: argparse.Namespace) -> int:
    kinds = ["throttled", "late", "pair"] * args.faulty + ["well"] * args.runs
    wrong = 0
    times: dict[str, list[float]] = {}
    for number, kind in enumerate(kinds):
        first, other = 1 + number * 7 % (args.hosts - 2), args.hosts - 1
        expected = {"well": set(), "pair": {f"h{first}", f"h{other}"}}.get(kind, {f"h{first}"})
        blamed, seconds, said = once(fleet, number, kind, first, other)
        times.setdefault(kind, []).append(seconds)
        wrong += blamed != expected
        names = ", ".join(sorted(blamed)) or "nobody"
        verdict = "right" if blamed == expected else f"WRONG, it is {sorted(expected)}: {said}"
        print(f"{number:3} {kind:10} {seconds:5.1f} s  {names}: {verdict}", flush=True)
    for kind, found in times.items():
        print(f"{kind}: {len(found)} runs, {statistics.median(found):.1f} s, at most {max(found):.1f} s")
    print(f"{wrong} of {len(kinds)} runs went wrong")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
