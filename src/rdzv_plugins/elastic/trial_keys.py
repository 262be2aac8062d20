"""What nodes and the leader tell each other in a trial: what is to be measured, and the results."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta

from rdzv_plugins.elastic.record import Count, Name, Number, Port, Record, Sentence

Stage = Literal["measure", "confirm"]
_Value = Annotated[float, Meta(ge=0)]


class Checked(Record, frozen=True):
    """What a node's own ``NodeCheck`` has found."""

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
    """What the leader asks one node to measure. Nobody else can read it, so it proves who is asked."""

    trial: Name
    """A secret shared by the nodes of this trial."""
    stage: Stage
    me: Number
    """This node's number in the trial."""
    dials: tuple[Partner, ...] = ()
    """Nodes to dial, all at once: is there a way to them, and what is its latency?"""
    tests: tuple[Partner, ...] = ()
    """Nodes to test, one after the other: what is the throughput?"""
    within: _Value = 10.0
    """Seconds that the whole task may take."""
    store: bool = False
    """Whether to measure how long the coordination service takes to answer."""
    gloo: bool = False


class Way(Record, frozen=True):
    """What was measured between a node and one with a higher number. 0 means not measured."""

    to: Number
    latency_us: Count = 0
    """The round-trip time in microseconds: the lowest that was seen."""
    rate: Count = 0
    """Bytes per second, in the slower direction."""
    gloo_rate: Count = 0
    problem: Sentence = ""
    """Why this way is of no use; empty if it is usable."""


class Tried(Record, frozen=True):
    """A node's answer to a ``Task``."""

    trial: Name
    stage: Stage
    ways: Annotated[tuple[Way, ...], Meta(max_length=4096)] = ()
    service_us: Count = 0
    """Microseconds that the coordination service took to answer: the lowest of several."""
    problem: Sentence = ""
    """Why this node could not measure at all."""
