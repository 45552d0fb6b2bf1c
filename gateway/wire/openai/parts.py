"""What of a request may reach an engine: content parts, images, and settings that it could reach out by."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from gateway.errors import BadRequest
from gateway.wire.partial_json import (
    ANY,
    MAX_ELEMENTS,
    MEMBERS,
    NULL,
    STRING,
    decode,
    elements,
    is_set,
    object_of,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from gateway.model import Buffer
    from gateway.wire.partial_json import Lifted

# Engines that split their work find each other by the first two, in a member or among vLLM's extra arguments.
# The third is a stored tensor, which engines that are set up to take it load.
_ENGINES_OWN = ("ec_transfer_params", "kv_transfer_params", "prompt_embeds")
# Settings of an image's processing are numbers and plain words. Anything else might be taken for a URL or a
# path: the libraries behind load images from both.
_WORD = re.compile(r"[A-Za-z0-9_+-]{0,64}")
# What no limit on images sees: to how many pixels a small one may be blown up by them. Models ask for fewer.
_MOST = {"height": 2**12, "width": 2**12, "min": 2**21, "shortest": 2**21, "": 2**24}
_FILES = ("file", "input_file")
# Text that is longer is the engine's alone: what is built of it is kept while images are looked at, and takes
# up to four times its bytes.
MAX_TEXT_CHARS = 65_536


class Kinds(NamedTuple):
    """What parts an API has.

    Attributes:
        passed: the types that may be there.
        text: the type that texts have, in words.
        image: the type that images have.
    """

    passed: Collection[str | None]
    text: str
    image: str


class Part(msgspec.Struct):
    """A content part: its text, its image, fields by which engines take other media, whatever `type` says.

    `uuid` is what an image is called in vLLM's caches: by it alone another client's would be read.
    """

    type: str | None = None
    text: str | None = None
    image_url: msgspec.Raw = NULL
    audio_embeds: msgspec.Raw = NULL
    audio_url: msgspec.Raw = NULL
    file: msgspec.Raw = NULL
    image_embeds: msgspec.Raw = NULL
    image_pil: msgspec.Raw = NULL
    input_audio: msgspec.Raw = NULL
    input_image: msgspec.Raw = NULL
    prompt_embeds: msgspec.Raw = NULL
    video_embeds: msgspec.Raw = NULL
    video_url: msgspec.Raw = NULL
    uuid: msgspec.Raw = NULL

    def other_media(self, passed: Collection[str | None]) -> bool:
        """Whether it has more than a text or an image; `passed` are the types that have not."""
        fields = (
            self.audio_embeds,
            self.audio_url,
            self.file,
            self.image_embeds,
            self.image_pil,
            self.input_audio,
            self.input_image,
            self.prompt_embeds,
            self.video_embeds,
            self.video_url,
        )
        return self.type not in passed or any(field is not NULL and is_set(field) for field in fields)

    def is_file(self) -> bool:
        """Whether it is a document of another kind."""
        return self.type in _FILES or (self.file is not NULL and is_set(self.file))

    def refusal(self, where: str, kinds: Kinds) -> BadRequest:
        """Return what is told of a part that must not pass; `where` is the field's name."""
        if self.is_file():
            told = f"no file is accepted here; send it to POST /v1/ocr, or its pages as `{kinds.image}` parts"
        else:
            told = (
                f"only `{kinds.text}` and `{kinds.image}` parts are accepted, without a `uuid`; "
                "send document pages as images"
            )
        return BadRequest(f"{where}: {told}", param=where, code="unsupported_content_part")


class Reach(msgspec.Struct):
    """What could make an engine connect to somewhere or open a file, where it is set up to trust requests."""

    ec_transfer_params: msgspec.Raw = NULL
    kv_transfer_params: msgspec.Raw = NULL
    media_io_kwargs: msgspec.Raw = NULL
    mm_processor_kwargs: msgspec.Raw = NULL
    prompt_embeds: msgspec.Raw = NULL
    vllm_xargs: msgspec.Raw = NULL


@dataclass(slots=True)
class ImagePart:
    """One image of a request.

    Attributes:
        url: its URL.
        param: the field's name.
        text: the JSON text by which `openai.rewritten` knows the URL, where that is not the URL in quotes.
        data: what the URL decodes to, where that is known by now; for whoever takes it away.
    """

    url: Buffer
    param: str
    text: bytes | None = None
    data: bytes | None = None

    @property
    def raw(self) -> bytes:
        """The JSON text by which `openai.rewritten` knows it."""
        return b'"%s"' % self.url if self.text is None else self.text


