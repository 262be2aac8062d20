"""The native store server and the store proxy, as seen from Python, and the resources they may use."""
