"""The typefaces of synthetic documents, by script and manner (Debian packages: see README.md)."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

from PIL import ImageFont

ROOTS = (Path("/usr/share/fonts"), Path("/usr/share/texmf/fonts/opentype/public/lm"))

# (regular, bold) file names; a face without a bold repeats itself.
SERIF = [
    ("LiberationSerif-Regular.ttf", "LiberationSerif-Bold.ttf"),
    ("LiberationSerif-Regular.ttf", "LiberationSerif-Bold.ttf"),
    ("lmroman10-regular.otf", "lmroman10-bold.otf"),
    ("lmroman8-regular.otf", "lmroman8-bold.otf"),
    ("DejaVuSerif.ttf", "DejaVuSerif-Bold.ttf"),
    ("Caladea-Regular.ttf", "Caladea-Bold.ttf"),
    ("FreeSerif.ttf", "FreeSerifBold.ttf"),
    ("NotoSerif-Regular.ttf", "NotoSerif-Bold.ttf"),
]
SANS = [
    ("LiberationSans-Regular.ttf", "LiberationSans-Bold.ttf"),
    ("LiberationSans-Regular.ttf", "LiberationSans-Bold.ttf"),
    ("Carlito-Regular.ttf", "Carlito-Bold.ttf"),
    ("DejaVuSans.ttf", "DejaVuSans-Bold.ttf"),
    ("DejaVuSansCondensed.ttf", "DejaVuSansCondensed-Bold.ttf"),
    ("Roboto-Regular.ttf", "Roboto-Bold.ttf"),
    ("Roboto-Light.ttf", "Roboto-Medium.ttf"),
    ("RobotoCondensed-Regular.ttf", "RobotoCondensed-Bold.ttf"),
    ("OpenSans-Regular.ttf", "OpenSans-Bold.ttf"),
    ("OpenSans-Light.ttf", "OpenSans-Semibold.ttf"),
    ("LiberationSansNarrow-Regular.ttf", "LiberationSansNarrow-Bold.ttf"),
    ("lmsans10-regular.otf", "lmsans10-bold.otf"),
]
MONO = [
    ("LiberationMono-Regular.ttf", "LiberationMono-Bold.ttf"),
    ("DejaVuSansMono.ttf", "DejaVuSansMono-Bold.ttf"),
    ("FreeMono.ttf", "FreeMonoBold.ttf"),
    ("Inconsolata.otf", "Inconsolata.otf"),
    ("lmmonolt10-regular.otf", "lmmonolt10-bold.otf"),
    ("OCRA.ttf", "OCRABold.ttf"),
]
HAND = [
    (name, name)
    for name in (
        "Breip.ttf",
        "dkg.ttf",
        "femkeklaver.ttf",
        "Kristi.ttf",
        "DancingScript-Regular.otf",
        "BecauseWeLearn-Regular.otf",
        "BecauseWeBuild-Regular.otf",
        "Humor-Sans.ttf",
        "ComicNeue-Regular.otf",
        "Ecolier-court.ttf",
        "KleeOne-Regular.ttf",
    )
]
CJK = [
    ("NotoSansCJK-Regular.ttc", "NotoSansCJK-Bold.ttc"),
    ("NotoSerifCJK-Regular.ttc", "NotoSerifCJK-Bold.ttc"),
]
BY_SCRIPT = {
    "cyrillic": SERIF[:2] + SANS[:5],
    "greek": [SERIF[0], SERIF[4], SANS[0], SANS[3]],
    "arabic": [
        ("NotoNaskhArabic-Regular.ttf", "NotoNaskhArabic-Bold.ttf"),
        ("NotoKufiArabic-Regular.ttf", "NotoKufiArabic-Bold.ttf"),
        ("NotoSansArabic-Regular.ttf", "NotoSansArabic-Bold.ttf"),
        ("DejaVuSans.ttf", "DejaVuSans-Bold.ttf"),
        ("ae_AlArabiya.ttf", "ae_AlArabiya.ttf"),
    ],
    "hebrew": [
        ("FrankRuehlCLM-Medium.ttf", "FrankRuehlCLM-Bold.ttf"),
        ("DavidCLM-Medium.otf", "DavidCLM-Bold.otf"),
        ("MiriamCLM-Book.ttf", "MiriamCLM-Bold.ttf"),
        ("NotoSansHebrew-Regular.ttf", "NotoSansHebrew-Bold.ttf"),
    ],
    "devanagari": [
        ("NotoSansDevanagari-Regular.ttf", "NotoSansDevanagari-Bold.ttf"),
        ("NotoSerifDevanagari-Regular.ttf", "NotoSerifDevanagari-Bold.ttf"),
        ("Lohit-Devanagari.ttf", "Lohit-Devanagari.ttf"),
    ],
    "thai": [("NotoSansThai-Regular.ttf", "NotoSansThai-Bold.ttf")],
    "han": CJK,
    "japanese": CJK,
    "korean": [
        ("NanumGothic.ttf", "NanumGothicBold.ttf"),
        ("NanumMyeongjo.ttf", "NanumMyeongjoBold.ttf"),
        ("NotoSansCJK-Regular.ttc", "NotoSansCJK-Bold.ttc"),
    ],
}


@lru_cache(maxsize=1)
def _files() -> dict[str, str]:
    found = [
        path for root in ROOTS for path in sorted(root.rglob("*")) if path.suffix in (".ttf", ".otf", ".ttc")
    ]
    return {path.name: str(path) for path in reversed(found)}


@lru_cache(maxsize=400)
def font(name: str, size: int) -> ImageFont.FreeTypeFont:
    """The named face at a size; only scripts that join letters pay for complex layout."""
    joined = name.startswith(
        ("NotoNaskh", "NotoKufi", "NotoSansArabic", "ae_", "NotoSansDeva", "NotoSerifDeva", "Lohit")
    )
    engine = ImageFont.Layout.RAQM if joined else ImageFont.Layout.BASIC
    return ImageFont.truetype(_files()[name], size, layout_engine=engine)


@lru_cache(maxsize=200_000)
def length(name: str, size: int, text: str) -> float:
    """How long the text is in the named face."""
    return font(name, size).getlength(text)


def missing() -> list[str]:
    """Named faces that this machine lacks."""
    every = [*SERIF, *SANS, *MONO, *HAND, *CJK, *(pair for pairs in BY_SCRIPT.values() for pair in pairs)]
    return sorted({name for pair in every for name in pair} - set(_files()))
