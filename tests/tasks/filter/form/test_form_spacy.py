"""Form with spaCy's words: its counts equal those of plain Python over spaCy's tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.artifact import Artifact
from storage.errors import ConfigError
from storage.shards.documents import Document, shard_name, write_documents
from tasks.filter.form.c4 import c4_lines
from tasks.filter.form.config import FormConfig
from tasks.filter.form.measure import measure_form
from tasks.filter.form.stage import fingerprints, form_signals
from tasks.stage.output import Output
from tests.runtimes import runtime_of
from tests.tasks.filter.form.test_form import PARTS, STORY, duplicate, share, symbol
from tests.tasks.filter.linear import linear_time

spacy = pytest.importorskip("spacy")
TEXTS = st.lists(st.sampled_from([*PARTS, "don't ", "Mr. ", "5km ", "(a)", "...b", "IS_ALPHA "]), max_size=30).map(
    "".join
)


ENGLISH = spacy.blank("en")
ENGLISH.add_pipe("sentencizer")


def by_spacy(text: str, config: FormConfig) -> dict[str, Any]:
    words = [token.text for token in ENGLISH(text) if token.text.strip()]
    content = [word for word in words if not all(map(symbol, word))]
    sentences = [max(1, len(list(ENGLISH(line).sents))) for line in c4_lines(text, config.c4, False)]
    found = {
        "words": len(content),
        "mean_word_length": share(sum(map(len, content)), len(content)),
        "hashes_per_word": share(text.count("#"), len(words)),
        "alphabetic_words": share(sum(any(map(str.isalpha, word)) for word in words), len(words)),
        "stop_words": len(set(config.stop_words).intersection(words)),
        "newlines_per_word": share(text.count("\n"), len(words)),
        "c4_sentences": sum(sentences),
    }
    return found | {f"duplicate_{n}gram_characters": share(duplicate(words, n), len(text)) for n in range(5, 11)}


@pytest.mark.shadow("tasks.filter.form.kernels.count_tokens")
@given(st.lists(TEXTS, min_size=1, max_size=3), st.booleans())
def test_tokens_are_counted_as_plain_python_does(texts: list[str], as_datatrove: bool) -> None:
    config = FormConfig(spacy="en", as_datatrove=as_datatrove)
    for text, row in zip(texts, measure_form(config, pa.array(texts)).to_pylist(), strict=True):
        expected = by_spacy(text, config)
        assert {name: row[name] for name in expected} == expected


def test_between_tokens_datatrove_counts_a_space_where_there_is_none() -> None:
    text = "do n't don't"
    (row,) = measure_form(FormConfig(spacy="en"), pa.array([text])).to_pylist()
    (theirs,) = measure_form(FormConfig(spacy="en", as_datatrove=True), pa.array([text])).to_pylist()
    assert row["top_2gram_characters"] == theirs["top_2gram_characters"] == 12 / len(text), "the first has a space"
    (row,) = measure_form(FormConfig(spacy="en"), pa.array(["don't do n't"])).to_pylist()
    (theirs,) = measure_form(FormConfig(spacy="en", as_datatrove=True), pa.array(["don't do n't"])).to_pylist()
    assert (row["top_2gram_characters"], theirs["top_2gram_characters"]) == (10 / 12, 12 / 12)


def test_as_many_tokens_as_bytes_fit() -> None:
    text = "(" * 900 + "\n" + ")!" * 400
    (row,) = measure_form(FormConfig(spacy="en"), pa.array([text])).to_pylist()
    assert (row["words"], row["newlines_per_word"]) == (0, 1 / 1700)


def test_a_long_run_is_a_word_in_linear_time() -> None:
    measure_form(FormConfig(spacy="en"), pa.array(["warm"]))
    with linear_time():
        (row,) = measure_form(FormConfig(spacy="en"), pa.array(["(é" * 100_000 + " end"])).to_pylist()
    assert row["words"] == 2
    assert row["mean_word_length"] == (200_000 + 3) / 2


def test_a_language_without_a_tokenizer_is_refused_before_the_run() -> None:
    with pytest.raises(ConfigError, match="km"):
        fingerprints(FormConfig(spacy="km"))
    assert fingerprints(FormConfig(spacy="de")) == {"spacy": spacy.__version__}
    assert fingerprints(FormConfig()) == {}


def test_the_stage_writes_the_same_for_any_workers(tmp_path: Path) -> None:
    for number in range(3):
        texts = [f"{STORY}{part}" for part in PARTS[number::3]]
        write_documents(tmp_path / "in" / shard_name(number), [Document.new(text, "test") for text in texts])
    found = []
    for workers in (1, 2):
        out = Output.at(tmp_path / str(workers), stage="form", runtime=runtime_of(workers=workers))
        form_signals.function(FormConfig(spacy="en"), Artifact.at(tmp_path / "in"), out)
        found.append([path.read_bytes() for path in sorted(out.path.glob("*.parquet"))])
    assert found[0] == found[1]
