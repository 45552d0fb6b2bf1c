"""The page at `/` in Chromium, as people use it: before scripted and simulated engines, over sockets.

`make test-browser` runs it. Each test ends with a look at what the browser complained of and whom it asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from PIL import Image

from bench.serving import free_port
from gateway.config import parse
from gateway.engines.simulated.simulated_server import SimulatedEngine
from gateway.engines.simulated.step_model import Fit
from gateway.server.app import Gateway
from tests.api.test_auth import KEY, guarded
from tests.pdf import document
from tests.support import chunk, png, served, serving, until

pytest.importorskip("playwright", reason="no Playwright here: make test-browser installs it")
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import async_playwright, expect

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from playwright.async_api import ConsoleMessage, Page, Request

    from tests.conftest import Running
    from tests.support import FakeEngine

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
]
REFUSED = "Failed to load resource"  # how the browser notes a 401 or a 404

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium here: apt-get install chromium"),
]


@contextlib.asynccontextmanager
async def browsing(
    url: str,
    view: str = "",
    *,
    width: int = 1280,
    dark: bool = False,
    refused: bool = False,
    clock: bool = False,
) -> AsyncIterator[Page]:
    """Open the page; at the end nothing may have gone wrong in it, and nobody else have been asked.

    Args:
        url: the gateway's.
        view: `#status`, `#playground`, or what the page chooses.
        width: of the window.
        dark: whether the system prefers it.
        refused: some answers are refusals, which the browser notes.
        clock: the test has the page's timers in its hand.
    """
    wrong: list[str] = []

    def noted(message: ConsoleMessage) -> None:
        if message.type in ("error", "warning") and not (refused and REFUSED in message.text):
            wrong.append(message.text)

    def asked(request: Request) -> None:
        if not request.url.startswith((f"{url}/", "blob:", "data:")):
            wrong.append(request.url)

    async with async_playwright() as playwright:
        browser = await playwright.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        scheme = "dark" if dark else "light"
        context = await browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page = await context.new_page()
        page.set_default_timeout(20_000)
        page.on("console", noted)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("request", asked)
        if clock:
            await page.clock.install()
        try:
            await page.goto(f"{url}/{view}")
            yield page
        finally:
            await browser.close()
    assert wrong == []


@contextlib.asynccontextmanager
async def simulated() -> AsyncIterator[str]:
    """Serve a gateway before two simulated engines, of depth 3 and 0; text crosses over at a load of 4."""
    fit = Fit.builtin("h100-9b")
    async with contextlib.AsyncExitStack() as stack:
        deep, plain = [
            await stack.enter_async_context(served(SimulatedEngine(fit, depth=depth, time_scale=1000).app()))
            for depth in (3, 0)
        ]
        config = f"""
model: glm-ocr
pools:
  mtp3: {{speculative_config: {{method: mtp, num_speculative_tokens: 3}}, engines: ["{deep}"], max_load: 16}}
  plain: {{engines: ["{plain}"], max_load: 16}}
routes:
  text: {{schedule: [[1, 3, 3], [4, 4096, 0]]}}
  table: {{schedule: [[1, 4096, 3]]}}
polling: {{scrape_s: 0.05}}
"""
        gateway = Gateway(parse(config, "routes.yaml", Path(), {}))
        url = await stack.enter_async_context(serving(gateway))
        await until(lambda: all(status.simulated for status in gateway.state.snapshot().engines))
        yield url


def writing(text: str, size: int = 7) -> Any:
    """An engine's behaviour: it streams a text in small pieces."""

    async def behave(engine: FakeEngine, request: dict[str, Any], send: Any) -> None:
        await send.start(kind="text/event-stream")
        for place in range(0, len(text), size):
            await send.event(chunk(text[place : place + size]))
        await send.event(chunk("", "stop"))
        await send.event("[DONE]")
        await send.body(b"", more=False)

    return behave


async def take(page: Page, data: bytes = b"", name: str = "page.png") -> None:
    await page.set_input_files("#file", {"name": name, "mimeType": "", "buffer": data or png("hello")})
    await expect(page.locator("#progress")).to_contain_text("is chosen")


