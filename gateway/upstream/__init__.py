"""Everything said to engines: requests and responses over HTTP, polling, and finding their addresses.

Imports `state` and what stands below it. Begin with `client`; `http1` has its connections, `poller` and
`discovery` run in the background.
"""
