"""vLLM's own formats: its metrics page, per-request speculation, errors, benchmark results.

Begin with `engine`.
"""
