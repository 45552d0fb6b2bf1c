"""Makes pictures of the documentation.

`python docs/images/make.py` draws receipt.png, which the README's examples read.
`python docs/images/make.py REPORT.html` photographs a sweep's report with Chromium: sweep-report.png is its
beginning, sweep-route.png the first plots and figures of a route (the last, or `--route N`, from 0 on).
`python docs/images/make.py --live URL URL` photographs the page at `/` of two gateways with Playwright: as
page-status.png that of one under load, as page-playground.png that of one that reads.
"""

from __future__ import annotations

import argparse
import io
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

from PIL import Image, ImageChops, ImageDraw, ImageFont

FOLDER = Path(__file__).parent
LINES = [
    ("CORNER BAKERY", ""),
    ("12 Mill Street, Oxford", ""),
    ("", ""),
    ("Date: 2026-03-14", "Table 7"),
    ("", ""),
    ("2 Sourdough loaf", "9.00"),
    ("1 Apple tart", "4.20"),
    ("3 Espresso", "7.50"),
    ("", ""),
    ("Total", "20.70"),
    ("Cash", "25.00"),
    ("Change", "4.30"),
]
WIDTH, MOST = 1050, 4000
PAGE_WIDTH = 1280


def receipt() -> None:
    """Draw receipt.png."""
    image = Image.new("RGB", (480, 520), "white")
    draw = ImageDraw.Draw(image)
    font = ImageFont.load_default(26)
    for row, (left, right) in enumerate(LINES):
        draw.text((30, 30 + 39 * row), left, "black", font)
        draw.text((450, 30 + 39 * row), right, "black", font, anchor="ra")
    image.save(FOLDER / "receipt.png", optimize=True)


def report(page: Path, route: int, folder: Path) -> None:
    """Photograph a report: what is shown of it is chosen by style, so every picture is of the real page."""
    text = page.read_text(encoding="utf-8")
    routes = range(text.count('<section aria-labelledby="route-'))
    chosen = f'[aria-labelledby="route-{routes[route]}"]'
    photograph(text, "section ~ section { display: none }", folder / "sweep-report.png")
    photograph(
        text,
        f"header, section:not({chosen}), figure ~ figure ~ figure, .scroll ~ * {{ display: none }}",
        folder / "sweep-route.png",
    )


def photograph(text: str, style: str, out: Path) -> None:
    """Save a page as Chromium shows it, cut to what is on it."""
    browser = chromium()
    with tempfile.TemporaryDirectory() as folder:
        page, shot = Path(folder, "page.html"), Path(folder, "shot.png")
        page.write_text(text.replace("</style>", f"{style}</style>", 1), encoding="utf-8")
        # Chromium's sandbox refuses to run as root.
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        options = [
            *sandbox,
            "--headless",
            "--disable-gpu",
            "--hide-scrollbars",
            f"--user-data-dir={folder}/profile",
        ]
        window = [f"--window-size={WIDTH},{MOST}", f"--screenshot={shot}", page.as_uri()]
        subprocess.run([browser, *options, *window], check=True, capture_output=True)  # noqa: S603 - found above
        image = Image.open(shot).convert("RGB")
    used = ImageChops.difference(image, Image.new("RGB", image.size, image.getpixel((0, 0)))).getbbox()
    bottom = min(used[3] + 24, image.height) if used else image.height
    image.crop((0, 0, image.width, bottom)).save(out, optimize=True)
    print(f"drawn: {out}")


def live(status: str, playground: str, minutes: float, folder: Path) -> None:
    """Photograph the page of two gateways: one under load, once its lines are long, and one that reads."""
    from playwright.sync_api import expect, sync_playwright

    with sync_playwright() as playwright:
        sandbox = ["--no-sandbox"] if os.geteuid() == 0 else []
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--disable-gpu", *sandbox])
        page = browser.new_page(viewport={"width": PAGE_WIDTH, "height": 900}, color_scheme="light")
        page.goto(f"{status}/#status")
        page.wait_for_timeout(minutes * 60_000)
        end = page.locator("#h-recent").bounding_box()
        shot = page.screenshot(
            clip={"x": 0, "y": 0, "width": PAGE_WIDTH, "height": end["y"] - 20 if end else 900},
            full_page=True,
        )
        saved(shot, folder / "page-status.png")
        page = browser.new_page(viewport={"width": PAGE_WIDTH, "height": 900}, color_scheme="dark")
        page.goto(f"{playground}/#playground")
        page.click("#sample-table")
        page.check("input[name=route][value=table]", force=True)
        page.click("#send")
        expect(page.locator("#progress")).to_contain_text("Done in", timeout=60_000)
        saved(page.screenshot(full_page=True), folder / "page-playground.png")
        browser.close()


def saved(data: bytes, out: Path) -> None:
    """Save a screenshot; so few colours are in one that a palette loses nothing to be seen."""
    image = Image.open(io.BytesIO(data)).convert("RGB")
    image.quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(out, optimize=True)
    print(f"drawn: {out}")


def chromium() -> str:
    """Return the browser's path."""
    found = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not found:
        raise SystemExit("no Chromium here: apt-get install chromium")
    return found


def main() -> None:
    """Make what is asked for."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("report", type=Path, nargs="?", metavar="REPORT.html")
    parser.add_argument("--route", type=int, default=-1, metavar="N")
    parser.add_argument("--live", nargs=2, metavar="URL")
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--out", type=Path, default=FOLDER, metavar="FOLDER")
    options = parser.parse_args()
    if options.live:
        status, playground = options.live
        live(status, playground, options.minutes, options.out)
    elif options.report:
        report(options.report, options.route, options.out)
    else:
        receipt()


if __name__ == "__main__":
    main()
