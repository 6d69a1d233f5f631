"""Further tokens for the tokenizers that models have: the old ids but for the new tokens, whatever cuts the text, and
the merges that learning all of them at once would give."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

from models.tokenizer import new_tokens
from storage.artifact import Artifact
from storage.errors import DamagedArtifact, SourceError
from storage.shards.documents import Document, write_documents
from tasks.stage.output import Output
from tasks.tokenizer import TokenizerConfig, load_for_documents, train_tokenizer
from tasks.tokenizer.bpe.alphabet import BYTE_SYMBOLS, spell
from tasks.tokenizer.bpe.extend import learn_further
from tasks.tokenizer.bpe.pretokens import Pretokens, merge_pretokens
from tasks.tokenizer.bpe.train import Learnt, to_tokenizer, train
from tasks.tokenizer.extension import check_extendable, prove_extension
from tasks.tokenizer.patterns import OTHERS, gguf_pre_tokenizer, pre_tokenizer
from tests.runtimes import runtime_of
from tests.tasks.tiny_model import RUNTIME, make_tokenizer, texts

GENERAL = list(texts())[:60]
DOMAIN = [
    f"The myocardium's {n % 7} infarctions at {n}: <tool_call>Übergröße</tool_call>\n\tmyocarditis" for n in range(80)
]
NEW = 25


def counted(given: list[str], cut: pre_tokenizers.PreTokenizer) -> Pretokens:
    """Pre-tokens of texts with their counts."""
    words = Counter(word for text in given for word, _ in cut.pre_tokenize_str(text))
    symbols = {symbol: byte for byte, symbol in enumerate(BYTE_SYMBOLS)}
    spelled = [bytes(symbols[each] for each in word) for word in words]
    ends = np.cumsum([len(word) for word in spelled])
    return merge_pretokens([Pretokens(np.frombuffer(b"".join(spelled), np.uint8), ends, np.array([*words.values()]))])


def learned(cut: pre_tokenizers.PreTokenizer, size: int, special: tuple[str, ...] = ()) -> tuple[Learnt, Tokenizer]:
    learnt = train(*counted(GENERAL, cut), vocab_size=size, min_frequency=1, special_tokens=special)
    return learnt, to_tokenizer(learnt.merges, learnt.vocabulary, special, cut)


def named(gguf: str) -> pre_tokenizers.PreTokenizer:
    found = gguf_pre_tokenizer(gguf)
    assert found is not None
    return found


def ours() -> Tokenizer:
    return learned(pre_tokenizer("gpt2"), 400, ("<|endoftext|>", "<|pad|>"))[1]


def gpt2() -> Tokenizer:
    tokenizer = learned(pre_tokenizer("gpt2"), 380)[1]
    tokenizer.add_special_tokens(["<|endoftext|>"])
    return tokenizer


def llama3() -> Tokenizer:
    tokenizer = learned(named("llama-bpe"), 400)[1]
    settings = json.loads(tokenizer.to_str())
    settings["model"]["ignore_merges"] = True
    settings["model"]["vocab"]["myocard"] = len(settings["model"]["vocab"])  # which no merge reaches
    split = [
        pre_tokenizers.Split(Regex(OTHERS["llama-bpe"]), "isolated"),
        pre_tokenizers.ByteLevel(False, use_regex=False),
    ]
    tokenizer = Tokenizer.from_str(json.dumps(settings))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(split)
    tokenizer.add_special_tokens(["<|begin_of_text|>", "<|eot_id|>"])
    first = tokenizer.token_to_id("<|begin_of_text|>")
    tokenizer.post_processor = processors.TemplateProcessing(
        "<|begin_of_text|> $A", special_tokens=[("<|begin_of_text|>", first)]
    )
    return tokenizer


def qwen() -> Tokenizer:
    tokenizer = learned(named("qwen2"), 390)[1]
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.add_special_tokens(["<|endoftext|>", "<|im_end|>"])
    tokenizer.add_tokens([AddedToken("<tool_call>", normalized=False), AddedToken("</tool_call>", normalized=False)])
    return tokenizer


def smollm() -> Tokenizer:
    return learned(named("smollm"), 380, ("<|endoftext|>",))[1]


def sentencepiece() -> Tokenizer:
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "▁", "a"]
    tokenizer = Tokenizer(
        models.BPE({piece: n for n, piece in enumerate(pieces)}, [], unk_token="<unk>", byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.decoder = decoders.ByteFallback()
    return tokenizer


def unigram() -> Tokenizer:
    return Tokenizer(models.Unigram([("<unk>", 0.0), ("a", -1.0)], 0, False))


FORMS: dict[str, Callable[[], Tokenizer]] = {
    "ours": ours,
    "gpt2": gpt2,
    "llama3": llama3,
    "qwen": qwen,
    "smollm": smollm,
}


def saved(tokenizer: Tokenizer, folder: Path) -> Path:
    """A base's folder, as later stages read its tokenizer."""
    folder.mkdir(parents=True)
    eos = next((token.content for token in tokenizer.get_added_tokens_decoder().values()), "a")
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": eos})
    )
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    return folder


