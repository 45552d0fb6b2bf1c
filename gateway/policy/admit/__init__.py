"""Who is let in: queues, fairness between clients, quotas, memory, connections, remote addresses.

Begin with `admission`.
"""
