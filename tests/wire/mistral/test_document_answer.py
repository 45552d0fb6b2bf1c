import json

from gateway.errors import BadRequest
from gateway.wire.mistral import done_event, opened_event, summary, whole_answer


def test_a_whole_answer_has_the_pages_and_what_is_told_beside_them() -> None:
    told = summary("m", pages=2, size=7, annotation='{"a":1}', annotation_error=None)
    assert json.loads(whole_answer([b'{"index":0}', b'{"index":1}'], told)) == {
        "pages": [{"index": 0}, {"index": 1}],
        "model": "m",
        "document_annotation": '{"a":1}',
        "usage_info": {"pages_processed": 2, "doc_size_bytes": 7},
    }
    failed = summary("m", pages=2, size=7, annotation=None, annotation_error=BadRequest("no", code="x"))
    assert failed["document_annotation_error"] == {
        "message": "no",
        "type": "invalid_request_error",
        "param": None,
        "code": "x",
    }


def test_events_are_named_and_one_line() -> None:
    assert opened_event("m", [0, 1]) == b'event: ocr.document\ndata: {"model":"m","pages":[0,1]}\n\n'
    assert done_event({"model": "m"}) == b'event: ocr.done\ndata: {"model":"m"}\n\n'
