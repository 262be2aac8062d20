"""The conformance suite of rdzv-plugins. Its fixture ``harness`` is in ``conftest.py``."""

from __future__ import annotations

from rdzv_plugins.testing.every_theme import *  # noqa: F403
