"""`ocr-gateway plan`: which fleet to run, from a sweep's profiles and a history of load.

Begin with `plan_command`. `engine_kinds` reads profiles, `load_history` a CSV file and `prometheus_history` a
Prometheus; the decision is policy.choose.composition's, and `recommendation` puts it into words. Imports
config and policy; only `prometheus_history` talks HTTP.
"""
