"""Languages are fastText's own for the whole text, mixed documents are visible, and unmeasurable texts are null."""

from __future__ import annotations

import functools
import json
import struct
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.artifact import Artifact
from storage.errors import SourceError
from storage.shards.documents import Document, shard_name, write_documents
from tasks.filter.config import FilterConfig
from tasks.filter.fasttext_model.file import read_model
from tasks.filter.language.config import PACKAGE, LanguageConfig
from tasks.filter.language.family import FAMILY, LanguageRules
from tasks.filter.language.identify import MODEL
from tasks.filter.language.measure import SCHEMA, language_signals, measure_language
from tasks.filter.language.plain import plain_texts
from tasks.stage.output import Output
from tasks.text.packages import package_file
from tests.runtimes import runtime_of
from tests.tasks.filter.linear import linear_time

ENGLISH = "The river begins in the hills and flows to the sea, and people have lived along it since the first farms.\n"
FRENCH = "La rivière commence dans les collines et coule vers la mer, et les gens vivent le long de ses rives.\n"
BAD = {
    "one word": "x" * 10_000_000,
    "Chinese": "河流从山上流下来，人们住在河边。" * 2000,
    "Japanese": "川は丘から始まり、海へと流れていく。" * 2000,
    "Arabic": "يبدأ النهر في التلال ويتدفق إلى البحر، ويعيش الناس على ضفافه. " * 500,
    "identical lines": "the same line\n" * 100_000,
    "wrong encoding": FRENCH.encode().decode("latin-1") * 100,
    "separators": "a\0b\r\n\v\f\tc" * 1000,
}


def measure(texts: Sequence[str], **config: Any) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = measure_language(LanguageConfig(**config), pa.array(texts, pa.string())).to_pylist()
    return rows


@functools.cache
def library() -> Any:
    import fasttext

    fasttext.FastText.eprint = lambda *args: None
    return fasttext.load_model(str(package_file(PACKAGE, MODEL)))


def assert_as_the_library(texts: Sequence[str]) -> None:
    read = plain_texts(pa.array(texts, pa.string())).to_pylist()
    for text, row in zip(read, measure(texts), strict=True):
        if row["language"] is None:
            assert not any(map(str.isalpha, text))
            continue
        pairs = library().f.predict(text.replace("\n", " ") + "\n", 2, 0.0, "strict")
        first, second = pairs[0][0], pairs[1][0] if len(pairs) > 1 else 0.0
        assert row["language_score"] == pytest.approx(min(1.0, first), abs=1e-4)
        assert row["language_margin"] == pytest.approx(first - second, abs=2e-4)
        if first - second > 1e-4:
            assert row["language"] == pairs[0][1].removeprefix("__label__")


def test_the_language_is_fasttexts_own_of_the_whole_text() -> None:
    assert_as_the_library([ENGLISH, FRENCH, ENGLISH * 40, FRENCH + ENGLISH * 3, "a", "Ünïcödé 日本", "x\0y <w> z"])
    sizes = (7, 8, 9, 16, 17, 24, 25, 63, 64, 65, 200)  # around those of a key's parts, of kept words and of blocks
    assert_as_the_library([f"{ENGLISH} {'grüße'[:size] * size}"[-size - 9 :] for size in sizes])
    assert_as_the_library([" ".join("abcdefghi"[: size % 9 + 1] * size for size in sizes)])


@pytest.mark.shadow(
    "tasks.filter.fasttext_model.kernels.add_characters",
    "tasks.filter.fasttext_model.kernels.sum_pieces",
    "tasks.filter.fasttext_model.kernels.two_likeliest",
)
@settings(max_examples=60)
@given(st.lists(st.text(max_size=200), max_size=4))
def test_any_text_is_read_as_fasttext_reads_it(texts: list[str]) -> None:
    assert_as_the_library(texts)


@pytest.mark.parametrize("preset", ["fineweb", "dclm"])
def test_a_preset_reads_the_text_as_it_is(preset: str) -> None:
    language = FilterConfig.model_validate({"preset": preset}).language
    assert language is not None
    text = "LIMITED TIME OFFER ON ALL GARDEN FURNITURE! See https://shop.example/garden?offer=93jf and <b>order</b>."
    (row,) = measure([text], **language.measure.model_dump())
    assert row["language_score"] == pytest.approx(library().f.predict(f"{text}\n", 1, 0.0, "strict")[0][0], abs=1e-4)
    assert row["language_score"] < measure([text])[0]["language_score"]


def test_a_text_is_measured_alike_alone_and_among_others() -> None:
    texts = [ENGLISH * 5, "", FRENCH, "123", ENGLISH + FRENCH * 4]
    assert measure(texts) == [row for text in texts for row in measure([text])]
    assert measure([]) == []


@pytest.mark.parametrize("text", ["", " \n\n ", "12 345,67", "👩‍👩‍👧 🇫🇷 !!!", "-----\n=====\n" * 50])
def test_without_a_letter_everything_is_null(text: str) -> None:
    assert measure([text]) == [dict.fromkeys(SCHEMA.names)]


def test_a_mixed_document_shows_by_its_pieces() -> None:
    (pure,) = measure([ENGLISH * 20])
    (mixed,) = measure([ENGLISH * 20 + FRENCH * 10])
    assert (pure["language"], pure["language_share"], json.loads(pure["languages"])) == ("en", 1.0, {"en": 1.0})
    letters = [20 * sum(map(str.isalpha, ENGLISH)), 10 * sum(map(str.isalpha, FRENCH))]
    assert mixed["language"] == "en"
    assert mixed["language_share"] == pytest.approx(letters[0] / sum(letters), abs=0.02)
    assert list(json.loads(mixed["languages"])) == ["en", "fr"]
    (unsure,) = measure([ENGLISH * 20 + FRENCH * 10], piece_score=0.9999)
    assert unsure["language"] == "en", "the document's own language does not hang on its pieces"


