"""Speculative decoding: right guesses are counted, wrong ones don't change text, or the runtime is refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from models.pretrained import load_pretrained
from models.runtimes.speculative import Continued, Guessing, SpeculativeLlamaCpp, SpeculativeTransformers
from storage.artifact import Artifact
from storage.errors import ParityError, TokenizerMismatch
from tasks.export import ExportConfig, export
from tasks.export.formats import GUESSED
from tasks.export.formats.source import Source
from tasks.stage.output import Output
from tests.tasks.tiny_model import RUNTIME, make_model, make_validation

FORMATS = ["safetensors", "gguf-f32"]
SETTINGS: dict[str, Any] = {
    "prompts": ["The fox lives in the", "Nobody in the yard"],
    "greedy_tokens": 8,
    "positions": 128,
    "speculation": {"tokens": 24},
}


def talkative(folder: Path, seed: int) -> Path:
    """A model with weights so large that it doesn't repeat itself."""
    make_model(folder, kv_heads=2)
    model = load_pretrained(folder)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for layer in model.model.layers.parameters():
            if layer.ndim == 2:
                layer.normal_(std=0.5, generator=generator)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return talkative(tmp_path_factory.mktemp("model") / "model", 1)


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model with the same tokenizer that guesses hardly anything right."""
    return talkative(tmp_path_factory.mktemp("stranger") / "model", 2)


def released(folder: Path, model: Path, draft: Path | None, **settings: Any) -> Output:
    validation = make_validation(folder / "validation", model)
    out = Output.at(folder, stage="export", runtime=RUNTIME)
    config = ExportConfig.model_validate({**SETTINGS, "formats": FORMATS, **settings})
    given = Artifact.at(draft) if draft else None
    export.function(config, Artifact.at(model), None, Artifact.at(folder / "validation"), {}, given, out)
    assert validation
    return out


@pytest.mark.soak
def test_a_model_guesses_all_that_it_says_itself(model: Path, tmp_path: Path) -> None:
    out = released(tmp_path, model, model)
    counts = json.loads((out.path / "parity.json").read_text())["speculation"]
    assert set(counts) == set(FORMATS)
    for name, kinds in counts.items():
        one = kinds["draft"]
        assert one["guessed"] > 0, name
        sure = 0.95 if name == "safetensors" else 0.6  # llama.cpp's draft is rounded to 8 bits
        assert one["accepted"] >= sure * one["guessed"], (name, one)
        assert one["accepted"] < one["tokens"]
    assert (out.path / "draft" / "model.safetensors").is_file()
    assert (out.path / "draft" / "gguf" / "model-q8_0.gguf").is_file()
    card = (out.path / "README.md").read_text()
    assert "### Speculative decoding" in card
    assert "-md draft/gguf/model-q8_0.gguf" in card
    assert json.loads((out.path / "lineage.json").read_text())["draft"]
    assert set(out.facts["speculation_seconds"]) == set(FORMATS)


@pytest.mark.soak
def test_guesses_that_are_wrong_change_no_text(model: Path, stranger: Path, tmp_path: Path) -> None:
    out = released(tmp_path, model, stranger)
    counts = json.loads((out.path / "parity.json").read_text())["speculation"]
    for name, kinds in counts.items():
        one = kinds["draft"]
        assert one["accepted"] < 0.3 * one["guessed"], (name, one)


@pytest.mark.soak
def test_ngrams_need_no_draft(model: Path, tmp_path: Path) -> None:
    out = released(tmp_path, model, None)
    counts = json.loads((out.path / "parity.json").read_text())["speculation"]
    assert {name: list(kinds) for name, kinds in counts.items()} == {name: ["n-grams"] for name in FORMATS}
    assert not (out.path / "draft").exists()
    assert "assistant_model" not in (out.path / "README.md").read_text()


@pytest.mark.parametrize("name", FORMATS)
def test_the_counts_are_those_of_a_loop_by_hand(name: str, model: Path, stranger: Path, tmp_path: Path) -> None:
    """A pass of the model keeps the guesses up to the first wrong one, and says one token itself."""
    release = tmp_path / "release"
    (release / "draft").mkdir(parents=True)
    known = GUESSED[name]
    known.write(Source(model), release)
    known.write_draft(Source(half_as_wrong(model, stranger, tmp_path / "wrong")), release)
    opened = GUESSED["gguf-q8_0" if name != "safetensors" else name].speculative(release / "draft", 1, "cpu", None)
    plain = known.speculative(release, 1, "cpu", None)
    guessing = known.speculative(release, 1, "cpu", Guessing(3, draft=known.draft(release)))
    assert isinstance(plain, SpeculativeTransformers | SpeculativeLlamaCpp)
    assert isinstance(opened, SpeculativeTransformers | SpeculativeLlamaCpp)
    try:
        prompt = plain.tokenize("The fox lives in the wood. The fox lives in the")
        said = plain.greedy(prompt, 20)
        place = guessed = accepted = 0
        while place < len(said):
            known_so_far = [*prompt, *said[:place]]
            first = place == 0 and name != "safetensors"  # llama.cpp's server reads a prompt without guesses
            room = 0 if first else min(3, len(said) - place - 1)
            guesses = opened.greedy(known_so_far, room) if room else []
            right = next((n for n, id in enumerate(guesses) if id != said[place + n]), len(guesses))
            guessed, accepted, place = guessed + len(guesses), accepted + right, place + right + 1
        expected, found = plain.continued(prompt, 20), guessing.continued(prompt, 20)
        assert found.ids == expected.ids
        assert (expected.guessed, expected.accepted) == (0, 0)
        assert (found.tokens, found.guessed, found.accepted) == (len(said), guessed, accepted)
        assert 0 < accepted < guessed
    finally:
        for one in (opened, plain, guessing):
            one.close()


def half_as_wrong(model: Path, stranger: Path, folder: Path) -> Path:
    """A model between two others, which guesses some tokens right."""
    shutil.copytree(model, folder)
    ours, theirs = load_pretrained(model), load_pretrained(stranger).state_dict()
    with torch.no_grad():
        for name, value in ours.named_parameters():
            value.lerp_(theirs[name], 0.2)
    ours.save_pretrained(folder)
    return folder


def test_a_runtime_that_takes_wrong_guesses_is_refused(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A faulty runtime, which keeps a guess without checking it by the model."""
    from tasks.export.proof import speculation as proof
    from tasks.export.proof.held_out import HeldOut
    from tasks.export.proof.reference import Reference

    continued = SpeculativeTransformers.continued

    def credulous(self: SpeculativeTransformers, prompt: Sequence[int], tokens: int) -> Continued:
        found = continued(self, prompt, tokens)
        return found._replace(ids=[*found.ids[:-1], (found.ids[-1] + 1) % 600]) if self._options else found

    monkeypatch.setattr(SpeculativeTransformers, "continued", credulous)
    GUESSED["safetensors"].write(Source(model), tmp_path)
    text = HeldOut((), (tuple(range(10, 90)),))
    config = ExportConfig.model_validate({**SETTINGS, "formats": ["safetensors"]})
    reference = Reference(model, text.proof, config, tmp_path / "scratch")
    assert config.speculation
    with pytest.raises(ParityError, match="changes the text"):
        proof.speculation(reference, ["safetensors"], tmp_path, 1, config.speculation)


def test_a_draft_with_another_tokenizer_is_refused(model: Path, tmp_path: Path) -> None:
    other = make_model(tmp_path / "other" / "model")
    settings = other / "tokenizer.json"
    changed = json.loads(settings.read_text())
    changed["added_tokens"][0]["lstrip"] = not changed["added_tokens"][0]["lstrip"]
    settings.write_text(json.dumps(changed))
    with pytest.raises(TokenizerMismatch):
        released(tmp_path, model, other)
