"""AI feedback by the chain's model: its answers, its judgement, and an endpoint in its place."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from storage.artifact import Artifact
from storage.digests import list_files, tree_digest
from storage.errors import EmptyOutput
from storage.shards.lines import read_json_lines
from tasks.posttrain.feedback import FeedbackConfig, feedback
from tasks.posttrain.feedback.local import LocalModel
from tasks.posttrain.methods.dpo import DpoConfig, dpo
from tasks.posttrain.methods.sft import SftConfig, sft
from tasks.stage.output import Output
from tests.tasks.endpoint.completions import Said, serve
from tests.tasks.interrupt import interrupt
from tests.tasks.posttrain.uneven import output
from tests.tasks.tiny_model import (
    ANIMALS,
    RUNTIME,
    answer,
    make_instructions,
    make_model,
    make_preferences,
    question,
    write_rows,
)

QUESTIONS = [question(animal) for animal in ANIMALS[:5]]


@pytest.fixture(scope="module")
def untrained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("begun") / "model", context=256)


@pytest.fixture(scope="module")
def tuned(untrained: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Artifact, Artifact]:
    """A model that has learned to end its answers, and questions."""
    folder = tmp_path_factory.mktemp("tuned")
    pairs, out = Artifact.at(make_instructions(folder / "pairs")), output(folder / "sft", "sft")
    sft.function(SftConfig(epochs=1, learning_rate=5e-3), Artifact.at(untrained), pairs, out)
    return Artifact.at(out.path / "model"), pairs


def speaker_of(folder: Path, **settings: Any) -> LocalModel:
    config = FeedbackConfig.model_validate({"mode": "judge", "max_new_tokens": 8, **settings})
    return LocalModel.load(folder, config, RUNTIME)


def test_samples_depend_on_the_prompt_and_its_seed_alone(untrained: Path) -> None:
    speaker = speaker_of(untrained)
    together = speaker.sample(QUESTIONS, 3, range(5))
    torch.rand(1)
    assert speaker.sample(QUESTIONS[2:3], 3, [2]) == together[2:3]
    assert speaker.sample(QUESTIONS[2:3], 3, [7]) != together[2:3]
    assert len({reply.text for replies in together for reply in replies}) > 10
    faults = {reply.fault for replies in together for reply in replies}
    assert faults <= {"unfinished", "empty"}, "it has not learned to end"


def test_the_judge_names_the_letter_that_is_more_likely(untrained: Path) -> None:
    speaker = speaker_of(untrained)
    said = speaker.compare(QUESTIONS)
    letters = [speaker.tokenizer.encode(letter)[0] for letter in "AB"]
    for messages, reply in zip(QUESTIONS, said, strict=True):
        ids = speaker.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]
        with torch.no_grad():
            first, second = speaker.model(torch.tensor([ids])).logits[0, -1, letters].tolist()
        assert (reply.text, reply.fault) == ("A" if first > second else "B", "")


def test_what_is_too_long_is_told_and_the_rest_is_answered(untrained: Path) -> None:
    speaker = speaker_of(untrained)
    long = [{"role": "user", "content": "Where? " * 300}]
    alone = speaker.say(QUESTIONS[:2])
    assert [reply.fault for reply in speaker.say([QUESTIONS[0], long, QUESTIONS[1]])] == [
        alone[0].fault,
        "overlong",
        alone[1].fault,
    ]
    assert [reply.fault for reply in speaker.compare([long, QUESTIONS[0]])] == ["overlong", ""]
    assert [reply.fault for reply in speaker.sample([long], 3, [0])[0]] == ["overlong"]
    assert speaker.say([long])[0].fault == "overlong"


@pytest.mark.soak
def test_the_model_answers_and_an_endpoint_writes_again(tuned: tuple[Artifact, Artifact], tmp_path: Path) -> None:
    def again(body: dict[str, Any]) -> Said:
        return Said("A critique" if len(body["messages"]) == 3 else "A better answer")

    with serve(again) as server:
        endpoint = {"url": server.url, "model": "critic"}
        config = FeedbackConfig.model_validate({"endpoint": endpoint, "max_new_tokens": 24})
        out = Output.at(tmp_path / "out", stage="feedback", runtime=RUNTIME)
        feedback.function(config, *tuned, out)
    pairs = list(read_json_lines(out.path / "preferences" / "pairs.jsonl"))
    assert pairs
    assert {pair["chosen"][0]["content"] for pair in pairs} == {"A better answer"}
    assert all(pair["rejected"][0]["content"].startswith("It lives in the") for pair in pairs)
    assert len(server.asked) == 2 * out.counts["answered"]
    # dpo learns from these, besides people's pairs
    both = {
        "downloaded": Artifact.at(make_preferences(tmp_path / "people")),
        "feedback": Artifact.at(out.path / "preferences"),
    }
    aligned = output(tmp_path / "dpo", "dpo")
    dpo.function(DpoConfig(epochs=0.2, validation_share=0), tuned[0], both, aligned)
    assert aligned.counts["documents"]["in"] == 192 + len(pairs)


@pytest.mark.soak
@pytest.mark.parametrize("mode", ["revise", "judge"])
def test_killed_it_goes_on_and_ends_with_the_same_bytes(
    mode: str, tuned: tuple[Artifact, Artifact], tmp_path: Path
) -> None:
    """So small a model rarely agrees with itself, so the comparison may rest on the transcripts only."""
    config = FeedbackConfig.model_validate({"mode": mode, "max_new_tokens": 12, "max_dropped_share": 1.0})
    whole, killed = (Output.at(tmp_path / name, stage="feedback", runtime=RUNTIME) for name in ("whole", "killed"))
    rows = [
        {"id": f"{number}", "messages": [{"role": "user", "content": f"{number}. {row['content']}"}, answer("wood")]}
        for number, (row,) in enumerate(map(question, 2 * ANIMALS))
    ]
    inputs = tuned[0], Artifact.at(write_rows(tmp_path / "rows" / "all.jsonl", rows))
    interrupt(feedback, config, inputs, killed, at=16)
    assert list((killed.scratch / "transcripts").iterdir())
    ends = [_told(config, inputs, out) for out in (whole, killed)]
    assert ends[0] == ends[1]


def _told(config: FeedbackConfig, inputs: tuple[Artifact, Artifact], out: Output) -> tuple[str, str]:
    try:
        feedback.function(config, *inputs, out)
    except EmptyOutput as error:
        return str(error), tree_digest(list_files(out.scratch / "transcripts"))
    return tree_digest(list_files(out.path)), tree_digest(list_files(out.scratch / "transcripts"))
