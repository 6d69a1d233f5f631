"""A tokenizer from Python: trained, saved, loaded, and what it encodes decodes to the same text."""

from __future__ import annotations

from pathlib import Path

import pytest

import gristmill as gm

TEXTS = [f"The mill number {number} grinds wheat and rye for the valley, grain by grain." for number in range(300)]


@pytest.fixture(scope="module")
def tokenizer() -> gm.Tokenizer:
    return gm.train_tokenizer(TEXTS, vocab_size=400, progress=False)


def test_a_vocabulary_is_learned_saved_and_loaded(tokenizer: gm.Tokenizer, tmp_path: Path) -> None:
    assert tokenizer.vocab_size == len(tokenizer) <= 400
    assert len(tokenizer.encode("The mill grinds")) < len("The mill grinds") / 2
    folder = tokenizer.save(tmp_path / "saved")
    for path in (folder, str(folder), folder / "tokenizer.json"):
        assert gm.load_tokenizer(path).encode(TEXTS[:3]) == tokenizer.encode(TEXTS[:3])
    with pytest.raises(gm.GristmillError, match="is not an empty folder"):
        tokenizer.save(folder)


@pytest.mark.parametrize("text", ["", "Ελληνικά 水車 👩‍👩‍👧", "<|endoftext|> is text", "\x00\r\n"])
def test_what_is_encoded_decodes_to_the_same_text(tokenizer: gm.Tokenizer, text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.eos_id not in tokenizer.encode(text)
    assert tokenizer.decode(tokenizer.encode([text, text])) == [text, text]


def test_what_filter_wrote_is_read_and_its_files_outlast_the_object_that_saved_them(tmp_path: Path) -> None:
    gm.filter(TEXTS, tmp_path / "clean", config={"preset": "clean", "language": None}, progress=False)
    made = gm.train_tokenizer(tmp_path / "clean", config={"vocab_size": 300}, progress=False)
    where = made.path
    made.save(tmp_path / "saved")
    assert where.is_dir()
    del made
    assert not where.exists()
    assert gm.load_tokenizer(tmp_path / "saved").vocab_size == 300
