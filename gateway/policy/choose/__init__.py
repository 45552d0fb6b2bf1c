"""Which engine takes a request, and which fleet of engines serves a load best.

Imports only policies and `model`. Begin with `balance`, which ranks engines; `gain` has the rule by which
they are scored. `composition` advises on fleets, by what `fleet_model` says of each.
"""
