"""OpenAI's Python client: `drive.py CASE BASE_URL MODEL IMAGE`."""

import asyncio
import base64
import json
import sys
from pathlib import Path

import openai
from pydantic import BaseModel

case, base_url, model, image = sys.argv[1:]
URL = f"data:image/png;base64,{base64.b64encode(Path(image).read_bytes()).decode()}"


class Receipt(BaseModel):
    date: str
    total: str


def ask(prompt, **members):
    content = [{"type": "image_url", "image_url": {"url": URL}}, {"type": "text", "text": prompt}]
    return {"model": model, "messages": [{"role": "user", "content": content}], **members}


def read():
    with openai.OpenAI(base_url=base_url, api_key="none") as client:
        (listed,) = client.models.list()
        chat = client.chat.completions
        raw = chat.with_raw_response.create(**ask("Text Recognition:"))
        text = raw.parse()
        table = chat.create(**ask("Table Recognition:"), extra_headers={"x-ocr-route": "table"})
        fields = chat.parse(**ask("Read the receipt.", response_format=Receipt))
        tools = [openai.pydantic_function_tool(Receipt)]
        called = chat.parse(**ask("Read the receipt.", tools=tools, tool_choice="required"))
        pieces, usage = [], None
        with chat.create(
            **ask("Text Recognition:", stream=True, stream_options={"include_usage": True})
        ) as stream:
            for chunk in stream:
                pieces += [choice.delta.content for choice in chunk.choices if choice.delta.content]
                usage = chunk.usage or usage
        with chat.stream(**ask("Text Recognition:")) as events:
            streamed = events.get_final_completion()
        return {
            "model": listed.id,
            "route": raw.headers["x-ocr-route"],
            "types": [type(text).__name__, type(fields.choices[0].message.parsed).__name__],
            "text": text.choices[0].message.content,
            "finish_reason": text.choices[0].finish_reason,
            "table": table.choices[0].message.content,
            "fields": fields.choices[0].message.parsed.model_dump(),
            "called": called.choices[0].message.tool_calls[0].function.parsed_arguments.model_dump(),
            "pieces": pieces,
            "tokens": [text.usage.completion_tokens, usage.completion_tokens],
            "streamed": streamed.choices[0].message.content,
            "refused": refusals(client),
        }


def refusals(client):
    told = []
    for members in (
        {"model": "gpt-5"},
        {"extra_headers": {"x-ocr-route": "tables"}},
        {"messages": [{"role": "user", "content": [{"type": "file", "file": {"file_id": "file-1"}}]}]},
    ):
        try:
            client.chat.completions.create(**{**ask("Text Recognition:"), **members})
        except openai.APIStatusError as error:
            told.append([type(error).__name__, error.code, error.request_id])
    return told


async def at_once():
    prompts = {
        "text": "Text Recognition:",
        "key-value": 'Fill this in: {"date": ""}',
        "table": "Table Recognition:",
    }
    async with openai.AsyncOpenAI(base_url=base_url, api_key="none") as client:
        asked = (client.chat.completions.create(**ask(prompt)) for prompt in list(prompts.values()) * 20)
        replies = await asyncio.gather(*asked)
        streamed = ""
        async with client.chat.completions.stream(**ask("Text Recognition:")) as events:
            async for event in events:
                streamed += event.delta if event.type == "content.delta" else ""
    return {"answers": sum(bool(reply.choices[0].message.content) for reply in replies), "streamed": streamed}


def one():
    with openai.OpenAI(base_url=base_url, api_key="none") as client:
        return client.chat.completions.create(**ask("Text Recognition:")).choices[0].message.content


def broken():
    with openai.OpenAI(base_url=base_url, api_key="none") as client:
        told = 0
        try:
            for chunk in client.chat.completions.create(**ask("Table Recognition:", stream=True)):
                told += bool(chunk.choices[0].delta.content)
        except openai.APIError as error:
            return {"pieces": told, "error": type(error).__name__, "code": error.code}
        return {"pieces": told, "error": None}


def leave():
    with openai.OpenAI(base_url=base_url, api_key="none") as client:
        endless = ask("Text Recognition:", stream=True, max_tokens=1_000_000, extra_body={"ignore_eos": True})
        for chunk in client.chat.completions.create(**endless):
            if chunk.choices and chunk.choices[0].delta.content:
                print(chunk.choices[0].delta.content, flush=True)


def responses():
    parts = [{"type": "input_image", "image_url": URL, "detail": "auto"}]
    with openai.OpenAI(base_url=base_url, api_key="none") as client:

        def asked(prompt):
            return [{"role": "user", "content": [*parts, {"type": "input_text", "text": prompt}]}]

        text = client.responses.create(model=model, input=asked("Text Recognition:"))
        fields = client.responses.parse(model=model, input=asked("Read the receipt."), text_format=Receipt)
        with client.responses.stream(model=model, input=asked("Text Recognition:")) as events:
            kinds = [event.type for event in events]
            streamed = events.get_final_response()
        return {
            "type": type(text).__name__,
            "text": text.output_text,
            "fields": fields.output_parsed.model_dump(),
            "kinds": [kinds[0], kinds[-1]],
            "streamed": streamed.output_text,
            "tokens": streamed.usage.output_tokens,
        }


CASES = {"read": read, "one": one, "broken": broken, "leave": leave, "responses": responses}
print(json.dumps(asyncio.run(at_once()) if case == "at_once" else CASES[case]()))
