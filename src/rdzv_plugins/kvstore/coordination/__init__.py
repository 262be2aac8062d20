"""Coordination on the native store: sessions, the connections beneath them, and who serves."""