async def read(page: Page) -> str:
    """Send what is chosen; return the text of the answer."""
    await page.click("#send")
    await expect(page.locator("#progress")).to_contain_text(re.compile("Done in|Ended"))
    return await page.inner_text("#answer")


async def facts(page: Page) -> dict[str, str]:
    names, values = page.locator("#facts dt"), page.locator("#facts dd")
    return dict(zip(await names.all_inner_texts(), await values.all_inner_texts(), strict=True))


async def test_an_answer_streams_in_with_what_became_of_the_request(running: Running) -> None:
    go_on = asyncio.Event()

    async def behave(engine: FakeEngine, request: dict[str, Any], send: Any) -> None:
        await send.start(kind="text/event-stream")
        await send.event(chunk("**first** "))
        await go_on.wait()
        await send.event(chunk("and last", "stop"))
        await send.event("[DONE]")
        await send.body(b"", more=False)

    running.deep.behave = behave
    async with browsing(running.url, "#playground") as page:
        await take(page)
        await page.check("input[name=route][value=table]", force=True)
        await page.click("#send")
        await expect(page.locator("#answer strong")).to_have_text("first")
        assert await page.get_attribute("#answer", "aria-busy") == "true"
        go_on.set()
        await expect(page.locator("#progress")).to_contain_text("Done in")
        assert await page.inner_text("#answer") == "first and last"
        assert await page.get_attribute("#answer", "aria-busy") == "false"
        await expect(page.locator("#facts")).to_contain_text("Acceptance")
        told = await facts(page)
        assert (told["Route"], told["Sorted by"], told["Pool"], told["Depth"]) == (
            "table",
            "chosen (header)",
            "mtp3",
            "3",
        )
        assert {"First token", "Total", "Acceptance"} <= told.keys()
    (sent,) = running.deep.requests
    image, words = sent["messages"][0]["content"]
    assert image["image_url"]["url"].startswith("data:image/png;base64,iVBOR")
    assert words == {"type": "text", "text": "Table Recognition:"}


async def test_left_to_itself_the_picture_decides(running: Running) -> None:
    async with browsing(running.url, "#playground") as page:
        for sample, route in (("receipt", "key-value"), ("table", "table")):
            await page.click(f"#sample-{sample}")
            await expect(page.locator("#preview")).to_contain_text(f"{sample}.png")
            assert await read(page) == "hello world"
            assert ((await facts(page))["Route"], (await facts(page))["Sorted by"]) == (route, "the picture")


HOSTILE = """# Title <script>window.hacked = 1</script>

<img src=x onerror="window.hacked = 2"> [a link](javascript:window.hacked=3) ![seen](https://evil.example/x.png)
<style>body { display: none }</style> <svg onload="window.hacked = 4"></svg> <a href="javascript:x">go</a>

<table onclick="window.hacked = 6" style="position: fixed"><tr><td colspan="2" onmouseover="hacked = 7">outer
<table><tr><td>inner <script>window.hacked = 8</script></td></tr></table></td></tr>
<tr><th><iframe src="https://evil.example"></iframe></th><td rowspan=99999><b>bold</b></td></tr></table>

| a | <img src=x onerror=alert(1)> |
|---|---|
| `code` | **strong** $x^2$ |

<base href="https://evil.example"><form action="https://evil.example"><input></form> &lt;script&gt;
<table><tr><td>never closed <table><tr><td>nor this
"""
ELEMENTS = {
    *("article", "b", "blockquote", "br", "code", "div", "em", "h3", "hr", "i", "li", "ol", "p", "pre", "s"),
    *("small", "span", "strong", "sub", "sup", "u", "ul"),
    *("caption", "table", "tbody", "td", "tfoot", "th", "thead", "tr"),
}
ATTRIBUTES = {"aria-label", "aria-level", "class", "colspan", "role", "rowspan", "scope", "value"}
LOOK = """() => {
  const nodes = [...document.querySelectorAll("#answer *")];
  return {
    elements: nodes.map((node) => node.localName),
    attributes: nodes.flatMap((node) => node.getAttributeNames()),
    hacked: window.hacked ?? null, display: getComputedStyle(document.body).display,
  };
}"""


