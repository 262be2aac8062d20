"""Jobs in simulated time: ``python tests/simulation --seed N --show`` tells one, ``--seeds A B`` runs A to B - 1.

``--defects [NAME...]`` plants defects and says which scenarios and which of the seeds find each.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))


def main() -> int:
    """Run what the command line asks for; 1 if something was wrong."""
    parser = argparse.ArgumentParser(prog="simulation", description=__doc__)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--seeds", type=int, nargs=2, metavar=("A", "B"), default=(0, 200))
    parser.add_argument("--show", action="store_true", help="tell the story")
    parser.add_argument("--nodes", type=int, help="with --seed: of its nodes, so many")
    parser.add_argument("--faults", type=_numbers, help="with --seed: of its faults, those with these numbers, or none")
    parser.add_argument("--defects", nargs="*", metavar="NAME", help="plant these, or all")
    parser.add_argument("--planted", metavar="NAME", help=argparse.SUPPRESS)
    given = parser.parse_args()
    # imported by what needs them: a planted defect has to be there before
    if given.planted is not None:
        from simulation.planting import look_for

        return look_for(given.planted, range(*given.seeds))
    if given.defects is not None:
        from simulation.planting import tell_all

        return tell_all(given.defects, range(*given.seeds))
    logging.getLogger("rdzv_plugins").setLevel(logging.CRITICAL)
    logging.getLogger("rdzv_launcher").setLevel(logging.CRITICAL)
    if given.seed is not None:
        return _one(given.seed, given.nodes, given.faults, told=given.show)
    return _many(range(*given.seeds))


def _one(seed: int, nodes: int | None, faults: tuple[int, ...] | None, *, told: bool) -> int:
    """One job, as a story."""
    from simulation.random_jobs import Cut
    from simulation.scheduler import Stuck
    from simulation.seeds import job_of

    job, stuck = job_of(seed, Cut(nodes, faults)).record(), ""
    try:
        job.run()
    except AssertionError:
        pass
    except Stuck as error:
        stuck = f"I13: it hangs: {error}"
    if told:
        for when, who, what in job.story:
            print(f"{when:10.3f}  {who:<8} {what}")
    wrong = [*job.violations, *([stuck] if stuck else [])]
    print(f"seed {seed}: {type(job).__name__}, sha256 of all writes, messages and decisions: {job.digest}")
    print(*(wrong or ["nothing is wrong"]), sep="\n")
    return bool(wrong)


def _many(seeds: range) -> int:
    """All of them: what was wrong, what they have met, and one line of figures."""
    from simulation.seeds import Report, wrong_in

    began, bad, report = time.process_time(), 0, Report()
    for wrong in wrong_in(seeds, report):
        bad += 1
        print(wrong, flush=True)
    took = time.process_time() - began
    print(*report.lines, sep="\n")
    print(f"{len(seeds)} jobs in {took:.1f} s of processor time, {bad} with something wrong")
    return bool(bad)


def _numbers(text: str) -> tuple[int, ...]:
    return () if text == "none" else tuple(int(each) for each in text.split(","))


if __name__ == "__main__":
    sys.exit(main())
