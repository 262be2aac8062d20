"""What the values of keys are made of: immutable records, and the types of their fields, each with its limits."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

Count = Annotated[int, Meta(ge=0, le=2**53)]
Rank = Annotated[int, Meta(ge=-1, le=2**31 - 1)]
"""A rank; -1 for none."""
Number = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Port = Annotated[int, Meta(ge=0, le=65535)]
Workers = Annotated[int, Meta(ge=0, le=2**20)]
Name = Annotated[str, Meta(max_length=512)]
LONGEST = 16384
Sentence = Annotated[str, Meta(max_length=LONGEST)]
"""Text that may quote an error."""


class Record(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """A value that nodes send each other. Immutable; equal to another of the same kind with the same fields."""
