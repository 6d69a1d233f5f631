"""Texts as they read, for the search for benchmark questions."""

from __future__ import annotations

import re
import unicodedata

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tasks.filter.contamination.plain import INVISIBLE, plain, unwrapped

INLINE = "a abbr b cite code em font i mark q s small span strong sub sup tt u wbr"


@pytest.mark.parametrize(
    ("text", "reads"),
    [
        (r"fence?\nWhich of", "fence? Which of"),
        (r"a\\nWhich \u2019 \\frac{1}{2} \\text", "a Which ’  frac{1}{2}  text"),
        (r"\ud83d\ude00x \u00ad\uff37", "  x W"),
        ("na\u00adture, na\u200bture\ufeff, \u2067na\u2069", "nature, nature, na"),
        ("which_of_these *_all_* ____ is, __bold__", "which of these * all * ____ is,  bold "),
        ("don&rsquo;t&nbsp;go &#8217;&#x41;&#1114112;. AT&T; R&D &shy;", "don t go ’A . AT&T; R&D "),
        ("R&amp;D &amp;amp;nbsp;x &AMP;#65; &amp;&amp;x; &amp", "R D  x A   x; &amp"),
        ("a%20b%2Cc 50% of %zz", "a b,c 50% of %zz"),
        ("a%2520b%252525 %25", "a b% %"),
        ("Wh\U000e0069ich\u3164 of\uffa0 &#xE0001;them", "Which of them"),
        ("ground[1] and[2, 3] then [a] of [b, c] [2024", "ground  and  then   of [b, c] [2024"),
        ("ground¹ and² 10½", "ground and 10½"),
        ("ＷＨＩＣＨ ﬁne 𝐰ords Ⅳ ㎏ ①", "WHICH fine words IV kg 1"),
        ("ques-\ntion, ques-\r\n  tion, A-\nB, 3-\n4, - \nx", "question, question, A-\nB, 3-\n4, - \nx"),
        ("one\n  12 two\n3. three\n4) four\n12345 five\n6\n7:8", "one two three four\n12345 five\n6\n7:8"),
        ("<b>W</b>hich<br/>of <p class='x'>them</p> if a < b > c <3 <ins", "Which of  them  if a < b > c <3 <ins"),
        ("Straße – naïve café 中文 Ж", "Straße – naïve café 中文 Ж"),
        ("", ""),
    ],
)
def test_what_hides_words_is_taken_away(text: str, reads: str) -> None:
    assert plain(text) == reads


def test_only_what_changes_is_returned() -> None:
    rows, texts = unwrapped(pa.array(["a", "b\u00adc", "", "d e", "\u00ad", "f_g"]).slice(1))
    assert (rows.tolist(), texts.to_pylist()) == ([0, 3, 4], ["bc", " ", "f g"])
    rows, texts = unwrapped(pa.array([], pa.string()))
    assert (rows.tolist(), texts.to_pylist()) == ([], [])


def one(code: int) -> str:
    """The replacement of a code point, by Python's Unicode data."""
    if 0xD800 <= code < 0xE000 or code > 0x10FFFF:
        return " "
    text = chr(code)
    if 0xE0000 <= code < 0xE1000:
        return ""
    if code < 128 or code >= 0x40000:
        return text
    if unicodedata.category(text) == "Cf" or text in INVISIBLE:
        return ""
    form, new = unicodedata.decomposition(text), unicodedata.normalize("NFKC", text)
    if form.startswith("<super>") and new.isdigit():
        return ""
    folds = form.startswith("<") and new.isalnum() and len(new.encode()) <= len(text.encode())
    return new if folds else text


RULES: list[tuple[str, object]] = [
    (r"\\+u([0-9a-fA-F]{4})", lambda m: one(int(m[1], 16))),
    (r"\\[nrt]|\\{2,}[nrt](?![a-z])|\\+", " "),
    (r"&(?i:amp;)*#([0-9]{1,7});", lambda m: one(int(m[1]))),
    (r"&(?i:amp;)*#[xX]([0-9a-fA-F]{1,6});", lambda m: one(int(m[1], 16))),
    (r"&(?i:amp;)*(?i:shy|zwj|zwnj);", ""),
    (r"&(?i:amp;)*[A-Za-z][A-Za-z0-9]{1,7};", " "),
    (r"%(?:25)*([0-9a-fA-F]{2})", lambda m: chr(code) if 32 < (code := int(m[1], 16)) < 127 else " "),
    (
        r"_+",
        lambda m: (
            " "
            if re.search(r"[A-Za-z0-9\x80-\U0010ffff]\Z", m.string[: m.start()])
            or re.match(r"[A-Za-z0-9\x80-\U0010ffff]", m.string[m.end() :])
            else m[0]
        ),
    ),
    (r"\[(?:[a-z]|[0-9][0-9 ,;-]{0,10})\]", " "),
    (
        r"</?([A-Za-z][A-Za-z0-9]{0,9})(?=[ />\t\r\n])[^<>]{0,299}>",
        lambda m: "" if m[1].lower() in INLINE.split() else " ",
    ),
    (r"(?<=[A-Za-z\x80-\U0010ffff])-\r?\n[ \t]*(?=[a-z])", ""),
    (r"\n[ \t]*[0-9]{1,4}[.:)|]?[ \t]", " "),
    (r"[\x80-\U0010ffff]", lambda m: one(ord(m[0]))),
]
PATTERN = re.compile("|".join(f"(?P<r{n}>{rule})" for n, (rule, _) in enumerate(RULES)))


def by_patterns(text: str) -> str:
    """What `plain` does, by regular expressions."""

    def replaced(found: re.Match[str]) -> str:
        rule, new = RULES[int(str(found.lastgroup)[1:])]
        match = re.compile(rule).match(found.string, found.start())
        assert match is not None
        return new(match) if callable(new) else str(new)

    text_out = PATTERN.sub(replaced, text)
    return text_out or (" " if text else "")


PIECES = st.sampled_from(
    ["\\", "\\n", "\\u00ad", "\\u2019", "u00e9", "n", "t", "a", "B", "7", "12", " ", "\n", "\r\n", "\t", "-", "_", "__",
     "%", "%20", "%25", "25", "2C", "&", "&#", "#", "x41", ";", "&shy;", "amp;", "&amp;", "&amp;nbsp;", "[", "]",
     "[1]", ",", "<", ">", "/", "b", "span", "<p ", "é", "\u00ad", "\u200b", "ﬁ", "Ａ", "²", "½", "中", "𝐖",
     "\U000e0041", "\u3164", "=", ".", ")"]
)  # fmt: skip


@pytest.mark.shadow("tasks.filter.contamination.plain_kernels.unwrap")
@settings(max_examples=400)
@example(["<b" + "x" * 9 + " >", "<b " + "x" * 300 + ">", "<b " + "x" * 298 + ">", "&" + "a" * 9 + ";"])
@given(st.lists(st.lists(PIECES, max_size=12).map("".join) | st.text(max_size=20), max_size=6))
def test_texts_read_as_regular_expressions_have_it(texts: list[str]) -> None:
    texts = [text.encode("utf-8", "ignore").decode() for text in texts]
    rows, found = unwrapped(pa.array(texts, pa.string()))
    new = dict(zip(rows.tolist(), found.to_pylist(), strict=True))
    for row, text in enumerate(texts):
        wanted = by_patterns(text)
        assert new.get(row, text) == wanted
        assert np.isin(row, rows) or wanted == text
