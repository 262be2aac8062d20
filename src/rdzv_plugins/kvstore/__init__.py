"""Key-value stores: sockets, torch's TCPStore, the native store with its proxy, and coordination based on it."""
