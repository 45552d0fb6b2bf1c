from urllib.parse import urlsplit

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.config import RemoteImages
from gateway.wire.image.remote_url import MAX_LENGTH, RemoteUrl, is_remote, parse_remote, redirected


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("https://images.example/a.png", RemoteUrl("https", "images.example", 443, "/a.png")),
        ("HTTP://Images.Example", RemoteUrl("http", "images.example", 80, "/")),
        (
            "https://images.example:8443/a%20b/../c?sig=x%2F&y=[1]#page",
            RemoteUrl("https", "images.example", 8443, "/a%20b/../c?sig=x%2F&y=[1]"),
        ),
        ("http://[2001:DB8::1]:080/", RemoteUrl("http", "[2001:db8::1]", 80, "/")),
        ("http://127.0.0.1/a", RemoteUrl("http", "127.0.0.1", 80, "/a")),
    ],
)
def test_a_plain_url_is_read(url: str, told: RemoteUrl) -> None:
    assert parse_remote(url.encode()) == told
    assert parse_remote(told.text.encode()) == told


@pytest.mark.parametrize(
    "url",
    [
        "http://",
        "http:///a",
        "http:images.example/a",
        "http:/images.example/a",
        "http:\\\\images.example/a",
        "//images.example/a",
        "https://images.example\\@evil.example/a",
        "https://images.example\\.evil.example/a",
        "https://user@images.example/a",
        "https://user:password@images.example/a",
        "https://images.example@evil.example/",
        "https://images.example%40evil.example/",
        "https://images.example%2eevil.example/",
        "https://images.example:443@evil.example/",
        "https://images.example:443:80/",
        "https://images.example:/a",
        "https://images.example:0/a",
        "https://images.example:65536/a",
        "https://images.example:x/a",
        "https://images.example:+443/a",
        "https://images.example./a",
        "https://images.example?a",
        "https://images.example#@evil.example/",
        "https://im\tages.example/a",
        "ht\ttp://images.example/a",
        "h\nttps://images.example/a",
        "https://images.example/a\n",
        "https://images.example/a b",
        "https://images.example/a\r\nHost: evil.example",
        "https://images.example/\\evil",
        " https://images.example/a",
        "\x00https://images.example/a",
        "https://images.example/a\x00",
        "https://ｉmages.example/a",
        "https://images。example/a",
        "https://bücher.example/a",
        "http://2130706433/",
        "http://0x7f.1/",
        "http://0177.0.0.1/",
        "http://127.1/",
        "http://[::1%25eth0]/",
        "http://[::ffff:127.0.0.1/",
        "http://[v1.fe80::a]/",
        "https+unix://images.example/a",
        "httpx://images.example/a",
        "file:///etc/passwd",
        "ftp://images.example/a",
        "gopher://images.example:70/a",
        "unix:/run/docker.sock",
        "jar:https://images.example/a",
        "https://images.example/" + "a" * MAX_LENGTH,
    ],
)
def test_what_parsers_could_disagree_about_is_not_read(url: str) -> None:
    assert parse_remote(url.encode()) is None


@pytest.mark.parametrize(("url", "told"), [("HTTPS:x", True), (" http://", True), ("file:///", False)])
def test_what_is_meant_to_be_remote_is_told_apart(url: str, told: bool) -> None:
    assert is_remote(url.encode()) == told


PIECES = st.sampled_from(
    [
        *"/\\@:?#[]%.\t\n ",
        "http",
        "https",
        "://",
        "images.example",
        "evil.example",
        "127.0.0.1",
        "443",
        "xn--",
    ]
)


@given(st.lists(PIECES, max_size=10).map("".join) | st.text(max_size=30))
def test_no_parser_sees_another_host_in_what_is_read(rest: str) -> None:
    for start in ("", "http://", "https://images.example"):
        url = parse_remote((start + rest).encode())
        if url is None:
            continue
        default = 80 if url.scheme == "http" else 443
        hosts = (url.host, url.host.strip("[]"))
        for split in (urlsplit(start + rest), urlsplit(url.text)):
            assert (split.scheme.lower(), split.port or default) == (url.scheme, url.port)
            assert split.hostname in hosts
            assert (split.username, split.password) == (None, None)
        for seen in (httpx.URL(start + rest), httpx.URL(url.text)):
            assert (seen.scheme, seen.port or default) == (url.scheme, url.port)
            assert seen.raw_host.decode() in hosts
            assert seen.userinfo == b""


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_not(url: bytes) -> None:
    for start in (b"", b"https://"):
        read = parse_remote(start + url)
        assert read is None or read.text.isascii()


@pytest.mark.parametrize(
    ("entry", "url", "listed"),
    [
        ("images.example", "https://images.example/", True),
        ("images.example", "http://images.example:80/", True),
        ("images.example", "http://images.example:443/", False),
        ("images.example", "https://images.example:8443/", False),
        ("images.example", "https://sub.images.example/", False),
        ("images.example", "https://images.example.evil.example/", False),
        ("images.example:8443", "https://images.example:8443/", True),
        ("images.example:8443", "https://images.example/", False),
        ("[2001:db8:0::1]", "http://[2001:DB8::1]/", True),
        ("10.0.0.1:9000", "http://10.0.0.1:9000/", True),
    ],
)
def test_a_listed_host_stands_for_its_own_port(entry: str, url: str, listed: bool) -> None:
    read = parse_remote(url.encode())
    assert read is not None
    assert read.is_listed(RemoteImages(allow_hosts=(entry,)).allow_hosts) == listed


HERE = RemoteUrl("https", "images.example", 443, "/a/b?c")


@pytest.mark.parametrize(
    ("location", "leads_to"),
    [
        ("d.png", "https://images.example:443/a/d.png"),
        ("/d.png", "https://images.example:443/d.png"),
        ("?d", "https://images.example:443/a/b?d"),
        ("//other.example/d", "https://other.example:443/d"),
        ("https://other.example:8443/d", "https://other.example:8443/d"),
        ("", "https://images.example:443/a/b?c"),
    ],
)
def test_a_redirect_is_followed_as_browsers_do(location: str, leads_to: str) -> None:
    onward = redirected(HERE, location)
    assert onward is not None
    assert onward.text == leads_to


@pytest.mark.parametrize(
    "location",
    [
        "http://images.example/a",
        "file:///etc/passwd",
        "ftp://images.example/",
        "data:image/png;base64,AAAA",
        "/\\evil.example/",
        "\\\\evil.example\\",
        "https://user@images.example/",
        "http://[",
        "https://bücher.example/",
        "/\udcff",
        "javascript:alert(1)",
    ],
)
def test_a_redirect_to_what_is_no_plain_url_leads_nowhere(location: str) -> None:
    assert redirected(HERE, location) is None


def test_only_from_https_to_http_is_a_step_down() -> None:
    plain = RemoteUrl("http", "images.example", 80, "/")
    assert redirected(plain, "http://other.example/") is not None
    assert redirected(plain, "https://other.example/") is not None
