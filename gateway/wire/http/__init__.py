"""HTTP heads, and the headers that carry a trace.

Imports `errors` alone.
"""
