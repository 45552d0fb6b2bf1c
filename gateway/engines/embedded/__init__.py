"""Real OCR on the CPU that speaks vLLM's HTTP dialect."""
