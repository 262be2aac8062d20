"""Whole jobs by their seeds, of three kinds, and what many of them have met: a report, in which nothing may be zero."""

from __future__ import annotations

import contextlib
import gc
import itertools
import logging
from collections import Counter
from collections.abc import Iterable, Iterator

from simulation.faults import Faulty, StaticFaulty
from simulation.random_jobs import ALL, Cut, EngineJob, RandomJob, shrunk
from simulation.scheduler import Stuck

_KINDS: tuple[type[RandomJob], ...] = (*(6 * [EngineJob]), *(2 * [Faulty]), *(2 * [StaticFaulty]))
"""By the last digit of the seed."""
_GARBAGE = 20
_SELDOM = {
    *((kind, "gathering") for kind in ("part", "part one way")),  # there is nobody yet from whom to part
    *((kind, "gathering") for kind in ("leave", "notice")),  # needs more than MIN, who begin at once
    ("service without memory", "ending"),  # in half of the jobs that have a service, and few faults meet an end
    ("late watch", "over"),  # of one node alone, in a moment; of all ("late watches") it is met
    ("settings", "gathering"),  # the first to come would be the job
    *((kind, "ending") for kind in ("kill", "crash", "replace", "settings")),  # needs more than one who still lives
}
"""What need not have been met in so few jobs, and why: (fault, state)."""


def job_of(seed: int, cut: Cut = ALL) -> RandomJob:
    """The same job for the same seed. Call ``run`` of it."""
    return _KINDS[seed % len(_KINDS)](seed, cut)  # type: ignore[call-arg]


def wrong_in(seeds: Iterable[int], report: Report) -> Iterator[str]:
    """Run these jobs; what was wrong, each with the command that tells the story of the smallest such job."""
    logging.disable(logging.CRITICAL)  # nobody reads what nodes say
    gc.disable()
    gc.freeze()  # what there is now stays: no search for garbage looks through all modules
    try:
        for number, seed in enumerate(seeds):
            job = job_of(seed)
            try:
                job.run()
            except (AssertionError, Stuck):
                yield told(seed, *shrunk(lambda cut, seed=seed: job_of(seed, cut)))  # type: ignore[misc]
            except Exception as error:  # of the simulation itself
                yield told(seed, ALL, repr(error))
            report.add(job)
            if number % _GARBAGE == _GARBAGE - 1:
                gc.collect()
    finally:
        gc.collect()
        gc.enable()
        logging.disable(logging.NOTSET)


def digests(seeds: Iterable[int]) -> Iterator[str]:
    """Of all writes, messages and decisions of each of these jobs."""
    for seed in seeds:
        job = job_of(seed).record()
        with contextlib.suppress(AssertionError, Stuck):
            job.run()
        yield f"{seed} {job.digest}"


def told(seed: int, cut: Cut, what: str) -> str:
    """One that was wrong, and how to see it again."""
    options = f" --nodes {cut.nodes}" if cut.nodes is not None else ""
    options += f" --faults {','.join(map(str, cut.faults)) or 'none'}" if cut.faults is not None else ""
    return f"{what}\n  python tests/simulation --seed {seed} --show{options}"


class Report:
    """What some jobs have met."""

    def __init__(self) -> None:
        self.jobs: Counter[type[RandomJob]] = Counter()
        self._met: Counter[tuple[type[RandomJob], str, str]] = Counter()
        self._judged: Counter[tuple[type[RandomJob], str]] = Counter()
        self._ends: Counter[str] = Counter()

    def add(self, job: RandomJob) -> None:
        """Count what a job has met."""
        kind = type(job)
        self.jobs[kind] += 1
        self._met.update({(kind, *each): times for each, times in job.met.items()})
        self._judged.update({(kind, oracle): times for oracle, times in job.judged.items()})
        self._ends.update(job.ends)

    @property
    def lines(self) -> Iterator[str]:
        """For people: how often each kind of fault met each state of a round, and each oracle judged."""
        for kind, jobs in self.jobs.items():
            yield f"{jobs} jobs of {kind.__name__}{''.join(f'{state:>11}' for state in kind.states)}"
            for fault in kind.names():
                times = "".join(f"{self._met[kind, fault, state]:11}" for state in kind.states)
                yield f"  {fault:26}{times}"
            judged = sorted((oracle, times) for (of, oracle), times in self._judged.items() if of is kind)
            yield f"  judged: {', '.join(f'{oracle} {times}' for oracle, times in judged)}"
        yield f"nodes ended: {', '.join(f'{end} {times}' for end, times in self._ends.most_common())}"

    @property
    def zeros(self) -> list[str]:
        """What has never been met, of what must be: agents of all kinds of jobs count together."""
        met, wanted = Counter[tuple[bool, str, str]](), dict[tuple[bool, str, str], None]()
        for kind in self.jobs:
            agents = kind is not EngineJob
            for fault, state in itertools.product(kind.names(), kind.states):
                met[agents, fault, state] += self._met[kind, fault, state]
                wanted[agents, fault, state] = None
        missed = [
            f"'{each[1]}' has not met '{each[2]}'" for each in wanted if not met[each] and each[1:] not in _SELDOM
        ]
        judged = [(kind, oracle) for kind in self.jobs for oracle in kind.oracles if not self._judged[kind, oracle]]
        return missed + [f"{kind.__name__}: {oracle} had nothing to judge" for kind, oracle in judged]
