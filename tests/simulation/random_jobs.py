"""A job from a seed: how many nodes it has, what its options are, and what happens to it."""

from __future__ import annotations

import random

from simulation.troubles import random_story
from simulation.world import Work, World

_MOST_TROUBLES = 5


def job_of(seed: int) -> World:
    """The same job for the same seed. Call ``run`` of it."""
    rng = random.Random(f"job {seed}")
    low = rng.choice((1, 2, 2, 3))
    high = low + rng.choice((0, 1, 2))
    ranked = rng.random() < 0.2
    nodes = rng.randint(low, high + 1)
    places = min(rng.choice((0, 0, 0, 2, 3)), nodes)
    world = World(
        seed,
        0,
        low,
        high,
        Work(seconds=rng.choice((10.0, 20.0, 40.0)), fails=(5.0,) if rng.random() < 0.15 else ()),
        by_connection=rng.random() < 0.7 or places > 1,
        max_restarts=rng.choice((0, 1, 3)),
        places=places if places > 1 else 0,
    )

    def script() -> None:
        for number in range(nodes):
            world.add(rank=number if ranked and number < high else None)
            world.scheduler.sleep(rng.random() * 3)
        random_story(world, rng.randint(0, _MOST_TROUBLES))()
        world.comes_nothing_more()

    world.script(script)
    return world
