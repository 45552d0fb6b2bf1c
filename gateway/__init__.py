"""An OpenAI-compatible gateway for document OCR in front of vLLM engines."""

from importlib.metadata import version

__version__ = version("ocr-gateway")
