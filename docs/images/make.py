"""`python docs/images/make.py` draws receipt.png, the picture that the README's examples read."""

from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

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

image = Image.new("RGB", (480, 520), "white")
draw = ImageDraw.Draw(image)
font = ImageFont.load_default(26)
for row, (left, right) in enumerate(LINES):
    draw.text((30, 30 + 39 * row), left, "black", font)
    draw.text((450, 30 + 39 * row), right, "black", font, anchor="ra")
image.save(Path(__file__).with_name("receipt.png"), optimize=True)
