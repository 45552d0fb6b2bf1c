"""`ocr-gateway ocr`: documents through POST /v1/ocr, for people."""
