"""Our encoder equals `tokenizers`, only faster: the same pre-tokens, ids and shards."""

from __future__ import annotations

import json
import random
import tracemalloc
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers import Regex
from tokenizers.pre_tokenizers import Split

from models.tokenizer import EOS, SPECIAL_TOKENS, load_tokenizer, tokenizer_digest
from storage.artifact import Artifact
from storage.shards.documents import Document, shard_name, write_documents
from storage.shards.tokens import write_tokens
from tasks.stage.output import Output
from tasks.tokenize import stage
from tasks.tokenize.split import in_validation
from tasks.tokenize.stage import TokenizeConfig, tokenize
from tasks.tokenizer import TokenizerConfig, load_for_documents, train_tokenizer
from tasks.tokenizer.encoder import encode
from tasks.tokenizer.encoder.characters import CLASSES, SIZE
from tasks.tokenizer.encoder.encode import KernelEncoder
from tasks.tokenizer.encoder.split import PORTION, Splitter
from tasks.tokenizer.encoder.tables import make_tables, obstacle, read_settings
from tasks.tokenizer.patterns import PatternName, pattern_of, pre_tokenizer
from tasks.tokenizer.proof import HARD_TEXTS
from tests.runtimes import runtime_of
from tests.tasks.tiny_model import RUNTIME, texts
from tests.tasks.tokenizer.encoder.faulty_kernels import exchange_letters

ROOT = Path(__file__).parents[4]
PATTERNS: tuple[PatternName, ...] = get_args(PatternName)
LIBRARY = {pattern: pre_tokenizer(pattern) for pattern in PATTERNS}
ODD = (
    " \t\n\r\x0b\x0c\x1c\x1f\x85\xa0\u1680\u2003\u2028\u2029\u202f\u205f\u3000\u180e\u200b\ufeff"  # white, or nearly
    "'’ʼsSſtTdDmMlLrRvVeEaZéÅßǅʰªµÞ٣５½²Ⅷ〇௧𝟘𐒠𞤀𐀀𝒜中한あא्ी\u0301\u0345\u20dd!_-#$€©…、🙂👩\u200d\x00\x7f\U0010ffff"
)
ODD_CHARACTER = st.one_of(st.sampled_from(ODD), st.sampled_from(ODD[:20]), st.characters(exclude_categories=["Cs"]))
WORDS = st.sampled_from(["word", " Wörter", "abcdefgh", " abcdefghijklmnopq", "XYZabcdé", "@[`{"])
ODD_TEXT = st.lists(st.one_of(ODD_CHARACTER, WORDS), max_size=60).map("".join)


