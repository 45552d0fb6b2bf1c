import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.hosts import address, canonical


@pytest.mark.parametrize(
    ("host", "told"),
    [
        ("Images.Example", "images.example"),
        ("xn--bcher-kva.example", "xn--bcher-kva.example"),
        ("127.0.0.1", "127.0.0.1"),
        ("[2001:DB8:0:0::1]", "[2001:db8::1]"),
        ("[::FFFF:1.2.3.4]", "[::ffff:102:304]"),
        ("3.example", "3.example"),
    ],
)
def test_a_host_has_one_spelling(host: str, told: str) -> None:
    assert canonical(host) == told == canonical(told)


@pytest.mark.parametrize(
    "host",
    [
        "",
        ".",
        "images.example.",
        ".images.example",
        "images..example",
        "-images.example",
        "images-.example",
        "images_1.example",
        "*.example",
        "images.example:80",
        "bücher.example",
        "\uff49mages.example",  # full width
        "images。example",  # an ideographic full stop
        "images.example\u0130",
        "\u212amages.example",  # a Kelvin sign, whose lower case is k
        "imag%65s.example",
        "im ages.example",
        "images.example\n",
        "images.example\x00",
        "2130706433",
        "0x7f000001",
        "0x7f.1",
        "0x7f.0.0.0x",
        "0177.0.0.1",
        "127.1",
        "127.0.0.01",
        "127.0.0.1.",
        "1.2.3.4.5",
        "256.0.0.1",
        "example.1",
        "::1",
        "[::1",
        "[]",
        "[127.0.0.1]",
        "[fe80::1%eth0]",
        "[::1]]",
        "a" * 64,
        ".".join(["abcdefg"] * 40),
    ],
)
def test_what_parsers_could_disagree_about_is_no_host(host: str) -> None:
    assert canonical(host) is None


@given(st.text(max_size=20) | st.from_regex(r"[0-9a-fxA-FX.\[\]:%-]{0,24}", fullmatch=True))
def test_a_canonical_host_is_an_address_or_can_only_be_a_name(text: str) -> None:
    host = canonical(text)
    if host is None:
        return
    assert canonical(host) == host
    assert host.isascii()
    found = address(host)
    if found is None:
        assert not host.rpartition(".")[2].isdigit()
    else:
        assert ipaddress.ip_address(host.strip("[]")) == found
