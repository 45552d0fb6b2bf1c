"""What synthetic documents say: made-up words in several scripts, numbers, labels of business papers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from random import Random


def _items(text: str) -> list[str]:
    """The parts of a text between bars; its line breaks do not count."""
    return text.replace("\n", "").split("|")


COMMON = _items("""
the|of|and|to|in|is|that|for|it|as|was|with|be|by|on|not|he|his|but|at|are|this|have|from|or|had|an|
they|which|one|you|were|all|her|she|there|would|their|we|him|been|has|when|who|will|no|more|if|out|so|
up|said|what|its|about|than|into|them|can|only|other|time|new|some|could|these|two|may|first|then|do|
any|like|my|now|over|such|our|man|me|even|most|made|after|also|did|many|off|before|must|well|back|
through|years|where|much|your|way|down|should|because|long|each|just|state|those|people|too|mr|how|
little|good|world|make|very|year|still|see|own|work|men|day|get|here|old|life|both|between|being|under|
three|never|know|same|last|another|while|us|might|great|go|come|since|against|right|came|take|used|
himself|few|house|use|during|without|again|place|american|around|however|home|small|found|mrs|thought|
went|say|part|once|general|high|upon|school|every
""")

SYLLABLES = _items("""
ba|be|bi|bo|ca|ce|co|cu|da|de|di|do|er|es|en|el|fa|fe|fi|fo|ga|ge|gi|go|ha|he|in|is|it|la|le|li|lo|ma|
me|mi|mo|mu|na|ne|ni|no|or|on|pa|pe|po|pra|pro|qua|ra|re|ri|ro|sa|se|si|so|sta|ste|str|ta|te|ti|to|tra|
tur|un|ur|va|ve|vi|vo|xi|za
""")

LABELS = _items("""
Name|Date|Address|City|State|Zip code|Phone|Fax|E-mail|Invoice no.|Invoice date|Due date|Customer ID|
Account number|Order no.|Reference|Payment terms|Total|Subtotal|Tax|VAT|Balance due|Amount|Ship to|
Bill to|Sold to|Vendor|Policy number|Effective date|Expiry date|Date of birth|Gender|Nationality|
Occupation|Employer|Department|Position|Signature|Bank|IBAN| BIC|Branch|Currency|Country|Brand|Model|
Colour|Size|Weight|Material|Origin|Serial no.|Warranty|Voltage|Type|Category|Quantity| Price|Status|
Remarks|Company|Contact|Manager|Title|Project|Code|Version|Author|Approved by|Received|Delivery|Carrier|
Package| Gross weight|Net weight|Net pay|Gross pay|Hours|Rate|Deductions|Federal income tax withheld|
Social security wages|Employee's name, address and ZIP code|Control number|
Wages, tips, other compensation|Medicare tax|Local wages|Height|Eye colour|Energy|Fat| Protein|
Carbohydrate|Salt|Member ID|Group|Copay|Physician|Blood type|Allergies|Emergency contact|Patient|Room|
Invoice|Receipt| Cashier|Terminal|Approval code|Card|Change|Cash|Server|Table|Guests|Tip
""")

HEADERS = _items("""
Item|Qty|Price|Amount|Description|Code|Unit|Total|Year|Mean|SD|n|p value|Model|Accuracy|Precision|
Recall|F1|Name|Age| Sex|Group|Control|Treatment|Date|Time|Result|Method|Parameter|Value|95% CI|OR|
Region|Country|Sales|Cost|Profit|Change|Score|Rank| Team|Points|Category|Status|Type|Gene|Primer|
Sequence|Sample|Size|Weight|Length|No.|Reference|Rate|Frequency|Operation|Dataset| Params|FPS|Baseline|
Ours|2019|2020|2021|2022|2023|Q1|Q2|Q3|Q4|Assets|Revenue|Participants
""")

GOODS = _items("""
Cappuccino|Bacon & eggs|Milk 1l|Bread|Orange juice|Rice 5kg|Chicken|Coffee|Tea|Sugar|Batteries AA|
Paper A4|Pen blue|USB cable|Burger|Fries|Cola|Salad|Soup|Cake|Beer|Wine|Soap|Shampoo|Tissue|Apples|
Bananas|Consulting|Support|Licence|Hosting|Keyboard| Mouse|Screws M4|Paint|Bolt|Pipe|Glue
""")

SHOP = _items("""
CASH RECEIPT|TAX INVOICE|RECEIPT|SALE|INVOICE|ORDER|THANK YOU|MARKET SDN BHD|RESTAURANT|STORE|TRADING|
CAFE|SUPER MART|PHARMACY|HARDWARE
""")

CONSONANTS_DEVA = "कखगघचछजझटठडढतथदधनपफबभमयरलवशषसह"
SIGNS_DEVA = ["", "", "ा", "ि", "ी", "ु", "ू", "े", "ै", "ो", "ं", "्र"]


@dataclass(frozen=True)
class Script:
    """A writing system: how its words look and whether spaces part them."""

    name: str
    spaced: bool = True

    def word(self, rng: Random) -> str:
        """One word (for CJK: a few characters)."""
        return _WORDS[self.name](rng)

    def words(self, rng: Random, count: int) -> list[str]:
        """Words of running text, some with punctuation, the first one capital."""
        out = [self.word(rng) for _ in range(count)]
        for i in range(count):
            if rng.random() < 0.12:
                out[i] += rng.choice(_STOPS.get(self.name, [",", ".", ";", ","]))
            elif rng.random() < 0.03:
                out[i] = f"({out[i]})" if rng.random() < 0.5 else str(rng.randint(1, 2500))
            elif rng.random() < 0.02:
                out[i] = f"[{rng.randint(1, 80)}]"
            if i == 0 or (out[i - 1][-1:] in ".?!" and out[i - 1]):
                out[i] = out[i][:1].upper() + out[i][1:]
        return out

    def phrase(self, rng: Random, low: int = 1, high: int = 4) -> str:
        """A few words without punctuation."""
        text = self.glue.join(self.word(rng) for _ in range(rng.randint(low, high)))
        return text[:1].upper() + text[1:]

    @property
    def glue(self) -> str:
        """What stands between words."""
        return " " if self.spaced else ""

    def label(self, rng: Random) -> str:
        """The name of a field."""
        if self.name == "latin" and rng.random() < 0.8:
            return rng.choice(LABELS)
        return self.phrase(rng, 1, 3)

    def header(self, rng: Random) -> str:
        """The head of a column."""
        if self.name == "latin" and rng.random() < 0.8:
            return rng.choice(HEADERS)
        return self.phrase(rng, 1, 2)


def _latin(rng: Random) -> str:
    if rng.random() < 0.5:
        return rng.choice(COMMON)
    return "".join(rng.choice(SYLLABLES) for _ in range(rng.choice((1, 2, 2, 3, 3, 4, 5))))


def _alphabet(letters: str, low: int, high: int) -> object:
    return lambda rng: "".join(rng.choice(letters) for _ in range(rng.randint(low, high)))


def _hebrew(rng: Random) -> str:
    letters = [rng.choice("אבגדהוזחטיכלמנסעפצקרשת") for _ in range(rng.randint(2, 7))]
    return "".join(letters)


def _deva(rng: Random) -> str:
    return "".join(rng.choice(CONSONANTS_DEVA) + rng.choice(SIGNS_DEVA) for _ in range(rng.randint(1, 5)))


def _han(rng: Random) -> str:
    return "".join(chr(rng.randint(0x4E00, 0x8FFF)) for _ in range(rng.randint(1, 4)))


def _kana(rng: Random) -> str:
    if rng.random() < 0.4:
        return _han(rng)[:2]
    start, stop = (0x3042, 0x3093) if rng.random() < 0.75 else (0x30A2, 0x30F3)
    return "".join(chr(rng.randint(start, stop)) for _ in range(rng.randint(1, 4)))


def _hangul(rng: Random) -> str:
    return "".join(chr(0xAC00 + rng.randrange(0, 11000)) for _ in range(rng.randint(1, 5)))


_WORDS = {
    "latin": _latin,
    "cyrillic": _alphabet("абвгдежзийклмнопрстуфхцчшщыьэюяоеаитн", 2, 10),
    "greek": _alphabet("αβγδεζηθικλμνξοπρστυφχψω", 2, 10),
    "arabic": _alphabet("ابتثجحخدذرزسشصضطظعغفقكلمنهويا", 2, 8),
    "hebrew": _hebrew,
    "devanagari": _deva,
    "thai": _alphabet("กขคงจชดตถทนบปผพมยรลวสหอาเแไ", 3, 9),
    "han": _han,
    "japanese": _kana,
    "korean": _hangul,
}
_STOPS = {
    "han": ["，", "。", "、", "，"],  # noqa: RUF001
    "japanese": ["、", "。", "、"],
    "arabic": ["،", ".", "،"],
    "devanagari": ["।", ","],
}
SCRIPTS = {name: Script(name, spaced=name not in ("han", "japanese")) for name in _WORDS}


def number(rng: Random) -> str:
    """A number as tables and bills print it."""
    kind = rng.random()
    if kind < 0.3:
        return str(rng.randint(0, 10 ** rng.randint(1, 5)))
    if kind < 0.65:
        return f"{rng.random() * 10 ** rng.randint(0, 4):.{rng.randint(1, 3)}f}"
    if kind < 0.75:
        return f"{rng.randint(0, 10 ** rng.randint(4, 7)):,}"
    if kind < 0.83:
        return f"{rng.random() * 100:.1f}%"
    if kind < 0.9:
        return f"{rng.random() * 50:.2f} ± {rng.random():.2f}"
    if kind < 0.95:
        return f"{rng.randint(1, 200)} ({rng.random() * 100:.1f})"
    return rng.choice(["-", "N/A", "—", "*", "0"])


def money(rng: Random) -> str:
    """An amount."""
    return f"{rng.choice(['', '', '', '$', '€ ', 'RM'])}{rng.random() * 10 ** rng.randint(1, 4):,.2f}"


def date(rng: Random) -> str:
    """A date in one of the usual forms."""
    y, m, d = rng.randint(1990, 2025), rng.randint(1, 12), rng.randint(1, 28)
    return rng.choice(
        [f"{d:02}/{m:02}/{y}", f"{y}-{m:02}-{d:02}", f"{d}.{m}.{y}", f"{m:02}/{d:02}/{y % 100:02}"]
    )


def code(rng: Random) -> str:
    """A serial number, sequence or article code."""
    letters = rng.choice(["0123456789", "ABCDEFGHKLMNPRSTUVWXYZ0123456789", "ACGT"])
    return "".join(rng.choice(letters) for _ in range(rng.randint(4, 14 if letters != "ACGT" else 24)))


def value(rng: Random, script: Script) -> str:
    """What stands after a label."""
    kind = rng.random()
    if kind < 0.4:
        return script.phrase(rng, 1, 4)
    return rng.choice([number, money, date, code])(rng)
