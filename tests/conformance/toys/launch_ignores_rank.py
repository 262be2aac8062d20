"""Fault: it promises that a given node rank counts, and torch's rendezvous assigns the ranks."""

from right_state import backend

from rdzv_plugins import Capability, hookimpl


@hookimpl
def rdzv_register_backends():
    return backend("launch-ignores-rank", capabilities=frozenset({Capability.ELASTIC, Capability.NODE_RANK}))
