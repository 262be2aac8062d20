"""Whole jobs in one process, in simulated time, from a seed."""