@pytest.mark.parametrize("size", [7, 10_000])
async def test_what_a_model_writes_is_shown_and_does_nothing(running: Running, size: int) -> None:
    running.plain.behave = writing(HOSTILE, size)
    async with browsing(running.url, "#playground") as page:
        await take(page)
        await page.check("input[name=route][value=text]", force=True)
        text = await read(page)
        found = await page.evaluate(LOOK)
        assert set(found["elements"]) <= ELEMENTS
        assert set(found["attributes"]) <= ATTRIBUTES
        assert (found["hacked"], found["display"]) == (None, "block")
        for words in (
            "<script>window.hacked = 1</script>",
            "<img src=x onerror",
            "<style>body",
            "[image: seen]",
        ):
            assert words in text
        assert "a link (javascript:window.hacked=3)" in text
        assert await page.locator("#answer table table td").first.inner_text() == (
            "inner <script>window.hacked = 8</script>"
        )
        assert await page.inner_text("#answer .tex") == "$x^2$"
        await page.check("input[name=form][value=raw]", force=True)
        assert (await page.inner_text("#answer")).strip() == HOSTILE.strip()
        assert set((await page.evaluate(LOOK))["elements"]) == {"pre"}


MARKDOWN = """## Invoice 7

Corner Bakery
12 Mill Street, Oxford

- bread
- tea

3. third

> quoted

| item | price |
|:-----|------:|
| loaf | $9 or $10 |

```
a | b
```
"""


async def test_the_forms_that_answers_have_are_shown_as_what_they_are(running: Running) -> None:
    async with browsing(running.url, "#playground") as page:
        await take(page)
        await page.check("input[name=route][value=text]", force=True)
        running.plain.behave = writing(MARKDOWN)
        await read(page)
        answer = page.locator("#answer")
        assert await answer.locator("[role=heading]").all_inner_texts() == ["Invoice 7"]
        assert await answer.locator("p").first.inner_text() == "Corner Bakery\n12 Mill Street, Oxford"
        assert await answer.locator("li").all_inner_texts() == ["bread", "tea", "third"]
        assert await answer.locator("li").last.get_attribute("value") == "3"
        assert await answer.locator("th, td").all_inner_texts() == ["item", "price", "loaf", "$9 or $10"]
        assert await answer.locator("blockquote").inner_text() == "quoted"
        assert await answer.locator("pre").inner_text() == "a | b"
        running.plain.behave = writing('{"date": "2026-03-14", "items": ["loaf", {"price": 9}]}')
        await read(page)
        cells = await answer.locator("table").first.locator("th, td").all_inner_texts()
        assert (cells[0], cells[1], cells[2]) == ("date", "2026-03-14", "items")
        assert cells[-2:] == ["price", "9"]


async def test_why_an_engine_is_down_is_shown(running: Running) -> None:
    running.plain.healthy = False
    running.gateway.state.unresolved = {"mtp3": ("deep:8000: it has no addresses",)}
    await until(lambda: not running.up("plain"))
    async with browsing(running.url, "#status") as page:
        notices = page.locator("#notices")
        await expect(notices).to_contain_text("is down: the engine answered /health with HTTP 503, not 200")
        await expect(notices).to_contain_text("pool mtp3 has no engine by the name deep:8000: it has no addr")


async def test_a_refusal_is_shown_in_the_gateways_own_words(running: Running) -> None:
    async with browsing(running.url, "#playground", refused=True) as page:
        assert await read_nothing(page) == "Choose a picture or a PDF first, or take a sample."
        await take(page)
        running.plain.healthy = running.deep.healthy = False
        await until(lambda: not running.up("plain") and not running.up("mtp3"))
        text = await read(page)
        assert "is up; retry shortly" in text
        assert "503 no_engine" in text
        assert re.search(r"Ask again in \d+ s", text)
        await page.set_input_files(
            "#file", {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"words"}
        )
        await expect(page.locator("#progress")).to_contain_text(
            "neither a picture that is read here nor a PDF"
        )


async def read_nothing(page: Page) -> str:
    await page.click("#send")
    return await page.inner_text("#progress")


async def test_a_stream_that_breaks_off_says_so_and_keeps_what_came(running: Running) -> None:
    async def behave(engine: FakeEngine, request: dict[str, Any], send: Any) -> None:
        await send.start(kind="text/event-stream")
        await send.event(chunk("half of it"))
        await send.event("not JSON")

    running.plain.behave = behave
    async with browsing(running.url, "#playground") as page:
        await take(page)
        await page.check("input[name=route][value=text]", force=True)
        text = await read(page)
        assert text.startswith("half of it")
        assert await page.locator("#answer .notice.bad").count() == 1


