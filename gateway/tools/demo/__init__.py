"""`ocr-gateway demo`: simulated engines, the gateway and a load that breathes, on this machine alone."""
