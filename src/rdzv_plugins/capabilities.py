"""What a backend can promise. Plug-ins import it from ``rdzv_plugins``, or from ``interfaces``."""

from __future__ import annotations

import enum


class Capability(str, enum.Enum):
    """What a backend promises. An undeclared capability is refused or warned about, never assumed."""

    # docs/reference/capabilities.md shows the docstrings below

    ELASTIC = "elastic"
    """``--nnodes=MIN:MAX``: nodes may join and leave while the job runs.

    A round has at least MIN nodes and at most MAX. A node that comes later, or is lost, leads to a new round; if fewer
    than MIN are left, they wait for a replacement.

    Undeclared:
        When MIN is less than MAX, the launcher warns on each node that all MAX nodes are waited for, and gives the
        backend a request in which MIN is MAX.
    """
    NODE_RANK = "node_rank"
    """A given ``--node-rank`` decides the node's place.

    The node with ``--node-rank=3`` is node 3 in each round of at least four nodes, with the global ranks of that
    place.

    Undeclared:
        When ``--node-rank`` is given, the launcher warns on that node that it is ignored: the backend assigns the
        ranks.
    """
    TORCHRUN_PEERS = "torchrun_peers"
    """Nodes started by plain torchrun may be part of the same job.

    That is torchrun with its own backend of the same name, on nodes where this project need not be installed. It has
    nothing to do with ``--rdzv-backend=rdzv-plugins.NAME``, by which plain torchrun uses any backend.

    Undeclared:
        Such a node does not join the job. The launcher cannot see it, and says nothing. Start all nodes with
        ``rdzv-run``, or all with that name.
    """
    NODE_REPLACEMENT = "node_replacement"
    """An agent that is started again takes its old place, and all restart in one round.

    It is recognised by its ``--node-rank``, or by its machine if none was given, and gets the node rank of the previous
    round once the old agent is gone.

    Undeclared:
        An agent that is started again counts as one more node, for which there has to be room; it may get any rank.
    """
    SEVERAL_ENDPOINTS = "several_endpoints"
    """``--rdzv-endpoint=A,B,C``: the nodes meet at one of these, and at another when it is lost.

    The next round has the same ranks, uses up no restart, and is the only one: nodes that are too few wait. A node that
    comes to any endpoint finds the one that serves.

    Undeclared:
        A list is refused before anything starts, or names the members of one service that moves by itself.
    """
    TOKEN = "token"
    """With ``RDZV_TOKEN`` or a ``token_file``, only nodes that know the token take part in the job.

    Nodes prove that they know it before they exchange anything else on a connection, and workers reach their store
    through their node's proxy. How a separate service, such as etcd, authenticates its users is its own matter.

    Undeclared:
        A job of several nodes with a token is refused; for a job of one node the launcher warns.
    """