async def test_stop_ends_the_engines_work(running: Running) -> None:
    async def behave(engine: FakeEngine, request: dict[str, Any], send: Any) -> None:
        await send.start(kind="text/event-stream")
        await send.event(chunk("so far"))
        await asyncio.Event().wait()

    running.plain.behave = behave
    async with browsing(running.url, "#playground") as page:
        await take(page)
        await page.check("input[name=route][value=text]", force=True)
        await page.click("#send")
        await expect(page.locator("#answer")).to_have_text("so far")
        await page.click("#stop")
        await expect(page.locator("#answer")).to_contain_text("Stopped.")
        await until(lambda: running.plain.aborted == 1)


async def test_a_document_is_read_page_by_page(running: Running) -> None:
    async with browsing(running.url, "#playground") as page:
        await take(page, document(["one", "two", "three"], broken={1}), "three pages.pdf")
        assert await page.is_disabled("#prompt")
        await read(page)
        pages = await page.locator("#answer article").all_inner_texts()
        assert [text.splitlines()[0] for text in pages] == ["Page 1", "Page 2", "Page 3"]
        assert "hello world" in pages[0]
        assert "hello world" in pages[2]
        assert await page.locator("#answer article .is-bad").count() == 1
        assert (await facts(page))["Pages"] == "3 of 3"


async def test_the_whole_way_by_keyboard(running: Running) -> None:
    async with browsing(running.url, "#playground") as page:
        await expect(page.locator("#choices")).to_contain_text("key-value")
        passed = []
        for wanted in ("sample-table", "prompt", "send"):
            for _ in range(40):
                await page.keyboard.press("Tab")
                passed.append(await page.evaluate("document.activeElement.id"))
                if passed[-1] == wanted:
                    break
            assert passed[-1] == wanted, passed
            if wanted == "sample-table":
                await page.keyboard.press("Enter")
                await expect(page.locator("#progress")).to_contain_text("is chosen")
            elif wanted == "prompt":
                await page.keyboard.type("Text Recognition:")
                await page.keyboard.press("Control+Enter")
                await expect(page.locator("#progress")).to_contain_text("Done in")
                assert (await facts(page))["Sorted by"] == "a known prompt"
                running.plain.bodies.clear()
        assert passed[0] == "skip"
        outline = await page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        assert outline == "solid"
        await page.keyboard.press("Enter")
        await until(lambda: len(running.plain.bodies) == 1)
        await expect(page.locator("#progress")).to_contain_text("Done in")


