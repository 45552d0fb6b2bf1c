"""Benchmarks: figures, not pass or fail."""
