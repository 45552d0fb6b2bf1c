"""GLM-OCR's own pipeline; each page is one region, so that no layout model is needed."""

import json
import sys
from pathlib import Path
from urllib.parse import urlsplit

from glmocr import Pipeline, load_config
from glmocr.dataloader import PageLoader
from glmocr.layout import BaseLayoutDetector
from glmocr.ocr_client import OCRClient

case, base_url, model, *paths = sys.argv[1:]
there = urlsplit(base_url)
config = load_config(
    mode="selfhosted", model=model, ocr_api_host=there.hostname, ocr_api_port=there.port
).pipeline


class WholePage(BaseLayoutDetector):
    batch_size = 1

    def __init__(self, label):
        super().__init__(config.layout)
        self.label = label

    def start(self):
        pass

    def stop(self):
        pass

    def process(self, images, **options):
        region = {"index": 0, "label": self.label, "task_type": self.label, "score": 1.0}
        return [[{**region, "bbox_2d": [0, 0, 1000, 1000]}] for _ in images], {}


def asked(*paths):
    parts = [{"type": "image_url", "image_url": {"url": f"file://{path}"}} for path in paths]
    return {"messages": [{"role": "user", "content": parts}]}


def parsed(label, *paths):
    with Pipeline(config, layout_detector=WholePage(label)) as pipeline:
        return list(pipeline.process(asked(*paths)))


def read():
    text, table = parsed("text", *paths)[0], parsed("table", *paths)[0]
    request = asked(*paths)
    fields = '请按下列JSON格式输出图中信息:\n{"date": "", "total": ""}'
    request["messages"][0]["content"].append({"type": "text", "text": fields})
    reply, code = OCRClient(config.ocr_api).process(PageLoader(config.page_loader).build_request(request))
    return {
        "types": [type(text).__name__, type(table).__name__],
        "text": text.markdown_result,
        "table": table.markdown_result,
        "regions": text.json_result,
        "fields": json.loads(reply["choices"][0]["message"]["content"]),
        "code": code,
    }


def at_once():
    return sum(bool(result.markdown_result) for result in parsed("text", *paths * 128))


def labelled():
    labels = {
        label: [path for path in paths if Path(path).parent.name == label] for label in ("text", "table")
    }
    return sum(
        bool(result.markdown_result) for label, some in labels.items() for result in parsed(label, *some)
    )


def told():
    with Pipeline(config, layout_detector=WholePage("text")) as pipeline:
        print("greeted", flush=True)
        Path("go").read_bytes()  # a named pipe, written to when the fault is there
        return [result.markdown_result for result in pipeline.process(asked(*paths * 10))]


def one():
    reply, code = OCRClient(config.ocr_api).process(
        PageLoader(config.page_loader).build_request(asked(*paths))
    )
    return {"code": code, "error": json.loads(reply["response"])["error"]["code"]}


def leave():
    print("asks", flush=True)
    parsed("text", *paths)


print(json.dumps(globals()[case]()))
