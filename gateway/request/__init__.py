"""The path of one request: received, sorted, admitted, sent to an engine, accounted for.

Imports `upstream`, `images`, `telemetry` and what stands below them. Begin with `dispatch`, which reads
like that list.
"""
