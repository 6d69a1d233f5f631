"""Repair fixes and accounts for broken text, keeps what a script needs, and changes nothing the second time."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.artifact import Artifact
from storage.errors import EmptyOutput
from storage.shards.documents import Document, Verdict, read_documents, read_ledger, shard_name, write_documents
from tasks.filter.repair.encoding import mojibake, repair_encoding
from tasks.filter.repair.stage import repair
from tasks.filter.repair.text import RepairConfig, repair_texts, repairs_of
from tasks.stage.output import Output
from tests.runtimes import runtime_of
from tests.tasks.filter.linear import linear_time

ALL = RepairConfig(html_entities=True, line_breaks=True)
PROSE = (
    "The river begins in the hills and flows to the sea, and people have lived along it since the first farms were "
    "made. Those who came later built mills on its banks; their walls are standing still, though nobody grinds corn in "
    "them any more."
)
WRAPPED = textwrap.fill(PROSE, 72)


def repaired(text: str, config: RepairConfig = ALL) -> str:
    found = repair_texts(pa.array([text]), repairs_of(config))
    return found[0].text if found else text


def run(folder: Path, texts: Sequence[str], workers: int = 1, **config: Any) -> Output:
    documents = [Document.new(text, "even" if number % 2 == 0 else "odd") for number, text in enumerate(texts)]
    for number in range(2):
        write_documents(folder / "in" / shard_name(number), documents[number::2])
    out = Output.at(folder, stage="repair", runtime=runtime_of(workers=workers))
    repair.function(RepairConfig.model_validate(config), Artifact.at(folder / "in"), out)
    return out


def ledger(out: Output) -> dict[str, Verdict]:
    return {verdict.id: verdict for path in sorted(out.path.glob("ledger/*")) for verdict in read_ledger(path)}


def documents(out: Output) -> list[Document]:
    return [document for path in sorted(out.path.glob("documents/*")) for document in read_documents(path)]


@pytest.mark.parametrize(
    ("broken", "mended"),
    [
        ("The MuÃ±oz familyâ€™s cafÃ©", "The Muñoz family’s café"),
        ("a line of its own: cafÃ©\nand “this” one is right: Ã", "a line of its own: café\nand “this” one is right: Ã"),
        ("â\x80\x9ctwiceâ\x80\x9d", "“twice”"),
        ("cafÃ\u200b©", "café"),  # one repair lays open work for another
        ("\x93quoted\x94", "“quoted”"),
        ("caf&eacute; &amp; bar &#8212; open", "café & bar — open"),
        ("in <b> an entity is text: &eacute;", "in <b> an entity is text: &eacute;"),
        ("one\r\ntwo\rthree\x0cfour\u2028five", "one\ntwo\nthree\nfour\nfive"),
        ("\ufeffa\x00b\x1bc\x7fd", "abcd"),
        ("\x1b[31mred\x1b[0m, not red", "red, not red"),
        (
            "zero\u200bwidth, soft\xadly, word\u2060joined, co\u200dnnec\u200cted",
            "zerowidth, softly, wordjoined, connected",
        ),
        ("hidden\U000e0041\U000e0042", "hidden"),
        ("left\u200eto\u202eright", "lefttoright"),
        ("blanks  \nand tabs\t\nand wide ones\u3000\nend ", "blanks\nand tabs\nand wide ones\nend"),
        ("one\n\n\ntwo\n\n\n\n\n\nthree", "one\n\n\ntwo\n\n\nthree"),
        ("one\r\n \r\n \r\n \r\ntwo", "one\n\n\ntwo"),
    ],
)
def test_what_is_broken_is_mended(broken: str, mended: str) -> None:
    assert repaired(broken) == mended


@pytest.mark.parametrize(
    "text",
    [
        "‘Curly’ “quotes”, ﬁligatures, ＷＩＤＥ letters, cafe\u0301 of two characters",
        "Œuvre, naïve, façade, Ångström, señor, «où», 5 £ – 6 €",
        "می\u200cخواهم",  # Persian: two parts of one word
        "क\u094d\u200dष and क\u094d\u200cष",  # Devanagari: half form, and none
        "👩\u200d👩\u200d👧 and ❤\ufe0f\u200d🔥 and 🏳\ufe0f\u200d🌈",
        "\U0001f3f4\U000e0067\U000e0062\U000e0073\U000e0063\U000e0074\U000e007f",  # the flag of Scotland
        "ภาษา\u200bไทย",
        "\u200fשלום, 5\u200f",
        "tab\there, one\n\n\ntwo blank lines above",
        "日本語の文章です。改行\nされています。",
    ],
)
def test_what_is_right_or_needed_stays(text: str) -> None:
    assert repaired(text) == text


@pytest.mark.parametrize("width", [56, 72, 79, 100])
def test_a_wrapped_paragraph_becomes_one_line(width: int) -> None:
    text = f"A title\n\n{textwrap.fill(PROSE, width)}\n\n{textwrap.fill(PROSE, width, initial_indent='  ')}"
    assert repaired(text) == f"A title\n\n{PROSE}\n\n  {PROSE}"


def test_a_hyphen_goes_when_the_word_is_known_without_it() -> None:
    text = (
        "Those who write on the towns of the river, who are seldom his-\n"
        "torians by trade, disagree on their age, for the pre- and post-\n"
        "war houses and many well-known mills were built over them."
    )
    assert "seldom his-torians by" in repaired(text)
    assert "pre- and post-war houses and many well-known mills" in repaired(text)
    assert "seldom historians by" in repaired(f"{text}\n\nHistorians dig there.")
    assert "seldom historians by" in repaired(text.replace("his-", "his\xad"))


@pytest.mark.parametrize(
    "text",
    [
        textwrap.indent(WRAPPED, "    "),
        textwrap.indent(WRAPPED, "> "),
        textwrap.fill(PROSE, 72, initial_indent="- ", subsequent_indent="  "),
        textwrap.fill(PROSE, 72, initial_indent="12. "),
        f"```\n{WRAPPED}\n```",
        textwrap.fill(PROSE, 40),  # verse may be as narrow
        PROSE.replace(", ", ",\n").replace("; ", ";\n"),  # broken where the writer would
        "\n".join(line.capitalize() for line in WRAPPED.split("\n")),
        "\n".join(f"{line[:25]}   {line[25:]}" for line in WRAPPED.split("\n")),
        "\n".join(f"tests/a_long_folder/with_an_even_longer_one/test_{i}_with_a_name.py" for i in range(6)),
        "\n".join(["self.assertEqual(first.value(x), [item for item in first_list], f'{x}')"] * 3),
        "\n".join(PROSE.split(", ")[0] + f", and then {i}" for i in range(3)),
    ],
)
def test_lists_code_tables_and_verse_keep_their_lines(text: str) -> None:
    assert repaired(text) == text


def test_each_change_is_in_the_ledger_with_its_size_and_the_id_stays(tmp_path: Path) -> None:
    broken = "cafÃ©  \nin\u200b it"
    out = run(tmp_path, [broken, PROSE, "\u200b\x00", "odd too"])
    assert sorted(document.text for document in documents(out)) == sorted(["café\nin it", PROSE, "odd too"])
    assert {document.id for document in documents(out)} == {
        Document.new(text, "").id for text in (broken, PROSE, "odd too")
    }
    rows = ledger(out)
    assert set(rows) == {Document.new(text, "").id for text in (broken, "\u200b\x00")}
    changed = rows[Document.new(broken, "").id]
    assert (changed.verdict, changed.reason, changed.value) == ("changed", "repair", 5.0)
    assert changed.detail == "encoding 2, control_characters 1, white_space 2; 14 → 10 characters"
    emptied = rows[Document.new("\u200b\x00", "").id]
    assert (emptied.verdict, emptied.reason, emptied.value) == ("removed", "repair.empty", 2.0)
    assert out.counts["documents"] == {"in": 4, "kept": 3, "removed": {"repair.empty": 1}, "quarantined": 0}
    assert out.counts["repaired"] == 1
    assert out.counts["characters_repaired"] == {"encoding": 2, "control_characters": 3, "white_space": 2}
    assert out.counts["tables"]["Repaired documents by source"][0] == {
        "source": "even",
        "in": 2,
        "changed": 1,
        "emptied": 1,
        "characters before": 16,
        "after": 10,
    }


def test_only_the_repairs_that_were_asked_for_are_made(tmp_path: Path) -> None:
    broken = "cafÃ© \u200b&amp;  \n"
    asked = {
        "encoding": "café \u200b&amp;  \n",
        "html_entities": "cafÃ© \u200b&  \n",
        "control_characters": "cafÃ© &amp;  \n",
        "white_space": "cafÃ© \u200b&amp;\n",
    }
    none = dict.fromkeys((*asked, "line_breaks"), False)
    for name, expected in asked.items():
        assert repaired(broken, RepairConfig(**none | {name: True})) == expected
    with pytest.raises(EmptyOutput, match="kept none"):
        run(tmp_path, ["\u200b"])


def test_the_same_bytes_with_any_number_of_workers_and_from_a_second_repair(tmp_path: Path) -> None:
    texts = [PROSE, WRAPPED, "cafÃ©", "a\r\nb", "\x00", "", "   ", *(f"{i} \n" for i in range(50))]
    one, two = (run(tmp_path / str(workers), texts, workers, line_breaks=True) for workers in (1, 2))
    files = sorted(path.relative_to(one.path) for path in one.path.rglob("*.parquet"))
    assert len(files) == 4
    assert all((one.path / file).read_bytes() == (two.path / file).read_bytes() for file in files)
    again = Output.at(tmp_path / "again", stage="repair", runtime=runtime_of(workers=1))
    repair.function(RepairConfig(line_breaks=True), Artifact.at(one.path / "documents"), again)
    assert documents(again) == documents(one)
    assert not ledger(again)
    assert again.counts["repaired"] == 0


PIECES = st.sampled_from(
    ["Ã", "©", "Â", "â€", "™", "â\x80\x99", "\xa0", " ", "\n", "\r", "\r\n", "\x85", "\x00", "\x1b[0m", "\xad",
     "\u200b", "\u200c", "\u200d", "\ufeff", "क", "ไ", "ש", "م", "😀", "a", "e\u0301", "&", "amp;", "&amp;",
     "&#x200b;", "&nbsp;", "&Atilde;", "<", "-", "-\n", "the river ", "and flows to the sea in the end ", WRAPPED,
     "```\n", "\u3000", "\u202e", "\U0001f3f4", "\U000e0067", "\U000e007f", "\x9d", "à", "Ñ€", "Ð", "ï»¿", "œ", "ƒ",
     "\u2028"]
)  # fmt: skip
TEXTS = st.lists(PIECES | st.text(max_size=3), max_size=30).map("".join)


@settings(max_examples=400)
@given(TEXTS, st.sampled_from([ALL, RepairConfig(), RepairConfig(encoding=False, line_breaks=True, white_space=False)]))
def test_repairing_twice_changes_nothing(text: str, config: RepairConfig) -> None:
    once = repaired(text, config)
    assert repaired(once, config) == once


@settings(max_examples=300)
@given(TEXTS)
def test_encoding_is_repaired_as_ftfy_does_line_by_line(text: str) -> None:
    from ftfy import fix_encoding
    from ftfy.badness import is_bad

    lines = text.split("\n")
    expected = "\n".join(map(fix_encoding, lines))
    assert repair_encoding(text)[0] == expected
    seen = pc.match_substring_regex(pa.array([text]), mojibake())[0].as_py()
    assert seen or not any(map(is_bad, lines)), "the test of whole columns misses nothing"


@settings(max_examples=100)
@given(st.lists(TEXTS, max_size=8))
def test_a_column_is_repaired_as_its_texts_are(texts: list[str]) -> None:
    found = repair_texts(pa.array(texts, pa.string()), repairs_of(ALL))
    assert [found[row].text if row in found else text for row, text in enumerate(texts)] == [*map(repaired, texts)]
    assert all(texts[row] != after.text and after.changed.total() > 0 for row, after in found.items())


def test_untouched_documents_are_written_as_they_came(tmp_path: Path) -> None:
    out = run(tmp_path, [PROSE, "it's right", "", "\n"])
    for number in range(2):
        before, after = (
            pq.read_table(folder / shard_name(number)) for folder in (tmp_path / "in", out.path / "documents")
        )
        assert before.equals(after)
    assert not ledger(out)


@pytest.mark.parametrize(
    "text",
    [
        "Ã©" * 500_000,
        " " * 1_000_000 + "a",
        "a-" * 500_000,
        "\u200b" * 500_000 + "a",
        "\x1b[" * 300_000,
        "\r" * 1_000_000,
        "&" * 1_000_000,
        "&amp" * 200_000,
        "\n" * 1_000_000,
        "\U0001f3f4\U000e0067" * 100_000,
        "Â " * 300_000,
        "the river flows and flows to the sea in the end\n" * 20_000,
    ],
    ids=lambda text: repr(text[:6]),
)
def test_a_hostile_text_takes_linear_time(text: str) -> None:
    with linear_time():
        repaired(text)
