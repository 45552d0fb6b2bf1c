from __future__ import annotations

import json

import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.wire.vllm import FINISH_REASONS, EngineCounts, error_body, metrics_page


def samples(page: str) -> dict[tuple[str, str], float]:
    return {
        (sample.name, sample.labels.get("finished_reason", "")): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def test_the_page_has_vllms_names_and_labels() -> None:
    counts = EngineCounts(
        running=2, waiting=3, prompt_tokens=40, generation_tokens=50, finished={"stop": 6, "abort": 1}
    )
    page = metrics_page(counts, "glm-ocr")
    assert samples(page) == {
        ("vllm:num_requests_running", ""): 2,
        ("vllm:num_requests_waiting", ""): 3,
        ("vllm:prompt_tokens_total", ""): 40,
        ("vllm:generation_tokens_total", ""): 50,
        **{
            ("vllm:request_success_total", reason): {"stop": 6, "abort": 1}.get(reason, 0)
            for reason in FINISH_REASONS
        },
    }
    assert 'vllm:num_requests_running{engine="0",model_name="glm-ocr"} 2.0\n' in page
    assert "spec_decode" not in page


def test_label_values_are_escaped() -> None:
    page = metrics_page(EngineCounts(), 'a"b\\c\nd', engine="1")
    (family, *_) = text_string_to_metric_families(page)
    assert family.samples[0].labels == {"engine": "1", "model_name": 'a"b\\c\nd'}


@pytest.mark.parametrize(
    ("status", "kind"),
    [(400, "BadRequestError"), (404, "NotFoundError"), (500, "InternalServerError")],
)
def test_an_errors_code_is_its_status(status: int, kind: str) -> None:
    assert json.loads(error_body(status, "no", "model")) == {
        "error": {"message": "no", "type": kind, "param": "model", "code": status}
    }
