"""A training loop without torch: a step is a barrier of all ranks in their store. It ends when the file STOP exists."""

from __future__ import annotations

import sys
import time

from world import PACE_S, STOP, World

from rdzv_plugins.errors import StoreLost


def main() -> int:
    world = World()
    step = 0
    while True:
        begun = time.monotonic()
        if world.store.add(f"soak/step/{step}", 1) == world.size:
            world.store.set(f"soak/go/{step}", "stop" if STOP.exists() else "go")  # one decides for all
        verdict = world.store.get(f"soak/go/{step}")
        world.write_step(step, begun)
        if verdict == b"stop":
            world.finish()
            return 0
        if world.rank == 0 and step:  # all are in this step, so nobody asks for the last one any more
            world.store.delete_key(f"soak/step/{step - 1}")
            world.store.delete_key(f"soak/go/{step - 1}")
        step += 1
        time.sleep(PACE_S)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (OSError, StoreLost) as error:
        sys.exit(f"the store has gone: {error}")
