import ipaddress
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.policy.admit.remote_addresses import first_refusal, refusal

ANYTHING = (ip_network("0.0.0.0/0"), ip_network("::/0"))
PUBLIC = ["1.1.1.1", "8.8.8.8", "99.255.255.255", "172.32.0.1", "223.255.255.255"]
PUBLIC_6 = ["2606:4700:4700::1111", "2a00::1", "2001:4860:4860::8888"]

FOURS = st.integers(0, 2**32 - 1).map(IPv4Address)
SIXES = st.integers(0, 2**128 - 1).map(IPv6Address) | st.integers(2**125, 2**125 * 3 // 2).map(IPv6Address)


@pytest.mark.parametrize("address", PUBLIC + PUBLIC_6)
def test_public_addresses_may_be_asked(address: str) -> None:
    assert refusal(ip_address(address), ()) is None


@pytest.mark.parametrize(
    ("address", "rule"),
    [
        ("0.0.0.0", "unspecified"),
        ("0.1.2.3", "unspecified"),
        ("10.0.0.1", "private"),
        ("172.16.0.1", "private"),
        ("172.31.255.255", "private"),
        ("192.168.1.1", "private"),
        ("100.64.0.1", "shared by a carrier's customers"),
        ("100.127.255.255", "shared by a carrier's customers"),
        ("127.0.0.1", "loopback"),
        ("127.255.255.254", "loopback"),
        ("169.254.1.1", "link-local"),
        ("169.254.169.254", "cloud metadata"),
        ("168.63.129.16", "cloud metadata"),
        ("100.100.100.200", "cloud metadata"),
        ("192.0.0.8", "reserved"),
        ("192.0.2.1", "reserved"),
        ("192.88.99.1", "reserved"),
        ("198.18.0.1", "reserved"),
        ("203.0.113.9", "reserved"),
        ("224.0.0.1", "multicast"),
        ("239.255.255.255", "multicast"),
        ("240.0.0.1", "reserved"),
        ("255.255.255.255", "reserved"),
        ("::", "unspecified"),
        ("::1", "loopback"),
        ("fe80::1", "link-local"),
        ("fe80::1%eth0", "link-local"),
        ("fec0::1", "private"),
        ("fc00::1", "private"),
        ("fd12::1", "private"),
        ("fd00:ec2::254", "cloud metadata"),
        ("ff02::1", "multicast"),
        ("2001:db8::1", "reserved"),
        ("2001:20::1", "reserved"),
        ("3fff::1", "reserved"),
        ("100::1", "reserved"),
        ("4000::1", "reserved"),
        ("5f00::1", "reserved"),
    ],
)
def test_others_may_not_and_the_rule_is_told(address: str, rule: str) -> None:
    assert refusal(ip_address(address), ()) == rule


FORMS = {
    "mapped": lambda four: 0xFFFF << 32 | four,
    "compatible": lambda four: four,
    "translated": lambda four: 0xFFFF << 48 | four,
    "NAT64": lambda four: 0x64FF9B << 96 | four,
    "local NAT64": lambda four: 0x64FF9B0001 << 80 | four,
    "6to4": lambda four: 0x2002 << 112 | four << 80 | 1,
    "Teredo": lambda four: 0x20010000 << 96 | 0x1234 << 80 | (~four & 0xFFFFFFFF),
    "ISATAP": lambda four: 0x26064700 << 96 | 0x5EFE << 32 | four,
    "ISATAP, universal": lambda four: 0x26064700 << 96 | 0x2005EFE << 32 | four,
}


@pytest.mark.parametrize("form", FORMS)
@given(four=FOURS)
def test_an_address_inside_another_gets_nowhere_by_itself_nor_further_than_it_would(
    form: str, four: IPv4Address
) -> None:
    whole = IPv6Address(FORMS[form](int(four)))
    assert refusal(whole, ()) is not None
    if str(whole) not in ("::", "::1"):
        assert (refusal(whole, [ip_network("::/0")]) is None) == (refusal(four, ()) is None)


@given(FOURS | SIXES)
def test_what_is_public_here_is_so_for_the_standard_library_too(address: IPv4Address | IPv6Address) -> None:
    if refusal(address, ()) is None:
        assert address.is_global
        assert not any((address.is_multicast, address.is_reserved, address.is_loopback, address.is_private))


@pytest.mark.parametrize(
    "address",
    ["224.0.1.1", "192.88.99.1", "168.63.129.16", "ff0e::1", "64:ff9b::7f00:1", "fec0::1", "4000::1"],
)
def test_where_the_standard_library_has_gaps(address: str) -> None:
    assert ipaddress.ip_address(address).is_global
    assert refusal(ip_address(address), ())


def test_networks_that_are_listed_need_not_be_public_but_metadata_stays_closed() -> None:
    store = (ip_network("10.1.0.0/16"),)
    assert refusal(ip_address("10.1.2.3"), store) is None
    assert refusal(ip_address("10.2.2.3"), store) == "private"
    assert refusal(ip_address("::ffff:10.1.2.3"), store) == "IPv4 inside IPv6"
    for address in ("169.254.169.254", "168.63.129.16", "fd00:ec2::254", "64:ff9b::a9fe:a9fe"):
        assert refusal(ip_address(address), ANYTHING) == "cloud metadata"


def test_one_address_that_is_refused_refuses_its_name() -> None:
    public, private = ip_address("1.1.1.1"), ip_address("10.0.0.1")
    assert first_refusal([public], ()) is None
    assert first_refusal([public, private], ()) == "private"
