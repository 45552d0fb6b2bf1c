"""olmOCR's pipeline: `drive.py CASE BASE_URL MODEL FILE [OPTION...]`."""

import json
import os
import runpy
import sys
from pathlib import Path

case, base_url, model, file, *options = sys.argv[1:]
os.environ.setdefault("BEAKER_ASSIGNED_CPU_COUNT", "4")  # pages that it renders at the same time

server = ["--server", base_url, "--model", model, "--pdfs", file, "--markdown", "--workers", "2"]
sys.argv = ["olmocr", "workspace", *server, *options]
runpy.run_module("olmocr.pipeline", run_name="__main__")

documents = []
for results in Path("workspace/results").glob("*.jsonl"):
    for line in results.read_text().splitlines():
        document = json.loads(line)
        spans = document["attributes"]["pdf_page_numbers"]
        documents.append(
            {
                "pages": [document["text"][start:end].strip() for start, end, _ in spans],
                "fallback": document["metadata"]["total-fallback-pages"],
                "tokens": document["metadata"]["total-output-tokens"],
            }
        )
print(json.dumps({"documents": documents, "markdown": len(list(Path("workspace/markdown").rglob("*.md")))}))