@pytest.fixture(scope="module", params=["gpt2", "llama3"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("tokenizer"), request.param)


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(tmp_path_factory.mktemp("gpt2"), "gpt2")


def train(folder: Path, pattern: PatternName, vocab_size: int = 1500) -> Path:
    write_documents(folder / "in" / shard_name(0), [Document.new(text, "test") for text in (*real_texts(), *texts())])
    out = Output.at(folder, runtime=RUNTIME)
    config = TokenizerConfig(vocab_size=vocab_size, pattern=pattern)
    train_tokenizer.function(config, Artifact.at(folder / "in"), out)
    return out.path


def real_texts() -> Iterator[str]:
    """Prose and code of the project itself."""
    for path in (ROOT / "README.md", *sorted((ROOT / "tasks").rglob("*.py"))):
        yield path.read_text()


def cuts(pattern: PatternName, given: Iterable[str]) -> list[list[str]]:
    """Pre-tokens of each text, by our kernel."""
    found = []
    for cut in Splitter(pattern).split(pa.array(given, pa.string())):
        ends = [0, *cut.ends.tolist()]
        first = 0
        for after in cut.documents.tolist():
            pairs = zip(ends[first:after], ends[first + 1 : after + 1], strict=True)
            found.append([cut.data[start:end].tobytes().decode() for start, end in pairs])
            first = after
    return found


def library_cuts(pattern: PatternName, text: str) -> list[str]:
    return [text[start:end] for _, (start, end) in LIBRARY[pattern].pre_tokenize_str(text)]


@pytest.mark.shadow("tasks.tokenizer.encoder.kernels.split")
@pytest.mark.parametrize("pattern", PATTERNS)
@given(given=st.lists(ODD_TEXT, max_size=4))
@example(given=["a  b\n\n  c", "don't DON'T 'sam '\u017f", "", "1234567 ½²³４", "x!\r\n\r\n y", "(a ((b  \n\t ", " '"])
@settings(max_examples=200)
def test_texts_are_cut_as_the_library_cuts_them(pattern: PatternName, given: list[str]) -> None:
    assert cuts(pattern, given) == [library_cuts(pattern, text) for text in given]


def test_the_patterns_cut_as_their_originals_do() -> None:
    text = "It's 12345 DON'T\n\n  stop(now)"
    assert cuts("gpt2", [text]) == [["It", "'s", " 12345", " DON", "'", "T", "\n\n ", " stop", "(", "now", ")"]]
    expected = ["It", "'s", " ", "123", "45", " DON", "'T", "\n\n", " ", " stop", "(now", ")"]
    assert cuts("gpt4", [text]) == cuts("llama3", [text]) == [expected]


def test_no_character_beyond_the_table_has_a_class() -> None:
    beyond = "".join(map(chr, range(SIZE, 0x110000)))
    classes = Split(Regex("[" + "".join(CLASSES.values()) + "]"), "removed", invert=True)
    assert classes.pre_tokenize_str(f"{beyond}a") == [("a", (len(beyond), len(beyond) + 1))]


def ids_of(encoder: encode.Encoder, given: list[str]) -> list[list[int]]:
    encoded = encoder.encode(pa.array(given, pa.string()))
    assert len(encoded.ends) == len(given)
    return [encoded.document(row).tolist() for row in range(len(given))]


@pytest.fixture(scope="module")
def both(folder: Path) -> tuple[encode.Encoder, encode.Encoder]:
    return KernelEncoder(make_tables(read_settings(folder))), encode.LibraryEncoder(folder)


@pytest.mark.shadow("tasks.tokenizer.encoder.kernels.encode", "tasks.tokenizer.encoder.kernels.fill_pairs")
@given(given=st.lists(st.one_of(ODD_TEXT, st.text(alphabet="aet hs\n"), st.text(alphabet="-= ")), max_size=5))
@example(given=list(HARD_TEXTS))
@settings(max_examples=200)
def test_ids_equal_the_librarys(both: tuple[encode.Encoder, encode.Encoder], given: list[str]) -> None:
    ours, library = both
    assert ids_of(ours, given) == ids_of(library, given)


@pytest.mark.soak_but("llama3")
def test_ids_of_real_text_equal_the_librarys_and_transformers(
    folder: Path, both: tuple[encode.Encoder, encode.Encoder]
) -> None:
    given = list(real_texts())
    ours = ids_of(both[0], given)
    assert ours == ids_of(both[1], given) == ids_of(both[0], given)  # the second time, all is known
    transformers = load_tokenizer(folder)
    assert ours == [[*transformers.encode(text, split_special_tokens=True), 0] for text in given]


@pytest.mark.parametrize(
    "text",
    [" " * 200_000, "a" * 20_001, "-=" * 3000, "\n" * 5000, "the" * 4000, "٣" * 3000, "x" * (PORTION + 5) + " y"],
    ids=lambda text: f"{text[:4]!r} {len(text)}",
)
def test_a_pre_token_of_any_length_is_merged_as_the_library_does(
    both: tuple[encode.Encoder, encode.Encoder], text: str
) -> None:
    assert ids_of(both[0], ["a", text, "b"]) == ids_of(both[1], ["a", text, "b"])


def test_special_tokens_in_a_text_stay_text(both: tuple[encode.Encoder, encode.Encoder]) -> None:
    ((*ids, end),) = ids_of(both[0], ["".join(SPECIAL_TOKENS)])
    assert min(ids) >= len(SPECIAL_TOKENS)
    assert end == 0


@pytest.mark.shadow("tasks.tokenizer.encoder.kernels.move")
def test_what_is_remembered_changes_no_id(gpt2: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encode, "FIRST_ROWS", 64)
    monkeypatch.setattr(encode, "MOST_ROWS", 1024)  # grows twice, then forgets
    draw = random.Random(3)
    words = ["".join(draw.choices("etaoinshrdlué", k=draw.randint(1, 40))) for _ in range(3000)]
    given = [" ".join(draw.choices(words, k=6000)) for _ in range(8)]
    encoder = KernelEncoder(make_tables(read_settings(gpt2)))
    assert ids_of(encoder, given) == ids_of(encode.LibraryEncoder(gpt2), given)


def test_a_slice_of_a_column_is_encoded_alone(both: tuple[encode.Encoder, encode.Encoder]) -> None:
    column = pa.array(["one text", "zwei Texte", "", "trois", "end"], pa.string())
    encoded = both[0].encode(column.slice(1, 3))
    assert [encoded.document(row).tolist() for row in range(3)] == ids_of(both[1], ["zwei Texte", "", "trois"])
    assert len(both[0].encode(column.slice(2, 0)).ends) == 0


def documents() -> list[Document]:
    return [Document.new(text, f"source{number % 3}") for number, text in enumerate((*HARD_TEXTS, *texts()))]


def run(folder: Path, tokenizer: Path, workers: int = 1) -> tuple[Output, dict[str, bytes]]:
    for number in range(3):
        write_documents(folder / "in" / shard_name(number), documents()[number::3])
    out = Output.at(folder, runtime=runtime_of(workers=workers, threads=1, device="cpu"))
    tokenize.function(TokenizeConfig(validation_share=0.2), Artifact.at(folder / "in"), Artifact.at(tokenizer), out)
    return out, {str(path.relative_to(out.path)): path.read_bytes() for path in sorted(out.path.rglob("*.tokens"))}


def plain_run(folder: Path, tokenizer: Path) -> dict[str, bytes]:
    """The same shards made one document at a time by `tokenizers`."""
    library = load_for_documents(tokenizer)
    eos = library.token_to_id(EOS)
    for number in range(3):
        for held_out in (False, True):
            chosen = [d.text for d in documents()[number::3] if in_validation(d.id, 0.2) == held_out]
            write_tokens(
                folder / ("validation" if held_out else "train") / f"{number:05d}.tokens",
                [np.array([*library.encode(text).ids, eos], np.uint32) for text in chosen],
                vocab_size=library.get_vocab_size(),
                eos_id=int(eos or 0),
                tokenizer_digest=tokenizer_digest(tokenizer),
                text_bytes=sum(len(text.encode()) for text in chosen),
            )
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.tokens"))}


def test_the_shards_are_byte_for_byte_what_the_library_gives(folder: Path, tmp_path: Path) -> None:
    out, made = run(tmp_path / "one", folder)
    assert made == plain_run(tmp_path / "plain", folder)
    assert out.counts["encoder"]["by"] == "gristmill"
    assert out.counts["encoder"]["checked"] >= 3, "the first document of every shard"
    assert out.counts["encoder"]["different"] == 0
    again, in_threads = run(tmp_path / "three", folder, workers=3)
    assert in_threads == made
    assert again.counts == out.counts


def test_every_document_is_counted_by_source(gpt2: Path, tmp_path: Path) -> None:
    out, _ = run(tmp_path, gpt2)
    (rows,) = out.counts["tables"].values()
    for number in range(3):
        found = [row for row in rows if row["source"] == f"source{number}"]
        expected = documents()[number::3]
        assert sum(row["documents"] for row in found) == len(expected)
        assert sum(row["bytes"] for row in found) == sum(len(d.text.encode()) for d in expected)


def test_one_difference_and_the_library_encodes_everything(
    gpt2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notes: list[str] = []
    exchange_letters(monkeypatch)
    monkeypatch.setattr(Output, "warn", lambda self, message: notes.append(message))
    out, made = run(tmp_path / "faulty", gpt2)
    assert made == plain_run(tmp_path / "plain", gpt2)
    assert out.counts["encoder"]["by"] == "tokenizers"
    assert out.counts["encoder"]["different"] > 0
    assert "gives other ids than our kernels" in notes[0]


def test_of_a_long_document_the_beginning_is_checked(
    gpt2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whole, one of 50 MB took `tokenizers` ten gigabytes."""
    monkeypatch.setattr(stage, "CHECKED_CHARACTERS", 40)
    lengths: list[int] = []
    by_library = encode.LibraryEncoder.encode

    def seen(self: encode.LibraryEncoder, given: pa.Array) -> encode.Encoded:
        lengths.extend(map(len, given.to_pylist()))
        return by_library(self, given)

    monkeypatch.setattr(encode.LibraryEncoder, "encode", seen)
    out, made = run(tmp_path / "run", gpt2)
    assert made == plain_run(tmp_path / "plain", gpt2), "what is written is the whole"
    assert len(lengths) == out.counts["encoder"]["checked"]
    assert (max(lengths), out.counts["encoder"]["different"]) == (40, 0)


def test_one_difference_in_the_beginning_of_a_long_document_is_one(
    gpt2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stage, "CHECKED_CHARACTERS", 100)
    exchange_letters(monkeypatch)
    out, made = run(tmp_path / "faulty", gpt2)
    assert made == plain_run(tmp_path / "plain", gpt2)
    assert out.counts["encoder"]["by"] == "tokenizers"


@pytest.mark.soak
def test_memory_does_not_grow_with_the_shard(gpt2: Path, tmp_path: Path) -> None:
    def peak(copies: int) -> int:
        folder = tmp_path / str(copies)
        given = (Document.new(f"{number} {text}", "a") for number in range(copies) for text in real_texts())
        write_documents(folder / "in" / shard_name(0), given)
        out = Output.at(folder, runtime=RUNTIME)
        tracemalloc.start()
        tokenize.function(TokenizeConfig(), Artifact.at(folder / "in"), Artifact.at(gpt2), out)
        found = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return found

    few = peak(4)
    assert peak(16) < few + 8_000_000


def test_a_tokenizer_that_the_kernels_dont_know_is_left_to_the_library(gpt2: Path, tmp_path: Path) -> None:
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    for path in gpt2.iterdir():
        (foreign / path.name).write_bytes(path.read_bytes())
    settings = read_settings(gpt2)
    settings["pre_tokenizer"]["add_prefix_space"] = True
    (foreign / "tokenizer.json").write_text(json.dumps(settings))
    assert pattern_of(settings) is None
    out, made = run(tmp_path / "run", foreign)
    assert made == plain_run(tmp_path / "plain", foreign)
    assert out.counts["encoder"] == {"by": "tokenizers", "checked": 0, "different": 0}


TEXT = {"Sequence": {"id": "A", "type_id": 0}}


@pytest.mark.parametrize(
    "change",
    [
        {"model": {"ignore_merges": True}},
        {"model": {"dropout": 0.1}},
        {"model": {"unk_token": "?"}},
        {"normalizer": {"type": "NFC"}},
        {"post_processor": {"type": "TemplateProcessing"}},
        {"post_processor": {"type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>"}}, TEXT]}},
        {"padding": {"strategy": {"Fixed": 8}}},
    ],
    ids=str,
)
def test_whatever_changes_ids_is_an_obstacle(gpt2: Path, change: dict[str, Any]) -> None:
    settings = read_settings(gpt2)
    assert obstacle(settings) == ""
    for inert in ({"type": "ByteLevel"}, {"type": "TemplateProcessing", "single": [TEXT]}):
        assert obstacle({**settings, "post_processor": inert}) == ""
    for name, value in change.items():
        settings[name] = {**settings[name], **value} if name == "model" else value
    assert obstacle(settings)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_a_pattern_is_read_off_the_tokenizer_that_it_trained(pattern: PatternName, tmp_path: Path) -> None:
    write_documents(tmp_path / "in" / shard_name(0), [Document.new("ab ab 12 12", "a")])
    out = Output.at(tmp_path, runtime=RUNTIME)
    train_tokenizer.function(TokenizerConfig(vocab_size=300, pattern=pattern), Artifact.at(tmp_path / "in"), out)
    assert pattern_of(read_settings(out.path)) == pattern
