"""AI feedback as a stage, by an endpoint that says everything: its pairs are what the transcripts say, the judge is
asked in both orders, held-out prompts are not asked, and a run that goes on pays for nothing twice."""

from __future__ import annotations

import json
import re
import zlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from storage.artifact import Artifact
from storage.digests import list_files, tree_digest
from storage.errors import EmptyOutput, SourceError
from storage.shards.lines import read_json_lines
from tasks.posttrain.feedback import FeedbackConfig, feedback
from tasks.posttrain.feedback.config import fingerprint, principles_of
from tasks.posttrain.feedback.prompts import draw_prompts
from tasks.posttrain.rows.prepare import is_held_out, prepare
from tasks.posttrain.rows.row_sources import digest_of, files_of
from tasks.stage.output import Output
from tests.runtimes import runtime_of
from tests.tasks.endpoint.completions import Body, Said, Server, serve
from tests.tasks.interrupt import interrupt
from tests.tasks.tiny_model import RUNTIME, write_rows

KEY = "correct-horse-battery"
NUMBERS = range(40)
ODD = {1: "biased", 2: "alike", 3: "silent", 4: "cut", 5: "torn", 6: "refused"}  # questions, and their fates
DROPPED = {
    "biased": "orders_disagree",
    "alike": "equal_answers",
    "silent": "empty",
    "cut": "unfinished",
    "torn": "unclear",
    "refused": "refused",
}
JUDGE = {"mode": "judge", "samples": 3}
HELD_OUT = {number for number in NUMBERS if is_held_out(f"row-{number}", 0.05)}


def number_of(text: str) -> int:
    found = re.search(r"Question (\d+)\?", text)
    assert found is not None
    return int(found[1])


def longer_wins(body: Body) -> Said:
    """Answers of a length drawn by the seed, and a judge that prefers the longer one, but not for some questions."""
    asked = body["messages"][-1]["content"]
    odd = ODD.get(number_of(asked), "")
    compared = re.search(r"Answer A: (.*)\n\nAnswer B: (.*)\n\nPrinciple: ", asked)
    if compared is None:
        if odd == "refused":
            return Said(status=400, content=b"against the rules")
        length = 1 + zlib.crc32(f"{asked}{body['seed']}".encode()) % 1000
        return Said({"alike": "the same", "silent": " "}.get(odd, "ha" * length), "length" if odd == "cut" else "stop")
    if odd in ("biased", "torn"):
        return Said("A" if odd == "biased" else "I can't say.")
    return Said("A" if len(compared[1]) > len(compared[2]) else "B")


def writes_again(body: Body) -> Said:
    """A first answer, a critique, and a revision, but not for some questions."""
    turns = body["messages"]
    number = number_of(turns[0]["content"])
    odd, step = ODD.get(number, ""), (len(turns) - 1) // 2
    if odd == "refused" and step == 1:
        return Said(status=422)
    text = (f"First answer to {number}", "It names no place", f"Better answer to {number}")[step]
    text = "First answer to 2" if odd == "alike" and step == 2 else text
    return Said("" if odd == "silent" and step == 2 else text, "length" if odd == "cut" and step > 0 else "stop")


@pytest.fixture(scope="module", autouse=True)
def _key() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUDGE_API_KEY", KEY)
        yield


