"""Models and endpoints side by side, from answers to tables: judged by a reward model, an endpoint, or nobody."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from storage import refs
from storage.artifact import Artifact
from storage.errors import ConfigError, SourceError
from storage.shards.lines import read_json_lines, write_json_lines
from storage.store import Store
from tasks.evaluate.side_by_side.compare import check_here, pairs_of, side_by_side, sources
from tasks.evaluate.side_by_side.config import SideBySideConfig, names_of
from tasks.evaluate.side_by_side.reward import run
from tasks.evaluate.side_by_side.rewards import RewardsSpec, load_rewards
from tasks.posttrain.reward_model.model import Judge, load_classifier, write_mean
from tasks.stage.output import Output
from tasks.stage.session import Session, open_session
from tests.runtimes import runtime_of
from tests.tasks.endpoint.completions import Body, Said, serve
from tests.tasks.evaluate.side_by_side.test_judging import longer_wins, rows_of
from tests.tasks.tiny_model import ANIMALS, RUNTIME, make_model

ASKED = [f"Where does the {animal} live?" for animal in ANIMALS[:12]]
WORDY = "In the wood, as far as anybody in this place can tell."
FAST = runtime_of(RUNTIME, backoff_seconds=0.01, concurrent_requests=8)


def answerer(body: Body) -> Said:
    """Three models of different length, and a judge, who likes the longest."""
    if body["model"] == "judge":
        return longer_wins(body)
    return Said({"brief": "In the wood.", "twin": "By the wood.", "wordy": WORDY}[body["model"]])


def config_of(url: str, **settings: Any) -> SideBySideConfig:
    endpoints = {name: {"url": url, "model": name} for name in ("brief", "twin", "wordy")}
    judge = {"judge": "endpoint", "judge_endpoint": {"url": url, "model": "judge"}}
    given = {"prompts": ASKED, "endpoints": endpoints, "resamples": 200, **judge, **settings}
    return SideBySideConfig.model_validate(given)


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Output:
    out = Output.at(tmp_path_factory.mktemp("compared"), stage="evaluate", runtime=FAST)
    with serve(answerer) as server:
        side_by_side(config_of(server.url), {}, None, out)
    return out


@pytest.mark.soak
def test_a_stage_of_endpoints_alone_has_its_tables(compared: Output) -> None:
    rows = {row["model"]: row for row in compared.counts["tables"]["Side by side"]}
    assert list(rows) == ["wordy", "brief", "twin"], "the strongest first"
    assert rows["wordy"]["win rate"].startswith("100.0% (")
    assert rows["brief"]["win rate"].startswith("25.0% (")
    assert rows["wordy"]["mean length"] == str(len(WORDY))
    assert rows["wordy"]["ended"] == "100%"
    verdicts = {row["pair"]: row["verdict"] for row in compared.counts["tables"]["Pairs"]}
    assert verdicts == {
        "brief : twin": "no difference beyond chance",
        "brief : wordy": "wordy is better",
        "twin : wordy": "wordy is better",
    }
    told = json.loads((compared.path / "side_by_side" / "standings.json").read_text())
    assert told == compared.counts["side_by_side"]
    assert told["models"]["brief"]["elo"][0] == told["models"]["twin"]["elo"][0] < told["models"]["wordy"]["elo"][0]
    assert told["position_bias"]["asked_in_both_orders"] == 3 * 12
    page = (compared.path / "side_by_side.md").read_text()
    assert "Judged by the endpoint's model judge" in page
    assert "in first place in 50% of the cases" in page
    assert "no preference for a place" in page


def test_all_answers_and_all_comparisons_are_kept(compared: Output) -> None:
    answers = list(read_json_lines(compared.path / "side_by_side" / "answers.jsonl"))
    assert [row["prompt"][0]["content"] for row in answers] == ASKED
    assert answers[0]["answers"]["brief"] == "In the wood."
    comparisons = list(read_json_lines(compared.path / "side_by_side" / "comparisons.jsonl"))
    assert len(comparisons) == 36
    assert {row["winner"] for row in comparisons if row["first"] == "brief" and row["second"] == "twin"} == {0.5}


@pytest.mark.soak
def test_one_more_model_asks_only_what_is_new(tmp_path: Path) -> None:
    """Runs in a store, which knows that each answer, reward and judgement is in use."""
    store = Store(str(tmp_path / "store"))
    with serve(answerer) as server, open_session(Session(store, FAST, "demo")):
        out = Output.at(tmp_path / "one", stage="evaluate", runtime=FAST)
        side_by_side(config_of(server.url, models=["brief", "wordy"]), {}, None, out)
        assert len(server.asked) == 2 * 12 + 2 * 12
        more = Output.at(tmp_path / "two", stage="evaluate", runtime=FAST)
        side_by_side(config_of(server.url, baseline="wordy"), {}, None, more)
    new = [body["model"] for body in server.asked[48:]]
    assert sorted(set(new)) == ["judge", "twin"]
    assert len(new) == 12 + 2 * 12
    assert set(more.uses) == {
        "prompts",
        "answers.brief",
        "answers.twin",
        "answers.wordy",
        "judgements.brief.wordy",
        "judgements.twin.wordy",
    }
    assert len({origin.location for origin in more.uses.values()}) == 6
    assert refs.history(store, "demo/answers")
    rows = more.counts["tables"]["Side by side"]
    assert rows[0]["win rate against wordy"] == "baseline"
    assert rows[0]["Elo"] == "1000"


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Artifact]:
    folder = tmp_path_factory.mktemp("models")
    return {"one": Artifact.at(make_model(folder / "one")), "other": Artifact.at(make_model(folder / "other", depth=1))}


@pytest.fixture(scope="module")
def reward(models: dict[str, Artifact], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained reward model, in the form in which its stage writes one."""
    folder, begun = tmp_path_factory.mktemp("reward") / "model", models["one"].path
    classifier = load_classifier(begun, 0)
    classifier.config.pad_token_id = 0
    classifier.save_pretrained(folder)
    for file in (*begun.glob("*token*"), *begun.glob("*.jinja")):
        (folder / file.name).write_bytes(file.read_bytes())
    write_mean(folder, 0.25)
    return folder


