"""Chandra with its method `vllm`: `drive.py CASE BASE_URL MODEL FILE [RETRIES]`."""

import contextlib
import json
import os
import sys
from pathlib import Path

case, base_url, model, file, *options = sys.argv[1:]
os.environ |= {"VLLM_API_BASE": base_url, "VLLM_MODEL_NAME": model}  # read when it is imported

from chandra.input import load_file  # noqa: E402
from chandra.model import InferenceManager  # noqa: E402
from chandra.model.schema import BatchInputItem  # noqa: E402
from chandra.scripts.cli import main  # noqa: E402


def generate(count=1, prompt_type="ocr_layout", **options):
    (image,) = load_file(file, {})
    batch = [BatchInputItem(image=image, prompt_type=prompt_type)] * count
    return InferenceManager(method="vllm").generate(batch, **options)


def told(result):
    return {
        "type": type(result).__name__,
        "markdown": result.markdown,
        "chunks": [[chunk["label"], chunk["bbox"]] for chunk in result.chunks],
        "tokens": result.token_count,
        "error": result.error,
    }


def read():
    (layout,) = generate()
    (page,) = generate(prompt_type="ocr")
    return [told(layout), told(page)]


def convert():
    """Its command, as in a shell."""
    main([file, "out"], standalone_mode=False)
    stem = Path(file).stem
    metadata = json.loads(Path(f"out/{stem}/{stem}_metadata.json").read_text())
    return {"markdown": Path(f"out/{stem}/{stem}.md").read_text(), "pages": metadata["num_pages"]}


def at_once():
    return [told(result)["error"] for result in generate(64, max_retries=0)]


def one():
    return told(generate(max_retries=int(options[0]) if options else None)[0])


CASES = {"read": read, "convert": convert, "at_once": at_once, "one": one}
with contextlib.redirect_stdout(sys.stderr):
    found = CASES[case]()
print(json.dumps(found))
