"""Coordination on the native store: sessions, the connections below them, and who serves."""
