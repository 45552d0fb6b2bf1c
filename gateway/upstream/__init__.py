"""Everything that is said to engines: requests and answers over HTTP, polling, finding their addresses.

Imports `state` and what stands below it. Begin with `client`.
"""
