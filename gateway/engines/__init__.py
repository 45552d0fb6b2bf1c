"""Engines that ship with the gateway and speak the HTTP dialect of vLLM."""