def read_content(
    content: str | Sequence[str | Part] | None,
    where: str,
    kinds: Kinds,
    images: list[ImagePart],
    lifted: Lifted,
    *,
    may_name: bool,
) -> list[str]:
    """Return a message's texts, and add its images to the others.

    Args:
        content: the message's.
        where: the field's name.
        kinds: what parts there may be.
        images: those of the messages before.
        lifted: the body that it stands in.
        may_name: images may have a `uuid`.

    Raises:
        BadRequest: a part that must not pass, or an image without a URL.
    """
    if content is None or isinstance(content, str):
        return [content or ""]
    texts = []
    for place, part in enumerate(content):
        if isinstance(part, str):
            texts.append(part)
            continue
        if part.other_media(kinds.passed) or (not may_name and part.uuid is not NULL and is_set(part.uuid)):
            raise part.refusal(f"{where}[{place}]", kinds)
        if part.text:
            texts.append(part.text)
        if part.type == kinds.image or (part.image_url is not NULL and is_set(part.image_url)):
            images.append(image_part(part.image_url, f"{where}[{place}].image_url", lifted))
    return texts


def image_part(raw: msgspec.Raw, where: str, lifted: Lifted) -> ImagePart:
    """Take an image's URL out of `{"url": ...}` or, as vLLM accepts too, a bare string.

    Raises:
        BadRequest: there is none.
    """
    if bytes(memoryview(raw)[:1]) == b"{":
        try:
            members = MEMBERS.decode(raw)
        except (msgspec.MsgspecError, RecursionError):
            members = decode(MEMBERS, raw)  # which says what is wrong
        raw = members.get("url", NULL)
    view = memoryview(raw)
    if bytes(view[:1]) != b'"':
        raise BadRequest(f"{where}: `url` must be a string", param=where)
    text = bytes(view)
    if lifted.texts and text in lifted.texts:
        data, lifted.image = lifted.image, None
        return ImagePart(lifted.texts[text][1:-1], where, text, data)
    if b"\\" in text:
        return ImagePart(decode(STRING, text).encode(), where, text)
    return ImagePart(view[1:-1], where)


def check_count(images: Collection[ImagePart], most: int, param: str) -> None:
    """See whether there are too many images.

    Raises:
        BadRequest: there are.
    """
    if len(images) > most:
        raise BadRequest(
            f"the request has {len(images)} images; at most {most} are accepted",
            param=param,
            code="too_many_images",
        )


def check_reach(fields: Reach) -> None:
    """Refuse what could make an engine reach for something.

    Raises:
        BadRequest: there is such a member.
    """
    present = {
        name: member
        for name in Reach.__struct_fields__
        if (member := getattr(fields, name)) is not NULL and is_set(member)
    }
    # Not `member_of`: engines may build what cannot be built here, such as 1e999.
    extra = decode(ANY, bytes(present["vllm_xargs"])) if "vllm_xargs" in present else None
    for name in _ENGINES_OWN:
        if name in present or (isinstance(extra, dict) and name in extra):
            raise BadRequest(f"`{name}` is not for clients", param=name, code="unsupported_parameter")
    for name in present.keys() & {"media_io_kwargs", "mm_processor_kwargs"}:
        left = [("", decode(ANY, bytes(present[name])))]
        while left:
            key, value = left.pop()
            most = next(most for part, most in _MOST.items() if part in key)
            if isinstance(value, int | float) and value > most:
                raise BadRequest(
                    f"`{name}`: {key[:64] or 'a number'} may be at most {most:,}",
                    param=name,
                    code="unsupported_parameter",
                )
            if isinstance(value, str) and not _WORD.fullmatch(value):
                raise BadRequest(
                    f"`{name}` may hold numbers, true, false and plain words only",
                    param=name,
                    code="unsupported_parameter",
                )
            if isinstance(value, dict):
                left += value.items()
            elif isinstance(value, list):
                left += ((key, item) for item in value)


def route_of(metadata: msgspec.Raw) -> str | None:
    """Return the route that a request's metadata names.

    Raises:
        BadRequest: it is no name.
    """
    route = object_of(metadata).get("ocr_route")
    if route is not None and not isinstance(route, str):
        raise BadRequest("`metadata.ocr_route` must be a string", param="metadata.ocr_route")
    return route


def first_schema(found: Iterable[Any]) -> Mapping[str, Any] | None:
    """Return the first that is a JSON schema, or a small one's text."""
    for schema in found:
        if isinstance(schema, dict):
            return schema
        if isinstance(schema, str):
            text = schema.encode()
            if elements(text) <= MAX_ELEMENTS and (parsed := object_of(text)):
                return parsed
    return None
