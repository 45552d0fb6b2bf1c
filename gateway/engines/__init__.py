"""The engines that ship with the gateway: HTTP servers that speak the dialect of vLLM.

`embedded` reads documents on the CPU, `simulated` has a clock model in place of a GPU. What both share is
here: endpoints and server (`asgi`), answers (`vllm_json`, `responses_api`), metrics (`vllm_page`). What keeps
the embedded engine's process running is `server.embedded_process`. Imports `telemetry`, `policy`, `wire` and
what stands below; only `server`, `tools` and `cli` import it. Begin with `asgi`.
"""
