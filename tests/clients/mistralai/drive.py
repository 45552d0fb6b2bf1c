"""Mistral's client, for documents: `drive.py CASE SERVER_URL MODEL IMAGE PDF`."""

import asyncio
import base64
import json
import sys
from pathlib import Path

from mistralai.client import Mistral
from mistralai.client.errors import MistralError
from mistralai.client.utils import BackoffStrategy, RetryConfig
from mistralai.extra import response_format_from_pydantic_model
from pydantic import BaseModel

case, server_url, model, image, document = sys.argv[1:]


def data_url(kind, path):
    return f"data:{kind};base64,{base64.b64encode(Path(path).read_bytes()).decode()}"


IMAGE = {"type": "image_url", "image_url": data_url("image/png", image)}
PDF = {"type": "document_url", "document_url": data_url("application/pdf", document)}


RETRIES = RetryConfig("backoff", BackoffStrategy(500, 60_000, 1.5, 600_000), False)


class Receipt(BaseModel):
    date: str
    total: str


def client(**options):
    return Mistral(**{"api_key": "none", "server_url": server_url, "timeout_ms": 600_000, **options})


def told(response):
    return {
        "type": type(response).__name__,
        "pages": [[page.index, page.markdown] for page in response.pages],
        "processed": response.usage_info.pages_processed,
        "model": response.model,
    }


def read():
    with client() as mistral:
        fields = mistral.ocr.process(
            model=model,
            document=IMAGE,
            document_annotation_format=response_format_from_pydantic_model(Receipt),
        )
        table = mistral.ocr.process(model=f"{model}:table", document=IMAGE, table_format="html")
        return {
            "image": told(fields),
            "dimensions": fields.pages[0].dimensions.model_dump(),
            "fields": Receipt.model_validate_json(fields.document_annotation).model_dump(),
            "table": [table.pages[0].markdown, [one.content for one in table.pages[0].tables]],
            "pdf": told(mistral.ocr.process(model=model, document=PDF)),
            "second": told(mistral.ocr.process(model=model, document=PDF, pages=[1])),
        }


async def at_once():
    async with client(retry_config=RETRIES) as mistral:
        asked = (mistral.ocr.process_async(model=model, document=PDF) for _ in range(8))
        return [told(response) for response in await asyncio.gather(*asked)]


def refused():
    found = []
    with client() as mistral:
        for members in (
            {"document": PDF, "pages": [7]},
            {"document": PDF, "extract_header": True},
            {"document": {"type": "file", "file_id": "1"}},
        ):
            try:
                mistral.ocr.process(model=model, **members)
            except MistralError as error:
                found.append([error.status_code, json.loads(error.body)["error"]["code"]])
    return found


def one():
    with client() as mistral:
        return told(mistral.ocr.process(model=model, document=IMAGE, retries=RETRIES))


def hasty():
    with client(timeout_ms=2000) as mistral:
        mistral.ocr.process(model=model, document=PDF)


def leave():
    print("asking", flush=True)
    with client() as mistral:
        mistral.ocr.process(model=model, document=PDF)


CASES = {"read": read, "refused": refused, "one": one, "hasty": hasty, "leave": leave}
print(json.dumps(asyncio.run(at_once()) if case == "at_once" else CASES[case]()))
