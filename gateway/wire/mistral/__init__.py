"""Mistral's format for documents, POST /v1/ocr. Begin with `ocr`."""
