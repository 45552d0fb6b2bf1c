"""A simulated vLLM: its HTTP dialect and its metrics, with a clock model in place of a GPU.

`step_model` says what a step costs, `clock` batches requests in virtual time, `runner` lets that time pass.
Imports the modules beside this package, and what those may import; the step model and the clock know nothing
of HTTP. Begin with `simulated_server`, or with `step_model` for the figures.
"""
