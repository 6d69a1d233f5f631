"""The decoder of a CPU gives the likelihoods and greedy answers of the harness's own model class, which computes each
sequence by itself."""

from __future__ import annotations

import copy
import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from models.tokenizer import load_tokenizer
from tasks.evaluate.score.forward.decoder import PIECE, decoder_of
from tasks.evaluate.score.forward.greedy import Ends, is_greedy, is_plain
from tasks.evaluate.score.model import PackedModel
from tests.tasks.evaluate.test_packed import SIZES, Asked
from tests.tasks.tiny_model import make_model

CONTEXT = 4 * PIECE
SCALED = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
SCALED |= {"original_max_position_embeddings": 64}
Known = dict[str, tuple[PreTrainedModel, PreTrainedTokenizerFast]]


@pytest.fixture(scope="module")
def known(tmp_path_factory: pytest.TempPathFactory) -> Known:
    folder = make_model(tmp_path_factory.mktemp("decoder") / "model")
    tokenizer = load_tokenizer(folder)
    shape = {**SIZES, "vocab_size": len(tokenizer), "max_position_embeddings": CONTEXT, "initializer_range": 0.2}
    torch.manual_seed(0)
    models = {
        "llama": LlamaForCausalLM(LlamaConfig(**shape, rope_parameters=SCALED, attention_bias=True)),
        "qwen2": Qwen2ForCausalLM(Qwen2Config(**shape)),
        "qwen3": Qwen3ForCausalLM(Qwen3Config(**shape, head_dim=16, tie_word_embeddings=True)),
    }
    for model in models.values():
        for name, parameter in model.named_parameters():  # biases and norms of a new model do nothing
            if parameter.dim() == 1:
                torch.nn.init.normal_(parameter, 1.0 if "norm" in name else 0.0, 0.1)
    return {name: (model.eval(), tokenizer) for name, model in models.items()}


def both(known: Known, kind: str, size: int) -> tuple[Any, Any]:
    """Ours, and the harness's own of a single sequence at a time."""
    from lm_eval.models.huggingface import HFLM

    model, tokenizer = known[kind]
    ours = PackedModel(copy.deepcopy(model), tokenizer, batch_size=size)
    assert ours.decoder is not None
    return ours, HFLM(pretrained=model, tokenizer=tokenizer, batch_size=1, max_length=CONTEXT)


def ragged(vocab: int) -> Asked:
    """Continuations of 1 to 150 tokens after contexts of 1 to 180, some with a common beginning, one repeated."""
    draw = np.random.default_rng(3)

    def some(length: int) -> list[int]:
        return draw.integers(0, vocab, length).tolist()  # type: ignore[no-any-return]

    examples, found = some(90), Asked()
    for length in (1, 60, 63, 64, 65, 150):
        question = examples + some(length // 2)
        found += [(("", ""), question, some(length)) for _ in range(2)]
        found.append((("", ""), some(max(1, length)), some(length)))
    return [*found, found[0], (("", ""), some(CONTEXT + 9), some(7))]


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_likelihoods_are_the_harnesss_own(kind: str, known: Known) -> None:
    ours, theirs = both(known, kind, 4)
    asked = ragged(len(known[kind][1]))
    found, expected = ours._loglikelihood_tokens(asked), theirs._loglikelihood_tokens(asked, disable_tqdm=True)
    for (value, greedy), (other, other_greedy) in zip(found, expected, strict=True):
        assert value == pytest.approx(other, rel=2e-6, abs=2e-5)
        assert greedy == other_greedy


def prompts() -> list[str]:
    """Texts with and without a common beginning, one twice, one that another begins with."""
    examples = "The fox lives in the wood and the hen in the yard. " * 3
    few = [f"{examples}{'An old ' * (which % 4)}owl" for which in range(6)]
    return [*few, few[1], examples, examples + "The", "owl", "A young cat. " * 30, "dog and cow " * 9]


def answers(lm: Any, asked: Sequence[str], **more: Any) -> list[str]:
    from lm_eval.api.instance import Instance

    requests = [
        Instance("generate_until", {}, (prompt, {"until": [], "max_gen_toks": 5 + number % 9, **more}), number)
        for number, prompt in enumerate(asked)
    ]
    return lm.generate_until(requests, disable_tqdm=True)  # type: ignore[no-any-return]


@pytest.mark.parametrize(("kind", "size"), [("llama", 5), ("qwen3", 32)])
def test_greedy_answers_are_the_harnesss_own_wherever_they_end(kind: str, size: int, known: Known) -> None:
    ours, theirs = both(known, kind, size)
    asked = prompts()
    whole = answers(theirs, asked)
    assert answers(ours, asked) == whole
    assert len({*whole}) > len(whole) // 2
    first, second, *_ = [text for answer in whole for text in re.findall(r"[ -~]{4,}", answer)]
    for until in ([first[1:3], second[:1]], [first[2:4], first[1:3], "not there"]):
        expected = answers(theirs, asked, until=until)
        assert answers(ours, asked, until=until) == expected != whole


def test_an_answer_ends_where_a_string_is_complete(known: Known) -> None:
    _, tokenizer = known["llama"]
    ids = tokenizer.encode("the hen and the fox", add_special_tokens=False)
    ends = Ends(tokenizer, [], ["never", "n and t"])
    first = next(length for length in range(1, len(ids) + 1) if ends(ids[:length]))
    assert "n and t" in tokenizer.decode(ids[:first])
    assert "n and t" not in tokenizer.decode(ids[: first - 1])
    assert Ends(tokenizer, [ids[-1]], [])(ids)
    assert not Ends(tokenizer, [], [])(ids)


def test_what_else_a_generation_asks_for_is_left_to_the_harness(known: Known) -> None:
    model, tokenizer = known["llama"]
    assert is_plain(model)
    model = copy.deepcopy(model)
    model.generation_config.repetition_penalty = 3.0
    assert not is_plain(model)
    ours = PackedModel(model, tokenizer, batch_size=4)
    assert ours.decoder is not None
    assert answers(ours, prompts()) != answers(both(known, "llama", 4)[0], prompts())
    assert is_greedy({"until": ["\n"], "max_gen_toks": 3, "do_sample": False, "temperature": 0.0})
    for more in ({"do_sample": True}, {"temperature": 0.8}, {"repetition_penalty": 1.2}):
        assert not is_greedy({"until": [], **more})


def test_a_model_that_the_decoder_computes_otherwise_is_left_to_transformers(known: Known) -> None:
    model = copy.deepcopy(known["llama"][0])
    layer: Any = model.model.layers[0]
    layer.register_forward_hook(lambda module, given, output: output * 1.01)
    assert decoder_of(model) is None
    assert decoder_of(copy.deepcopy(known["llama"][0]).to(torch.bfloat16)) is None
    dynamic = copy.deepcopy(known["qwen2"][0])
    dynamic.config.rope_parameters["rope_type"] = "dynamic"
    assert decoder_of(dynamic) is None
