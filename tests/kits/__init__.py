"""What tests share, a folder for each folder of tests: starters of agents and services, peers, relays, checks.

Imported as ``kits.ROOM.MODULE``: ``tests`` is on the path (pyproject.toml).
"""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
KITS = TESTS / "kits"