def rewards_of(reward: Path, answers: Path, folder: Path) -> list[float]:
    """By the child's function in this process."""
    out = Output.at(folder, runtime=RUNTIME)
    spec = RewardsSpec(runtime=RUNTIME, answers=answers, judge=reward, scratch=out.scratch, out=out.path)
    (folder / "spec.json").write_text(spec.model_dump_json())
    run(folder / "spec.json")
    return load_rewards(Artifact.at(out.path))


def test_rewards_are_those_of_the_reward_model_alone(models: dict[str, Artifact], reward: Path, tmp_path: Path) -> None:
    rows = rows_of(["In the wood.", "", "By the hill, they say, and in the wood.", "x " * 400])
    write_json_lines(tmp_path / "answers.jsonl", rows)
    found = rewards_of(reward, tmp_path / "answers.jsonl", tmp_path)
    judge = Judge.load(reward)
    for row, one in zip(rows, found, strict=True):
        alone = judge.rewards([[*row["prompt"], {"role": "assistant", "content": row["answer"]}]])
        assert one == pytest.approx(alone[0], abs=1e-5)
    assert len({round(one, 4) for one in found}) == 4
    with pytest.raises(ConfigError, match="The judge isn't a reward model"):
        rewards_of(models["one"].path, tmp_path / "answers.jsonl", tmp_path)


