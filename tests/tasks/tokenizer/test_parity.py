"""Ids agree everywhere: what `tokenize` writes is what transformers and llama.cpp make of the same document.

1,000 real documents of many languages and kinds, three pre-tokenizers, id for id. llama.cpp tokenizes the GGUF that
`export` writes, by its own regular expressions and its own tables of Unicode; a last test looks for the characters
whose class is another there.
"""

from __future__ import annotations

import gzip
import json
import unicodedata
import zipfile
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, get_args

import pytest

from models.runtimes.llama_cpp import LlamaCppRuntime
from models.tokenizer import SPECIAL_TOKENS, load_tokenizer
from storage.artifact import Artifact
from storage.shards.documents import Document, shard_name, write_documents
from storage.shards.tokens import open_tokens
from tasks.download.config import EmbeddedSource
from tasks.download.sources.embedded import documents as embedded_documents
from tasks.export.formats.gguf.file import write_gguf
from tasks.stage.output import Output
from tasks.tokenize.split import in_validation
from tasks.tokenize.stage import SPLITS, TokenizeConfig, tokenize
from tasks.tokenizer import TokenizerConfig, load_for_documents, train_tokenizer
from tasks.tokenizer.bpe.alphabet import BYTE_SYMBOLS
from tasks.tokenizer.patterns import PatternName
from tasks.tokenizer.proof import HARD_TEXTS
from tests.tasks.tiny_model import RUNTIME, make_model
from tests.tasks.tokenizer.encoder.test_encoder import ODD

PATTERNS: tuple[PatternName, ...] = get_args(PatternName)
DOCUMENTS, VOCAB, LONGEST = 1000, 1000, 4000  # the last in characters
SHARE = 0.1  # of the documents, to validation: both splits are read back
NEWER = 4382  # letters and numbers of Unicode 16, which `tokenizers` knows and llama.cpp doesn't
CLASSIFIED = range(0x80, 0x33480)  # beyond them lie tags and private use
PACK = 4096


def some_of_each(sets: list[Iterator[str]]) -> list[Document]:
    """DOCUMENTS different texts, from the sets in turn, and the deliberately difficult texts."""
    found = dict.fromkeys((*HARD_TEXTS, ODD, " ".join(ODD), ODD[::-1]))
    while sets and len(found) < DOCUMENTS:
        for texts in list(sets):
            text = next(texts, None)
            if text is None:
                sets.remove(texts)
            elif text.strip():
                found[text[:LONGEST]] = None
    assert len(found) >= DOCUMENTS, "the sets hold too few documents"
    return [Document.new(text, "real") for text in islice(found, DOCUMENTS)]


def rows(path: Path, step: int = 1) -> Iterator[str]:
    """Every `step`-th text of a file of JSON lines."""
    with gzip.open(path, "rt", encoding="utf-8") as file:
        for line in islice(file, 0, None, step):
            yield json.loads(line)["text"]


def declarations(path: Path) -> Iterator[str]:
    """The Declaration of Human Rights, in one language after another."""
    with zipfile.ZipFile(path) as archive:
        for name in sorted(archive.namelist()):
            if name.endswith(".txt"):
                yield archive.read(name).decode("utf-8-sig")


def pages(folder: Path) -> Iterator[str]:
    """Web pages with their markup and scripts."""
    for path in sorted(folder.glob("*.html.gz")):
        yield gzip.decompress(path.read_bytes()).decode(errors="replace")


def given_sets(shared_data: Callable[[str], Path]) -> list[Iterator[str]]:
    """Prose, verse, code, mail, web pages and tables; single sentences of 75 languages, whole texts of 380."""
    return [
        declarations(shared_data("filters/langid_udhr/udhr2.zip")),
        rows(shared_data("filters/langid_lingua/docs.jsonl.gz"), step=311),
        rows(shared_data("filters/wiki_vital_fr/docs.jsonl.gz")),
        rows(shared_data("filters/spam_assassin/docs.jsonl.gz"), step=30),
        pages(shared_data("filters/html_article_bench/html")),
        rows(shared_data("pretrain/peps/docs.jsonl.gz")),
        rows(shared_data("pretrain/factbook/docs.jsonl.gz")),
        rows(shared_data("pretrain/c4_demo/docs.jsonl.gz")),
    ]


def embedded_sets() -> list[Iterator[str]]:
    """Text that every machine has: speeches, encyclopedia leads in three languages, READMEs and licences, code."""
    corpora = (EmbeddedSource(corpora=(name,)) for name in ("speeches", "encyclopedia", "packages"))
    own = (path.read_text(encoding="utf-8") for path in sorted(Path(__file__).parents[3].rglob("tasks/**/*.py")))
    return [*((document.text for document in embedded_documents(source)) for source in corpora), own]


@pytest.fixture(scope="module", params=["embedded corpus", pytest.param("given sets", marks=pytest.mark.soak)])
def documents(request: pytest.FixtureRequest, shared_data: Callable[[str], Path]) -> list[Document]:
    return some_of_each(embedded_sets() if request.param == "embedded corpus" else given_sets(shared_data))


