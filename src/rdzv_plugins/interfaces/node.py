"""What a plug-in that assigns ranks is told about each node."""

from __future__ import annotations

from typing import Protocol


class Node(Protocol):
    """A node as ``rdzv_assign_ranks`` sees it."""

    @property
    def node_id(self) -> str:
        """Unique over all agents of the job; what the hook returns."""
        ...

    @property
    def host(self) -> str:
        """The node's host name, as the node reports it."""
        ...

    @property
    def address(self) -> str:
        """The address under which the node's peers reach it."""
        ...

    @property
    def domain(self) -> str:
        """A name shared by nodes near each other, which keeps their ranks consecutive; empty if nothing is known."""
        ...

    @property
    def nproc(self) -> int:
        """The number of the node's workers; 0 from plain torchrun, which does not say."""
        ...
