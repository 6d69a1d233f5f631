"""A stage checks files made elsewhere that are to be its artifact, and refuses them in two sentences."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from storage.artifact import Artifact
from storage.errors import ConfigError, GristmillError
from storage.shards.documents import Document, write_documents
from storage.shards.lines import write_json_lines
from storage.shards.token_sources import write_sources
from tasks.dedup import DedupConfig, dedup
from tasks.download import DownloadConfig, download
from tasks.export import ExportConfig, export
from tasks.filter import FilterConfig, filter_documents
from tasks.posttrain.methods.sft import SftConfig, sft
from tasks.pretrain import pretrain
from tasks.stage.decorator import Stage
from tasks.tokenize.stage import TokenizeConfig, tokenize
from tasks.tokenizer import TokenizerConfig, load_for_documents, train_tokenizer
from tests.tasks.pretrain.tiny_training import CONFIG
from tests.tasks.tiny_model import make_model

ROWS: dict[str, dict[str, Any]] = {
    "instructions": {"messages": []},
    "preferences": {"prompt": [], "chosen": [], "rejected": []},
    "benchmarks": {"id": "1", "query": "?", "choices": ["a"], "gold": 0},
    "contamination": {"benchmark": "b", "id": "1", "ngrams": 1, "found": 0},
}


def given(folder: Path) -> Artifact:
    return Artifact(folder=folder, digest="")


def copied(folder: Path, to: Path) -> Path:
    shutil.copytree(folder, to)
    return to


def refused(stage: Stage, config: Any, folder: Path, *inputs: Any) -> str:
    with pytest.raises(GristmillError) as caught:
        stage.check_adopted(config, given(folder), inputs)
    assert caught.value.message.endswith(".")
    assert caught.value.remedy.endswith(".")
    return caught.value.message


def test_a_tokenizer_must_load_and_be_that_of_the_config(data: tuple[Artifact, Artifact], tmp_path: Path) -> None:
    documents, folder = Artifact(folder=tmp_path, digest=""), data[1].path
    size = load_for_documents(folder).get_vocab_size()
    train_tokenizer.check_adopted(TokenizerConfig(vocab_size=size), given(folder), (documents,))
    for change, named in (
        ({"vocab_size": 1024}, f"has vocab_size {size}, but tokenizer.vocab_size is 1024"),
        ({"vocab_size": size - 1}, f"has vocab_size {size}"),
        ({"pattern": "gpt4"}, "has pattern gpt2"),
        ({"reserved_tokens": 2}, "special tokens"),
    ):
        config = TokenizerConfig.model_validate({"vocab_size": size, **change})
        assert named in refused(train_tokenizer, config, folder, documents)
    (tmp_path / "plain").mkdir()
    (tmp_path / "plain" / "data.jsonl").write_text("{}\n")
    assert "tokenizer.json is missing" in refused(train_tokenizer, TokenizerConfig(), tmp_path / "plain", documents)
    broken = copied(folder, tmp_path / "broken")
    for text in ("[]", "{", '{"model": {"type": "BPE", "vocab": [], "merges": []}}'):
        (broken / "tokenizer.json").write_text(text)
        assert "tokenizer" in refused(train_tokenizer, TokenizerConfig(vocab_size=size), broken, documents)


def test_token_shards_must_be_whole_and_of_the_tokenizer(data: tuple[Artifact, Artifact], tmp_path: Path) -> None:
    tokens = copied(data[0].path, tmp_path / "tokens")
    asked = TokenizeConfig(), tokens, data[1], data[1]
    assert ".sources" in refused(tokenize, *asked)
    for path in tokens.glob("validation/*.tokens"):
        write_sources(path.with_suffix(".sources"), ["even"] * 6)
    tokenize.check_adopted(asked[0], given(tokens), asked[2:])
    other = copied(data[1].path, tmp_path / "other")
    (other / "chat_template.jinja").write_text("another")
    assert "was made with tokenizer" in refused(tokenize, *asked[:2], data[1], given(other))
    path = sorted(tokens.glob("train/*.tokens"))[0]
    path.write_bytes(path.read_bytes()[:-1])
    assert "bytes instead of" in refused(tokenize, *asked)
    shutil.rmtree(tokens / "train")
    assert "no file train/*.tokens" in refused(tokenize, *asked)


def test_documents_and_rows_must_be_in_our_layout(tmp_path: Path) -> None:
    folder, before = tmp_path / "mine", given(tmp_path)
    stages: list[tuple[Any, ...]] = [
        (download, DownloadConfig()),
        (dedup, DedupConfig(), before),
        (filter_documents, FilterConfig(), before, before),
    ]
    folder.mkdir()
    for stage, config, *inputs in stages:
        assert "no file documents/*.parquet" in refused(stage, config, folder, *inputs)
    write_documents(folder / "documents" / "00000.parquet", [Document.new("A text.", "mine")])
    for part, row in ROWS.items():
        write_json_lines(folder / part / "rows.jsonl", [row])
    for stage, config, *inputs in stages:
        stage.check_adopted(config, given(folder), inputs)
    (folder / "instructions" / "rows.jsonl").write_text('{"messages": []}\n{"text": "a"}\n')
    assert "line 2 has no messages" in refused(*stages[0][:2], folder)
    (folder / "documents" / "00000.parquet").write_bytes(b"PAR1")
    for stage, config, *inputs in stages:
        assert "can't be read as a Parquet shard" in refused(stage, config, folder, *inputs)


def test_a_model_must_have_weights_and_the_tokenizer_of_its_input(
    data: tuple[Artifact, Artifact], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied(data[1].path.parent, tmp_path / "tokenizer")
    folder = make_model(tmp_path / "model").parent
    pretrain.check_adopted(CONFIG, given(folder), data)
    sft.check_adopted(SftConfig(), given(folder), (given(folder / "model"), data[0]))
    other = copied(data[1].path, tmp_path / "other")
    (other / "chat_template.jinja").write_text("another")
    assert "not that of the data" in refused(pretrain, CONFIG, folder, data[0], given(other))
    config = json.loads((folder / "model" / "config.json").read_text())
    code = {"model_type": "other", "auto_map": {"AutoConfig": "code.Config"}}
    (folder / "model" / "config.json").write_text(json.dumps(config | code))
    (folder / "model" / "code.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')")
    monkeypatch.setattr("builtins.input", lambda *_: "y")  # nobody is even asked
    assert "config.json can't be loaded" in refused(pretrain, CONFIG, folder, *data)
    assert not (tmp_path / "ran").exists()
    (folder / "model" / "config.json").write_text(json.dumps(config | {"vocab_size": 300}))
    assert "has 300 ids, but the tokenizer has" in refused(pretrain, CONFIG, folder, *data)
    weights = folder / "model" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-4])
    assert "or a part of them" in refused(pretrain, CONFIG, folder, *data)
    weights.unlink()
    assert "no file model/*.safetensors" in refused(pretrain, CONFIG, folder, *data)
    assert "model/config.json is missing" in refused(pretrain, CONFIG, data[1].path, *data)


def test_a_stage_that_cant_check_takes_nothing(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="export can't check a folder") as caught:
        export.check_adopted(ExportConfig(), given(tmp_path), (given(tmp_path), None, given(tmp_path)))
    assert "sft, tokenize, tokenizer." in caught.value.remedy
