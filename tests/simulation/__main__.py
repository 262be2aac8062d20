"""Jobs from seeds: ``python tests/simulation --seed N --show`` tells one, ``--seeds A B`` runs all from A to B - 1."""

from __future__ import annotations

import argparse
import gc
import hashlib
import logging
import sys
import time
import traceback
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from simulation.random_jobs import job_of


def main() -> int:
    """Run what the command line asks for; 1 if something was wrong."""
    parser = argparse.ArgumentParser(prog="simulation", description=__doc__)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--seeds", type=int, nargs=2, metavar=("A", "B"), default=(0, 200))
    parser.add_argument("--show", action="store_true", help="tell the story")
    parser.add_argument("--all", action="store_true", help="with every write and message")
    given = parser.parse_args()
    logging.getLogger("rdzv_plugins").setLevel(logging.CRITICAL)
    if given.seed is not None:
        return show(given.seed, told=given.show or given.all, everything=given.all)
    return many(range(*given.seeds))


def show(seed: int, *, told: bool, everything: bool) -> int:
    """One job, as a story."""
    world = job_of(seed)
    try:
        world.run()
    except AssertionError:
        pass
    if told:
        for at, who, what in world.story:
            print(f"{at:10.3f}  {who:<8} {' '.join(what)}")
    if everything:
        for line in world.traffic:
            print(line)
    print("sha256 of all writes and messages:", hashlib.sha256("\n".join(world.traffic).encode()).hexdigest())
    print(*(world.oracles.violations or ["nothing is wrong"]), sep="\n")
    for error in (*(each for _, each in world.scheduler.failed), *(each.error for each in world.nodes)):
        if error is not None and told:
            traceback.print_exception(error, file=sys.stdout)
    return bool(world.oracles.violations)


def many(seeds: range) -> int:
    """All of them: what was wrong, and one line of figures."""
    began, hours, bad = time.process_time(), 0.0, 0
    judged, ends = Counter[str](), Counter[str]()
    gc.disable()
    for number, seed in enumerate(seeds):
        world = job_of(seed)
        try:
            world.run()
        except Exception as error:  # of the simulation itself, too: the seed is the report
            bad += 1
            print(f"seed {seed}: {error if isinstance(error, AssertionError) else repr(error)}", flush=True)
        hours += world.now / 3600
        judged += world.oracles.judged
        ends.update(each.end or "killed" for each in world.nodes)
        if number % 20 == 19:
            gc.collect()
    took = time.process_time() - began
    print(
        f"{len(seeds)} jobs in {took:.1f} s of processor time ({1000 * took / len(seeds):.0f} ms each), "
        f"{hours:.1f} h of their time, {bad} with something wrong; judged {dict(sorted(judged.items()))}; "
        f"nodes ended {dict(ends.most_common())}"
    )
    return bool(bad)


if __name__ == "__main__":
    sys.exit(main())
