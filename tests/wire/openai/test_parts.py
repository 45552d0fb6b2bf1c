import json
from typing import Any

import msgspec
import pytest

from gateway.errors import BadRequest
from gateway.wire.openai.parts import (
    ImagePart,
    Kinds,
    Part,
    Reach,
    check_count,
    check_reach,
    first_schema,
    image_part,
    read_content,
    route_of,
)
from gateway.wire.partial_json import Lifted

KINDS = Kinds(frozenset((None, "text", "image_url")), "text", "image_url")


def content(*parts: Any, may_name: bool = False) -> tuple[list[str], list[ImagePart]]:
    images: list[ImagePart] = []
    told = msgspec.json.decode(json.dumps(parts), type=list[str | Part])
    return read_content(told, "here", KINDS, images, Lifted(b"", {}), may_name=may_name), images


def test_a_contents_texts_and_images_are_found_where_they_stand() -> None:
    texts, images = content(
        "a", {"type": "image_url", "image_url": "data:,"}, {"text": "b"}, {"image_url": {"url": "u"}}
    )
    assert texts == ["a", "b"]
    assert [(bytes(image.url), image.param, image.raw) for image in images] == [
        (b"data:,", "here[1].image_url", b'"data:,"'),
        (b"u", "here[3].image_url", b'"u"'),
    ]


@pytest.mark.parametrize("plain", ["x", "", None])
def test_a_string_is_one_text(plain: str | None) -> None:
    assert read_content(plain, "", KINDS, [], Lifted(b"", {}), may_name=False) == [plain or ""]


@pytest.mark.parametrize(
    ("part", "message"),
    [
        ({"type": "file", "file": {"file_id": "1"}}, "no file is accepted here; send it to POST /v1/ocr"),
        ({"type": "input_file"}, "send it to POST /v1/ocr, or its pages as `image_url` parts"),
        ({"type": "text", "text": "x", "file": {}}, "POST /v1/ocr"),
        ({"type": "video"}, "only `text` and `image_url` parts are accepted"),
        ({"text": "x", "uuid": "1"}, "without a `uuid`"),
    ],
)
def test_a_part_that_must_not_pass_is_refused_with_what_would_be_right(
    part: dict[str, Any], message: str
) -> None:
    with pytest.raises(BadRequest, match=message) as refused:
        content("x", part)
    assert (refused.value.param, refused.value.code) == ("here[1]", "unsupported_content_part")


def test_who_may_name_images_may() -> None:
    assert content({"text": "x", "uuid": "1"}, may_name=True)[0] == ["x"]


def test_images_are_counted() -> None:
    images = [ImagePart(b"", "")] * 3
    check_count(images, 3, "input")
    with pytest.raises(BadRequest, match="3 images; at most 2") as refused:
        check_count(images, 2, "input")
    assert (refused.value.param, refused.value.code) == ("input", "too_many_images")


def test_settings_that_reach_for_nothing_pass() -> None:
    check_reach(msgspec.json.decode(b'{"mm_processor_kwargs": {"size": [1, {"a": "RGB"}]}}', type=Reach))
    with pytest.raises(BadRequest, match="`prompt_embeds` is not for clients"):
        check_reach(msgspec.json.decode(b'{"prompt_embeds": "AAAA"}', type=Reach))


def test_a_route_in_the_metadata_is_a_name() -> None:
    assert route_of(msgspec.Raw(b'{"ocr_route": "table"}')) == "table"
    assert route_of(msgspec.Raw(b"5")) is None
    with pytest.raises(BadRequest, match="must be a string"):
        route_of(msgspec.Raw(b'{"ocr_route": 5}'))


def test_the_first_schema_counts_be_it_text() -> None:
    assert first_schema([None, "no json", "{}", '{"a": 1}', {"b": 1}]) == {"a": 1}
    assert first_schema([None, {}, {"b": 1}]) == {}
    assert first_schema(["[" * 60_000]) is None
    assert first_schema([]) is None


def test_an_image_that_is_no_json_is_refused() -> None:
    with pytest.raises(BadRequest, match="not valid JSON"):
        image_part(msgspec.Raw(b'{"url": }'), "here", Lifted(b"", {}))