def documents(folder: Path, given: list[str] = DOMAIN, shards: int = 1) -> Artifact:
    for number in range(shards):
        write_documents(
            folder / f"{number:05d}.parquet", (Document.new(text, "domain") for text in given[number::shards])
        )
    return Artifact.at(folder)


def extended(base: Path, given: Artifact, folder: Path, *, workers: int = 1, **config: Any) -> Output:
    out = Output.at(folder, runtime=runtime_of(RUNTIME, workers=workers))
    train_tokenizer.function(TokenizerConfig(**{"extend": NEW, **config}), given, Artifact.at(base), out)
    return out


@pytest.mark.parametrize("name", FORMS)
def test_a_text_keeps_its_ids_but_for_the_new_tokens(name: str, tmp_path: Path) -> None:
    base = saved(FORMS[name](), tmp_path / "base")
    out = extended(base, documents(tmp_path / "in"), tmp_path / "made")
    old, new = Tokenizer.from_file(str(base / "tokenizer.json")), Tokenizer.from_file(str(out.path / "tokenizer.json"))
    pieces = new_tokens(base, out.path)
    first = max(old.get_vocab().values()) + 1
    assert sorted(pieces) == [*range(first, first + NEW)]
    assert new.get_added_tokens_decoder().keys() == old.get_added_tokens_decoder().keys()
    for token, id in old.get_vocab().items():
        assert new.token_to_id(token) == id
    for text in (*DOMAIN, *GENERAL, "<tool_call> <|eot_id|><|endoftext|>"):
        ids = new.encode(text).ids
        assert [part for id in ids for part in pieces.get(id, [id])] == old.encode(text).ids
    shorter = [len(new.encode(text).ids) / len(old.encode(text).ids) for text in DOMAIN]
    assert max(shorter) < 0.7
    for file in ("tokenizer_config.json", "chat_template.jinja"):
        assert (out.path / file).read_bytes() == (base / file).read_bytes()
    spelled = [new.id_to_token(id) or "" for id in pieces]
    assert not any(token.content in one for token in old.get_added_tokens_decoder().values() for one in spelled)
    cut = (old.pre_tokenizer, old.normalizer or normalizers.Sequence([]))
    words = {word for text in DOMAIN for word, _ in cut[0].pre_tokenize_str(cut[1].normalize_str(text))}
    assert all(any(one in word for word in words) for one in spelled)  # none crosses what the pre-tokenizer cuts
    counts = out.counts
    assert counts["new_tokens"] == NEW
    assert counts["bytes_per_token"] > 1.3 * counts["bytes_per_token_before"]


def test_merges_are_those_of_learning_all_at_once() -> None:
    cut = pre_tokenizer("gpt2")
    whole, _ = learned(cut, 520, ("<|endoftext|>",))
    part, base = learned(cut, 400, ("<|endoftext|>",))
    further = learn_further(base, counted(GENERAL, cut), number=120, min_frequency=1)
    rest = whole.merges[len(part.merges) :].tolist()
    assert [(one.left, one.right) for one in further] == [
        (spell(whole.vocabulary[left]), spell(whole.vocabulary[right])) for left, right in rest
    ]
    assert [one.times for one in further] == whole.counts[len(part.merges) :].tolist()


