"""LangChain's ChatOpenAI: `drive.py CASE BASE_URL MODEL IMAGE`."""

import asyncio
import base64
import json
import sys
from pathlib import Path

from langchain_core.messages import HumanMessage
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

case, base_url, model, image = sys.argv[1:]
DATA = base64.b64encode(Path(image).read_bytes()).decode()
URL = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{DATA}"}}
BLOCK = {"type": "image", "base64": DATA, "mime_type": "image/png"}


class Receipt(BaseModel):
    date: str
    total: str


def ask(prompt, picture=URL):
    return [HumanMessage(content=[picture, {"type": "text", "text": prompt}])]


def llm(**options):
    return ChatOpenAI(model=model, base_url=base_url, api_key="none", **options)


def read():
    chat = llm()
    text = chat.invoke(ask("Text Recognition:"))
    block = chat.invoke(ask("Text Recognition:", BLOCK))
    table = llm(default_headers={"x-ocr-route": "table"}).invoke(ask("Table Recognition:"))
    fields = chat.with_structured_output(Receipt).invoke(ask("Read the receipt."))
    called = chat.with_structured_output(Receipt, method="function_calling").invoke(ask("Read the receipt."))
    pieces = [chunk.content for chunk in chat.stream(ask("Text Recognition:")) if chunk.content]
    return {
        "type": type(text).__name__,
        "text": text.content,
        "block": block.content,
        "tokens": text.usage_metadata["output_tokens"],
        "finish_reason": text.response_metadata["finish_reason"],
        "table": table.content,
        "fields": fields.model_dump(),
        "called": called.model_dump(),
        "pieces": pieces,
    }


def batch():
    replies = llm().batch([ask("Text Recognition:")] * 24, config={"max_concurrency": 12})
    return [bool(reply.content) for reply in replies]


def one():
    return llm().invoke(ask("Text Recognition:")).content


def refused():
    part = {"type": "file", "base64": DATA, "mime_type": "application/pdf", "filename": "a.pdf"}
    try:
        llm().invoke(ask("Text Recognition:", part))
    except Exception as error:
        return [type(error).__name__, error.code]
    return None


async def timed_out():
    """Its own time limit, without a retry."""
    try:
        await llm(timeout=1, max_retries=0).ainvoke(ask("Text Recognition:"))
    except Exception as error:
        return type(error).__name__
    return None


def leave():
    endless = llm(max_tokens=1_000_000, extra_body={"ignore_eos": True})
    for chunk in endless.stream(ask("Text Recognition:")):
        if chunk.content:
            print(chunk.content, flush=True)


def responses():
    reply = llm(use_responses_api=True).invoke(ask("Text Recognition:"))
    return reply.text


CASES = {
    "read": read,
    "batch": batch,
    "one": one,
    "refused": refused,
    "leave": leave,
    "responses": responses,
}
print(json.dumps(asyncio.run(timed_out()) if case == "timed_out" else CASES[case]()))
