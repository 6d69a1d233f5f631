"""Third-party bases: each is taken as transformers loads it, or refused by name before anything is trained."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file, save_model
from tokenizers import AddedToken, Regex, Tokenizer, pre_tokenizers
from tokenizers.processors import TemplateProcessing

from models.pretrained import load_pretrained, stored_tensors
from models.tokenizer import HOSTILE, load_tokenizer
from storage.errors import GristmillError
from tasks.filter.classifier.source import load_tokenizer as of_classifier
from tests.tasks.base.test_base import take
from tests.tasks.foreign import CHATML, SPECIAL, make_foreign, make_foreign_tokenizer

MOE = {"num_local_experts": 4, "num_experts_per_tok": 2, "tie_word_embeddings": False, "sliding_window": None}
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
Change = Callable[[Path], Any]


def nothing(folder: Path) -> None:
    """The folder as it was saved."""


def in_json(name: str, **changes: Any) -> Change:
    def change(folder: Path) -> None:
        known = json.loads((folder / name).read_text()) if (folder / name).exists() else {}
        (folder / name).write_text(json.dumps({**known, **changes}))

    return change


def weights(change: Callable[[dict[str, torch.Tensor]], Any]) -> Change:
    def changed(folder: Path) -> None:
        state = load_file(folder / "model.safetensors")
        change(state)
        save_file(state, folder / "model.safetensors", {"format": "pt"})

    return changed


def head_alone(folder: Path) -> None:
    save_model(load_pretrained(folder), str(folder / "model.safetensors"), {"format": "pt"})
    assert HEAD in stored_tensors(folder)
    assert EMBEDDING not in stored_tensors(folder)


def twice(folder: Path) -> None:
    """Both names of a tied matrix, as in a pickle."""
    weights(lambda state: state.update({HEAD: state[EMBEDDING].clone()}))(folder)


def two_heads(folder: Path) -> None:
    weights(lambda state: state.update({HEAD: torch.randn_like(state[EMBEDDING])}))(folder)


def sharded(folder: Path) -> None:
    load_pretrained(folder).save_pretrained(folder, max_shard_size="60KB")
    (folder / "model.safetensors").unlink()
    assert len(list(folder.glob("model-*.safetensors"))) > 2


def with_index(folder: Path) -> None:
    whole = (folder / "model.safetensors").read_bytes()
    sharded(folder)
    (folder / "model.safetensors").write_bytes(whole)


def beside(*names: str) -> Change:
    """Files of other tools, which must not be read."""

    def change(folder: Path) -> None:
        for name in names:
            (folder / name).parent.mkdir(exist_ok=True)
            (folder / name).write_bytes(b"no weights of ours")

    return change


def bfloat16(folder: Path) -> None:
    load_pretrained(folder, dtype=torch.bfloat16).save_pretrained(folder)


def half_bfloat16(folder: Path) -> None:
    weights(lambda state: state.update({name: state[name].bfloat16() for name in list(state)[::2]}))(folder)


def bare_names(folder: Path) -> None:
    """GPT-2's own names, without the prefix of transformers' model with a head."""
    state = load_file(folder / "model.safetensors")
    bare = {name.removeprefix("transformer."): value for name, value in state.items()}
    save_file(bare, folder / "model.safetensors", {"format": "pt"})


def old_words(folder: Path) -> None:
    """A config of transformers 4 with generation settings that keep it from being saved."""
    in_json("config.json", rope_theta=500.0, temperature=0.7, do_sample=False, return_dict=False, torchscript=True)(
        folder
    )
    config = json.loads((folder / "config.json").read_text())
    del config["rope_parameters"]
    (folder / "config.json").write_text(json.dumps({**config, "use_cache": False, "output_attentions": True}))
    (folder / "generation_config.json").unlink()


def backwards(folder: Path) -> None:
    """A model with bidirectional attention."""
    shutil.rmtree(folder)
    make_foreign(folder, "bert", num_key_value_heads=None, is_decoder=False)


QWEN_MOE = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}


@pytest.mark.parametrize(
    ("architecture", "settings", "change", "refused"),
    [
        ("llama", {}, nothing, None),
        ("llama", {"tie_word_embeddings": False}, nothing, None),
        ("llama", {}, head_alone, None),
        ("llama", {}, twice, None),
        ("llama", {}, two_heads, "ties lm_head.weight to model.embed_tokens.weight, but the two differ"),
        ("llama", {"tie_word_embeddings": False}, weights(lambda state: state.pop(HEAD)), f"missing are {HEAD}"),
        ("llama", {"attention_dropout": 0.1}, nothing, None),
        ("gpt2", {}, nothing, None),  # its dropout is 0.1 by default
        ("gpt2", {}, bare_names, None),
        ("mixtral", {**MOE, "router_jitter_noise": 0.1, "output_router_logits": True}, nothing, None),
        ("qwen2", {}, nothing, None),
        pytest.param("qwen2_moe", QWEN_MOE, nothing, None, marks=pytest.mark.soak),
        pytest.param("gemma", {}, nothing, None, marks=pytest.mark.soak),
        ("gemma2", {"head_dim": 16, "final_logit_softcapping": 5.0}, nothing, None),
        ("phi", {}, nothing, None),  # its head has a bias
        ("llama", {}, sharded, None),
        ("llama", {}, with_index, "two sets of weights, model.safetensors and those of model.safetensors.index.json"),
        ("llama", {}, bfloat16, None),
        pytest.param("llama", {}, half_bfloat16, None, marks=pytest.mark.soak),
        ("llama", {}, beside("pytorch_model.bin", "original/consolidated.00.pth", "llama.gguf"), None),
        ("llama", {}, beside("adapter_config.json"), "a model and an adapter over it: adapter_config.json"),
        ("llama", {}, in_json("config.json", transformers_weights="other.safetensors"), "transformers_weights"),
        ("llama", {}, in_json("generation_config.json", do_sample=False, temperature=0.9, top_k=7), None),
        ("llama", {}, in_json("generation_config.json", early_stopping=True, pad_token_id=-1), None),
        ("llama", {}, in_json("generation_config.json", stop_strings=["fox"]), None),
        ("llama", {}, in_json("generation_config.json", repetition_penalty=-2.0), None),
        ("llama", {}, in_json("generation_config.json", eos_token_id=[99999, "0"], pad_token_id=-1), None),
        ("llama", {}, in_json("generation_config.json", max_new_tokens=0), "`max_new_tokens` must be greater"),
        ("llama", {}, in_json("generation_config.json", num_return_sequences=4), "num_return_sequences"),
        ("llama", {}, old_words, None),
        ("bert", {"num_key_value_heads": None, "is_decoder": True}, nothing, "output of a bert is more than a matrix"),
        ("llama", {}, backwards, "is not a decoder|more than a matrix"),
        ("gemma3_text", {"head_dim": 16, "use_bidirectional_attention": True}, nothing, "is not a decoder: its output"),
        pytest.param("cohere", {"pad_token_id": 0, "logit_scale": 0.1}, nothing, None, marks=pytest.mark.soak),
        pytest.param("granite", {"pad_token_id": 0, "logits_scaling": 3.0}, nothing, None, marks=pytest.mark.soak),
        ("llama", {}, in_json("config.json", num_hidden_layers=10**6), "num_hidden_layers to 1,000,000, far more"),
        ("llama", {}, in_json("config.json", num_hidden_layers=10**12), "num_hidden_layers to 1,000,000,000,000, far"),
        ("llama", {}, in_json("config.json", vocab_size=10**12), "vocab_size to 1,000,000,000,000, far more"),
        ("llama", {}, in_json("config.json", head_dim=10**12), "head_dim to 1,000,000,000,000, far more"),
        ("llama", {}, in_json("config.json", hidden_size=10**6), "not those of a llama|can't load"),
        ("mixtral", MOE, in_json("config.json", num_local_experts=10**9), "num_local_experts to 1,000,000,000, far"),
        (
            "mixtral",
            MOE,
            in_json("config.json", num_local_experts=1000, num_hidden_layers=1000),
            "1,000 layers of 1,000 experts",
        ),
        ("llama", {}, in_json("config.json", text_config={"num_hidden_layers": 10**9}), "num_hidden_layers to 1,000"),
        ("llama", {}, in_json("config.json", more="x" * (17 << 20)), "config.json of the base has 17,"),
    ],
)
@torch.no_grad()
def test_a_base_is_what_transformers_makes_of_it_or_is_refused(
    architecture: str, settings: dict[str, Any], change: Change, refused: str | None, tmp_path: Path
) -> None:
    source = make_foreign(tmp_path / "theirs", architecture, **settings)
    change(source)
    if refused is not None:
        with pytest.raises(GristmillError, match=refused):
            take(source, tmp_path / "taken")
        return
    model = take(source, tmp_path / "taken").path / "model"
    theirs, ours = load_pretrained(source, return_dict=True).eval(), load_pretrained(model).eval()
    ids = load_tokenizer(model)("The fox lives in the wood.", return_tensors="pt").input_ids
    logits = ours(ids).logits
    torch.testing.assert_close(logits, theirs(ids).logits, rtol=0, atol=1e-5)
    assert torch.equal(ours.train()(ids).logits, logits), "no noise in training"
    stored = stored_tensors(model)
    names = {name for name, _ in ours.named_parameters()}
    assert (HEAD in stored) == (HEAD in names), "a tied matrix is stored once, under the name of the embedding"
    assert not any((model / name).exists() for name in ("pytorch_model.bin", "llama.gguf"))
    ours.save_pretrained(tmp_path / "again")  # as in a training's checkpoint
    config = json.loads((model / "config.json").read_text())
    assert config["use_cache"]
    assert not config.get("output_router_logits")


def bos() -> Any:
    tokenizer = make_foreign_tokenizer(special=["<s>", *SPECIAL], eos="<|im_end|>", bos_token="<s>")
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 0)]
    )
    return tokenizer


def threes() -> Any:
    """Numbers are split into three digits, as by no class of transformers."""
    tokenizer = make_foreign_tokenizer()
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\p{N}{1,3}|[^\p{N}]+"), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    return tokenizer


def with_tokens(*tokens: str) -> Callable[[], Any]:
    def made() -> Any:
        tokenizer = make_foreign_tokenizer()
        tokenizer.add_tokens([AddedToken(token, normalized=False) for token in tokens])
        return tokenizer

    return made


def in_file(change: Callable[[dict[str, Any]], Any]) -> Change:
    def changed(folder: Path) -> None:
        known = json.loads((folder / "tokenizer.json").read_text())
        change(known)
        (folder / "tokenizer.json").write_text(json.dumps(known))

    return changed


def cut_to_eight(known: dict[str, Any]) -> None:
    known["truncation"] = {"direction": "Right", "max_length": 8, "strategy": "LongestFirst", "stride": 0}


def of_files(folder: Path) -> None:
    """A tokenizer as a vocabulary and merges, without a tokenizer.json."""
    from transformers import GPT2Tokenizer

    known = json.loads((folder / "tokenizer.json").read_text())["model"]
    (folder / "vocab.json").write_text(json.dumps(known["vocab"]))
    merges = [" ".join(merge) for merge in known["merges"]]
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]))
    (folder / "tokenizer.json").unlink()
    assert GPT2Tokenizer.from_pretrained(folder)
    in_json("tokenizer_config.json", tokenizer_class="GPT2Tokenizer")(folder)


def unnamed(folder: Path) -> None:
    """Its class knows the token that ends a text, and its config doesn't name it."""
    known = json.loads((folder / "tokenizer_config.json").read_text())
    del known["eos_token"]
    (folder / "tokenizer_config.json").write_text(json.dumps({**known, "tokenizer_class": "GPT2Tokenizer"}))


