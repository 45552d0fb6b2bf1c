"""What an answer and an engine's counters say of speculation and of speed.

Begin with `acceptance`.
"""
