"""What the gateway fetches for others, and what nobody reaches through it."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gzip
import socket
import ssl
import traceback
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gateway.config import RemoteImages
from gateway.errors import BadImage, GatewayError, Unavailable
from gateway.images import fetch
from gateway.images.fetch import ImageFetcher, look_up
from gateway.wire.image.remote_url import RemoteUrl, parse_remote
from tests.hosts import Host, answer_of, certified, drip, hosted, redirect_to
from tests.support import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator
    from pathlib import Path

IMAGE = b"\x89PNG and so on"
LOOPBACK = ("127.0.0.0/8",)
SECRET = "X-Amz-Signature=5ec2e7"


class Names:
    """A name server that says of each name what it is told to, the last answer for ever."""

    def __init__(self, **answers: list[list[str]]) -> None:
        self.answers = answers
        self.asked: list[str] = []

    def __call__(self, host: str, port: int) -> list[str]:
        self.asked.append(host)
        answers = self.answers.get(host.partition(".")[0])
        if not answers:
            raise OSError("no such name")
        return answers.pop(0) if len(answers) > 1 else answers[0]


def url_of(host: Host, path: str = f"/page.png?{SECRET}", name: str = "images.example") -> RemoteUrl:
    url = parse_remote(f"http://{name}:{host.port}{path}".encode())
    assert url is not None
    return url


def settings_of(*hosts: Host, names: tuple[str, ...] = ("images.example",), **settings: Any) -> RemoteImages:
    listed = [f"{name}:{host.port}" for host in hosts for name in names]
    return RemoteImages.model_validate({"allow_hosts": listed, "allow_networks": LOOPBACK} | settings)


@contextlib.asynccontextmanager
async def fetching(settings: RemoteImages, names: Names | None = None) -> AsyncIterator[ImageFetcher]:
    async with ImageFetcher(lambda: settings, names or Names(images=[["127.0.0.1"]])) as fetcher:
        yield fetcher


async def get(fetcher: ImageFetcher, url: RemoteUrl, client: str = "") -> bytes:
    return await fetcher.fetch(url, client, lambda _: None)


async def failure(fetcher: ImageFetcher, url: RemoteUrl) -> GatewayError:
    with pytest.raises(GatewayError) as refused:
        await get(fetcher, url)
    # What signs a URL is a secret, and where a document lies may be one.
    told = "".join(traceback.format_exception(refused.value))
    assert not [secret for secret in (SECRET, "page.png") if secret in told]
    return refused.value


async def test_an_image_is_fetched_with_a_request_that_says_no_more_than_it_must(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / ".netrc").write_text("default login someone password secret")
    (tmp_path / ".netrc").chmod(0o600)
    monkeypatch.setenv("NETRC", str(tmp_path / ".netrc"))
    for proxy in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(proxy, "http://127.0.0.1:9")
    answer = answer_of(IMAGE, Set_Cookie="session=1; Path=/")
    async with hosted() as host, fetching(settings_of(host)) as fetcher:
        path = f"/page.png?{SECRET}&a=%2F%20b"
        host.answers[path] = answer
        for _ in range(2):
            assert await get(fetcher, url_of(host, path)) == IMAGE
        for head in host.asked:
            assert head.splitlines() == [
                f"GET {path} HTTP/1.1",
                f"Host: images.example:{host.port}",
                "Accept: image/*",
                "Accept-Encoding: identity",
                "User-Agent: ocr-gateway",
                *(["Connection: close"] if "Connection" in head else []),
                "",
            ]
        assert host.connections == 2


@pytest.mark.parametrize(
    ("addresses", "rule"),
    [
        (["10.0.0.1"], "private"),
        (["169.254.169.254"], "cloud metadata"),
        (["fd00:ec2::254"], "cloud metadata"),
        (["::1"], "loopback"),
        (["::ffff:127.0.0.1"], "IPv4 inside IPv6"),
        (["64:ff9b::a00:1"], "private"),
        (["fe80::1%2"], "link-local"),
        (["0.0.0.0"], "unspecified"),
        (["127.0.0.1", "192.168.0.1"], "private"),
    ],
)
async def test_a_name_for_an_address_that_is_not_public_is_refused(addresses: list[str], rule: str) -> None:
    async with hosted() as host, fetching(settings_of(host), Names(images=[addresses])) as fetcher:
        error = await failure(fetcher, url_of(host))
        assert error.code == "remote_image_refused"
        assert rule in error.message
        assert addresses[0] not in error.message
        assert host.connections == 0


async def test_without_exceptions_loopback_is_refused_too() -> None:
    async with hosted() as host, fetching(settings_of(host, allow_networks=())) as fetcher:
        assert "loopback" in (await failure(fetcher, url_of(host))).message
        assert host.connections == 0


async def test_a_name_is_looked_up_once_for_a_connection_so_that_no_second_answer_counts() -> None:
    names = Names(images=[["127.0.0.1"], ["10.0.0.1"]])
    async with hosted() as host, fetching(settings_of(host), names) as fetcher:
        host.answers[url_of(host).target] = answer_of(IMAGE)
        assert await get(fetcher, url_of(host)) == IMAGE
        assert names.asked == ["images.example"]
        assert "private" in (await failure(fetcher, url_of(host))).message
        assert host.connections == 1


async def test_addresses_in_urls_are_judged_like_those_of_names() -> None:
    names = Names()
    async with hosted(a=answer_of(IMAGE)) as host:
        listed = settings_of(host, names=("127.0.0.1", "127.0.0.2"), allow_networks=("127.0.0.1/32",))
        async with fetching(listed, names) as fetcher:
            assert await get(fetcher, url_of(host, "/a", "127.0.0.1")) == IMAGE
            assert "loopback" in (await failure(fetcher, url_of(host, "/a", "127.0.0.2"))).message
        assert names.asked == []


async def test_what_is_configured_now_counts() -> None:
    async with hosted(a=answer_of(IMAGE)) as host:
        settings = [settings_of(host)]
        async with ImageFetcher(lambda: settings[0], Names(images=[["127.0.0.1"]])) as fetcher:
            assert await get(fetcher, url_of(host, "/a")) == IMAGE
            settings[0] = RemoteImages()
            assert (await failure(fetcher, url_of(host, "/a"))).code == "remote_image_refused"


@pytest.mark.parametrize("status", ["301 Moved", "302 Found", "303 See", "307 Temporary", "308 Permanent"])
async def test_redirects_are_followed_each_judged_anew(status: str) -> None:
    names = Names(images=[["127.0.0.1"]], other=[["127.0.0.1"]])
    async with hosted() as host:
        listed = settings_of(host, names=("images.example", "other.example"))
        async with fetching(listed, names) as fetcher:
            host.answers |= {
                "/a": redirect_to("/b?" + SECRET, status),
                "/b?" + SECRET: redirect_to(f"http://other.example:{host.port}/c", status),
                "/c": redirect_to("d", status),
                "/d": answer_of(IMAGE),
            }
            assert await get(fetcher, url_of(host, "/a")) == IMAGE
        assert names.asked == ["images.example", "images.example", "other.example", "other.example"]


@pytest.mark.parametrize(
    ("onward", "code"),
    [
        ("http://evil.example:{port}/b", "remote_image_refused"),
        ("//evil.example:{port}/b", "remote_image_refused"),
        ("http://images.example/b", "remote_image_refused"),
        ("http://127.0.0.1:{port}/b", "remote_image_refused"),
        ("http://169.254.169.254/latest/meta-data/", "remote_image_refused"),
        ("http://inner.example:{port}/b", "remote_image_refused"),
        ("http://user:word@images.example:{port}/b", "remote_image_refused"),
        ("file:///etc/passwd", "remote_image_refused"),
        ("gopher://images.example:{port}/b", "remote_image_refused"),
        ("\\\\\\\\evil.example\\\\b", "remote_image_refused"),
        ("http://[", "remote_image_refused"),
        ("/a", "remote_image_failed"),
        ("", "remote_image_failed"),
    ],
)
async def test_a_redirect_leads_nowhere_that_the_url_itself_would_not_have(onward: str, code: str) -> None:
    names = Names(images=[["127.0.0.1"]], evil=[["127.0.0.1"]], inner=[["10.0.0.1"]])
    async with hosted(b=answer_of(IMAGE)) as host:
        listed = settings_of(host, names=("images.example", "inner.example"))
        async with fetching(listed, names) as fetcher:
            host.answers["/a"] = redirect_to(onward.format(port=host.port))
            assert (await failure(fetcher, url_of(host, "/a"))).code == code
        assert set(host.paths) == {"/a"}
        assert "evil.example" not in names.asked


async def test_redirects_have_an_end() -> None:
    async with hosted(**{f"{n}": redirect_to(f"/{n + 1}") for n in range(9)}) as host:
        async with fetching(settings_of(host)) as fetcher:
            error = await failure(fetcher, url_of(host, "/0"))
        assert error.message.endswith("redirects more than 3 times")
        assert host.paths == ["/0", "/1", "/2", "/3"]


def chunked(*chunks: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in (*chunks, b""))


PACKED = gzip.compress(bytes(10_000_000))

ANSWERS = [
    (answer_of(IMAGE, "404 Not Found"), "answered 404"),
    (answer_of(IMAGE, "206 Partial Content"), "answered 206"),
    (answer_of(IMAGE, "500 " + SECRET), "answered 500"),
    (answer_of(PACKED, Content_Encoding="gzip"), "Content-Encoding"),
    (answer_of(PACKED, Content_Encoding="identity, gzip"), "Content-Encoding"),
    (answer_of(bytes(1001)), "more than 1,000 bytes"),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 9999999999999\r\n\r\n", "more than 1,000 bytes"),
    (b"HTTP/1.1 200 OK\r\n\r\n" + bytes(1001), "more than 1,000 bytes"),
    (chunked(*[bytes(100)] * 11), "more than 1,000 bytes"),
    (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n" + IMAGE, "broke off"),
    (chunked(IMAGE)[:-5], "broke off"),
    (b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n", "broke off"),
    (b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n", "broke off"),
    (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n", "broke off"),
    (b"HTTP/1.1 200 OK\r\nX: " + b"x" * 100_000 + b"\r\n\r\n", "broke off"),
    (b"HTTP/1.1 200 OK\r\n" + b"X: x\r\n" * 10_000 + b"\r\n", "broke off"),
    (b"SSH-2.0-OpenSSH_9.9\r\n", "broke off"),
    (b"", "broke off"),
    (b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", "broke off"),
]


@pytest.mark.parametrize(("answer", "why"), ANSWERS, ids=[f"{n}-{why}" for n, (_, why) in enumerate(ANSWERS)])
async def test_what_is_no_plain_bounded_answer_is_refused(answer: bytes, why: str) -> None:
    async with hosted() as host, fetching(settings_of(host, max_bytes=1000)) as fetcher:
        host.answers[url_of(host).target] = answer
        error = await failure(fetcher, url_of(host))
        assert error.code == "remote_image_failed"
        assert why in error.message


@pytest.mark.parametrize(
    "answer", [answer_of(bytes(1000)), chunked(*[bytes(100)] * 10), b"HTTP/1.1 200 OK\r\n\r\n" + bytes(1000)]
)
async def test_as_much_as_is_allowed_comes_through_and_every_byte_is_counted(answer: bytes) -> None:
    async with hosted(a=answer) as host, fetching(settings_of(host, max_bytes=1000)) as fetcher:
        kept: list[int] = []
        assert await fetcher.fetch(url_of(host, "/a"), "", kept.append) == bytes(1000)
        assert sum(kept) == 1000


async def test_an_endless_answer_is_left_at_the_limit() -> None:
    sent = 0

    async def endless(writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        writer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        while True:
            writer.write(bytes(100_000))
            await writer.drain()
            sent += 100_000

    async with hosted(a=endless) as host, fetching(settings_of(host, max_bytes=10**6)) as fetcher:
        kept: list[int] = []
        with pytest.raises(BadImage, match="more than 1,000,000 bytes"):
            await fetcher.fetch(url_of(host, "/a"), "", kept.append)
        await until(lambda: host.open == 0)
        assert sum(kept) <= 10**6


async def test_a_body_in_chunks_of_a_byte_does_not_keep_others_waiting() -> None:
    turns = 0

    async def count_turns() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async with hosted(a=chunked(*[b"x"] * 10_000)) as host, fetching(settings_of(host)) as fetcher:
        other = asyncio.create_task(count_turns())
        assert await get(fetcher, url_of(host, "/a")) == b"x" * 10_000
        other.cancel()
    assert turns > 100


async def test_cookies_are_neither_kept_nor_sent() -> None:
    async with hosted(a=answer_of(IMAGE, Set_Cookie="session=1; Path=/; Domain=127.0.0.1")) as host:
        async with fetching(settings_of(host, names=("127.0.0.1",))) as fetcher:
            for _ in range(2):
                assert await get(fetcher, url_of(host, "/a", "127.0.0.1")) == IMAGE
        assert not [head for head in host.asked if "cookie" in head.lower()]


async def test_who_may_keep_no_more_stops_it() -> None:
    def full(_: int) -> None:
        raise Unavailable("full", code="memory_full", retry_after=1)

    async with hosted(a=answer_of(IMAGE)) as host, fetching(settings_of(host)) as fetcher:
        with pytest.raises(Unavailable, match="full"):
            await fetcher.fetch(url_of(host, "/a"), "", full)


async def hold(_: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


@pytest.mark.parametrize("behaviour", [hold, drip])
async def test_a_slow_host_is_waited_for_only_so_long(behaviour: Any) -> None:
    async with hosted(a=behaviour) as host, fetching(settings_of(host, timeout_s=0.2)) as fetcher:
        error = await failure(fetcher, url_of(host, "/a"))
        assert error.message.endswith(": it took longer than 0.2 s (remote_images.timeout_s)")
        await until(lambda: behaviour is hold or host.open == 0)


async def test_a_name_server_that_hangs_is_waited_for_only_so_long(caplog: pytest.LogCaptureFixture) -> None:
    go_on = asyncio.Event()
    loop = asyncio.get_running_loop()

    def hang(host: str, port: int) -> list[str]:
        asyncio.run_coroutine_threadsafe(go_on.wait(), loop).result()
        return []

    async with hosted() as host:
        settings = settings_of(host, timeout_s=0.1)
        async with ImageFetcher(lambda: settings, hang) as fetcher:
            error = await failure(fetcher, url_of(host))
            assert "looking up its host's name took longer than 0.1 s" in error.message
            assert "its name cannot be resolved (no answer in 0.1 s)" in caplog.text
            assert await asyncio.to_thread(lambda: "others' threads are free") == "others' threads are free"
        go_on.set()


@pytest.mark.parametrize("names", [Names(), Names(images=[[]])])
async def test_a_name_without_an_address_is_a_failure(names: Names, caplog: pytest.LogCaptureFixture) -> None:
    async with hosted() as host, fetching(settings_of(host), names) as fetcher:
        for _ in range(2):
            error = await failure(fetcher, url_of(host))
            assert error.code == "remote_image_failed"
            assert error.message.endswith("its name cannot be resolved")
    (logged,) = caplog.messages
    assert f"images.example:{host.port}: its name cannot be resolved; check the name's spelling" in logged


async def test_where_an_address_takes_no_connection_the_next_is_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(fetch, "_NEXT_ADDRESS_S", 0.05)
    with socket.socket() as full:
        full.bind(("127.0.0.2", 0))
        full.listen(0)
        port = full.getsockname()[1]
        waiting = [socket.socket() for _ in range(4)]
        for connection in waiting:  # the queue of connections that nobody accepts is full after these
            connection.setblocking(False)
            connection.connect_ex(("127.0.0.2", port))
        # 127.0.0.3 refuses connections at once.
        names = Names(images=[["127.0.0.2", "127.0.0.3", "127.0.0.1"]])
        async with (
            hosted(port=port, a=answer_of(IMAGE)) as host,
            fetching(settings_of(host), names) as fetcher,
        ):
            assert await get(fetcher, url_of(host, "/a")) == IMAGE
            assert host.connections == 1
            names.answers["images"] = [["127.0.0.2"]]
            settings = settings_of(host, timeout_s=0.1)
            async with ImageFetcher(lambda: settings, names) as hurried:
                error = await failure(hurried, url_of(host, "/a"))
            assert "connecting to its host took longer than 0.1 s" in error.message
        for connection in waiting:
            connection.close()


async def test_nobody_listening_is_a_failure_that_is_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    async with hosted() as host:
        pass
    async with fetching(settings_of(host)) as fetcher:
        for _ in range(3):
            error = await failure(fetcher, url_of(host))
    assert error.message.endswith("its host cannot be connected to: it refuses connections")
    assert [record.getMessage() for record in caplog.records] == [
        f"no connection to the remote images' host images.example:{host.port}: it refuses connections "
        "(Connection refused); check that it runs and listens at this port"
    ]


async def test_without_ipv6_of_our_own_the_next_address_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = asyncio.get_running_loop()
    connect = loop.create_connection

    async def without_ipv6(factory: Any, host: str, *rest: Any, **options: Any) -> Any:
        if ":" in host:
            raise OSError(errno.EADDRNOTAVAIL, "x")
        return await connect(factory, host, *rest, **options)

    monkeypatch.setattr(loop, "create_connection", without_ipv6)
    names = Names(images=[["::1", "127.0.0.1"]])
    async with (
        hosted(a=answer_of(IMAGE)) as host,
        fetching(settings_of(host, allow_networks=("::1/128", *LOOPBACK)), names) as fetcher,
    ):
        assert await get(fetcher, url_of(host, "/a")) == IMAGE


async def test_no_sockets_left_is_our_own_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    async def none(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, "too many")

    async with hosted() as host, fetching(settings_of(host)) as fetcher:
        monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", none)
        error = await failure(fetcher, url_of(host))
    assert (error.status, error.code, error.retry_after) == (503, "no_sockets", 2)


async def test_who_leaves_takes_the_fetch_along() -> None:
    async with hosted(a=drip) as host, fetching(settings_of(host, timeout_s=60)) as fetcher:
        task = asyncio.create_task(get(fetcher, url_of(host, "/a")))
        await until(lambda: host.open)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await until(lambda: host.open == 0)


async def test_one_client_leaves_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "_FETCHES_OF_A_CLIENT", 2)
    async with (
        hosted(a=hold, b=answer_of(IMAGE)) as host,
        fetching(settings_of(host, timeout_s=60)) as fetcher,
    ):
        greedy = [asyncio.create_task(get(fetcher, url_of(host, "/a"), "greedy")) for _ in range(50)]
        await until(lambda: host.open == 2)
        assert await get(fetcher, url_of(host, "/b"), "other") == IMAGE
        assert host.paths == ["/a", "/a", "/b"]
        for task in greedy:
            task.cancel()
        await asyncio.gather(*greedy, return_exceptions=True)
        assert await get(fetcher, url_of(host, "/b"), "greedy") == IMAGE


async def test_who_gets_no_turn_in_time_may_come_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch, "_FETCHES", 1)
    async with hosted() as host, fetching(settings_of(host, timeout_s=0.05)) as fetcher:
        async with fetcher._free:
            error = await failure(fetcher, url_of(host, "/a"))
        assert (error.status, error.code, error.retry_after) == (503, "remote_images_busy", 2)
        assert host.connections == 0


def test_the_systems_own_names_are_asked() -> None:
    assert set(look_up("localhost", 80)) <= {"127.0.0.1", "::1"}
    with pytest.raises(socket.gaierror):
        look_up("none.invalid", 80)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return certified(tmp_path_factory.mktemp("tls"), "images.example", "DNS:images.example")


@pytest.mark.parametrize(
    ("name", "trusted", "why", "detail"),
    [
        ("images.example", True, None, ""),
        ("images.example", False, "no certificate that is trusted", "self-signed certificate"),
        ("other.example", True, "no certificate that is trusted", "Hostname mismatch"),
    ],
)
async def test_a_host_is_who_it_says(
    certificate: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    name: str,
    trusted: bool,
    why: str | None,
    detail: str,
) -> None:
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(certificate)
    if trusted:
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    names = Names(images=[["127.0.0.1"]], other=[["127.0.0.1"]])
    async with hosted(tls, a=answer_of(IMAGE), down=redirect_to("http://images.example/a")) as host:
        listed = settings_of(host, names=("images.example", "other.example"))
        async with fetching(listed, names) as fetcher:
            url = RemoteUrl("https", name, host.port, "/a")
            if why is None:
                assert await get(fetcher, url) == IMAGE
                down = await failure(fetcher, RemoteUrl("https", name, host.port, "/down"))
                assert down.code == "remote_image_refused"
            else:
                assert why in (await failure(fetcher, url)).message
                logged = f"the remote images' host {name}:{host.port}: it has no certificate that is trusted"
                assert logged in caplog.text
                assert detail in caplog.text
                assert "SSL_CERT_FILE" in caplog.text


@settings(max_examples=20)
@given(st.binary(max_size=200))
def test_whatever_a_server_sends_ends_as_an_image_or_a_refusal(data: bytes) -> None:
    async def run() -> None:
        async with hosted(a=data) as host, fetching(settings_of(host, timeout_s=10)) as fetcher:
            with contextlib.suppress(BadImage):
                await get(fetcher, url_of(host, "/a"))

    asyncio.run(run())
