"""The native store server and the store proxy, as Python sees them, and what they may use."""
