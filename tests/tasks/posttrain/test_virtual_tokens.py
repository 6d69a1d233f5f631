"""Virtual tokens, by prefix and prompt tuning: what is trained, loaded, measured and released is one and the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from models.pretrained import context_of, load_config, load_pretrained
from models.runtimes.greedy import greedy
from models.tokenizer import copy_tokenizer, load_tokenizer
from storage.artifact import Artifact
from storage.errors import ConfigError, SourceError
from tasks.base.check import SAFE, check_format
from tasks.export import ExportConfig, export
from tasks.export.release import open_release
from tasks.posttrain.check import check_runtime
from tasks.posttrain.methods import METHODS
from tasks.posttrain.methods.sft import SftConfig
from tasks.stage.decorator import STAGES
from tasks.stage.output import Output
from tasks.training.adapters.config import PrefixConfig, PromptConfig, check_sight
from tasks.training.adapters.lora import peft_config
from tasks.training.adapters.save import save_adapter
from tasks.training.adapters.virtual import save_beside
from tasks.training.logs import read_log
from tests.runtimes import runtime_of
from tests.tasks.posttrain.test_posttrain import output
from tests.tasks.tiny_model import RUNTIME, make_instructions, make_model, make_preferences, make_validation, question

TOKENS = 4
KINDS = {"prefix": PrefixConfig(tokens=TOKENS), "prompt": PromptConfig(tokens=TOKENS)}
WEIGHTS = "adapter_model.safetensors"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    return Artifact.at(make_model(tmp_path_factory.mktemp("base") / "model", kv_heads=2))


def trained(name: str, kind: str, model: Artifact, folder: Path) -> Output:
    settings = {"global_batch": 16, "learning_rate": 3e-2, "adapter": {"kind": kind, "tokens": TOKENS}}
    config, out = METHODS[name].config.model_validate(settings), output(folder, name)
    pairs = (make_instructions if name == "sft" else make_preferences)(folder / "pairs")
    STAGES[name].function(config, model, Artifact.at(pairs), out)
    return out


def drawn(kind: str, model: Path, folder: Path) -> Path:
    """A link's artifact, with virtual tokens drawn at random."""
    from peft import get_peft_model

    config = peft_config("sft", KINDS[kind], load_pretrained(model))
    peft: Any = get_peft_model(load_pretrained(model), config)
    torch.manual_seed(1)
    torch.nn.init.normal_(peft.prompt_encoder["default"].embedding.weight, std=0.5)
    save_adapter(config, peft.state_dict(), load_pretrained(model), "sha256:0", folder / "adapter")
    ids = torch.randint(0, 600, (2, 24), generator=torch.Generator().manual_seed(2))
    batches = [{"input_ids": ids, "attention_mask": torch.ones_like(ids)}]
    save_beside(load_pretrained(model), folder / "adapter", folder / "model", batches)  # proves its logits to be PEFT's
    copy_tokenizer(model, folder / "model")
    return folder


def by_hand(model: Path, adapter: Path) -> Any:
    from peft import PeftModel

    return PeftModel.from_pretrained(load_pretrained(model), adapter).eval()


def logits(model: Any, ids: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model.eval()(ids).logits
    return found[:, -ids.shape[1] :]


def check_trained(out: Output, model: Artifact, numbers: int) -> None:
    whole = sum(value.numel() for value in load_pretrained(model.path).parameters())
    assert out.counts["trained_parameters"] == numbers
    assert out.counts["parameters"] == whole + numbers
    assert out.counts["validation_loss"] < out.counts["initial_validation_loss"]
    assert f"{TOKENS} virtual tokens" in out.counts["summary"]
    base, folder = load_file(model.path / "model.safetensors"), out.path / "model"
    assert all(torch.equal(value, base[name]) for name, value in load_file(folder / "model.safetensors").items())
    ids = torch.randint(0, 600, (1, 24), generator=torch.Generator().manual_seed(1))
    ours = logits(load_pretrained(folder), ids)
    torch.testing.assert_close(ours, logits(by_hand(model.path, out.path / "adapter"), ids), atol=1e-5, rtol=0)
    assert (ours - logits(load_pretrained(model.path), ids)).abs().max() > 0.1
    assert context_of(load_config(folder)) == context_of(load_config(model.path)) - TOKENS


def test_what_is_trained_is_counted_and_loaded_again(model: Artifact, tmp_path: Path) -> None:
    out = trained("sft", "prefix", model, tmp_path)
    check_trained(out, model, TOKENS * 2 * 2 * 32)
    with pytest.raises(ConfigError, match="dpo can't train a model with virtual tokens"):
        trained("dpo", "prefix", Artifact.at(out.path / "model"), tmp_path / "next")
    with pytest.raises(SourceError, match="base has virtual tokens before every text"):
        check_format(out.path / "model", "base", SAFE)


TAKE_THEM = [(name, kind) for name in ("sft", "orpo", "cpo", "kto", "dpo") for kind in KINDS]


@pytest.mark.parametrize(
    ("name", "kind"),
    [case if case == ("orpo", "prompt") else pytest.param(*case, marks=pytest.mark.soak) for case in TAKE_THEM],
)
def test_every_method_that_takes_them_learns(name: str, kind: str, model: Artifact, tmp_path: Path) -> None:
    out = trained(name, kind, model, tmp_path)
    check_trained(out, model, TOKENS * {"prefix": 2 * 2 * 32, "prompt": 64}[kind])
    if name in ("kto", "dpo"):  # the reference is the model without them, and they change it before the first step
        first, reward = read_log(out.path / "log.jsonl")[0], {"kto": "desirable", "dpo": "chosen"}[name]
        assert abs(first[f"{reward}_reward"]) > 1e-3


@pytest.mark.soak_but("llama-prefix", "gpt2-prompt")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("family", ["llama", "gpt2", "qwen3", "qwen3_moe"])
def test_each_family_reads_and_answers_as_in_peft(kind: str, family: str, tmp_path: Path) -> None:
    base = make_model(tmp_path / "base", family=family)
    made = drawn(kind, base, tmp_path / "sft")
    ours, tokenizer = load_pretrained(made / "model").eval(), load_tokenizer(made / "model")
    prompts = [question("fox"), question("an old owl that nobody has seen")]
    answers = greedy(ours, tokenizer, prompts, [1], 6)  # in one batch, padded
    theirs = by_hand(base, made / "adapter")
    for prompt, answer in zip(prompts, answers, strict=True):
        ids = tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_tensors="pt", return_dict=True)
        made_by_peft = theirs.generate(**ids, do_sample=False, max_new_tokens=6, pad_token_id=1)
        assert answer == made_by_peft[0, ids["input_ids"].shape[1] :].tolist()[: len(answer)]


