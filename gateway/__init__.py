"""An OpenAI-compatible gateway for document OCR in front of vLLM engines."""

import os
from importlib.metadata import version

# The classifier multiplies small matrices: threads would spin longer than they work. Read when numpy loads.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

__version__ = version("ocr-gateway")
