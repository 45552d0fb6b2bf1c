"""Fetches remote images, and lets nobody reach through it what a stranger on the internet cannot reach."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import socket
import ssl
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import aiohttp
from aiohttp.abc import AbstractResolver, ResolveResult
from yarl import URL

from gateway.errors import BadImage, Unavailable
from gateway.hosts import address
from gateway.policy.admit import remote_addresses
from gateway.wire.image.remote_url import redirected

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Self

    from gateway.config import RemoteImages
    from gateway.wire.image.remote_url import RemoteUrl

    Lookup = Callable[[str, int], Iterable[str]]

_MAX_REDIRECTS = 3
_REDIRECTS = frozenset((301, 302, 303, 307, 308))
_FETCHES = 64
_FETCHES_OF_A_CLIENT = 16
_LOOKUPS = 8
_RETRY_AFTER_S = 2
# Bounds on what an answer says before its body.
_HEADERS = 64
_HEADER_BYTES = 4096
_NAMED = "remote_images.allow_hosts"


def look_up(host: str, port: int) -> list[str]:
    """Return the addresses of a name; blocks.

    Raises:
        OSError: it has none.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]


class ImageFetcher:
    """HTTP to hosts that images lie on, one connection a request; an async context manager.

    A name is looked up once for each connection, all of its addresses are judged, and those judged are
    connected to. Nothing is sent but the request: no cookies, no credentials, nothing from the environment.
    """

    def __init__(self, settings: Callable[[], RemoteImages], lookup: Lookup = look_up) -> None:
        """Make one.

        Args:
            settings: returns what is configured now.
            lookup: returns a name's addresses or raises OSError; called in threads.
        """
        self._settings = settings
        self._lookup = lookup
        self._tls: ssl.SSLContext | None = None
        self._free = asyncio.Semaphore(_FETCHES)
        self._free_of: weakref.WeakValueDictionary[str, asyncio.Semaphore] = weakref.WeakValueDictionary()

    async def __aenter__(self) -> Self:
        # Of its own: a name server that hangs must not hold up the threads that others wait for.
        self._threads = ThreadPoolExecutor(_LOOKUPS, "lookup")
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(
                resolver=_JudgingResolver(self._resolve),
                use_dns_cache=False,
                force_close=True,
                limit=0,
            ),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None),
            headers={"Accept": "image/*", "Accept-Encoding": "identity", "User-Agent": "ocr-gateway"},
            auto_decompress=False,
            trust_env=False,
            max_line_size=_HEADER_BYTES,
            max_field_size=_HEADER_BYTES,
            max_headers=_HEADERS,
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def check(self, url: RemoteUrl) -> None:
        """See whether a URL may be asked for, as far as it tells itself.

        Raises:
            BadImage: its host is not listed, or is an address that is not public.
        """
        settings = self._settings()
        if not url.is_listed(settings.allow_hosts):
            raise refused(f"images by URL are accepted from listed hosts only ({_NAMED})")
        if (literal := address(url.host)) and (
            rule := remote_addresses.refusal(literal, settings.allow_networks)
        ):
            raise _not_public(rule)

    async def fetch(self, url: RemoteUrl, client: str, keep: Callable[[int], None]) -> bytes:
        """Return what lies at a URL.

        Args:
            url: where; checked again.
            client: who asks; each may have a share of all fetches under way.
            keep: called with the length of each chunk before it is kept; may raise.

        Raises:
            BadImage: it must not be asked for, or nothing came that is as expected.
            Unavailable: too many are being fetched already.
        """
        timeout_s = self._settings().timeout_s
        mine = self._free_of.setdefault(client, asyncio.Semaphore(_FETCHES_OF_A_CLIENT))
        begun = False
        try:
            async with asyncio.timeout(timeout_s), mine, self._free:
                begun = True
                return await self._follow(url, keep)
        except TimeoutError:
            if not begun:
                raise _busy("too many remote images are being fetched", "remote_images_busy") from None
            raise failed(f"it took longer than {timeout_s:g} s (remote_images.timeout_s)") from None

    async def _follow(self, url: RemoteUrl, keep: Callable[[int], None]) -> bytes:
        for _ in range(_MAX_REDIRECTS + 1):
            self.check(url)
            if self._tls is None and url.scheme == "https":  # reading all trusted certificates takes a moment
                self._tls = await asyncio.to_thread(ssl.create_default_context)
            # What goes wrong is told without the library's words: they hold the URL, which may be a secret.
            try:
                async with self._session.get(
                    URL(url.text, encoded=True), allow_redirects=False, ssl=self._tls or True
                ) as response:
                    if response.status not in _REDIRECTS:
                        return await self._body(response, keep)
                    location = response.headers.get("Location", "")
            except _Refused as error:
                raise _not_public(error.rule) from None
            except aiohttp.ClientConnectorCertificateError:
                raise failed("its host has no certificate that is trusted here") from None
            except aiohttp.ClientConnectorDNSError:
                raise failed("its host's name cannot be resolved") from None
            except aiohttp.ClientConnectorError as error:
                if error.errno in (errno.EMFILE, errno.ENFILE):
                    raise _busy("the gateway has no sockets left", "no_sockets") from None
                raise failed("its host cannot be connected to") from None
            except (aiohttp.ClientError, OSError, ValueError):
                raise failed("its server broke off or did not speak HTTP") from None
            onward = redirected(url, location)
            if onward is None:
                raise refused("its server redirects to what is no plain URL, or from https to http")
            url = onward
        raise failed(f"its server redirects more than {_MAX_REDIRECTS} times")

    async def _body(self, response: aiohttp.ClientResponse, keep: Callable[[int], None]) -> bytes:
        if response.status != 200:
            raise failed(f"its server answered {response.status}")
        if response.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise failed("its server answered with a Content-Encoding that was not asked for")
        max_bytes = self._settings().max_bytes
        body = bytearray()
        announced = response.content_length or 0
        while announced <= max_bytes and (chunk := await response.content.readany()):
            if len(body) + len(chunk) > max_bytes:
                announced = len(body) + len(chunk)
                break
            keep(len(chunk))
            body += chunk
        if announced > max_bytes:
            raise failed(f"it has more than {max_bytes:,} bytes (remote_images.max_bytes)")
        return bytes(body)

    async def _resolve(self, host: str, port: int) -> list[str]:
        """Look a name up, and judge all of its addresses.

        Raises:
            OSError: it has none.
            _Refused: one of them must not be connected to.
        """
        loop = asyncio.get_running_loop()
        found = await loop.run_in_executor(self._threads, self._lookup, host, port)
        judged = dict.fromkeys(map(ipaddress.ip_address, found))  # each once, in the order to try them in
        if not judged:
            raise OSError("a name without addresses")
        if rule := remote_addresses.first_refusal(judged, self._settings().allow_networks):
            raise _Refused(rule)
        return [str(one) for one in judged]


