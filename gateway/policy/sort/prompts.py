"""The prompts that published OCR clients and model cards send, each with the route it asks for.

Sources: the clients' own packages (glmocr, paddlex, mineru-vl-utils, olmocr, chandra-ocr, surya-ocr, docling,
markitdown, markitdown-ocr, zerox, kreuzberg, vision-parse, gptpdf) and the model cards of DeepSeek-OCR,
dots.ocr, HunyuanOCR, Nanonets-OCR, RolmOCR, Infinity-Parser, MonkeyOCR, Qwen-VL, Qianfan and TeleOCR. Every
entry is in the form that `evidence.normalise` gives.
"""

from __future__ import annotations

import re

TEXT, KEY_VALUE, TABLE = "text", "key-value", "table"

EXACT: dict[str, str] = {
    **dict.fromkeys(
        (
            # GLM-OCR, PaddleOCR-VL, MinerU
            "text recognition",
            "formula recognition",
            "chart recognition",
            "seal recognition",
            "spotting",
            "ocr",
            "layout detection",
            "image analysis",
            # DeepSeek-OCR
            "free ocr",
            "convert the document to markdown",
            "ocr this image",
            "parse the figure",
            "describe this image in detail",
            # dots.ocr
            "extract the text content from this image",
            "detect and recognize the text in the image",
            # Surya
            "output the layout of this image as json",
            "ocr this block image to html",
            # HunyuanOCR
            "extract the text in the image",
            "提取图中的文字",
            # Granite-Docling, SmolDocling
            "convert this page to docling",
            "convert page to docling",
            # Infinity-Parser
            "please convert the image document into markdown format",
            "extract layout information from the provided pdf image",
            # MonkeyOCR
            "please output the text content from the image",
            # Qwen-VL, Qianfan, markitdown
            "read all the text in the image",
            "qwenvl markdown",
            "qwenvl html",
            "parse this document to markdown",
            "write a detailed caption for this image",
        ),
        TEXT,
    ),
    **dict.fromkeys(
        (
            "table recognition",
            # Surya
            "output the table rows then columns as json",
            # HunyuanOCR
            "parse the table in the image into html",
            "把图中的表格解析为 html",
            "把图中的表格解析为html",
            # MonkeyOCR, Qianfan, TeleOCR
            "this is the image of a table. please output the table in html format",
            "this is the image of a table. please output the table in otsl format",
            "please output the table in the image in latex format",
            "extract tables to html format",
        ),
        TABLE,
    ),
}

# Prompts with a variable part; matched from their first character to their last.
PATTERNS: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.DOTALL), route)
    for pattern, route in (
        (r"请按下列json格式输出图中信息[::]?\s*\{.*", KEY_VALUE),
        (r"output the value of .{1,200}", KEY_VALUE),
        (
            r"extract the content of the fields: ?\[.*\] from the image and return it in json format",
            KEY_VALUE,
        ),
        (r"提取图片中的: ?\[.*\] ?的字段内容[,,]并按照 ?json ?格式返回", KEY_VALUE),
        (r"locate .{1,200} in the image", TEXT),
        # vision-parse: all of a page's text, in one member of a JSON object
        (r"analyze this image and return a detailed json description including any text detected.*", TEXT),
    )
)

# How long prompts begin; they are several hundred words and change from release to release behind that.
STARTS: tuple[tuple[str, str], ...] = tuple(
    (start, TEXT)
    for start in (
        "please output the layout information from the pdf image",
        "extract text from the given bounding box",
        "attached is one page of a document that you must process",
        "ocr this image to html",
        "extract the text from the above document as if you were reading it naturally",
        "return the plain text representation of this document as if you were reading it naturally",
        "you are an ai assistant specialized in converting pdf images to markdown",
        "please convert the image document into markdown format",
        "please write out the expression of the formula",
        # zerox, as its system prompt
        "convert the following document to markdown. return only the markdown with no explanation text",
        # markitdown-ocr
        "extract all text from this image. return only the extracted text, maintaining the original layout",
        # kreuzberg
        "extract all visible text from this image. reproduce the text exactly as it appears",
        # vision-parse
        "your task is to analyze the given image (which is a page from a pdf) and extract textual content",
        # gptpdf
        "使用markdown语法,将图片中识别到的文字转换为markdown格式输出",
    )
)
