"""Key-value stores: sockets, torch's TCPStore, the native store with its proxy, and coordination based on it.

Begin with ``tcpstore.wire`` (the little of torch's store protocol that we speak), ``native.server`` and
``coordination.sessions`` (the contract on the native store). Each stands on the one before it, and all on ``sockets``.
"""