def tokenizer_of(documents: list[Document], pattern: PatternName, folder: Path, vocab_size: int) -> Path:
    """A tokenizer trained on documents, in the folder in which `make_model` looks for it."""
    write_documents(folder / "documents" / shard_name(0), documents)
    out = Output.at(folder / "tokenizer", runtime=RUNTIME)
    config = TokenizerConfig(vocab_size=vocab_size, pattern=pattern)
    train_tokenizer.function(config, Artifact.at(folder / "documents"), out)
    return out.path


def gguf_of(folder: Path, vocab_size: int) -> LlamaCppRuntime:
    """A random model with the tokenizer in `folder`, exported and opened in llama.cpp."""
    model = make_model(folder / "model", vocab_size=vocab_size)
    write_gguf(model, folder / "model.gguf", "f16")
    return LlamaCppRuntime(folder / "model.gguf")


def by_the_stage(documents: list[Document], tokenizer: Path, folder: Path) -> list[list[int]]:
    """The ids of each document from the token shards that `tokenize` wrote, without EOS."""
    out = Output.at(folder / "tokens", stage="tokenize", runtime=RUNTIME)
    inputs = (Artifact.at(folder / "documents"), Artifact.at(tokenizer))
    tokenize.function(TokenizeConfig(validation_share=SHARE), *inputs, out)
    assert out.counts["encoder"]["by"] == "gristmill"
    found: dict[str, Iterator[list[int]]] = {}
    for split in SPLITS:
        (path,) = (out.path / split).glob("*.tokens")
        found[split] = iter(cut_at(0, open_tokens(path).ids.tolist()))
    ids = [next(found["validation" if in_validation(document.id, SHARE) else "train"]) for document in documents]
    assert [next(left, None) for left in found.values()] == [None, None]
    return ids


def cut_at(last: int, ids: list[int]) -> list[list[int]]:
    """Runs of ids that end with this one, without it."""
    found: list[list[int]] = [[]]
    for id in ids:
        if id == last:
            found.append([])
        else:
            found[-1].append(id)
    assert found.pop() == []
    return found


@pytest.mark.soak_but("embedded corpus-llama3")
@pytest.mark.parametrize("pattern", PATTERNS)
def test_ids_of_a_thousand_documents_agree_everywhere(
    pattern: PatternName, documents: list[Document], tmp_path: Path
) -> None:
    tokenizer = tokenizer_of(documents, pattern, tmp_path, VOCAB)
    ours = by_the_stage(documents, tokenizer, tmp_path)
    texts = [document.text for document in documents]
    assert len(ours) == DOCUMENTS
    transformers = load_tokenizer(tokenizer)
    theirs = transformers(texts, split_special_tokens=True, add_special_tokens=False)["input_ids"]
    with gguf_of(tmp_path, VOCAB) as runtime:
        for text, found, in_transformers in zip(texts, ours, theirs, strict=True):
            assert found == in_transformers, f"transformers, of {text[:60]!r}"
            assert found == runtime.tokenize(text), f"llama.cpp, of {text[:60]!r}"


def telling_merges(folder: Path) -> int:
    """Write a tokenizer.json whose merges join the last byte of any character to what follows, and the first byte to
    what precedes it, so that ids show whether there is a boundary. Returns the number of ids."""
    path = folder / "tokenizer.json"
    settings: dict[str, Any] = json.loads(path.read_text())
    symbols = BYTE_SYMBOLS
    merges = [[symbols[byte], symbol] for symbol in "a1!" for byte in range(0x80, 0xC0)]
    merges += [[symbol, symbols[byte]] for symbol in "a1!" for byte in range(0xC2, 0xF5)]
    tokens = [*SPECIAL_TOKENS, *symbols, *map("".join, merges)]
    settings["model"] |= {"vocab": {token: id for id, token in enumerate(tokens)}, "merges": merges}
    path.write_text(json.dumps(settings))
    return len(tokens)


@pytest.mark.soak
def test_characters_have_the_same_class_in_llama_cpp_but_for_those_of_unicode_16(tmp_path: Path) -> None:
    """A class is letter, number, white space or other; each character is put between characters of three classes.

    Those that differ are of the class other in llama.cpp. No document above contains one.
    """
    tokenizer = tokenizer_of([Document.new("a b a b", "test")], "llama3", tmp_path, 300)
    vocab_size = telling_merges(tokenizer)
    library = load_for_documents(tokenizer)
    last = BYTE_SYMBOLS[0]  # U+0000 is merged with nothing
    (end,) = library.encode("\0").ids
    assert library.id_to_token(end) == last
    different: list[str] = []
    characters = [chr(code) for code in CLASSIFIED if not 0xD800 <= code < 0xE000]
    with gguf_of(tmp_path, vocab_size) as runtime:
        for first in range(0, len(characters), PACK):
            some = characters[first : first + PACK]
            text = "".join(f"a{character}a1{character}1!{character}!\0" for character in some)
            found = zip(some, cut_at(end, library.encode(text).ids), cut_at(end, runtime.tokenize(text)), strict=True)
            different += [character for character, here, there in found if here != there]
    assert len(different) == NEWER, "tokenizers or llama.cpp has another edition of Unicode now"
    if unicodedata.unidata_version < "16":
        assert {unicodedata.category(character) for character in different} == {"Cn"}
