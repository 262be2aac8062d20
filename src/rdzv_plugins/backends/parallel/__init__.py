"""``parallel``: elastic rendezvous on the native store, which the endpoint's node serves, or ``rdzv serve`` elsewhere.

Features: min:max nodes, given node ranks, spares, take-over of a lost leader, a lost node costs no restart.
Endpoint: ``HOST[:PORT]``, port 29500 when left out; or several, separated by commas, of which one serves at a time.
With one node it may be left out altogether.

From ``key_bytes`` on the keys are limits of what this node serves, as those of ``rdzv serve``; those of the node that
serves count. The defaults are enough for ten thousand nodes.
"""

from __future__ import annotations

from rdzv_plugins.elastic.native_backend import native_backend
from rdzv_plugins.elastic.options import EndpointOptions
from rdzv_plugins.hookspecs import hookimpl
from rdzv_plugins.interfaces import Backend


@hookimpl
def rdzv_register_backends() -> Backend:
    """Register the backend: the hook through which it is found."""
    return native_backend(
        "parallel",
        "parallel-epoll",
        "elastic rendezvous (min:max nodes) on the native store, served by the endpoint's node or rdzv serve",
        EndpointOptions,
    )