async def test_the_snippets_do_the_same(running: Running, tmp_path: Path) -> None:
    name, prompt = 'it\'s "$HOME".png', "read `this` for $5\n\\n and \"that\" 'é'"
    (tmp_path / name).write_bytes(png("hello"))
    async with browsing(running.url, "#playground") as page:
        await take(page, png("hello"), name)
        await page.check("input[name=route][value=table]", force=True)
        await page.fill("#prompt", prompt)
        await read(page)
        curl = await page.inner_text("#snippet")
        await page.check("input[name=language][value=python]", force=True)
        python = await page.inner_text("#snippet")
    for command in (["bash", "-euo", "pipefail", "-c", curl], [sys.executable, "-c", python]):
        process = await asyncio.create_subprocess_exec(
            *command, cwd=tmp_path, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        out, trouble = await process.communicate()
        assert process.returncode == 0, trouble.decode()
        assert b"world" in out
    asked = [body["messages"] for body in running.deep.requests]
    assert len(asked) == 3
    assert asked[0] == asked[1] == asked[2]
    assert asked[0][0]["content"][1]["text"] == prompt


async def test_the_snippets_for_a_document_do_the_same(running: Running, tmp_path: Path) -> None:
    data = document(["one", "two"])
    (tmp_path / "two pages.pdf").write_bytes(data)
    async with browsing(running.url, "#playground") as page:
        await take(page, data, "two pages.pdf")
        curl = await page.inner_text("#snippet")
        await page.check("input[name=language][value=python]", force=True)
        python = await page.inner_text("#snippet")
    for command in (["bash", "-euo", "pipefail", "-c", curl], [sys.executable, "-c", python]):
        process = await asyncio.create_subprocess_exec(
            *command, cwd=tmp_path, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        out, trouble = await process.communicate()
        assert process.returncode == 0, trouble.decode()
        assert out.count(b"hello world") == 2


async def test_simulated_figures_are_marked_wherever_they_stand() -> None:
    async with simulated() as url, browsing(url, "#playground") as page:
        await take(page)
        await page.check("input[name=route][value=text]", force=True)
        await read(page)
        assert await page.is_visible("#answer-simulated")
        assert await page.is_visible("#simulated")
        await page.click("#to-status")
        await expect(page.locator("#recent tr")).to_have_count(1)
        for places, count in (("#totals > div", 3), ("#routes tr", 2), ("#engines tr", 2), ("#recent tr", 1)):
            marked = page.locator(places).filter(has=page.locator(".sim:visible"))
            assert await marked.count() == count, places
        assert "no figure here was measured" in await page.inner_text("#notices")


async def test_engines_stand_beside_the_loads_at_which_they_win() -> None:
    async with simulated() as url, browsing(url) as page:
        rows = page.locator("#engines tr")
        assert "text 1–3" in await rows.nth(0).inner_text()
        assert "table 1+" in await rows.nth(0).inner_text()
        assert "text 4+" in await rows.nth(1).inner_text()
        assert "table no load" in await rows.nth(1).inner_text()
        told = await rows.nth(0).locator("svg").get_attribute("aria-label")
        assert (
            told
            == "load 0, requests wait from 16; its depth wins for text at 1–3; its depth wins for table at 1+"
        )
        assert await page.locator("#routes tr").nth(0).locator(".depth").inner_text() == "3"


async def test_a_hidden_or_paused_tab_does_not_ask(running: Running) -> None:
    async with browsing(running.url, clock=True) as page:
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        await expect(page.locator("#contact")).to_have_text("live")

        async def later(seconds: int) -> int:
            for _ in range(seconds):
                await page.clock.run_for(1000)
                await page.evaluate(
                    "fetch('health').then((reply) => reply.text())"
                )  # after what was asked before
            return sum(url.endswith("/status") for url in asked)

        first = await later(10)
        assert first >= 3
        await page.evaluate(
            "Object.defineProperty(document, 'hidden', {value: true, configurable: true});"
            "document.dispatchEvent(new Event('visibilitychange'))"
        )
        hidden = await later(1)
        assert await later(30) == hidden
        await page.evaluate("delete document.hidden; document.dispatchEvent(new Event('visibilitychange'))")
        assert await later(6) > hidden
        await page.click("#pause")
        paused = await later(1)
        assert await later(30) == paused
        await expect(page.locator("#contact")).to_have_text("paused")


async def test_a_gateway_that_is_gone_is_said_to_be_and_found_again(running: Running) -> None:
    async with browsing(running.url, refused=True, clock=True) as page:
        await expect(page.locator("#contact")).to_have_text("live")
        await page.route("**/status", lambda route: route.abort())
        await page.clock.run_for(3000)
        await expect(page.locator("#contact")).to_have_text("no contact")
        await page.unroute("**/status")
        await page.clock.run_for(16_000)
        await expect(page.locator("#contact")).to_have_text("live")


async def test_a_key_is_asked_for_and_kept_nowhere(tmp_path: Path) -> None:
    async with guarded(tmp_path, key=None) as gateway, browsing(gateway.url, refused=True) as page:
        dialog = page.locator("#ask")
        await expect(dialog).to_be_visible()
        assert "there is no API key" in await page.inner_text("#ask-why")
        assert await page.evaluate("document.activeElement.id") == "key"
        await page.keyboard.type(f"{KEY}x")
        await page.keyboard.press("Enter")
        await expect(page.locator("#ask-why")).to_contain_text("is not one of this gateway's")
        await page.fill("#key", KEY)
        await page.keyboard.press("Enter")
        await expect(page.locator("#contact")).to_have_text("live")
        await expect(dialog).to_be_hidden()
        await page.click("#to-playground")
        await take(page)
        assert await read(page) == "hello world"
        assert "OCR_KEY" in await page.inner_text("#snippet")
        kept = await page.evaluate(
            "JSON.stringify([location.href, {...localStorage}, {...sessionStorage}, document.cookie, "
            "document.documentElement.outerHTML, "
            "[...document.querySelectorAll('input')].map((one) => one.value)])"
        )
        assert KEY not in kept
        await page.reload()
        await expect(dialog).to_be_visible()


async def test_who_may_not_read_the_status_may_play(tmp_path: Path) -> None:
    async with (
        guarded(tmp_path, auth={"admins": ["team-b"]}) as gateway,
        browsing(gateway.url, refused=True) as page,
    ):
        await page.fill("#key", KEY)
        await page.keyboard.press("Enter")
        await expect(page.locator("#view-playground")).to_be_visible()
        await take(page)
        assert await read(page) == "hello world"
        await page.click("#to-status")
        await expect(page.locator("#away")).to_contain_text("auth.admins")


async def test_each_port_shows_what_it_serves(tmp_path: Path) -> None:
    port = free_port()
    async with guarded(tmp_path, auth={"keys_file": None}, server={"admin_port": port}) as gateway:
        async with browsing(gateway.url, "#status", refused=True) as page:
            await expect(page.locator("#view-playground")).to_be_visible()
            await expect(page.locator("nav a:visible")).to_have_count(0)
            await take(page)
            assert await read(page) == "hello world"
        async with browsing(f"http://127.0.0.1:{port}", "#playground", refused=True) as page:
            await expect(page.locator("#view-status")).to_be_visible()
            await expect(page.locator("nav a:visible")).to_have_count(0)


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [390, 1280])
async def test_it_fits_and_everybody_can_use_it(width: int, dark: bool) -> None:
    async with simulated() as url, browsing(url, "#playground", width=width, dark=dark) as page:
        await page.click("#sample-receipt")
        await expect(page.locator("#progress")).to_contain_text("is chosen")
        await page.check("input[name=route][value=text]", force=True)
        await read(page)
        for view in ("playground", "status"):
            await page.click(f"#to-{view}")
            await expect(page.locator(f"#view-{view}")).to_be_visible()
            wide = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
            assert await page.evaluate(wide) == 0
            results = (await Axe().run(page)).response
            assert [
                (found["id"], [node["target"] for node in found["nodes"]]) for found in results["violations"]
            ] == []
        await page.click("#keys")
        results = (await Axe().run(page)).response
        assert [found["id"] for found in results["violations"]] == []


async def test_light_and_dark_follow_the_system_until_somebody_chooses(running: Running) -> None:
    paper = "getComputedStyle(document.body).backgroundColor"
    async with browsing(running.url, dark=True) as page:
        dark = await page.evaluate(paper)
        await page.emulate_media(color_scheme="light")
        light = await page.evaluate(paper)
        assert dark != light
        await page.click("#theme")
        assert (await page.inner_text("#theme"), await page.evaluate(paper)) == ("Theme: dark", dark)
        await page.reload()
        assert await page.evaluate(paper) == dark
        await page.click("#theme")
        await page.emulate_media(color_scheme="dark")
        assert (await page.inner_text("#theme"), await page.evaluate(paper)) == ("Theme: light", light)


async def test_a_tiff_goes_the_way_of_documents(running: Running) -> None:
    data = io.BytesIO()
    pages = [Image.new("L", (200, 100), shade) for shade in (255, 250)]
    pages[0].save(data, "TIFF", save_all=True, append_images=pages[1:])
    async with browsing(running.url, "#playground") as page:
        await take(page, data.getvalue(), "scan.tif")
        await read(page)
        assert await page.locator("#answer article").count() == 2


async def test_the_copy_button_copies(running: Running) -> None:
    async with browsing(running.url, "#playground") as page:
        await page.context.grant_permissions(["clipboard-read", "clipboard-write"])
        await take(page)
        await read(page)
        await page.click("#copy-answer")
        await expect(page.locator("#progress")).to_contain_text("copied")
        assert await page.evaluate("navigator.clipboard.readText()") == "hello world"
        await page.click("#copy-snippet")
        copied = await page.evaluate("navigator.clipboard.readText()")
        assert copied == await page.inner_text("#snippet")
