import pytest

from gateway.engines.embedded.text_forms import BLOCKS, DOCTAGS, FRONT_MATTER, PLAIN, Form, form_of


@pytest.mark.parametrize(
    ("prompt", "form"),
    [
        ("Text Recognition:", PLAIN),
        ("", PLAIN),
        ("OCR this image to HTML, arranged as layout blocks.  Each layout block should be a div ...", BLOCKS),
        ("OCR this image to HTML.\n\nOnly use these tags ['p'], ...", BLOCKS),
        ("Convert this page to docling.", DOCTAGS),
        ("Convert page to Docling.", DOCTAGS),
        (
            "Attached is one page of a document that you must process. Return your output as markdown, with "
            "a front matter section on top specifying values for the primary_language, ...",
            FRONT_MATTER,
        ),
        ("Attached is one page of a document that you must process.", PLAIN),
        ("Copy the front matter of this book.", PLAIN),
    ],
)
def test_the_prompt_tells_the_form(prompt: str, form: Form) -> None:
    assert form_of(prompt) is form


def test_only_markup_is_escaped() -> None:
    assert BLOCKS.escape('"a" & <b>') == '"a" &amp; &lt;b&gt;'
    assert FRONT_MATTER.escape("a & <b>") == PLAIN.escape("a & <b>") == "a & <b>"
