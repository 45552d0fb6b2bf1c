"""`ocr-gateway sweep`: measures engines, and says which depth wins at which load.

Begin with `sweep_command`. Measuring: `targets` finds the engines, `agenda` says what to measure next, `run`
has all engines at work, `measure` one cell on one engine with the clients of `engine_clients`, `windows`
makes figures of what they saw, `sweep_file` keeps them. Concluding: `curves`, `crossover` and `findings`,
which are pure, as are `agenda` and `windows`. Telling: `sweep_terminal`, `report` with `summary` and `plots`,
and `write`, which puts schedules and profiles into routes.yaml. `sweep_values` has the values that all of
them exchange. Imports the rooms below the tools, and matplotlib, rich and jinja2 in `plots`, `sweep_terminal`
and `report` alone.
"""
