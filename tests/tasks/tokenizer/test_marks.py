"""How documents are marked for a pretraining in the ids of any tokenizer."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.processors import TemplateProcessing

from storage.errors import DamagedArtifact
from tasks.tokenizer.encoder.encode import LibraryEncoder
from tasks.tokenizer.encoder.tables import obstacle, read_settings
from tasks.tokenizer.load import Marks, load_for_documents, marks_of
from tests.tasks.tiny_model import make_tokenizer


def marks(folder: Path) -> Marks:
    return marks_of(folder, load_for_documents(folder))


def saved(folder: Path, special: list[str], eos: object, bos: str | None = None) -> Path:
    """A tokenizer of bytes with these special tokens. `bos` is put before every text."""
    alphabet = sorted(ByteLevel.alphabet())
    tokenizer = Tokenizer(BPE({symbol: id for id, symbol in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(special)
    if bos:
        places = [(bos, tokenizer.token_to_id(bos))]
        tokenizer.post_processor = TemplateProcessing(single=f"{bos} $A", special_tokens=places)
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps({"eos_token": eos}))
    return folder


@pytest.mark.parametrize(
    ("special", "eos", "bos", "beginning", "end"),
    [
        (["<s>", "</s>"], "</s>", "<s>", (256,), 257),
        (["<s>", "</s>"], {"content": "</s>", "lstrip": False}, None, (), 257),
        (["<|endoftext|>", "<|im_start|>", "<|im_end|>"], "<|im_end|>", None, (), 256),
        (["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>"], "<|eot_id|>", "<|begin_of_text|>", (256,), 257),
    ],
)
def test_a_document_begins_and_ends_as_its_model_has_learned(
    special: list[str], eos: object, bos: str | None, beginning: tuple[int, ...], end: int, tmp_path: Path
) -> None:
    folder = saved(tmp_path / "tokenizer", special, eos, bos)
    assert marks(folder) == (beginning, end)
    assert obstacle(read_settings(folder)), "the kernels know neither other ends nor beginnings"
    encoded = LibraryEncoder(folder).encode(pa.array(["ab", f"{special[0]}"]))
    assert encoded.document(0).tolist() == [
        *beginning,
        *Tokenizer.from_file(str(folder / "tokenizer.json")).encode("ab", add_special_tokens=False).ids,
        end,
    ]
    assert end not in encoded.document(1).tolist()[len(beginning) : -1], "a token that a text spells is text"
    assert 256 not in encoded.document(1).tolist()[len(beginning) : -1]


def test_ours_end_documents_and_begin_with_nothing(tmp_path: Path) -> None:
    assert marks(make_tokenizer(tmp_path)) == ((), 0)


def test_a_tokenizer_without_an_end_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DamagedArtifact, match="lacks an eos_token"):
        marks(saved(tmp_path / "tokenizer", ["<s>"], None))