class _Refused(Exception):
    def __init__(self, rule: str) -> None:
        super().__init__(rule)
        self.rule = rule


class _JudgingResolver(AbstractResolver):
    """Gives the connector judged addresses, as numbers, so that nothing looks the name up again."""

    def __init__(self, resolve: Callable[[str, int], object]) -> None:
        self._judged = resolve

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_UNSPEC
    ) -> list[ResolveResult]:
        """Return where to connect to."""
        found: list[str] = await self._judged(host, port)  # type: ignore[misc]
        return [
            ResolveResult(
                hostname=host,
                host=one,
                port=port,
                family=socket.AF_INET6 if ":" in one else socket.AF_INET,
                proto=0,
                flags=socket.AI_NUMERICHOST | socket.AI_NUMERICSERV,
            )
            for one in found
        ]

    async def close(self) -> None:
        """Nothing is held."""


def refused(why: str) -> BadImage:
    """The error for an image that is not asked for."""
    return BadImage(f"{why}; send the image as a data URL", code="remote_image_refused")


def failed(why: str) -> BadImage:
    """The error for an image that was asked for in vain."""
    return BadImage(f"the image could not be fetched: {why}", code="remote_image_failed")


def _busy(why: str, code: str) -> Unavailable:
    return Unavailable(f"{why}; retry shortly", code=code, retry_after=_RETRY_AFTER_S)


def _not_public(rule: str) -> BadImage:
    return refused(f"its host's address is not public ({rule}; remote_images.allow_networks)")
