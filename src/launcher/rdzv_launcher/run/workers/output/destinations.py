"""Where the output of a round's workers goes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from msgspec import Struct, field


class Destinations(Struct, frozen=True):
    """Where the output of each worker goes: paths by local rank."""

    stdouts: Mapping[int, str]
    stderrs: Mapping[int, str]
    """The files for stderr; empty: our own."""
    teed_stdouts: Mapping[int, str] = field(default_factory=dict)
    teed_stderrs: Mapping[int, str] = field(default_factory=dict)
    """Those files for stderr that are shown while they are written."""
    error_files: Mapping[int, str] = field(default_factory=dict)
    """The error files; empty: there is none."""
    filtered_stdout: str = ""
    filtered_stderr: str = ""
    """Where the lines selected by --duplicate-stdout-filters and --duplicate-stderr-filters go; empty: nowhere."""
    index: str = ""
    """The file that says which file is whose; empty: there is none."""
    round: int = 0
    """The number of the round, as in the index."""
    moved: tuple[str, str] | None = None
    """A directory of an earlier round that had to make room: its old and new name, beside the index."""


class Layout(Protocol):
    """Decides on the files of a round."""

    @property
    def root(self) -> str:
        """The directory with all of the files; ``os.devnull`` for none."""

    def begin(self, variables: Mapping[int, dict[str, str]]) -> Destinations:
        """Make the files of a round; adds to the workers' ``variables`` what they have to know."""
