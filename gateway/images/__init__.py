"""Work on pictures, off the event loop and in confined processes, and the fetching of remote images.

Imports `state`, `policy`, `wire` and `config`. Begin with `inspector`.
"""