def template(text: str) -> Change:
    return lambda folder: (folder / "chat_template.jinja").write_text(text)


CLASSES = ("GPT2Tokenizer", "Qwen2Tokenizer", "LlamaTokenizer", "GemmaTokenizer", "CohereTokenizer", "NoSuchTokenizer")
DOUBLED = "{% set n = namespace(s='a') %}{% for i in range(40) %}{% set n.s = n.s + n.s %}{% endfor %}{{ n.s }}"
LOOP = "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}"


@pytest.mark.parametrize(
    ("tokenizer", "change", "refused"),
    [
        *(
            pytest.param(
                threes,
                in_json("tokenizer_config.json", tokenizer_class=name),
                None,
                marks=[pytest.mark.soak] * (name != CLASSES[0]),
            )
            for name in CLASSES
        ),
        (threes, in_json("tokenizer_config.json", clean_up_tokenization_spaces=True), None),
        (bos, nothing, None),
        (bos, in_json("tokenizer_config.json", tokenizer_class="LlamaTokenizer", add_bos_token=True), None),
        (bos, in_json("tokenizer_config.json", add_bos_token=False), None),
        (threes, in_json("tokenizer_config.json", add_eos_token=True), None),
        (threes, in_json("tokenizer_config.json", extra_special_tokens=["fox"]), "other ids with its tokenizer_config"),
        (threes, in_json("tokenizer_config.json", pad_token="[PAD]"), "other ids with its tokenizer_config.json"),
        (threes, unnamed, None),
        (threes, in_json("tokenizer_config.json", eos_token=None), "lacks an eos_token"),
        (with_tokens("<x>", "  ", "\n\n\n", "東京"), nothing, None),
        (with_tokens("č"), nothing, "decodes its added token 'č' to"),
        (with_tokens("<|Über|>"), nothing, "decodes its added token '<|Über|>' to"),
        (threes, in_file(cut_to_eight), None),
        (make_foreign_tokenizer, of_files, None),
        (make_foreign_tokenizer, template(LOOP + CHATML), "doesn't finish with a few lines"),
        (make_foreign_tokenizer, template("{{ 'a' * 10 ** 12 }}" + CHATML), "can't be trained on: refused_by_template"),
        (make_foreign_tokenizer, template(DOUBLED), "can't be trained on: refused_by_template"),
    ],
)
def test_a_tokenizer_is_its_file_whatever_class_its_config_names(
    tokenizer: Callable[[], Any], change: Change, refused: str | None, tmp_path: Path
) -> None:
    source = make_foreign(tmp_path / "theirs", "llama", tokenizer(), vocab_size=512)
    whole = Tokenizer.from_file(str(source / "tokenizer.json"))
    change(source)
    if refused is not None:
        with pytest.raises(GristmillError, match=refused.replace("|", r"\|")):
            take(source, tmp_path / "taken")
        return
    model = take(source, tmp_path / "taken").path / "model"
    from transformers import AutoTokenizer

    for taken in (load_tokenizer(model), AutoTokenizer.from_pretrained(model)):
        for text in HOSTILE:
            ids = taken(text)["input_ids"]
            assert ids == whole.encode(text).ids, text
            assert taken.decode(ids) == whole.decode(ids, skip_special_tokens=False)
    settings = json.loads((model / "tokenizer_config.json").read_text())
    assert settings["tokenizer_class"] == "PreTrainedTokenizerFast", "transformers 4 lacks TokenizersBackend"


@pytest.mark.parametrize("name", CLASSES)
def test_so_is_that_of_a_classifier(name: str, tmp_path: Path) -> None:
    folder = make_foreign(tmp_path / "theirs", "llama", threes())
    in_json("tokenizer_config.json", tokenizer_class=name)(folder)
    whole = Tokenizer.from_file(str(folder / "tokenizer.json"))
    taken = of_classifier(folder)
    assert [taken(text)["input_ids"] for text in HOSTILE] == [whole.encode(text).ids for text in HOSTILE]
