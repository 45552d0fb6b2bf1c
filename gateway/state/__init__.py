"""The only mutable store: engines, leases, queues, quotas, what was learned; it hands out frozen snapshots.

Imports `policy`, `wire` and `config`; decisions are theirs, and state carries them out. Begin with `store`,
whose `State` coordinates the rest; then `lease`, a request's place on an engine, and `engine_roster`, which
knows all engines.
"""