@pytest.fixture(scope="module")
def instructions(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    """Forty questions; the first is there twice, and another conversation asks what one that is held out does."""
    rows = [
        {
            "id": f"row-{number}",
            "source": "test",
            "messages": [
                {"role": "user", "content": f"Question {number}?"},
                {"role": "assistant", "content": f"Answer {number}."},
            ],
        }
        for number in NUMBERS
    ]
    held_out = rows[min(HELD_OUT)]["messages"][0]
    rows.append({**rows[0], "id": "copy"})
    rows.append({**rows[0], "id": "asks-again", "messages": [held_out, {"role": "assistant", "content": "Else."}]})
    return Artifact.at(write_rows(tmp_path_factory.mktemp("instructions") / "all.jsonl", rows))


def config_of(folder: Path, server: Server, **settings: Any) -> FeedbackConfig:
    path = folder / "principles.txt"
    path.write_text("# what counts\nIt is long.\n\nIt names a place.\n")
    endpoint = {"url": server.url, "model": "judge-1", "api_key_env": "JUDGE_API_KEY", "answers": True}
    usual = {"principles": str(path), "max_dropped_share": 0.5, "endpoint": endpoint}
    return FeedbackConfig.model_validate({**usual, **settings})


def output(folder: Path) -> Output:
    return Output.at(folder, stage="feedback", runtime=runtime_of(RUNTIME, backoff_seconds=0.01, concurrent_requests=8))


def made(config: FeedbackConfig, instructions: Artifact, folder: Path) -> Output:
    out = output(folder)
    feedback.function(config, None, instructions, out)
    return out


@pytest.fixture(scope="module")
def judged(instructions: Artifact, tmp_path_factory: pytest.TempPathFactory) -> tuple[Output, Server]:
    """A run in which the longer answer wins, and its server, which has ended."""
    folder = tmp_path_factory.mktemp("judged")
    with serve(longer_wins) as server:
        return made(config_of(folder, server, **JUDGE), instructions, folder / "out"), server


@pytest.fixture(scope="module")
def revised(instructions: Artifact, tmp_path_factory: pytest.TempPathFactory) -> tuple[Output, Server]:
    """A run in which answers are revised, and its server, which has ended."""
    folder = tmp_path_factory.mktemp("revised")
    with serve(writes_again) as server:
        return made(config_of(folder, server), instructions, folder / "out"), server


def read(out: Output) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    pairs = out.path / "preferences" / "pairs.jsonl"
    return list(read_json_lines(out.path / "transcripts.jsonl")), list(read_json_lines(pairs))


def test_the_judge_is_asked_in_both_orders_and_must_agree_with_itself(judged: tuple[Output, Server]) -> None:
    out, server = judged
    transcripts, pairs = read(out)
    assert {number_of(one["prompt"][0]["content"]) for one in transcripts} == set(NUMBERS) - HELD_OUT
    by_prompt = {number_of(pair["prompt"][0]["content"]): pair for pair in pairs}
    dropped = {number_of(one["prompt"][0]["content"]): one["dropped"] for one in transcripts if one["dropped"]}
    assert dropped == {number: DROPPED[odd] for number, odd in ODD.items()}
    assert set(by_prompt) == set(NUMBERS) - HELD_OUT - set(ODD)
    for one in transcripts:
        orders = [(question["A"], question["B"]) for question in one["questions"]]
        assert orders == [(0, 1), (1, 0), (0, 2), (2, 0), (1, 2), (2, 1)] or one["dropped"] not in (
            "",
            "orders_disagree",
        )
        if not one["dropped"]:
            pair = by_prompt[number_of(one["prompt"][0]["content"])]
            assert pair["chosen"] == [{"role": "assistant", "content": max(one["answers"], key=len)}]
            assert pair["rejected"] == [{"role": "assistant", "content": min(one["answers"], key=len)}]
    # The facts are the server's requests
    compared = Counter("Answer A" in body["messages"][-1]["content"] for body in server.asked)
    assert compared == {False: 3 * len(transcripts), True: 6 * (len(pairs) + 2)}
    assert out.counts["comparisons"] == {
        "agreed": 3 * len(pairs),
        "orders_disagree": 3,
        "said_A": 3 * len(pairs) + 6,
        "said_B": 3 * len(pairs),
        "unclear": 3,
    }
    assert (out.counts["asked"], out.counts["answered"]) == (len(transcripts), len(transcripts) - 3)
    assert out.counts["dropped"] == dict.fromkeys(DROPPED.values(), 1)
    removed = {**out.counts["dropped"], "exact_duplicate": 1, "held_out": len(HELD_OUT), "same_prompt": 1}
    assert out.counts["conversations"] == {
        "in": 42,
        "kept": len(pairs),
        "removed": dict(sorted(removed.items())),
        "quarantined": 0,
    }
    table = {row["measure"]: row["number"] for row in out.counts["tables"]["Feedback"]}
    assert table["pairs"] == len(pairs)
    assert table["no pair: orders disagree"] == 1
    assert table["no pair: circular"] == 0
    assert table["comparisons: orders disagree"] == 3
    assert out.facts["prompt_tokens"] == 10 * (len(server.asked) - 3), "all but the requests that were refused"


@pytest.mark.soak
def test_what_was_written_again_is_preferred_to_what_was_said_first(revised: tuple[Output, Server]) -> None:
    out, server = revised
    transcripts, pairs = read(out)
    principles = [one["principle"] for one in transcripts]
    assert principles == (["It is long.", "It names a place."] * 20)[: len(transcripts)], "in turn"
    kept = [one for one in transcripts if not one["dropped"]]
    assert len(kept) == len(pairs)
    for one, pair in zip(kept, pairs, strict=True):
        number = number_of(one["prompt"][0]["content"])
        first, asked, critique, again, last = one["turns"]
        assert one["principle"] in asked["content"]
        assert one["principle"] in again["content"]
        assert critique == {"role": "assistant", "content": "It names no place"}
        assert pair["chosen"] == [last] == [{"role": "assistant", "content": f"Better answer to {number}"}]
        assert pair["rejected"] == [first] == [{"role": "assistant", "content": f"First answer to {number}"}]
    assert out.counts["dropped"] == {"empty": 1, "equal_answers": 1, "refused": 1, "unfinished": 1}
    assert {headers["Authorization"] for headers in server.headers} == {f"Bearer {KEY}"}
    for path in out.path.parent.parent.rglob("*"):
        assert path.is_dir() or KEY.encode() not in path.read_bytes(), f"the key stands in {path.name}"
    assert KEY not in json.dumps([out.counts, out.facts])


def test_its_pairs_are_preferences_of_which_a_share_is_held_out_again(
    revised: tuple[Output, Server], tmp_path: Path
) -> None:
    out, _ = revised
    learned = Artifact.at(out.path / "preferences")
    people = tmp_path / "people" / "pairs.jsonl"
    write_rows(people, [{"id": "by-hand", "prompt": [], "chosen": [], "rejected": []}])
    both = {"feedback": learned, "downloaded": Artifact.at(people.parent)}
    assert files_of(learned) == [learned.path.resolve() / "pairs.jsonl"]
    assert files_of(both) == [people.resolve(), learned.path.resolve() / "pairs.jsonl"]
    assert digest_of(learned) == learned.digest != digest_of(both)
    train, validation, dropped = prepare(
        read(out)[1], lambda row, length: row, 0, validation_share=0.2, max_dropped_share=0.0
    )
    assert train
    assert validation, "by their own ids: those of the conversations are all on the other side"
    assert not dropped


@pytest.mark.soak
def test_killed_it_goes_on_without_paying_again_and_ends_with_the_same_bytes(
    judged: tuple[Output, Server], instructions: Artifact, tmp_path: Path
) -> None:
    whole, once = judged[0], len(judged[1].asked)
    with serve(longer_wins) as server:
        config, killed = config_of(tmp_path, server, **JUDGE), output(tmp_path / "killed")
        interrupt(feedback, config, (None, instructions), killed, at=16)
        feedback.function(config, None, instructions, killed)
    assert tree_digest(list_files(killed.path)) == tree_digest(list_files(whole.path))
    # Those under way are sent twice, and so are refused ones, which cost nothing
    assert once <= len(server.asked) <= once + 8 + 3
    assert killed.counts == whole.counts


def test_a_seed_draws_other_prompts_in_another_order(instructions: Artifact) -> None:
    files = instructions.files("*.jsonl")
    one, again, two = (draw_prompts(FeedbackConfig(prompts=12, seed=seed), files) for seed in (1, 1, 2))
    assert one == again
    assert [row["id"] for row in one[0]] != [row["id"] for row in two[0]]
    assert len(two[0]) == 12
    assert two[1] == {
        "exact_duplicate": 1,
        "held_out": len(HELD_OUT),
        "same_prompt": 1,
        "not_drawn": len(NUMBERS) - len(HELD_OUT) - 12,
    }


@pytest.mark.soak
def test_too_many_prompts_without_a_pair_end_the_stage(instructions: Artifact, tmp_path: Path) -> None:
    with serve(lambda body: Said("always the same")) as server, pytest.raises(EmptyOutput, match="'equal_answers': "):
        made(config_of(tmp_path, server), instructions, tmp_path / "out")


def test_principles_and_the_endpoint_are_part_of_the_key_and_the_secret_is_not(
    instructions: Artifact, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(tmp_path, Server("https://one.example/v1"))
    assert principles_of(config) == ["It is long.", "It names a place."]
    payload = feedback.payload(config, (None, instructions))
    monkeypatch.setenv("JUDGE_API_KEY", "another-secret")
    assert feedback.payload(config, (None, instructions)).key() == payload.key()
    assert KEY not in payload.model_dump_json()
    keys = {payload.key()}
    elsewhere = config_of(tmp_path, Server("https://two.example/v1"))
    keys.add(feedback.payload(elsewhere, (None, instructions)).key())
    Path(str(config.principles)).write_text("It is short.\n")
    keys.add(feedback.payload(config, (None, instructions)).key())
    assert len(keys) == 3
    Path(str(config.principles)).write_text("# nothing\n")
    with pytest.raises(SourceError, match="is empty"):
        principles_of(config)
    with pytest.raises(SourceError, match="can't be read"):
        fingerprint(FeedbackConfig(principles=str(tmp_path / "nowhere.txt")))
    assert fingerprint(FeedbackConfig()) == {}
