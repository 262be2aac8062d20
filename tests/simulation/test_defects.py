"""The simulation must be able to fail: planted defects are found by it."""

from __future__ import annotations

import pytest

from simulation.defects import DEFECTS, NOT_FOUND
from simulation.planting import Defect, finders

pytestmark = pytest.mark.timeout(1800)


def test_every_defect_still_applies() -> None:
    assert len({each.name for each in DEFECTS}) >= 50
    for defect in DEFECTS:
        compile(defect.source, defect.file, "exec")
    assert {each.name for each in DEFECTS if not each.found} == NOT_FOUND.keys()


@pytest.mark.thorough
@pytest.mark.parametrize("defect", [each for each in DEFECTS if each.found], ids=lambda defect: defect.name)
def test_a_planted_defect_is_found(defect: Defect) -> None:
    assert finders(defect)
