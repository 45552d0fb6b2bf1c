"""What a failed attempt means: for its engine's breaker, for a retry, for a name's addresses.

Begin with `retry`, where an engine's failure is classified.
"""
