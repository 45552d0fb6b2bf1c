"""Formats, a folder a dialect: bytes to values and back, without I/O.

`openai`, `responses` and `mistral` are what clients speak, `vllm` what engines do; `image` and `http` are
what both carry, `partial_json` and `sse` what all are read with. Imports `model`, `hosts` and `errors`
alone. Begin with the dialect; `openai` has the request's body.
"""
