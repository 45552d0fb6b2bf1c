"""Fetches remote images, and lets nobody reach through it what a stranger on the internet cannot reach."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import socket
import ssl
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

import httpx

from gateway.connect_failure import Cause, ConnectFailureLog, diagnose
from gateway.errors import BadImage, Unavailable
from gateway.hosts import address
from gateway.policy.admit import remote_addresses
from gateway.wire.image.remote_url import redirected

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Self

    from gateway.config import RemoteImages
    from gateway.policy.admit.remote_addresses import Address
    from gateway.wire.image.remote_url import RemoteUrl

    Lookup = Callable[[str, int], Iterable[str]]

log = logging.getLogger(__name__)
# Both log the URLs they ask for, and a client's URL may hold a secret.
for _library in ("httpx", "httpcore"):
    logging.getLogger(_library).setLevel(logging.WARNING)

_MAX_REDIRECTS = 3
_REDIRECTS = frozenset((301, 302, 303, 307, 308))
_FETCHES = 64
_FETCHES_OF_A_CLIENT = 16
_LOOKUPS = 8
_RETRY_AFTER_S = 2
# How long an address may take to accept a connection before the name's next one is tried.
_NEXT_ADDRESS_S = 1.0
# Limits of a response's head: headers, and bytes of one.
_HEADERS = 64
_HEADER_BYTES = 4096
# A body may come in chunks of one byte. After so many parts other work gets its turn.
_PARTS_AT_ONCE = 64
_PORTS = {"http": 80, "https": 443}
_ALLOW_HOSTS = "remote_images.allow_hosts"
_LOOKUP, _CONNECTING = "looking up its host's name", "connecting to its host"


def look_up(host: str, port: int) -> list[str]:
    """Return the addresses of a name; blocks.

    Raises:
        OSError: it has none.
    """
    found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(entry[4][0]) for entry in found]


@dataclass(slots=True)
class _Progress:
    """How far a fetch has come.

    Attributes:
        url: what is asked for now, after any redirects.
        step: what is being waited for; empty once the request is under way.
    """

    url: RemoteUrl
    step: str = ""

    async def trace(self, event: str, _: object) -> None:
        """Note that a request is under way; called by httpcore."""
        if event == "http11.send_request_headers.started":
            self.step = ""


class _NotPublic(Exception):
    def __init__(self, rule: str) -> None:
        super().__init__(rule)
        self.rule = rule


class ImageFetcher:
    """HTTP to the hosts of remote images, a connection a request; an async context manager.

    A name is looked up once a request. All of its addresses are checked, and connections are made to these
    addresses and not to the name, so that no later answer of a name server counts. A request carries no
    cookies, no credentials and nothing from the environment, such as a proxy's address.
    """

    def __init__(self, settings: Callable[[], RemoteImages], lookup: Lookup = look_up) -> None:
        """Make one.

        Args:
            settings: returns what is configured now.
            lookup: returns a name's addresses or raises OSError; called in threads.
        """
        self._settings = settings
        self._lookup = lookup
        # The transport and no client, which would keep cookies and log every URL.
        self._transport: httpx.AsyncHTTPTransport | None = None
        self._making_transport = asyncio.Lock()
        self._free = asyncio.Semaphore(_FETCHES)
        self._free_of: weakref.WeakValueDictionary[str, asyncio.Semaphore] = weakref.WeakValueDictionary()

    async def __aenter__(self) -> Self:
        # Its own threads: a name server that hangs must not hold up other work.
        self._threads = ThreadPoolExecutor(_LOOKUPS, "lookup")
        self._failures = ConnectFailureLog(log, asyncio.get_running_loop().time)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._transport:
            await self._transport.aclose()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def check(self, url: RemoteUrl) -> None:
        """Check whether a URL may be fetched, as far as the URL itself shows.

        Raises:
            BadImage: its host is not listed, or is an address that is not public.
        """
        settings = self._settings()
        if not url.is_listed(settings.allow_hosts):
            raise refused(f"images by URL are accepted from listed hosts only ({_ALLOW_HOSTS})")
        if (literal := address(url.host)) and (
            rule := remote_addresses.refusal(literal, settings.allow_networks)
        ):
            raise _not_public(rule)

    async def fetch(self, url: RemoteUrl, client: str, keep: Callable[[int], None]) -> bytes:
        """Return the image at a URL.

        Args:
            url: where; checked again.
            client: who asks; each may have a share of all fetches under way.
            keep: called with the length of each part before the part is kept; may raise.

        Raises:
            BadImage: it must not be fetched, or the response is not as expected.
            Unavailable: too many fetches are under way, or the gateway has no sockets left.
        """
        timeout_s = self._settings().timeout_s
        own = self._free_of.setdefault(client, asyncio.Semaphore(_FETCHES_OF_A_CLIENT))
        progress: _Progress | None = None
        try:
            async with asyncio.timeout(timeout_s), own, self._free:
                progress = _Progress(url)
                return await self._follow(progress, keep)
        except TimeoutError:
            if not progress:
                raise _busy("too many remote images are being fetched", "remote_images_busy") from None
            if progress.step:
                cause = Cause.NAME if progress.step == _LOOKUP else Cause.TIMEOUT
                self._failures.write(_named(progress.url), cause, f"no answer in {timeout_s:g} s")
            what = progress.step or "it"
            raise failed(f"{what} took longer than {timeout_s:g} s (remote_images.timeout_s)") from None

    async def _follow(self, progress: _Progress, keep: Callable[[int], None]) -> bytes:
        for _ in range(_MAX_REDIRECTS + 1):
            url = progress.url
            self.check(url)
            # Errors are passed on without the library's own, which may hold the URL: that may be a secret.
            try:
                async with contextlib.aclosing(await self._get(progress)) as response:
                    _check_head(response)
                    if response.status_code not in _REDIRECTS:
                        return await self._body(response, keep)
                    location = response.headers.get("Location", "")
            except _NotPublic as error:
                raise _not_public(error.rule) from None
            except (httpx.HTTPError, OSError, ValueError):
                raise failed("its server broke off or did not speak HTTP") from None
            onward = redirected(url, location)
            if onward is None:
                raise refused("its server redirects to what is no plain URL, or from https to http")
            progress.url = onward
        raise failed(f"its server redirects more than {_MAX_REDIRECTS} times")

    async def _get(self, progress: _Progress) -> httpx.Response:
        """Return the response to a request, over a connection to a checked address, once its head is in.

        Raises:
            _NotPublic: the host has an address that must not be connected to.
            BadImage, Unavailable: there is no connection.
            httpx.HTTPError: there is no response.
        """
        url = progress.url
        progress.step = _LOOKUP
        try:
            addresses = await self._addresses(url)
        except OSError as error:
            raise self._no_connection(url, Cause.NAME, getattr(error, "strerror", None) or "") from None
        progress.step = _CONNECTING
        transport = await self._opened_transport()
        for tried, found in enumerate(addresses, 1):
            is_last = tried == len(addresses)
            try:
                return await transport.handle_async_request(_request(progress, found, is_last=is_last))
            except (httpx.ConnectError, httpx.ConnectTimeout) as error:
                if is_last:
                    raise self._no_connection(url, *diagnose(error)) from None
        raise AssertionError("the last address returns or raises")

    async def _addresses(self, url: RemoteUrl) -> list[Address]:
        """Return a host's addresses, each once and all of them checked, in the order to try them in.

        Raises:
            OSError: it has none.
            _NotPublic: one of them must not be connected to.
        """
        if literal := address(url.host):
            found = [str(literal)]
        else:
            loop = asyncio.get_running_loop()
            found = list(await loop.run_in_executor(self._threads, self._lookup, url.host, url.port))
        addresses = list(dict.fromkeys(map(ipaddress.ip_address, found)))
        if not addresses:
            raise OSError("a name without addresses")
        if rule := remote_addresses.first_refusal(addresses, self._settings().allow_networks):
            raise _NotPublic(rule)
        return addresses

    async def _opened_transport(self) -> httpx.AsyncHTTPTransport:
        async with self._making_transport:
            if self._transport is None:
                # In a thread: reading all trusted certificates takes a moment.
                tls = await asyncio.to_thread(ssl.create_default_context)
                limits = httpx.Limits(max_keepalive_connections=0)
                self._transport = httpx.AsyncHTTPTransport(verify=tls, trust_env=False, limits=limits)
            return self._transport

    async def _body(self, response: httpx.Response, keep: Callable[[int], None]) -> bytes:
        if response.status_code != 200:
            raise failed(f"its server answered {response.status_code}")
        if response.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise failed("its server answered with a Content-Encoding that was not asked for")
        max_bytes = self._settings().max_bytes
        body = bytearray()
        announced = response.headers.get("Content-Length", "")
        size = int(announced) if announced.isascii() and announced.isdigit() else 0
        if size <= max_bytes:
            parts = 0
            async for part in response.aiter_raw():
                size = len(body) + len(part)
                if size > max_bytes:
                    break
                keep(len(part))
                body += part
                parts += 1
                if parts % _PARTS_AT_ONCE == 0:
                    await asyncio.sleep(0)
        if size > max_bytes:
            raise failed(f"it has more than {max_bytes:,} bytes (remote_images.max_bytes)")
        return bytes(body)

    def _no_connection(self, url: RemoteUrl, cause: Cause, detail: str) -> BadImage | Unavailable:
        """Log why there is no connection; return what the client is told."""
        self._failures.write(_named(url), cause, detail)
        if cause is Cause.NO_SOCKETS:
            return _busy(cause.words, "no_sockets")
        return failed(f"its host cannot be connected to: {cause.words}")


def _check_head(response: httpx.Response) -> None:
    """Check a head against the limits.

    Raises:
        ValueError: it is over one.
    """
    headers = response.headers.raw
    if len(headers) > _HEADERS or any(len(name) + len(value) > _HEADER_BYTES for name, value in headers):
        raise ValueError("a head over the limits")


def _request(progress: _Progress, found: Address, *, is_last: bool) -> httpx.Request:
    """Return a request over a connection to an address; the host's name is in its header and its TLS."""
    url = progress.url
    return httpx.Request(
        "GET",
        httpx.URL(scheme=url.scheme, host=str(found), port=url.port),
        headers={
            "Host": url.host if url.port == _PORTS[url.scheme] else f"{url.host}:{url.port}",
            "Accept": "image/*",
            "Accept-Encoding": "identity",
            "User-Agent": "ocr-gateway",
            "Connection": "close",
        },
        extensions={
            "target": url.target.encode(),  # byte for byte: a signature may cover it
            "sni_hostname": url.host.strip("[]"),  # the name that the certificate must be for
            "timeout": {"connect": None if is_last else _NEXT_ADDRESS_S},
            "trace": progress.trace,
        },
    )


def _named(url: RemoteUrl) -> str:
    """Return a host's name in the log."""
    return f"the remote images' host {url.host}:{url.port}"


def refused(why: str) -> BadImage:
    """Return the error for an image that is not fetched."""
    return BadImage(f"{why}; send the image as a data URL", code="remote_image_refused")


def failed(why: str) -> BadImage:
    """Return the error for an image whose fetch failed."""
    return BadImage(f"the image could not be fetched: {why}", code="remote_image_failed")


def _busy(why: str, code: str) -> Unavailable:
    return Unavailable(f"{why}; retry shortly", code=code, retry_after=_RETRY_AFTER_S)


def _not_public(rule: str) -> BadImage:
    return refused(f"its host's address is not public ({rule}; remote_images.allow_networks)")
