"""The preparation of texts for language identification."""

from __future__ import annotations

import re
import unicodedata

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from tasks.filter.language.config import LanguageConfig
from tasks.filter.language.measure import measure_language
from tasks.filter.language.plain import plain_texts
from tasks.text.characters import UNSPACED

ADVERTISEMENT = "LIMITED TIME OFFER ON ALL GARDEN FURNITURE! ORDER NOW AND GET FREE DELIVERY TO YOUR DOOR THIS WEEKEND."
LINKS = (
    "See the notes https://git.example.org/zxq/kqz-wrt/blob/0f3a9c/docs/zk_pq.md and www.zxq.example/kpl?x=93jf, "
    'or write to <zq.krp@xwz.example> about <a href="https://img.shields.example/zk/pqw.svg">it</a>.'
)


@pytest.mark.parametrize("text", [ADVERTISEMENT, LINKS])
def test_english_in_capitals_or_among_links_is_english(text: str) -> None:
    (found,) = measure_language(LanguageConfig(), pa.array([text])).to_pylist()
    assert found["language"] == "en"
    assert found["language_score"] > 0.65


# Sentences of scripts that write no space behind an address, and of some that do
RIVERS = {
    "zh": "河流从山上流下来，人们住在河边，每年春天水都很高，夏天船只把羊毛和谷物运到港口。",
    "ja": "川は丘から始まり、海へと流れていく。人々は川のほとりに住んでいて、春には水が高くなる。",
    "th": "แม่น้ำเริ่มต้นจากเนินเขาและไหลลงสู่ทะเล ผู้คนอาศัยอยู่ริมฝั่งแม่น้ำและน้ำจะสูงขึ้นทุกฤดูใบไม้ผลิ",
    "lo": "ແມ່ນ້ຳເລີ່ມຕົ້ນຈາກເນີນພູ ແລະ ໄຫຼລົງສູ່ທະເລ ຜູ້ຄົນອາໄສຢູ່ຕາມແຄມແມ່ນ້ຳ",
    "km": "ទន្លេចាប់ផ្តើមពីភ្នំហើយហូរទៅសមុទ្រ មនុស្សរស់នៅតាមមាត់ទន្លេ",
    "my": "မြစ်သည်တောင်ကုန်းများမှစတင်ပြီးပင်လယ်သို့စီးဆင်းသည်။",
    "ko": "강은 언덕에서 시작하여 바다로 흐르고 사람들은 강가에서 산다. 봄이 되면 물이 높아진다.",
    "ru": "Река начинается в холмах и течёт к морю, и люди живут на её берегах.",
    "ar": "يبدأ النهر في التلال ويتدفق إلى البحر، ويعيش الناس على ضفافه.",
}


@pytest.mark.parametrize("language", RIVERS)
def test_text_right_behind_an_address_says_its_language(language: str) -> None:
    text, spaced = RIVERS[language], language in ("ko", "ru", "ar")
    texts = [
        f"{text}{address}{between}{' ' if spaced and between in ('', '/') else ''}{text}"
        for address in ("https://t.cn/RUy3HJN", "www.example.org/news/today?id=page", "http://a.com/")
        for between in ("", "/", "，", "。", "）", "”", "\u3000", "\u00a0", "…")
    ]
    for text, row in zip(texts, measure_language(LanguageConfig(), pa.array(texts)).to_pylist(), strict=True):
        assert row["language"] == language, text
        assert row["language_score"] > 0.4, text


@pytest.mark.parametrize(
    ("text", "reads"),
    [
        ("See https://a.org/b?c, (http://x.y) ftp://z", "See   (   "),
        ("Write to a.b+c@d-e.co.uk! Not a @b, @ or a@b", "Write to  ! Not a @b, @ or a@b"),
        ("www.a.org xwww.b www. WWW.C.org", "  xwww.b www.  "),
        ('<p class="x">One</p> <3 a < b > <b', " One  <3 a < b > <b"),
        ("THE RIVER\nThe River\nÉTÉ Ж 中", "the river\nThe River\nété ж 中"),
        ("ABCDe and so", "ABCDe and so"),
        ("ABCDEe", "abcdee"),
        ("https://a.org", "https://a.org"),
        ("见https://a.cn/x?y，中 见www.a.cn/x中", "见 ，中 见 中"),
        ("a https://münchen.de/straße/Россия b", "a   b"),
        ("a “https://a.org”—b https://a.org… c www.中 https://中", "a “ ”—b  … c www.中 https://中"),
        ("12 http://b.c", "12 http://b.c"),
        ("", ""),
    ],
)
def test_addresses_tags_and_capitals(text: str, reads: str) -> None:
    assert plain_texts(pa.array([text]))[0].as_py() == reads


ENDING = "".join(
    chr(code)
    for code in range(0x80, 0x40000)
    if unicodedata.category(chr(code))[0] not in "LMN" or any(code in block for block in UNSPACED)
)
STOP = rf"[^\t\n\v\f\r <>\"{re.escape(ENDING)}]"
PATTERN = re.compile(
    rf"</?[A-Za-z][^<>\n]{{0,300}}>|[A-Za-z]+://{STOP}+|(?<![A-Za-z0-9._+-])[wW]{{3}}\.{STOP}+"
    r"|[A-Za-z0-9._+-]+@[A-Za-z0-9-]+\.[A-Za-z0-9.-]+"
)


def by_patterns(text: str) -> str:
    """What `plain` does, by regular expressions."""
    lines = []
    for line in text.split("\n"):
        new = PATTERN.sub(" ", line)
        low = {c: c.lower() for c in new if c.isalpha() and c.isupper() and ord(c) < 0x40000}
        low = {c: small for c, small in low.items() if len(small) == 1 and len(small.encode()) == len(c.encode())}
        capitals = sum(c in low for c in new)
        small = sum(c.isalpha() and c.islower() and ord(c) < 0x40000 for c in new)
        lines.append("".join(low.get(c, c) for c in new) if capitals > 4 * small else new)
    made = "\n".join(lines)
    return made if any(c.isalpha() for c in made) else text


PIECES = st.sampled_from(
    ["a", "B", "ÉTÉ", "İ", "ß", "中", "ที่", "，", "7", " ", "\n", "\t", "<", ">", "/", "<b", "</p>", ":", "://", "http",
     "www.", "WwW.", "@", ".", "-", "_", "+", "org", '"', "x" * 150]
)  # fmt: skip


@pytest.mark.shadow("tasks.filter.language.plain_kernels.plain")
@settings(max_examples=400)
@example(["<b" + "x" * 300 + ">", "<b" + "x" * 301 + ">", "www.www.a", "a@b.c@d.e", "a.b://c", "x@www.a"])
@given(st.lists(st.lists(PIECES, max_size=12).map("".join) | st.text(max_size=20), max_size=6))
def test_texts_read_as_regular_expressions_have_it(texts: list[str]) -> None:
    texts = [text.encode("utf-8", "ignore").decode() for text in texts]
    assert plain_texts(pa.array(texts, pa.string())).to_pylist() == [by_patterns(text) for text in texts]
