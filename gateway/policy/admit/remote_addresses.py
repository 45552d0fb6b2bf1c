"""Which addresses remote images may be fetched from: those that anyone on the internet can reach."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

Address = IPv4Address | IPv6Address
Network = IPv4Network | IPv6Network

# Where clouds tell a machine its credentials. No image lies there, so no configuration opens them.
_METADATA = frozenset(
    map(
        ip_address,
        (
            "169.254.169.254",  # AWS, Azure, Google, OpenStack, ...
            "169.254.170.2",  # AWS, of containers
            "169.254.170.23",  # AWS, of pods
            "100.100.100.200",  # Alibaba
            "168.63.129.16",  # Azure's host, at an address that is public by all tables
            "192.0.0.192",  # Oracle
            "fd00:ec2::254",  # AWS
            "fd00:ec2::23",  # AWS, of pods
            "fd20:ce::254",  # Google
        ),
    )
)

# IANA's special-purpose registries (RFC 6890 and after), and what they leave out: multicast, reserved space,
# relays. `ipaddress.is_global` differs between versions of Python, and calls multicast, NAT64, 6to4's relays
# and site-local addresses global.
_NOT_PUBLIC: tuple[tuple[Network, str], ...] = tuple(
    (ip_network(network), rule)
    for rule, networks in {
        "unspecified": ("0.0.0.0/8", "::/128"),
        "private": ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7", "fec0::/10"),
        "shared by a carrier's customers": ("100.64.0.0/10",),
        "loopback": ("127.0.0.0/8", "::1/128"),
        "link-local": ("169.254.0.0/16", "fe80::/10"),
        "multicast": ("224.0.0.0/4", "ff00::/8"),
        "IPv4 inside IPv6": (
            "::ffff:0:0/96",  # mapped
            "::/96",  # compatible
            "::ffff:0:0:0/96",  # translated
            "64:ff9b::/96",  # NAT64
            "64:ff9b:1::/48",  # NAT64, local
            "2001::/32",  # Teredo
            "2002::/16",  # 6to4
        ),
        "reserved": (
            "192.0.0.0/24",  # protocols
            "192.0.2.0/24",  # documentation
            "192.31.196.0/24",  # AS112
            "192.52.193.0/24",  # AMT
            "192.88.99.0/24",  # 6to4's relays
            "192.175.48.0/24",  # AS112
            "198.18.0.0/15",  # benchmarks
            "198.51.100.0/24",  # documentation
            "203.0.113.0/24",  # documentation
            "240.0.0.0/4",
            "2001::/23",  # protocols
            "2001:db8::/32",  # documentation
            "2620:4f:8000::/48",  # AS112
            "3fff::/20",  # documentation
        ),
    }.items()
    for network in networks
)
_UNICAST = ip_network("2000::/3")
# An interface's identifier that holds an IPv4 address (RFC 5214), its universal bit set or not.
_ISATAP = 0x00005EFE
_UNIVERSAL = 0xFDFFFFFF


def refusal(address: Address, allowed: Iterable[Network]) -> str | None:
    """Return the rule by which nothing is fetched from an address; None where it may be.

    Args:
        address: one that a host's name stands for.
        allowed: networks that need not be public. A cloud's metadata stays refused; so is, inside an IPv6
            address, an IPv4 address that would be refused by itself.
    """
    allowed = tuple(allowed)
    inner = _embedded(address)
    if inner and (rule := refusal(inner, allowed)):
        return rule
    if address in _METADATA:
        return "cloud metadata"
    if any(address in network for network in allowed):
        return None
    for network, rule in _NOT_PUBLIC:
        if address in network:
            return rule
    if address.version == 6 and (inner or address not in _UNICAST):
        return "IPv4 inside IPv6" if inner else "reserved"
    return None


def first_refusal(addresses: Collection[Address], allowed: Iterable[Network]) -> str | None:
    """Return the rule that refuses one of a name's addresses; None where all may be asked."""
    allowed = tuple(allowed)
    return next((rule for address in addresses if (rule := refusal(address, allowed))), None)


def _embedded(address: Address) -> IPv4Address | None:
    """The IPv4 address that routers may take out of an IPv6 one, if there is one."""
    if address.version == 4 or int(address) < 2:  # the unspecified address and loopback hold none
        return None
    number = int(address)
    if number >> 112 == 0x2002:
        return IPv4Address(number >> 80 & 0xFFFFFFFF)
    if number >> 96 == 0x20010000:
        return IPv4Address(~number & 0xFFFFFFFF)
    in_the_end = (0, 0xFFFF, 0xFFFF << 16, 0x64FF9B << 64)
    if number >> 32 in in_the_end or number >> 80 == 0x64FF9B0001 or (number >> 32) & _UNIVERSAL == _ISATAP:
        return IPv4Address(number & 0xFFFFFFFF)
    return None
