"""A simulated vLLM: its HTTP dialect and metrics, with a clock model in place of a GPU."""
