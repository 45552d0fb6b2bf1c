"""Real OCR on the CPU that speaks vLLM's HTTP dialect."""

import os

# onnxruntime reports its use to Microsoft unless told not to before it is loaded (its Privacy.md).
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
