"""What nodes and the leader tell each other in a trial: what is to be measured, and what has come of it."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from rdzv_plugins.elastic.record import Count, Name, Number, Port, Record, Sentence

Stage = Literal["measure", "confirm"]
_Value = Annotated[float, Meta(ge=0)]


class Checked(Record, frozen=True):
    """What a node has found of a part of its own: a ``NodeCheck``."""

    name: Name
    verdict: Literal["ok", "warning", "broken"] = "ok"
    text: Sentence = ""
    value: _Value | None = None
    unit: Name = ""


class Partner(Record, frozen=True):
    """Another node of the trial, and where it takes connections."""

    index: Number
    address: Name
    port: Port


class Task(Record, frozen=True):
    """The leader to one node: what it is to measure. It is what nobody else can read, so it proves who is asked."""

    trial: Name
    """A secret of the nodes of this trial."""
    stage: Stage
    me: Number
    """This node's number among those of the trial."""
    dials: tuple[Partner, ...] = ()
    """All at once: is there a way, and how long does it take?"""
    tests: tuple[Partner, ...] = ()
    """One after the other: how much goes through?"""
    within: _Value = 10.0
    """Seconds that the whole of it may take."""
    store: bool = False
    """How long the coordination service takes for an answer."""
    gloo: bool = False


class Way(Record, frozen=True):
    """What was measured between a node and one with a higher number. 0: it was not."""

    to: Number
    latency_us: Count = 0
    """Microseconds there and back: the least that was seen."""
    rate: Count = 0
    """Bytes in a second, in the worse direction."""
    gloo_rate: Count = 0
    problem: Sentence = ""
    """Why it is of no use; empty if it is."""


class Tried(Record, frozen=True):
    """A node's answer to a ``Task``."""

    trial: Name
    stage: Stage
    ways: Annotated[tuple[Way, ...], Meta(max_length=4096)] = ()
    service_us: Count = 0
    """Microseconds that the coordination service took for an answer: the least of some."""
    problem: Sentence = ""
    """Why this node could not measure at all."""