def test_a_text_can_not_end_the_line_or_hide_words_from_the_model() -> None:
    (whole,) = measure([ENGLISH + "</s> " + FRENCH * 10])
    assert whole["language"] == "fr", "fastText itself reads nothing behind </s>"
    (labelled,) = measure([FRENCH.replace(" ", " __label__")])
    assert labelled["language"] is not None


def test_nothing_of_a_long_document_is_cut_off() -> None:
    assert measure([ENGLISH * 50 + FRENCH * 500])[0]["language"] == "fr"


@pytest.mark.parametrize("name", BAD)
def test_bad_input_is_measured_as_the_library_measures_it(name: str) -> None:
    assert_as_the_library([BAD[name]])
    assert measure([BAD[name]])[0]["language_score"] <= 1


def test_time_is_linear_in_the_length_of_a_word() -> None:
    with linear_time():
        (row,) = measure(["ab" * 4_000_000])
    assert row["language_score"] is not None


def test_two_workers_write_what_one_writes(tmp_path: Path) -> None:
    for number in range(3):
        texts = [ENGLISH * (number + 1), FRENCH * 3, "", f"{number}"]
        write_documents(tmp_path / "in" / shard_name(number), [Document.new(text, "test") for text in texts])
    written = []
    for workers in (1, 2):
        out = Output.at(tmp_path / str(workers), runtime=runtime_of(workers=workers))
        language_signals.function(LanguageConfig(), Artifact.at(tmp_path / "in"), out)
        written.append({path.name: path.read_bytes() for path in out.path.iterdir()})
        assert out.counts["measured"] == 12
    assert written[0] == written[1]
    assert len([*out.path.glob("*.parquet")]) == 3


def test_a_damaged_model_is_refused(tmp_path: Path) -> None:
    whole = package_file(PACKAGE, MODEL).read_bytes()
    for name, data in {"cut": whole[:-1], "short": whole[:30], "other": b"GGUF" + whole, "empty": b""}.items():
        path = tmp_path / name
        path.write_bytes(data)
        with pytest.raises(SourceError, match=f"The model {name}"):
            read_model(path)


def test_a_model_that_points_beyond_its_rows_is_refused(tmp_path: Path) -> None:
    data = bytearray(package_file(PACKAGE, MODEL).read_bytes())
    (bucket,) = struct.unpack_from("<i", data, 8 + 7 * 4 + 4)
    assert bucket == 2_000_000
    struct.pack_into("<i", data, 8 + 7 * 4 + 4, 1000)
    (tmp_path / "lid").write_bytes(data)
    with pytest.raises(SourceError, match="points beyond"):
        read_model(tmp_path / "lid")


def test_articles_of_the_declaration_are_told_apart(shared_data: Callable[[str], Path]) -> None:
    codes = {
        "eng": "en",
        "fra": "fr",
        "spa": "es",
        "deu_1901": "de",
        "rus": "ru",
        "arb": "ar",
        "cmn_hans": "zh",
        "hin": "hi",
    }
    with zipfile.ZipFile(shared_data("filters/langid_udhr") / "udhr2.zip") as archive:
        lines = [
            (code, line)
            for name, code in codes.items()
            for line in archive.read(f"udhr2/{name}.txt").decode().splitlines()
            if len(line.encode()) >= 100
        ]
    found = measure([line for _, line in lines])
    right = sum(row["language"] == code for row, (code, _) in zip(found, lines, strict=True))
    assert len(lines) > 200
    assert right >= 0.99 * len(lines)


def test_a_second_opinion_is_told_and_may_be_required(tmp_path: Path) -> None:
    pytest.importorskip("lingua", reason="needs the extra lingua")
    norwegian = "Elven begynner i åsene og renner mot havet, og folk har bodd langs den siden de første gårdene.\n"
    latin = "Aeterna bona sunt. " * 3
    texts = [ENGLISH * 3, FRENCH, norwegian * 2, "1234 !", BAD["Chinese"][:200], latin]
    rows = measure(texts, second="lingua")
    assert [row["language_second"] for row in rows[:5]] == ["en", "fr", "no", None, "zh"]
    assert rows[3]["language_second_score"] is None
    assert all(0 < row["language_second_score"] <= 1 for row in rows[:3])
    assert [row.keys() - rows[0].keys() for row in measure(texts)] == [set()] * len(texts)
    plain = [{name: value for name, value in row.items() if "second" not in name} for row in rows]
    assert plain == measure(texts), "the first opinion stays as it is"
    rules = list(FAMILY.rules(LanguageRules(measure=LanguageConfig(second="lingua"))))
    (agreement,) = (rule for rule in rules if rule.name == "language.agreement")
    signals = pa.record_batch(
        {
            "language": pa.array(["en", "en", "en", None]),
            "language_second": pa.array(["en", "sco", None, None], pa.string()),
            "language_second_score": pa.array([0.9, 0.8, None, None]),
        }
    )
    tested = agreement.test(signals)
    assert (tested.fails.tolist(), tested.unknown.tolist()) == ([False, True, False, False], [False] * 3 + [True])
    assert "language.agreement" not in {rule.name for rule in FAMILY.rules(LanguageRules())}
