"""What a job asks of a trial of its nodes."""

from __future__ import annotations

from msgspec import Struct


class TrialRules(Struct, frozen=True):
    """How nodes are tried before a round."""

    network: bool = True
    store: bool = True
    gloo: bool = False
    factor: float = 3.0
    """Whatever is worse than usual by more than this factor counts as slow."""
    within: float = 30.0
    """Seconds that a stage may take."""
