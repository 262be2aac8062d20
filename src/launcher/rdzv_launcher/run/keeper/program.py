"""Whether a worker can be forked from a template: it is the same program, and its interpreter would start alike."""

from __future__ import annotations

from collections.abc import Mapping

_AT_START = ("PYTHON", "LD_", "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "MALLOC_", "GLIBC_", "PYTORCH_")
"""Variables that are read when an interpreter or a library is loaded, and not again."""

_SWITCHES = frozenset({"-u", "-B", "-O", "-OO", "-b", "-bb", "-d", "-q", "-v"})
"""Flags of an interpreter with which a template works as well as without them."""


def program_of(command: tuple[str, ...]) -> tuple[str, ...]:
    """The interpreter and the program that it runs, without its arguments; empty if it is not that simple."""
    at = 1
    while at < len(command) and command[at] in _SWITCHES:
        at += 1
    end = at + 2 if command[at : at + 1] == ("-m",) else at + 1
    if len(command) < end or command[end - 1].startswith("-"):
        return ()
    return command[:end]


def differing(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    """The names of variables that matter when an interpreter starts, and differ between the two."""
    return sorted(
        name for name in one.keys() | other.keys() if name.startswith(_AT_START) and one.get(name) != other.get(name)
    )
