"""PaddleOCR-VL before the gateway; each page is one block, so that no layout model is needed."""

import base64
import json
import sys
from pathlib import Path

from paddleocr import PaddleOCRVL
from paddlex.inference.models.common.genai import GenAIClient

case, base_url, model, *paths = sys.argv[1:]


def pipeline(model=model):
    return PaddleOCRVL(
        use_layout_detection=False,
        vl_rec_backend="vllm-server",
        vl_rec_server_url=base_url,
        vl_rec_api_model_name=model,
    )


def read():
    (path,) = paths
    reader = pipeline()
    (text,) = reader.predict(path)
    (table,) = reader.predict(path, prompt_label="table", min_pixels=784, max_pixels=1_003_520)
    return {
        "type": type(text).__name__,
        "text": text.json["res"]["parsing_res_list"][0]["block_content"],
        "table": table.markdown["markdown_texts"],
    }


def unnamed():
    try:
        list(pipeline(None).predict(paths[0]))
    except Exception as error:
        return {"error": type(error).__name__, "text": str(error)}
    return {"error": None}


def at_once():
    url = "data:image/png;base64," + base64.b64encode(Path(paths[0]).read_bytes()).decode()
    client = GenAIClient("vllm-server", base_url)
    asked = [
        client.create_chat_completion(
            [
                {
                    "role": "user",
                    "content": [
                        {"type": "image_url", "image_url": {"url": url}},
                        {"type": "text", "text": prompt},
                    ],
                }
            ],
            return_future=True,
            max_completion_tokens=4096,
            extra_body={"skip_special_tokens": True},
        )
        for prompt in ["OCR:", "Table Recognition:"] * 100
    ]
    return sum(bool(future.result().choices[0].message.content) for future in asked)


def labelled():
    reader = pipeline()
    count = 0
    for label, prompt in ("text", "ocr"), ("table", "table"):
        some = [path for path in paths if Path(path).parent.name == label]
        for result in reader.predict(some, prompt_label=prompt):
            count += bool(result.json["res"]["parsing_res_list"][0]["block_content"])
    return count


def few():
    return [result.markdown["markdown_texts"] for result in pipeline().predict(paths * 10)]


def refused():
    try:
        list(pipeline().predict(paths[0]))
    except Exception as error:
        return {"error": type(error).__name__, "text": str(error)}
    return {"error": None}


def leave():
    print("asks", flush=True)
    list(pipeline().predict(paths[0]))


print(json.dumps(globals()[case]()))
