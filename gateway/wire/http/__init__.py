"""HTTP from clients without its I/O: requests read, phases, heads of answers; and the headers of a trace.

Imports `errors` alone.
"""
