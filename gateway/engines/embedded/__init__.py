"""Real OCR on the CPU behind vLLM's HTTP dialect, in a process of its own.

`ocr_request` reads a request, `pictures` decodes its images, a thread's `reader` finds and recognises their
text, and `answers` lays it out as lines, a table or fields. Imports the modules beside this package, and
what those may import. Begin with `embedded_server`, or with `answers` for what is read.
"""

import os

# onnxruntime reports its use to Microsoft unless told not to before it is loaded (its Privacy.md).
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
