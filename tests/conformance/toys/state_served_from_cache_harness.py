from right_served_state import ServedHarness

__all__ = ["ServedHarness"]
