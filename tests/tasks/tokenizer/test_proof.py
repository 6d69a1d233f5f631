"""No tokenizer is published that loses a byte, misreads text or splits words needlessly. Its report is readable."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from models.tokenizer import SPECIAL_TOKENS, load_tokenizer
from storage.artifact import Artifact
from storage.digests import list_files, tree_digest
from storage.errors import ConfigError, DamagedArtifact, SourceError, TokenizerMismatch
from storage.shards.documents import Document, shard_name, write_documents
from tasks.export.formats.gguf.file import write_gguf
from tasks.posttrain.rows.form import Dropped
from tasks.posttrain.rows.instruction import render_instruction
from tasks.stage.output import Output
from tasks.tokenizer import BYTE_TOKENS, TokenizerConfig, load_for_documents, train_tokenizer
from tasks.tokenizer.compare import fingerprints, load_reference
from tasks.tokenizer.encoder.encode import KernelEncoder, LibraryEncoder
from tasks.tokenizer.encoder.tables import make_tables, read_settings
from tasks.tokenizer.proof import HARD_TEXTS, LONG_TEXTS, UTF8_BYTES, prove, prove_kernels
from tasks.tokenizer.sample import draw_sample
from tasks.tokenizer.words import Settled, is_word, prove_words, show, tokens_of
from tests.tasks.tiny_model import RUNTIME, make_model, make_tokenizer, texts

CONFIGS = ("tokenizer_config.json", "special_tokens_map.json")
needs_sentencepiece = pytest.mark.skipif(
    find_spec("sentencepiece") is None, reason="sentencepiece is not installed: pip install 'gristmill[sentencepiece]'"
)
Change = Callable[[dict[str, Any]], object]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tokenizer(tmp_path_factory.mktemp("tokenizer"))


def trained(folder: Path, given: list[str], **config: Any) -> Output:
    write_documents(folder / "in" / shard_name(0), [Document.new(text, "test") for text in given])
    out = Output.at(folder, runtime=RUNTIME)
    train_tokenizer.function(TokenizerConfig(**config), Artifact.at(folder / "in"), out)
    return out


def damaged(folder: Path, target: Path, change: Change, *names: str) -> Path:
    """A copy of the tokenizer with changed files."""
    shutil.copytree(folder, target)
    for name in names:
        settings = json.loads((folder / name).read_text())
        change(settings)
        (target / name).write_text(json.dumps(settings))
    return target


def of_one_id(settings: dict[str, Any]) -> None:
    vocabulary = settings["model"]["vocab"]
    vocabulary["q"] = vocabulary["z"]


def renamed(settings: dict[str, Any]) -> None:
    settings["model"]["vocab"]["zzzz"] = settings["model"]["vocab"].pop("ÿ")


def special_swapped(settings: dict[str, Any]) -> None:
    first, second = settings["added_tokens"][:2]
    vocabulary = settings["model"]["vocab"]
    first["content"], second["content"] = second["content"], first["content"]
    vocabulary[first["content"]], vocabulary[second["content"]] = 0, 1


def a_word_made_special(settings: dict[str, Any]) -> None:
    settings["added_tokens"].append({**settings["added_tokens"][0], "id": 300, "content": "the"})


DECODED_BY_ID = {"content": "the", "special": False, "lstrip": False, "rstrip": False, "single_word": False}
TOKENIZER: dict[str, tuple[Change, str]] = {
    "a byte without a token": (renamed, "has no token for 1 of the 256 bytes"),
    "two bytes of one id": (of_one_id, "does not decode byte 0x7[1a]"),
    "an id beyond": (lambda s: s["model"]["vocab"].update(zzzz=5000), "does not have each of the ids 0 to"),
    "no decoder": (lambda s: s.update(decoder=None), "does not decode characters"),
    "normalised": (lambda s: s.update(normalizer={"type": "NFC"}), "does not decode '.*' to the same text"),
    "stripped": (
        lambda s: s.update(normalizer={"type": "Strip", "strip_left": False, "strip_right": True}),
        "does not decode '  leading",
    ),
    "cut short": (
        lambda s: s.update(
            truncation={"direction": "Right", "max_length": 200_000, "strategy": "LongestFirst", "stride": 0}
        ),
        "cuts long documents off",
    ),
    "a space before": (
        lambda s: s["pre_tokenizer"].update(add_prefix_space=True),
        "does not decode .* to the same text",
    ),
    "special tokens swapped": (special_swapped, "does not give the special tokens their ids"),
    "one special token too many": (a_word_made_special, "does not give the special tokens their ids"),
    "special tokens read in text": (lambda s: s["added_tokens"][2].update(special=False), "parsed a special token"),
    "not plain": (lambda s: s["model"].update(ignore_merges=True), "our own kernels do not support it"),
}
NAMES: dict[str, tuple[Change, str]] = {
    "no end": (lambda s: s.pop("eos_token"), "loses its end-of-text token"),
    "another end": (lambda s: s.update(eos_token="<|end|>"), "loses its end-of-text token"),
    "no turns": (lambda s: s.update(additional_special_tokens=[]), "loses a special token"),
}


@pytest.mark.parametrize("name", TOKENIZER)
def test_a_tokenizer_that_loses_something_is_not_published(folder: Path, tmp_path: Path, name: str) -> None:
    change, message = TOKENIZER[name]
    with pytest.raises(DamagedArtifact, match=message):
        prove(damaged(folder, tmp_path / "damaged", change, "tokenizer.json"), SPECIAL_TOKENS)


@pytest.mark.parametrize("name", NAMES)
def test_nor_one_whose_special_tokens_transformers_does_not_find(folder: Path, tmp_path: Path, name: str) -> None:
    change, message = NAMES[name]
    with pytest.raises(DamagedArtifact, match=message):
        prove(damaged(folder, tmp_path / "damaged", change, *CONFIGS), SPECIAL_TOKENS)


def test_nor_one_that_transformers_encodes_otherwise(folder: Path, tmp_path: Path) -> None:
    def change(settings: dict[str, Any]) -> None:
        settings["added_tokens_decoder"] = {"300": {**DECODED_BY_ID, "normalized": False}}

    with pytest.raises(TokenizerMismatch, match="transformers gives other ids than tokenizers"):
        prove(damaged(folder, tmp_path / "damaged", change, "tokenizer_config.json"), SPECIAL_TOKENS)


def test_nor_one_that_our_kernels_encode_otherwise(folder: Path, tmp_path: Path) -> None:
    other = damaged(folder, tmp_path / "other", lambda s: s["model"]["merges"].reverse(), "tokenizer.json")
    given = list(texts())[:5]
    ids = [load_for_documents(folder).encode(text).ids for text in given]
    prove_kernels(folder, given, ids)
    with pytest.raises(TokenizerMismatch, match="our own encoder gives other ids than tokenizers"):
        prove_kernels(other, given, ids)


def test_the_texts_hold_every_byte_of_utf_8_and_long_runs() -> None:
    assert set(UTF8_BYTES.encode()) == set(range(256)) - {0xC0, 0xC1, *range(0xF5, 0x100)}
    assert " " * (1 << 16) in LONG_TEXTS
    assert any(text.count("\x00") > 1000 for text in LONG_TEXTS)
    assert any(len(re.findall(r"[\r\n]", text)) > 10_000 for text in LONG_TEXTS)


@pytest.mark.soak
def test_a_large_vocabulary_proves_the_same(tmp_path: Path) -> None:
    """Merges of spaces, punctuation and line breaks, as in code: the long texts are then merged many times over."""
    root = Path(__file__).parents[3]
    given = [path.read_text() for path in sorted((root / "tasks").rglob("*.py"))] + [
        " " * 3000,
        "=" * 3000,
        "\n" * 3000,
    ]
    out = trained(tmp_path, [*given, *HARD_TEXTS], vocab_size=6000, min_frequency=1, pattern="llama3")
    assert out.counts["vocab_size"] == 6000
    assert out.counts["common_words"] == {"asked": 100, "one_token": 100}


def test_a_lone_surrogate_is_refused_wherever_it_comes_from(folder: Path, tmp_path: Path) -> None:
    """UTF-8 cannot encode one: neither Arrow nor the library accepts it from Python, nor an encoder as bytes."""
    for text in ("\ud800", "a\udfffb"):
        with pytest.raises(UnicodeEncodeError, match="surrogates not allowed"):
            pa.array([text], pa.string())
        with pytest.raises(UnicodeEncodeError, match="surrogates not allowed"):
            write_documents(tmp_path / "in.parquet", [Document.new(text, "test")])
        with pytest.raises(TypeError, match="must be"):
            load_for_documents(folder).encode(text)
        data = text.encode("utf-8", "surrogatepass")
        offsets = pa.array([0, len(data)], pa.int32()).buffers()[1]
        column = pa.Array.from_buffers(pa.string(), 1, [None, offsets, pa.py_buffer(data)])
        for encoder in (KernelEncoder(make_tables(read_settings(folder))), LibraryEncoder(folder)):
            with pytest.raises(DamagedArtifact, match="Invalid UTF8"):
                encoder.encode(column)


def test_a_common_word_that_lost_its_merge_is_noticed(folder: Path, tmp_path: Path) -> None:
    pretokens = draw_sample(
        TokenizerConfig(), [folder.parent / "documents" / "00000.parquet"], Output.at(tmp_path)
    ).pretokens
    whole = load_for_documents(folder)
    seen = int(np.sort(pretokens.counts)[-1])
    assert prove_words(whole, pretokens, 1).number == len(pretokens.counts)
    assert prove_words(whole, pretokens, seen) == Settled(seen, 0)
    assert prove_words(whole, pretokens, None) == Settled(None, 0)

    def change(settings: dict[str, Any]) -> None:
        settings["model"]["merges"].remove(["Ġt", "he"])

    broken = load_for_documents(damaged(folder, tmp_path / "damaged", change, "tokenizer.json"))
    assert tokens_of(broken, b" the") == [b" t", b"he"]
    with pytest.raises(DamagedArtifact, match=r"splits `␣the`, which occurs [\d,]+ times, into 2 tokens"):
        prove_words(broken, pretokens, 1)


def test_words_that_a_small_vocabulary_splits_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    notes: list[str] = []
    monkeypatch.setattr(Output, "warn", lambda self, message: notes.append(message))
    out = trained(tmp_path / "small", list(texts()), vocab_size=BYTE_TOKENS + len(SPECIAL_TOKENS) + 20)
    counts, tables = out.counts["common_words"], out.counts["tables"]
    rows = tables["Frequent words split into several tokens"]
    assert 0 < counts["one_token"] < counts["asked"]
    assert len(rows) == counts["asked"] - counts["one_token"]
    assert any(f"{len(rows)} of the {counts['asked']} most frequent words are split" in note for note in notes)
    (vocabulary,) = tables["Vocabulary"]
    assert (
        vocabulary["whole words above count"]
        == vocabulary["count of the last merge"]
        >= max(row["count"] for row in rows)
    )
    none = trained(tmp_path / "none", list(texts()), vocab_size=BYTE_TOKENS + len(SPECIAL_TOKENS))
    (vocabulary,) = none.counts["tables"]["Vocabulary"]
    assert (vocabulary["merges"], vocabulary["whole words above count"], vocabulary["such words"]) == (0, "", 0)


@pytest.mark.parametrize(
    ("pretoken", "expected"),
    [
        (b" the", True),
        ("größe".encode(), True),
        (b"", False),
        (b" ", False),
        (b"  a", False),
        (b"a1", False),
        (b"\xe2\x82", False),
        ("日本".encode(), True),
        (b"\na", False),
    ],
)
def test_words_are_letters_with_at_most_one_space_before_them(pretoken: bytes, expected: bool) -> None:
    assert is_word(pretoken) == expected


def test_reserved_tokens_have_the_ids_after_the_others_and_are_never_text(tmp_path: Path) -> None:
    (tmp_path / "tokenizer").mkdir()
    given = [*texts(), "<|reserved_0|> " * 50]
    out = trained(tmp_path / "tokenizer", given, vocab_size=380, reserved_tokens=3)
    reserved = [f"<|reserved_{number}|>" for number in range(3)]
    ids = [len(SPECIAL_TOKENS) + number for number in range(3)]
    assert out.counts["vocab_size"] == 380
    transformers = load_tokenizer(out.path)
    assert transformers.encode("a".join(reserved), add_special_tokens=False)[::2] == ids
    assert transformers.decode(ids, skip_special_tokens=True) == ""
    assert not set(ids) & set(load_for_documents(out.path).encode("".join(reserved)).ids)
    message = [{"role": "user", "content": f"What is {reserved[1]}?"}, {"role": "assistant", "content": "Nothing."}]
    with pytest.raises(Dropped, match="special_token_in_text"):
        render_instruction({"id": "1", "messages": message}, transformers, 1000)
    model = make_model(tmp_path / "model")  # it finds the tokenizer beside it
    write_gguf(model, tmp_path / "model.gguf", "f32")
    assert control_tokens(tmp_path / "model.gguf") == [*SPECIAL_TOKENS, *reserved]


def control_tokens(path: Path) -> list[str]:
    from gguf import GGUFReader, TokenType

    fields = GGUFReader(path).fields
    tokens, types = (fields[f"tokenizer.ggml.{name}"].contents() for name in ("tokens", "token_type"))
    return [token for token, kind in zip(tokens, types, strict=True) if kind == TokenType.CONTROL]


def test_a_vocabulary_without_room_for_its_special_tokens_is_refused() -> None:
    least = BYTE_TOKENS + len(SPECIAL_TOKENS)
    assert TokenizerConfig(vocab_size=least).special_tokens == SPECIAL_TOKENS
    assert TokenizerConfig(vocab_size=least + 9, reserved_tokens=9).special_tokens[-1] == "<|reserved_8|>"
    for config in ({"vocab_size": least - 1}, {"vocab_size": least + 8, "reserved_tokens": 9}):
        with pytest.raises(ValidationError, match="raise it, or lower reserved_tokens"):
            TokenizerConfig(**config)


@pytest.mark.parametrize(
    ("token", "expected"),
    [
        (b" the", "`␣the`"),
        (b"\r\n\x00", r"`\r\n\x00`"),
        (b"a`b|c\\", r"`a\x60b\x7cc\\`"),
        (b"\xe2\x80", r"`\xe2\x80`"),
        ("\x80\u202e␣\U000e0001é".encode(), r"`\u0080\u202e\u2423\U000e0001é`"),
        (b"-" * 100, f"`{'-' * 64}…`"),
    ],
)
def test_tokens_are_shown_so_that_they_can_be_told_apart(token: bytes, expected: str) -> None:
    assert show(token) == expected


@given(
    st.binary(max_size=40) | st.text(max_size=15).map(str.encode) | st.text(r"\|` x4n0u␣", max_size=15).map(str.encode)
)
@example(b"\\x41")
@settings(max_examples=300)
def test_what_is_shown_is_all_of_a_token_and_breaks_no_table(token: bytes) -> None:
    shown = show(token)[1:-1]
    assert shown.isprintable()
    assert not set(shown) & set("`| ")
    assert meant_by(shown) == token


def meant_by(shown: str) -> bytes:
    """The bytes of a displayed token."""
    letters = {"n": "\n", "r": "\r", "t": "\t", "\\": "\\"}

    def one(match: re.Match[str]) -> bytes:
        byte, code, letter, plain = match.groups()
        if byte:
            return bytes([int(byte, 16)])
        return (chr(int(code[1:], 16)) if code else letters[letter] if letter else plain.replace("␣", " ")).encode()

    pattern = r"\\x(..)|\\(u.{4}|U.{8})|\\(.)|(.)"
    return b"".join(one(match) for match in re.finditer(pattern, shown))


def test_the_report_survives_tokens_that_mean_something_to_markdown(tmp_path: Path) -> None:
    nasty = "|| ``` \\| |---| \n\n| a | \x00\x01 \u202e\u2028 é\ufeff <b> # * _x_ " * 40
    out = trained(tmp_path, [nasty, *HARD_TEXTS], vocab_size=400, min_frequency=1)
    report = (out.path / "report.md").read_text()
    assert report.replace("\n", "").isprintable()
    tables = [part.splitlines() for part in report.split("\n\n") if part.startswith("|")]
    assert len(tables) == len(out.counts["tables"])
    for head, _, *rows in tables:
        assert rows
        assert {row.count("|") for row in rows} == {head.count("|")}
        assert all(row.count("`") % 2 == 0 for row in rows)
    assert r"`\x7c`" in report
    assert r"\x60" in report


def test_the_report_measures_what_the_texts_say(folder: Path, tmp_path: Path) -> None:
    given = [*texts(), "of another source"]
    out = trained(tmp_path, given, vocab_size=600)
    encoder = KernelEncoder(make_tables(read_settings(out.path)))
    encoded = encoder.encode(pa.array(given, pa.string()))
    ids = encoded.ids[encoded.ids != encoder.eos_id]
    size = sum(len(text.encode()) for text in given)
    tables = out.counts["tables"]
    assert tables["Bytes per token"][-1] == {
        "source": "all",
        "training bytes": size,
        "measured bytes": size,
        "of these, in training": size,
        "bytes per token": round(size / len(ids), 3),
    }
    assert out.counts["vocabulary_used"] == len(set(ids.tolist()))
    first = tables["Most frequent tokens in the measured text"][0]
    assert first["count"] == np.bincount(ids).max() == np.count_nonzero(ids == first["id"])
    settings = read_settings(out.path)
    assert sum(row["tokens"] for row in tables["Tokens by length"]) == len(settings["model"]["vocab"]) - len(
        SPECIAL_TOKENS
    )
    longest = max(settings["model"]["vocab"].keys() - set(SPECIAL_TOKENS), key=len)
    assert tables["Longest tokens"][0]["bytes"] == len(longest)
    merges = tables["Merges"]
    assert [row["merge"] for row in merges[:30]] == list(range(1, 31))
    assert merges[-1]["merge"] == len(settings["model"]["merges"])
    assert len(merges) == 70
    assert merges[0]["count"] == sum(text.count(merges[0]["left"][1:-1] + merges[0]["right"][1:-1]) for text in given)


@needs_sentencepiece
def test_other_vocabularies_are_measured_on_the_same_text(shared_data: Callable[[str], Path], tmp_path: Path) -> None:
    data = shared_data("models/tokenizers")
    compare = {
        "GPT-2": str(data / "gpt2"),
        "Llama 2": str(data / "llama2"),
        "NeoX": str(data / "gpt_neox_olmo_dolma_v1_5"),
    }
    known = {"GPT-2": [15496, 11, 616, 3290], "Llama 2": [15043, 29892, 590, 11203], "NeoX": [12092, 13, 619, 4370]}
    for name, ids in known.items():
        assert load_reference(name, compare[name]).encode("Hello, my dog") == ids
    out = trained(tmp_path / "with", list(texts()), compare=compare)
    plain = trained(tmp_path / "without", list(texts()))
    assert tree_digest(list_files(out.path)) == tree_digest(list_files(plain.path)), "nothing after it is made anew"
    (row,) = out.counts["tables"]["Bytes per token beside other vocabularies"]
    assert row["this vocabulary"] == out.counts["tables"]["Bytes per token"][0]["bytes per token"]
    assert 3 < row["Llama 2 (32,000 ids)"] < row["GPT-2 (50,257 ids)"] < 5
    assert {*out.counts["tables"]} - {*plain.counts["tables"]} == {"Bytes per token beside other vocabularies"}


def test_a_vocabulary_to_compare_with_enters_the_key_by_its_content(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "other")
    config = TokenizerConfig(compare={"other": str(tmp_path / "other")})
    before = fingerprints(config)
    assert load_reference("other", config.compare["other"]).size == read_size(folder)
    (tmp_path / "other" / "tokenizer.json").write_text("{}")
    assert fingerprints(config) != before
    (tmp_path / "other" / "tokenizer.json").unlink()
    with pytest.raises(SourceError, match=r"names other, but .* has no vocabulary"):
        fingerprints(config)


@needs_sentencepiece
@pytest.mark.parametrize("data", [b"", b"\x0a\xff\xff", b"\x0a\x05\x0a\x03abc", b"<html>"])
def test_a_file_that_is_no_sentencepiece_model_is_refused_by_name(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "tokenizer.model").write_bytes(data)
    with pytest.raises(SourceError, match=r"tokenizer\.model is not a SentencePiece model"):
        load_reference("other", str(tmp_path))


@needs_sentencepiece
@pytest.mark.parametrize("kind", ["bpe", "unigram"])
def test_a_sentencepiece_model_of_either_kind_is_measured(tmp_path: Path, kind: str) -> None:
    from sentencepiece import SentencePieceTrainer

    (tmp_path / "other").mkdir()
    with (tmp_path / "other" / "tokenizer.model").open("wb") as file:
        SentencePieceTrainer.train(
            sentence_iterator=iter([*texts()] * 20),
            model_writer=file,
            model_type=kind,
            vocab_size=400,
            byte_fallback=True,
            hard_vocab_limit=False,
            minloglevel=2,
        )
    out = trained(tmp_path / "out", list(texts()), vocab_size=400, compare={"other": str(tmp_path / "other")})
    (row,) = out.counts["tables"]["Bytes per token beside other vocabularies"]
    (measured,) = [value for name, value in row.items() if name.startswith("other")]
    assert 1 < measured < 8


def test_without_the_library_a_sentencepiece_model_ends_the_run_before_anything_is_trained(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sentencepiece", None)  # as if it were not installed
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "tokenizer.model").write_bytes(b"")
    with pytest.raises(ConfigError, match=r"pip install 'gristmill\[sentencepiece\]'"):
        trained(tmp_path / "out", ["text"], compare={"other": str(tmp_path / "other")})
    assert not list((tmp_path / "out").glob("*.json"))


def read_size(folder: Path) -> int:
    return int(load_for_documents(folder).get_vocab_size())
