"""Which engine takes a request, and which fleet of engines serves a load best.

Begin with `balance`, which ranks engines; `gain` has the rule by which they are scored.
"""
