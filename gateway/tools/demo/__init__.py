"""`ocr-gateway demo`: simulated engines, the gateway and a load that breathes, on this machine alone.

Begin with `demo_command`. `scene` says what takes part, `processes` starts and ends it, `demo_load` are the
clients, `watch` makes lines of the gateway's metrics. Imports engines.simulated; all else runs in processes
of its own.
"""
