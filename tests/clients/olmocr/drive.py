"""olmOCR: `drive.py read BASE_URL MODEL FILE [OPTION...]`, `drive.py sockets BASE_URL MODEL FILE COUNT`."""

import asyncio
import json
import os
import runpy
import sys
from collections import Counter
from pathlib import Path

case, base_url, model, file, *options = sys.argv[1:]


def read():
    os.environ.setdefault("BEAKER_ASSIGNED_CPU_COUNT", "4")  # pages that it renders at the same time
    server = ["--server", base_url, "--model", model, "--pdfs", file, "--markdown", "--workers", "2"]
    sys.argv = ["olmocr", "workspace", *server, *options]
    runpy.run_module("olmocr.pipeline", run_name="__main__")
    results = Path("workspace/results").glob("*.jsonl")
    lines = [line for result in results for line in result.read_text().splitlines()]
    markdown = len(list(Path("workspace/markdown").rglob("*.md")))
    return {"documents": [told(json.loads(line)) for line in lines], "markdown": markdown}


def told(document):
    spans = document["attributes"]["pdf_page_numbers"]
    return {
        "pages": [document["text"][start:end].strip() for start, end, _ in spans],
        "fallback": document["metadata"]["total-fallback-pages"],
        "tokens": document["metadata"]["total-output-tokens"],
    }


async def sockets():
    """Many requests at once as it sends them, without the time that it takes to render as many pages."""
    from olmocr.pipeline import apost, build_page_query

    query = await build_page_query(file, 1, 256, model_name=model)
    asked = (apost(f"{base_url}/chat/completions", query) for _ in range(int(options[0])))
    return Counter(status for status, _ in await asyncio.gather(*asked))


print(json.dumps(asyncio.run(sockets()) if case == "sockets" else read()))
