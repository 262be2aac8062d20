"""Benchmarks: every figure beside its reference, from the same run."""
