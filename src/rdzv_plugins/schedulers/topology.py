"""Where in the network a node is, according to Slurm: SLURM_TOPOLOGY_ADDR, with SLURM_TOPOLOGY_ADDR_PATTERN.

``s0.s2.node7`` with ``switch.switch.node`` on a cluster with topology/tree, ``b1.node7`` with ``block.node`` with
topology/block, and the node's name alone without either. The nodes of a leaf switch, or of a block, are near each
other. Source: https://slurm.schedmd.com/srun.html, *OUTPUT ENVIRONMENT VARIABLES*; blocks:
https://slurm.schedmd.com/topology.html, and the comment on the form in Slurm's topology/block plug-in.
"""

from __future__ import annotations

from rdzv_plugins.schedulers.facts import Fact
from rdzv_plugins.schedulers.variables import Variables

ADDRESS, PATTERN = "SLURM_TOPOLOGY_ADDR", "SLURM_TOPOLOGY_ADDR_PATTERN"
_SHARED = ("switch", "block")


def leaf_of(variables: Variables) -> Fact[str] | None:
    """The leaf switch or the block of this node; None if Slurm knows of neither.

    Raises ``UsageError`` if unreadable.
    """
    address, pattern = variables.text(ADDRESS), variables.text(PATTERN)
    if address is None or pattern is None:
        return None
    kinds = pattern.value.split(".")
    names = address.value.split(".", len(kinds) - 1)  # a node's name may have a domain of its own
    if len(names) != len(kinds):
        raise variables.wrong(ADDRESS, f"contradicts {pattern}: these are {len(names)} and {len(kinds)} parts")
    leaf = len(kinds) - 2
    return Fact(names[leaf], ADDRESS) if leaf >= 0 and kinds[-1] == "node" and kinds[leaf] in _SHARED else None
