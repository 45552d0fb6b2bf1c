"""Measures engines' crossovers: load, windows, curves, what follows from them, and the report."""
