"""Each runtime has a loop and a reactor of its own, and what a coroutine of the kit asks is asked of its loop's."""

from __future__ import annotations

from rdzv_plugins.kit.loop import here, hold, let_go
from rdzv_plugins.kvstore.coordination.reactor import reactor
from rdzv_plugins.runtime import SYSTEM, Runtime

T = 60.0


def test_a_runtime_has_one_reactor_of_its_own() -> None:
    one = Runtime()
    assert reactor(one) is reactor(one)
    assert reactor(one) is not reactor(SYSTEM)


def test_a_coroutine_finds_the_runtime_of_its_loop() -> None:
    async def asked() -> Runtime:
        return here()

    one, other = Runtime(), Runtime()
    loops = [hold(one), hold(other), hold(one)]
    assert loops[0] is loops[2]
    assert [loop.run(asked(), T) for loop in loops] == [one, other, one]
    for loop in loops:
        let_go(loop)
    assert here() is SYSTEM
