"""docling's pipeline for vision-language models: `drive.py CASE BASE_URL MODEL FILE...`."""

import json
import sys

from docling.datamodel.base_models import InputFormat
from docling.datamodel.pipeline_options import VlmConvertOptions, VlmPipelineOptions
from docling.datamodel.pipeline_options_vlm_model import ApiVlmOptions, ResponseFormat
from docling.datamodel.settings import settings
from docling.datamodel.vlm_engine_options import ApiVlmEngineOptions
from docling.document_converter import DocumentConverter, ImageFormatOption, PdfFormatOption
from docling.models.utils.generation_utils import GenerationStopper
from docling.pipeline.vlm_pipeline import VlmPipeline

case, base_url, model, *files = sys.argv[1:]
TO = {"url": f"{base_url}/chat/completions", "concurrency": 64, "timeout": 600}


class Enough(GenerationStopper):
    def should_stop(self, s):
        return len(s) > 20


def preset(name, **headers):
    engine = ApiVlmEngineOptions(params={"model": model}, headers=headers, **TO)
    return VlmConvertOptions.from_preset(name, engine_options=engine)


def options(stoppers=(), **params):
    return ApiVlmOptions(
        params={"model": model, **params},
        prompt="Text Recognition:",
        response_format=ResponseFormat.MARKDOWN,
        custom_stopping_criteria=list(stoppers),
        **TO,
    )


def converted(how, documents=files):
    pipeline = VlmPipelineOptions(enable_remote_services=True, vlm_options=how)
    kinds = {InputFormat.PDF: PdfFormatOption, InputFormat.IMAGE: ImageFormatOption}
    formats = {kind: of(pipeline_cls=VlmPipeline, pipeline_options=pipeline) for kind, of in kinds.items()}
    converter = DocumentConverter(format_options=formats)
    return [told(result) for result in converter.convert_all(documents, raises_on_error=False)]


def told(result):
    return {
        "type": type(result.document).__name__,
        "status": result.status.value,
        "errors": [error.error_message for error in result.errors],
        "pages": len(result.pages),
        "markdown": result.document.export_to_markdown(),
    }


def read():
    return {
        "glm_ocr": converted(preset("glm_ocr")),
        "granite_docling": converted(preset("granite_docling")),
        "chandra_ocr2": converted(preset("chandra_ocr2")),
        "header": converted(preset("glm_ocr", **{"x-ocr-route": "table"}), files[:1]),
        "options": converted(options(), files[:1]),
    }


def at_once():
    settings.perf.page_batch_size = 64
    return converted(preset("glm_ocr"))


def one():
    return converted(preset("glm_ocr"))


def streamed():
    return converted(options([Enough()], max_tokens=1_000_000, ignore_eos=True))


CASES = {"read": read, "at_once": at_once, "one": one, "streamed": streamed}
print(json.dumps(CASES[case]()))
