"""What operators see of the gateway: metrics, log lines, traces.

Imports `state` and what stands below it. Each module is the only user of its library. Begin with `metrics`.
"""
