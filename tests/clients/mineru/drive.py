"""MinerU's client of its model: pages and parts of pages, one by one and in batches."""

import json
import sys
from pathlib import Path

from mineru_vl_utils import MinerUClient
from mineru_vl_utils.vlm_client.base_client import RequestError, SamplingParams
from mineru_vl_utils.vlm_client.http_client import HttpVlmClient
from PIL import Image

case, base_url, model, *paths = sys.argv[1:]
pages = [Image.open(path) for path in paths]


def client(**options):
    return MinerUClient(backend="http-client", server_url=base_url, use_tqdm=False, **options)


def read():
    (page,) = pages
    found = client()
    text = found.content_extract(page)
    parts = [
        {"type": "title", "bbox": [0.0, 0.0, 1.0, 0.1]},
        {"type": "table", "bbox": [0.0, 0.4, 1.0, 1.0]},
    ]
    blocks = found.extract_with_layout(page, parts)
    return {
        "model": found.client.model_name,
        "type": type(text).__name__,
        "text": text,
        "table": found.content_extract(page, "table"),
        "blocks": [[type(block).__name__, block.type, block.content] for block in blocks],
        "layout": [type(found.layout_detect(page)).__name__, len(found.two_step_extract(page))],
    }


def alias():
    try:
        client(model_name=f"{model}:table")
    except RequestError as error:
        refused = str(error)
    unchecked = client(model_name=f"{model}:table", skip_model_name_checking=True)
    return {"refused": refused, "read": unchecked.content_extract(pages[0])}


def truncated():
    few = SamplingParams(max_new_tokens=2)
    prompts = "\nText Recognition:"
    try:
        HttpVlmClient(server_url=base_url).predict(pages[0], prompts, few)
    except RequestError as error:
        return {"error": str(error)}
    return {"error": None}


def at_once():
    types = ["text", "table"] * 100
    return len(client().batch_content_extract(pages * 200, types))


def labelled():
    types = [Path(path).parent.name for path in paths]
    return len(client().batch_content_extract(pages, types))


def few():
    return client().batch_content_extract(pages * 10)


def refused():
    try:
        client().content_extract(pages[0])
    except Exception as error:
        return {"error": type(error).__name__, "text": str(error)}
    return {"error": None}


def leave():
    print("asks", flush=True)
    client().content_extract(pages[0])


print(json.dumps(globals()[case]()))
