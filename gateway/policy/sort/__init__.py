"""Which route a request belongs to.

Imports `model` and `errors` alone, as every package of policy does. Begin with `evidence`.
"""
