import math

import pytest
from pydantic import ValidationError

from gateway.config.schema import Config, Limits, Pool, RemoteImages, Route, Server, Timeouts

ENGINES = ("http://vllm:8000",)


@pytest.mark.parametrize(
    ("config", "depth", "depths"),
    [
        ({}, 0, {0}),
        ({"method": "mtp", "num_speculative_tokens": 3}, 3, {3}),
        ({"model": "some/draft", "num_speculative_tokens": 2}, 2, {2}),
        ({"method": "suffix"}, 24, {24}),
        ({"method": "suffix", "suffix_decoding_max_tree_depth": 8}, 8, {8}),
        (
            {
                "method": "mtp",
                "num_speculative_tokens": 3,
                "num_speculative_tokens_per_batch_size": ((1, 16, 3), (17, 64, 1), (65, 512, 0)),
            },
            3,
            {0, 1, 3},
        ),
    ],
)
def test_a_pools_depth_is_read_off_vllms_own_object(
    config: dict[str, object], depth: int, depths: set[int]
) -> None:
    pool = Pool(engines=ENGINES, speculative_config=config)
    assert (pool.depth, pool.depths) == (depth, depths)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"num_speculative_tokens": 3}, "method"),
        ({"method": 5, "num_speculative_tokens": 3}, "method"),
        ({"method": "mtp"}, "num_speculative_tokens"),
        ({"method": "mtp", "num_speculative_tokens": "3"}, "num_speculative_tokens"),
        ({"method": "mtp", "num_speculative_tokens": True}, "num_speculative_tokens"),
        ({"method": "mtp", "num_speculative_tokens": 1025}, "must be at most 1,024"),
        (
            {"method": "mtp", "num_speculative_tokens": 3, "x": ({"y": math.nan},)},
            "x.0.y: must be a value that",
        ),
        ({"method": "mtp", "num_speculative_tokens": 3, "x": b""}, "must be a value that JSON has"),
        (
            {
                "method": "mtp",
                "num_speculative_tokens": 3,
                "num_speculative_tokens_per_batch_size": ((1, 65536, 3), (65537, 99999, 0)),
            },
            "must begin at 65,536 at most",
        ),
        (
            {
                "method": "mtp",
                "num_speculative_tokens": 3,
                "num_speculative_tokens_per_batch_size": tuple((n, n, 0) for n in range(1, 258)),
            },
            "has over 256 ranges",
        ),
        ({"method": "suffix", "suffix_decoding_max_tree_depth": "deep"}, "num_speculative_tokens"),
        (
            {"method": "mtp", "num_speculative_tokens": 3, "num_speculative_tokens_per_batch_size": 3},
            "ranges",
        ),
    ],
)
def test_a_config_that_vllm_would_refuse_is_refused(config: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Pool(engines=ENGINES, speculative_config=config)


@pytest.mark.parametrize(
    "engine",
    [
        *("http://a:1", "https://a", "http://a:1/", "dns+http://a:1", "http://[::1]:1", "embedded"),
        *(
            "http://a/ocr",
            "http://a:1/team-a/ocr/",
            "dns+https://a:1/ocr",
            "https://a/v1/ocr",
            "http://a/v10",
        ),
        "http://a/%7Eocr",
    ],
)
def test_engines_are_addresses(engine: str) -> None:
    assert Pool(engines=(engine,)).engines == (engine.rstrip("/"),)


@pytest.mark.parametrize(
    ("engine", "told"),
    [
        ("a:1", "must be http"),
        ("ftp://a", "must be http"),
        ("http://", "must be http"),
        ("http://a:99999", "must be http"),
        ("http://a:0", "must be http"),
        ("http://a:x/ocr", "must be http"),
        ("", "must be http"),
        ("HTTP://a", "must be http"),
        ("http://a?x", "but no query"),
        ("http://a/ocr?key=x", "but no query"),
        ("http://a#x", "but no fragment"),
        ("http://u:p@a", "but no user or password"),
        ("http://u:1/p@a", "but no user or password"),
        ("http://a/b//c", "between single slashes"),
        ("http://a/../b", "between single slashes"),
        ("http://a/./b", "between single slashes"),
        ("http://a/b c", "between single slashes"),
        ("http://a/%zz", "between single slashes"),
        ("http://a/caf\u00e9", "between single slashes"),
        ("http://a/v1", "must not end in /v1, which the gateway adds itself: write http://a"),
        ("http://a:1/v1/", "write http://a:1"),
        ("https://a/ocr/v1", "write https://a/ocr"),
        ("dns+http://a:8000/v1", "write dns+http://a:8000"),
        ("http://a/v1/chat/completions", "must not end in /v1/chat/completions, which"),
        ("http://a/v1/models", "write http://a"),
        ("http://a/health", "must not end in /health"),
    ],
)
def test_what_is_no_address_is_refused_with_what_would_be_one(engine: str, told: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Pool(engines=("http://first", engine))
    (problem,) = refused.value.errors()
    assert problem["loc"] == ("engines", 1)
    assert told in problem["msg"]


def test_an_engines_key_is_a_header_value() -> None:
    assert Pool(engines=ENGINES, api_key=" k1\n").api_key == "k1"
    for key in ("a\nb", "caf\u00e9", "a\x00"):
        with pytest.raises(ValidationError, match="printable ASCII"):
            Pool(engines=ENGINES, api_key=key)


def test_listed_hosts_have_one_spelling() -> None:
    assert RemoteImages(allow_hosts=("Images.Example",)).allow_hosts == ("images.example",)
    entries = ("images.example:8443", "10.0.0.1", "[2001:DB8::1]:443", "xn--bcher-kva.example")
    assert RemoteImages(allow_hosts=entries).allow_hosts == (*entries[:2], "[2001:db8::1]:443", entries[3])
    for host in (
        "https://images.example/",
        "*.example",
        "images.example.",
        "images.example:0",
        "images.example:65536",
        "images.example:",
        "user@images.example",
        "b\u00fccher.example",
        "127.1",
        "2130706433",
        "::1",
        "",
    ):
        with pytest.raises(ValidationError):
            RemoteImages(allow_hosts=(host,))


def test_a_section_without_keys_may_be_left_empty() -> None:
    config = {"model": "m", "pools": {"p": {"engines": ENGINES}}, "routes": {"text": None}, "limits": None}
    assert Config.model_validate(config).routes["text"] == Route()


@pytest.mark.parametrize("schedule", [((1, 63, 3), (64, 127, 0), (128, 4096, 3)), ((1, 1, 0),), ()])
def test_schedules_are_inclusive_ascending_ranges(schedule: tuple[tuple[int, int, int], ...]) -> None:
    assert Route(schedule=schedule).schedule == schedule


@pytest.mark.parametrize(
    "schedule",
    [
        ((2, 63, 3),),
        ((1, 63, 3), (63, 64, 0)),
        ((1, 63, 3), (70, 64, 0)),
        ((1, 63, -1),),
        ((0, 63, 1),),
        ((1, 2),),
    ],
)
def test_ranges_that_do_not_fit_are_refused(schedule: tuple[tuple[int, ...], ...]) -> None:
    with pytest.raises(ValidationError):
        Route.model_validate({"schedule": schedule})


def test_defaults_are_the_documented_ones() -> None:
    config = Config(model="m", pools={"p": Pool(engines=ENGINES)}, routes={"text": Route()})
    assert config.limits == Limits(body_bytes=33554432, image_pixels=100000000, images_per_request=32)
    assert config.routes["text"].timeouts == Timeouts(connect_s=2, first_event_s=60, idle_s=30, total_s=600)
    assert config.server == Server(drain_s=60, linger_s=5, admin_port=None)
    assert config.pools_of("text") == ("p",)
