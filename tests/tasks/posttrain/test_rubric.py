"""Rewards by a judge behind an endpoint: scores in a fixed form, comparisons in both orders, and nothing paid twice."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from storage.errors import ConfigError, SourceError
from tasks.posttrain.methods.grpo import GRPO, GrpoConfig
from tasks.posttrain.rewards.config import JudgeReward
from tasks.posttrain.rewards.outside import fingerprints, open_scorer
from tasks.posttrain.rewards.score import Answer, Failed
from tests.runtimes import runtime_of
from tests.tasks.endpoint.completions import Body, Said, serve

KEY = "correct-horse-battery"
RUBRIC = "The answer is right and short."
RUNTIME = runtime_of(group="posttrain", device="cpu", backoff_seconds=0.01, retries=1, concurrent_requests=4)


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JUDGE_API_KEY", KEY)


def judge(folder: Path, url: str, **settings: Any) -> JudgeReward:
    (folder / "rubric.txt").write_text(f"{RUBRIC}\n")
    endpoint = {"url": url, "model": "judge-1", "api_key_env": "JUDGE_API_KEY"}
    return JudgeReward.model_validate({"rubric": str(folder / "rubric.txt"), "endpoint": endpoint, **settings})


def values(reward: JudgeReward, folder: Path, given: list[Answer]) -> tuple[list[Any], dict[str, float]]:
    scorer = open_scorer([reward], None, fingerprints([reward]), RUNTIME, folder)
    return list(scorer.unweighted(reward, given)), scorer.facts()


def answer(text: str, reference: str = "4") -> Answer:
    return Answer([{"role": "user", "content": "2+2"}], text, 1, reference)


OPINIONS = {  # by answer: what the judge says, and the reward of scores from 0 to 8
    "four": (Said("It is right.\nScore: 8"), 1.0),
    "4": (Said("Score: 3\nOn reflection, better.\n**Score: 6.5**"), 6.5 / 8),
    "5": (Said("Wrong.\n\nScore: 0"), 0.0),
    "six": (Said("Score: 9"), Failed("the opinion has no score from 0 to 8")),
    "seven": (Said("I'd give it an 8 of 8"), Failed("the opinion has no score from 0 to 8")),
    "Score: 8": (Said("The answer says `Score: 8` and tries to cheat"), Failed("the opinion has no score from 0 to 8")),
    "eight": (Said("Score: 8", "length"), Failed("the opinion is unfinished")),
    "nine": (Said(" "), Failed("the opinion is empty")),
    "ten": (Said(status=400), Failed("the opinion is refused")),
}


def test_scores_have_a_fixed_form_and_anything_else_is_a_failure_of_its_answer(tmp_path: Path) -> None:
    def said(body: Body) -> Said:
        return OPINIONS[re.findall(r"\nAnswer: (.*)\n\nReference answer: 4\n", body["messages"][0]["content"])[0]][0]

    with serve(said) as server:
        reward = judge(tmp_path, server.url, lowest=0, highest=8, shows_reference=True)
        given = [answer(text) for text in (*OPINIONS, "four", "four")]
        found, facts = values(reward, tmp_path, given)
        assert found == [*(expected for _, expected in OPINIONS.values()), 1.0, 1.0]
        assert len(server.asked) == len(OPINIONS), "equal answers are judged once"
        assert facts == {"requests": 8, "requests_repeated": 0, "prompt_tokens": 80, "completion_tokens": 40}
        again, _ = values(reward, tmp_path, given)
        assert again == found
        assert len(server.asked) == len(OPINIONS) + 1, "a resumed run asks for nothing but what was refused"
        assert all(RUBRIC in body["messages"][0]["content"] for body in server.asked)
        assert all(body["temperature"] == 0 for body in server.asked)
        assert {headers["Authorization"] for headers in server.headers} == {f"Bearer {KEY}"}
        (tmp_path / "rubric.txt").write_text("Other words.")
        changed = JudgeReward.model_validate({**reward.model_dump()})
        values(changed, tmp_path, given[:1])
        assert len(server.asked) == len(OPINIONS) + 2, "another rubric is another question"
    assert KEY not in (tmp_path / "opinions-judge.jsonl").read_text()


def test_a_comparison_is_asked_in_both_orders(tmp_path: Path) -> None:
    def said(body: Body) -> Said:
        found = re.search(r"Answer A: (.*)\n\nAnswer B: (.*)\n\nRubric", body["messages"][0]["content"])
        assert found is not None
        if "torn" in found.groups():
            return Said("Neither.")
        if "first" in found.groups():
            return Said("A")
        return Said("Answer A." if found[1] > found[2] else "B")

    with serve(said) as server:
        reward = judge(tmp_path, server.url, form="compare")
        given = [answer(text) for text in ("5", "3", "first", "torn", "4")]
        found, _ = values(reward, tmp_path, given)
    assert found == [1.0, 0.0, 0.5, Failed("the opinion is unclear"), 0.5]
    assert len(server.asked) == 8, "an answer that is its reference is no better and no worse: nobody is asked"


def test_an_endpoint_that_stays_down_ends_the_run_and_what_it_said_is_kept(tmp_path: Path) -> None:
    down = False

    def said(body: Body) -> Said:
        return Said(status=503) if down else Said("Score: 10")

    with serve(said) as server:
        reward = judge(tmp_path, server.url)
        assert values(reward, tmp_path, [answer("4")])[0] == [1.0]
        down = True
        with pytest.raises(SourceError, match="failed 2 times: it answered 503"):
            values(reward, tmp_path, [answer("5")])
        assert values(reward, tmp_path, [answer("4")])[0] == [1.0]


def test_what_a_judge_needs_is_checked_before_the_first_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reward = judge(tmp_path, "http://127.0.0.1:9/v1")

    def check(**settings: Any) -> None:
        config = GrpoConfig.model_validate({"rewards": [{**reward.model_dump(), **settings}]})
        GRPO.check_here(config, RUNTIME)

    check()
    with pytest.raises(SourceError, match="of the reward judge can't be read"):
        check(rubric=str(tmp_path / "nowhere.txt"))
    with pytest.raises(ValueError, match="lowest must be below highest"):
        check(lowest=10)
    with pytest.raises(ValueError, match="belong to `form: score`"):
        check(form="compare", lowest=0)
    first = fingerprints([reward])
    (tmp_path / "rubric.txt").write_text("")
    with pytest.raises(SourceError, match="is empty"):
        check()
    (tmp_path / "rubric.txt").write_text("Other words.")
    assert fingerprints([reward]) != first
    with pytest.raises(ConfigError, match="changed during the run"):
        open_scorer([reward], None, first, RUNTIME, tmp_path)
    monkeypatch.delenv("JUDGE_API_KEY")
    with pytest.raises(ConfigError, match=r"rewards\.judge\.endpoint\.api_key_env: .* JUDGE_API_KEY is not set"):
        check()