@pytest.mark.parametrize("kind", KINDS)
def test_the_harness_measures_what_it_does_of_a_peft_model(kind: str, model: Artifact, tmp_path: Path) -> None:
    from lm_eval.api.instance import Instance
    from lm_eval.models.huggingface import HFLM

    from tasks.evaluate.score.model import PackedModel

    made, tokenizer = drawn(kind, model.path, tmp_path), load_tokenizer(model.path)
    ours: Any = PackedModel(load_pretrained(made / "model").eval(), tokenizer, batch_size=4)
    rows = [("The fox lives in the", f" {place}.") for place in ("wood", "yard", "tree")] + [("Nobody", " has seen it")]
    requests = [Instance("loglikelihood", {}, row, number) for number, row in enumerate(rows)]
    found = ours.loglikelihood(requests, disable_tqdm=True)
    assert ours.packs, "packed rows were proved, and used"
    if kind == "prefix":  # HFLM takes the logits of a prompt's tokens for those of the text
        theirs: Any = HFLM(pretrained=by_hand(model.path, made / "adapter"), tokenizer=tokenizer, batch_size=4)
        expected = [one for one, _ in theirs.loglikelihood(requests, disable_tqdm=True)]
    else:
        expected = []
        for before, after in rows:
            start, ids = len(tokenizer(before)["input_ids"]), tokenizer(before + after)["input_ids"]
            logs = logits(by_hand(model.path, made / "adapter"), torch.tensor([ids])).log_softmax(-1)[0]
            expected.append(sum(float(logs[place - 1, ids[place]]) for place in range(start, len(ids))))
    assert [one for one, _ in found] == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(("name", "value"), [("packing", True), ("recompute", "full"), ("compile", "on")])
def test_settings_that_cant_carry_them_are_refused_by_name(name: str, value: Any) -> None:
    runtime = runtime_of(group="posttrain")
    changed = runtime.with_changes("posttrain", **{name: value})
    with pytest.raises(ConfigError, match=rf"sft.adapter learns virtual tokens, which runtime.posttrain.{name}"):
        check_runtime("sft", SftConfig(adapter=PrefixConfig()), changed)


def test_a_window_that_loses_them_is_refused(tmp_path: Path) -> None:
    config = load_config(make_model(tmp_path / "model", family="gemma3"))
    with pytest.raises(ConfigError, match="layers of this gemma3_text see"):
        check_sight("sft", config)


@pytest.mark.soak
@pytest.mark.parametrize("format", ["safetensors", "adapter"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_release_holds_them(format: str, kind: str, model: Artifact, tmp_path: Path) -> None:
    made = drawn(kind, model.path, tmp_path / "sft")
    make_validation(tmp_path / "validation", model.path)
    settings = {"formats": [format], "prompts": ["The fox lives in the"], "greedy_tokens": 8, "positions": 128}
    out = Output.at(tmp_path / "export", stage="export", runtime=RUNTIME)
    given = {"base": model, "sft": Artifact.at(made / "adapter")}

    def release(**changed: Any) -> None:
        config = ExportConfig.model_validate({**settings, **changed})
        validation = Artifact.at(tmp_path / "validation")
        export.function(config, Artifact.at(made / "model"), None, validation, given, None, out)

    for wrong in ("int8", "gguf-f16"):
        with pytest.raises(ConfigError, match=f"which {wrong} can't hold"):
            release(formats=[format, wrong])
    release()
    card = (out.path / "README.md").read_text()
    assert "gristmill_virtual_tokens" in card
    written, expected = (load_file(one / "adapter" / WEIGHTS) for one in (out.path, made))
    assert torch.equal(written["prompt_embeddings"], expected["prompt_embeddings"])
    if format == "safetensors":
        assert 'PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(folder), f"{folder}/adapter")' in card
        ids = [5, 6, 7, 8]
        ours = open_release(out.path).all_log_probabilities(ids)
        theirs = logits(by_hand(model.path, made / "adapter"), torch.tensor([ids]))[0].log_softmax(-1)
        assert torch.from_numpy(ours).sub(theirs).abs().max() < 1e-4
