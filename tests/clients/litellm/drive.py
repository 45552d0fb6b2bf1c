"""LiteLLM's SDK: `drive.py CASE BASE_URL MODEL IMAGE [PDF]`."""

import asyncio
import base64
import json
import sys
from pathlib import Path

import litellm
from pydantic import BaseModel

case, base_url, model, image, *documents = sys.argv[1:]
URL = f"data:image/png;base64,{base64.b64encode(Path(image).read_bytes()).decode()}"
TO = {"api_base": base_url, "api_key": "none"}


class Receipt(BaseModel):
    date: str
    total: str


def ask(prompt, provider="openai", **members):
    content = [{"type": "image_url", "image_url": {"url": URL}}, {"type": "text", "text": prompt}]
    messages = [{"role": "user", "content": content}]
    return {"model": f"{provider}/{model}", "messages": messages, **TO, **members}


def read():
    text = litellm.completion(**ask("Text Recognition:"))
    hosted = litellm.completion(**ask("Text Recognition:", "hosted_vllm"))
    table = litellm.completion(**ask("Table Recognition:", extra_headers={"x-ocr-route": "table"}))
    fields = litellm.completion(**ask("Read the receipt.", response_format=Receipt))
    chunks = list(litellm.completion(**ask("Text Recognition:", stream=True)))
    pieces = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices]
    return {
        "type": type(text).__name__,
        "text": text.choices[0].message.content,
        "hosted": hosted.choices[0].message.content,
        "tokens": text.usage.completion_tokens,
        "table": table.choices[0].message.content,
        "fields": Receipt.model_validate_json(fields.choices[0].message.content).model_dump(),
        "pieces": [piece for piece in pieces if piece],
    }


async def at_once():
    replies = await asyncio.gather(*(litellm.acompletion(**ask("Text Recognition:")) for _ in range(40)))
    return sum(bool(reply.choices[0].message.content) for reply in replies)


def one():
    return litellm.completion(**ask("Text Recognition:")).choices[0].message.content


def hurried():
    """Its own retries, of which it says nothing to those of the client underneath."""
    return litellm.completion(**ask("Text Recognition:", num_retries=3)).choices[0].message.content


def refused():
    try:
        litellm.completion(**ask("Text Recognition:") | {"model": "openai/gpt-5"})
    except litellm.NotFoundError as error:
        return str(error)
    return None


def leave():
    endless = ask("Text Recognition:", stream=True, max_tokens=1_000_000, extra_body={"ignore_eos": True})
    for chunk in litellm.completion(**endless):
        if chunk.choices and chunk.choices[0].delta.content:
            print(chunk.choices[0].delta.content, flush=True)


def ocr():
    told = {}
    for name, document in (
        ("image", {"type": "image_url", "image_url": URL}),
        ("file", {"type": "file", "file": Path(documents[0])}),
    ):
        found = litellm.ocr(model=f"mistral/{model}", document=document, **TO)
        told[name] = {
            "type": type(found).__name__,
            "pages": [[page.index, page.markdown] for page in found.pages],
            "processed": found.usage_info.pages_processed,
        }
    return told


CASES = {"read": read, "one": one, "hurried": hurried, "refused": refused, "leave": leave, "ocr": ocr}
print(json.dumps(asyncio.run(at_once()) if case == "at_once" else CASES[case]()))
