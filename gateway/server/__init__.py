"""One process from its start to its drain: it composes the application, listens, reloads, and keeps workers.

Imports every room but `tools`. Begin with `app`, the composition root.
"""
