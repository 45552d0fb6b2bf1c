"""instructor over OpenAI's client: `drive.py CASE BASE_URL MODEL IMAGE`."""

import asyncio
import base64
import json
import sys
from pathlib import Path

import instructor
import openai
from pydantic import BaseModel, Field

case, base_url, model, image = sys.argv[1:]
URL = f"data:image/png;base64,{base64.b64encode(Path(image).read_bytes()).decode()}"
CONTENT = [
    {"type": "image_url", "image_url": {"url": URL}},
    {"type": "text", "text": "Extract the receipt."},
]
ASK = {"model": model, "messages": [{"role": "user", "content": CONTENT}]}
MODES = ("TOOLS", "JSON", "JSON_SCHEMA", "MD_JSON")


class Receipt(BaseModel):
    date: str
    total: str


class Taxed(Receipt):
    vat_number: str = Field(min_length=3)


def client_of(mode):
    return instructor.from_openai(
        openai.OpenAI(base_url=base_url, api_key="none"), mode=instructor.Mode[mode]
    )


def read():
    return {mode: client_of(mode).create(response_model=Receipt, **ASK).model_dump() for mode in MODES}


def picture():
    """With its own way to hand over a picture."""
    content = ["Extract the receipt.", instructor.Image.from_path(image)]
    receipt = client_of("TOOLS").create(
        model=model, messages=[{"role": "user", "content": content}], response_model=Receipt
    )
    return receipt.model_dump()


def partial():
    """Fields as they come."""
    steps = list(client_of("TOOLS").create_partial(response_model=Receipt, **ASK))
    return {"steps": len(steps), "last": steps[-1].model_dump()}


def lacking():
    """A field that is not there."""
    try:
        client_of("TOOLS").create(response_model=Taxed, max_retries=2, **ASK)
    except Exception as error:
        return str(error)
    return None


async def at_once():
    client = instructor.from_openai(
        openai.AsyncOpenAI(base_url=base_url, api_key="none"), mode=instructor.Mode.JSON_SCHEMA
    )
    asked = (client.create(response_model=Receipt, **ASK) for _ in range(16))
    return [receipt.model_dump() for receipt in await asyncio.gather(*asked)]


def leave():
    print("asking", flush=True)
    client_of("TOOLS").create(response_model=Receipt, **ASK)


CASES = {"read": read, "picture": picture, "partial": partial, "lacking": lacking, "leave": leave}
print(json.dumps(asyncio.run(at_once()) if case == "at_once" else CASES[case]()))