@pytest.mark.soak
def test_a_reward_model_decides_between_models(models: dict[str, Artifact], reward: Path, tmp_path: Path) -> None:
    config = SideBySideConfig(judge="reward", max_new_tokens=8, resamples=200, temperature=1.0)
    out = Output.at(tmp_path / "out", stage="evaluate", runtime=FAST)
    side_by_side(config, models, Artifact.at(reward), out, ASKED[:3])
    judge, expected = Judge.load(reward), []
    for row in read_json_lines(out.path / "side_by_side" / "answers.jsonl"):
        rewards = judge.rewards(
            [[*row["prompt"], {"role": "assistant", "content": row["answers"][name]}] for name in models]
        )
        expected.append(0.5 if len(set(row["answers"].values())) == 1 else float(rewards[0] > rewards[1]))
    comparisons = list(read_json_lines(out.path / "side_by_side" / "comparisons.jsonl"))
    assert [row["winner"] for row in comparisons] == expected
    assert "Judged by the reward model" in (out.path / "side_by_side.md").read_text()


@pytest.mark.soak
def test_without_a_judge_there_are_answers_to_be_read(tmp_path: Path) -> None:
    out = Output.at(tmp_path, stage="evaluate", runtime=FAST)
    with serve(answerer) as server:
        found = side_by_side(config_of(server.url, judge="none", judge_endpoint=None), {}, None, out)
    assert found.standings is None
    assert [path.name for path in (out.path / "side_by_side").iterdir()] == ["answers.jsonl"]
    assert {body["model"] for body in server.asked} == {"brief", "twin", "wordy"}


def test_names_are_checked_before_anything_is_asked() -> None:
    config = config_of("http://127.0.0.1:1/v1")
    assert names_of(config, ["base"], judge=False) == ["base", "brief", "twin", "wordy"]
    assert pairs_of(["a", "b", "c"], None) == [("a", "b"), ("a", "c"), ("b", "c")]
    assert pairs_of(["a", "b", "c"], "b") == [("a", "b"), ("c", "b")]
    chosen = config_of("http://127.0.0.1:1/v1", models=["base", "twin"], baseline="wordy")
    assert names_of(chosen, ["base"], judge=False) == ["base", "twin", "wordy"]
    for wrong, why in (
        ({"models": ["base", "nobody"]}, "names the unknown model nobody"),
        ({"baseline": "nobody"}, "names the unknown model nobody"),
        ({"models": ["base", "base"]}, "A comparison needs two models"),
        ({"judge": "reward", "judge_endpoint": None}, "the profile lacks a reward model"),
    ):
        with pytest.raises(ConfigError, match=why):
            names_of(config_of("http://127.0.0.1:1/v1", **wrong), ["base"], judge=False)
    with pytest.raises(ConfigError, match="brief is both a model and an endpoint"):
        names_of(config, ["brief"], judge=True)
    for settings, why in (
        ({"samples": 2}, "at temperature 0"),
        ({"file": "a.jsonl"}, "not both"),
        ({"judge": "none"}, "belong together"),
        ({"endpoints": {"../a": {"url": "http://a", "model": "a"}}}, "an endpoint's name"),
    ):
        with pytest.raises(ValidationError, match=why):
            config_of("http://127.0.0.1:1/v1", **settings)


def test_keys_and_prompts_are_looked_at_before_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JUDGE_API_KEY", raising=False)
    judge = {"url": "https://host/v1", "model": "judge", "api_key_env": "JUDGE_API_KEY"}
    with pytest.raises(ConfigError, match=r"evaluate\.side_by_side\.judge_endpoint\.api_key_env: .*JUDGE_API_KEY"):
        check_here(config_of("http://127.0.0.1:1/v1", judge_endpoint=judge), RUNTIME)
    absent = config_of("http://127.0.0.1:1/v1", prompts=None, file=str(tmp_path / "absent.jsonl"))
    with pytest.raises(SourceError, match="can't be read"):
        sources(absent)
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"prompt": "one"}\n{"text": "two"}\n')
    with pytest.raises(SourceError, match=r"bad\.jsonl, line 2: it has neither `prompt` nor `messages`"):
        check_here(config_of("http://127.0.0.1:1/v1", prompts=None, file=str(bad)), RUNTIME)
    assert sources(None) == {} == sources(config_of("http://127.0.0.1:1/v1"))