@pytest.mark.shadow(
    "tasks.tokenizer.bpe.kernels.begin",
    "tasks.tokenizer.bpe.kernels.take_first",
    "tasks.tokenizer.bpe.kernels.join",
    "tasks.tokenizer.bpe.kernels.apply",
    "tasks.tokenizer.bpe.kernels.room_for_changes",
)
def test_merges_over_tokens_are_those_of_counting_anew_each_time() -> None:
    tokenizer = qwen()
    words = counted(DOMAIN, tokenizer.pre_tokenizer)
    found = learn_further(tokenizer, words, number=NEW, min_frequency=2)
    vocabulary = tokenizer.get_vocab()
    cuts = {}
    for number, end in enumerate(words.ends.tolist()):
        word = words.words[words.ends[number - 1] if number else 0 : end].tobytes()
        cuts[number] = [token.value for token in tokenizer.model.tokenize(spell(word))]
    for merge in found:
        pairs: Counter[tuple[str, str]] = Counter()
        for number, cut in cuts.items():
            for pair in itertools.pairwise(cut):
                pairs[pair] += int(words.counts[number])
        most = min((-times, vocabulary[left], vocabulary[right]) for (left, right), times in pairs.items())
        assert (-merge.times, vocabulary[merge.left], vocabulary[merge.right]) == most
        vocabulary[merge.token] = max(vocabulary.values()) + 1
        for cut in cuts.values():
            at = 0
            while at < len(cut) - 1:
                if (cut[at], cut[at + 1]) == (merge.left, merge.right):
                    cut[at : at + 2] = [merge.token]
                at += 1


def test_shards_and_workers_change_no_byte(tmp_path: Path) -> None:
    base = saved(qwen(), tmp_path / "base")
    one = extended(base, documents(tmp_path / "one"), tmp_path / "by-one")
    three = extended(base, documents(tmp_path / "three", shards=3), tmp_path / "by-two", workers=2)
    for name in ("tokenizer.json", "report.md"):
        assert (one.path / name).read_bytes() == (three.path / name).read_bytes()


def test_too_little_text_gives_fewer_tokens_and_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    warned: list[str] = []
    monkeypatch.setattr(Output, "warn", lambda self, message: warned.append(message))
    base = saved(gpt2(), tmp_path / "base")
    out = extended(base, documents(tmp_path / "in", ["Übergröße Übergröße"]), tmp_path / "made", extend=1000)
    assert 0 < out.counts["new_tokens"] < 20
    assert any("of 1,000 new tokens" in warning for warning in warned)
    with pytest.raises(SourceError, match="No new token can be learned"):
        extended(base, documents(tmp_path / "none", ["a b c"]), tmp_path / "nothing")


@pytest.mark.parametrize(
    ("form", "said"), [(sentencepiece, r"byte_fallback of SentencePiece's form"), (unigram, "is a Unigram")]
)
def test_another_kind_of_tokenizer_is_refused(form: Callable[[], Tokenizer], said: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=said):
        check_extendable(saved(form(), tmp_path / "base"))


def test_a_tokenizer_that_does_not_extend_the_base_is_refused(tmp_path: Path) -> None:
    base = saved(gpt2(), tmp_path / "base")
    out = extended(base, documents(tmp_path / "in"), tmp_path / "made")
    prove_extension(base, out.path)
    with pytest.raises(DamagedArtifact, match="doesn't extend"):
        prove_extension(out.path, base)
    path = out.path / "tokenizer.json"
    settings = json.loads(path.read_text())
    merges = settings["model"]["merges"]
    settings["model"]["merges"] = [merges[-1], *merges[:-1]]
    path.write_text(json.dumps(settings))
    with pytest.raises(DamagedArtifact, match="doesn't extend"):
        prove_extension(base, out.path)


def test_settings_of_a_new_vocabulary_are_refused_by_name() -> None:
    for name, value in (("vocab_size", 4096), ("pattern", "gpt2"), ("reserved_tokens", 0), ("keep", "a/tokenizer@1")):
        with pytest.raises(ValueError, match=f"but {name} is of a new vocabulary"):
            TokenizerConfig(**{"extend": 5, name: value})
    dumped = TokenizerConfig(extend=5, min_frequency=3).model_dump()
    assert dumped.keys() == {"extend", "sample_bytes_per_source", "min_frequency", "compare"}
    assert TokenizerConfig(**dumped) == TokenizerConfig(extend=5, min_frequency=3)
    assert "extend" not in TokenizerConfig().model_dump()


def test_our_own_stage_refuses_nothing_that_it_learned(tmp_path: Path) -> None:
    base = make_tokenizer(tmp_path / "tokenizer")
    out = extended(base, documents(tmp_path / "in"), tmp_path / "made")
    train_tokenizer.check_adopted(
        TokenizerConfig(extend=NEW), Artifact.at(out.path), (Artifact.at(tmp_path), Artifact.at(base))
    )
    assert (
        len(new_tokens(base, out.path)) == NEW == out.counts["vocab_size"] - load_for_documents(base).get_vocab_size()
    )
