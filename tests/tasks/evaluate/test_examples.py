"""No question stands among its own examples, however a task comes by them; shots that can't be shown are refused; what
doesn't fit into the context is counted."""

from __future__ import annotations

import json
import re
import types
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from lm_eval.api.model import TemplateLM

from storage.errors import ConfigError
from tasks.evaluate.score.config import ScoreConfig
from tasks.evaluate.score.run import Job, _measure
from tasks.harness.config import HarnessSource
from tasks.harness.prepare import prepare
from tasks.significance.scores import judged, verdict
from tests.runtimes import runtime_of
from tests.tasks.tiny_model import write_rows

ROWS = [{"question": f"Q{n}?", "answer": f"A{n}.", "wrong": [f"B{n}.", f"C{n}."]} for n in range(6)]
TEXT = {"doc_to_text": "{{question}}", "doc_to_target": "{{answer}}"}
LIKELIHOOD = {"output_type": "loglikelihood", **TEXT}
GENERATION = {"output_type": "generate_until", "generation_kwargs": {"until": ["\n"]}, **TEXT}
CHOICES = {"output_type": "multiple_choice", **TEXT, "doc_to_choice": "{{[answer] + wrong}}"}
BLANK = {  # as WinoGrande, whose choices precede the question
    "output_type": "multiple_choice",
    "doc_to_text": "{{0}}",
    "doc_to_target": "{{answer}}",
    "doc_to_choice": "{{[question, 'Nothing']}}",
}
SHUFFLED = {  # as GPQA, whose examples are shuffled differently from the questions
    "output_type": "multiple_choice",
    "process_docs": "!function code.shuffled",
    "doc_to_text": "{{question}} {{choices|join(' ')}}",
    "doc_to_target": "{{answer}}",
    "doc_to_choice": "{{choices}}",
}
CODE = """
import random
from datasets import Dataset
draws = random.Random(1)
def shuffled(rows):
    return rows.map(lambda row: {"choices": draws.sample([row["answer"], *row["wrong"]], 3)})
def renamed(rows):
    return Dataset.from_list([{"asked": row["question"], "said": row["answer"]} for row in rows])
"""
RENAMED = {"process_docs": "!function code.renamed", "doc_to_text": "{{asked}}", "doc_to_target": "{{said}}"}
TEST, VALIDATION, ONE = {"test_split": "a"}, {"validation_split": "a"}, {"training_split": "a", "validation_split": "a"}
TRAIN = {"training_split": "b", "test_split": "a"}
FIRST = {"fewshot_config": {"sampler": "first_n"}}


class Spy(TemplateLM):  # type: ignore[misc]  # of a package without types
    """Remembers its prompts, with a token per byte, and gives each the same answer."""

    tokenizer_name, eot_token_id, max_gen_toks = "", 0, 4

    def __init__(self, context: int = 10**5) -> None:
        super().__init__()
        self.prompts: list[str] = []
        self.max_length = context
        self.tokenizer = types.SimpleNamespace(chat_template="x", encode=list)

    def tok_encode(self, text: str, **_: Any) -> list[int]:
        return list(text.encode())

    def apply_chat_template(self, turns: Sequence[Mapping[str, str]], **_: Any) -> str:
        return "\n".join(turn["content"] for turn in turns)

    def chat_template(self, chat_template: bool | str = False) -> str:
        return "x"

    def _loglikelihood_tokens(self, asked: Sequence[Any], **_: Any) -> list[tuple[float, bool]]:
        self.prompts += [one[0][0] for one in asked]
        return [(-1.0, False)] * len(asked)

    def loglikelihood_rolling(self, asked: Sequence[Any], **_: Any) -> list[Any]:
        return [-1.0] * len(asked)

    def generate_until(self, asked: Sequence[Any], **_: Any) -> list[str]:
        self.prompts += [one.args[0] for one in asked]
        return ["x"] * len(asked)


def measured(
    folder: Path, definition: Mapping[str, Any] | None, rows: Any = ROWS, context: int = 10**5, **asked: Any
) -> tuple[Spy, dict[str, Any]]:
    """A model that was asked a task whose splits a and b are one file; or, without a definition, that file."""
    write_rows(folder / "rows.jsonl", rows)
    task = folder / "rows.jsonl"
    if definition is not None:
        (folder / "defined").mkdir()
        (folder / "defined" / "code.py").write_text(CODE)
        text = yaml.safe_dump({"task": "mine", "dataset_path": "rows", **definition}, sort_keys=False)
        (folder / "defined" / "mine.yaml").write_text(re.sub(r"'(!function [\w.]+)'", r"\1", text))
        source = HarnessSource(task="mine", folder=str(folder / "defined"), files=dict.fromkeys("ab", str(task)))
        task = folder / "made" / "mine"
        prepare(source, task, folder / "scratch")
    (folder / "out").mkdir()
    runtime = runtime_of(workers=1, threads=1, device="cpu")
    config = ScoreConfig(task=task.stem, **asked)
    spy = Spy(context)
    score = _measure(Job(config=config, runtime=runtime, task=task, scratch=folder / "out", out=folder / "out"), spy)
    return spy, score


@pytest.mark.parametrize(
    ("definition", "asked", "draws_itself"),
    [
        pytest.param({**LIKELIHOOD, **TEST}, {}, True, id="the split of the questions is the only one"),
        pytest.param({**LIKELIHOOD, **TEST, "num_fewshot": 4}, {"shots": None}, True, id="shots of the definition"),
        pytest.param({**LIKELIHOOD, **VALIDATION}, {}, False, id="a validation split alone"),
        pytest.param({**LIKELIHOOD, **VALIDATION, "fewshot_split": "a"}, {}, True, id="a validation split, named"),
        pytest.param({**LIKELIHOOD, **TEST, "fewshot_split": "a"}, {}, False, id="a test split, named"),
        pytest.param({**LIKELIHOOD, **TEST, "fewshot_split": "b"}, {}, True, id="one file for two splits, named"),
        pytest.param({**LIKELIHOOD, **TRAIN}, {}, True, id="one file for two splits"),
        pytest.param({**LIKELIHOOD, **ONE}, {}, False, id="one split for both"),
        pytest.param({**SHUFFLED, **ONE}, {}, True, id="choices shuffled anew"),
        pytest.param({**SHUFFLED, **TRAIN}, {}, True, id="choices shuffled anew, two splits"),
        pytest.param({**LIKELIHOOD, **TRAIN, **RENAMED}, {}, True, id="rows made anew"),
        pytest.param({**LIKELIHOOD, **TEST, **FIRST}, {}, True, id="the first ones"),
        pytest.param(
            {**LIKELIHOOD, **TEST, "fewshot_config": {"sampler": "first_n", "samples": ROWS}}, {}, True, id="listed"
        ),
        pytest.param(
            {
                **LIKELIHOOD,
                **TEST,
                "fewshot_split": "a",
                "fewshot_config": {
                    "process_docs": "!function code.renamed",
                    "doc_to_text": "{{asked}}",
                    "doc_to_target": "{{said}}",
                },
            },
            {},
            True,
            id="examples in other columns",
        ),
        pytest.param({**GENERATION, **TEST}, {}, True, id="text"),
        pytest.param({**GENERATION, **TEST}, {"chat": True}, True, id="as a conversation"),
        pytest.param({**CHOICES, **TEST}, {}, True, id="choices"),
        pytest.param({**BLANK, **TEST}, {}, True, id="choices before what is asked"),
        pytest.param({**LIKELIHOOD, **TEST}, {"limit": 3}, True, id="a few questions"),
    ],
)
def test_no_question_is_among_its_own_examples(
    definition: dict[str, Any], asked: dict[str, Any], draws_itself: bool, tmp_path: Path
) -> None:
    spy, score = measured(tmp_path, definition, **{"shots": 4, **asked})
    assert len(spy.prompts) >= asked.get("limit", len(ROWS))
    for prompt in spy.prompts:
        shown = re.findall(r"Q(\d)\?", prompt)
        if "Nothing" in prompt:
            shown.append("")
        assert len(shown) == len({*shown}) == 5, prompt
    assert (score["replaced"] > 0) == draws_itself


def test_rows_that_are_there_twice_and_a_file_of_questions(tmp_path: Path) -> None:
    (tmp_path / "twice").mkdir()
    spy, score = measured(tmp_path / "twice", {**LIKELIHOOD, **TEST}, [*ROWS, *ROWS[:3] * 2], shots=4)
    assert all(prompt.count(re.findall(r"Q\d", prompt)[-1]) == 1 for prompt in spy.prompts)
    rows = [{"id": f"{n}", "query": f"Q{n}?", "choices": [f" A{n}.", " B."], "gold": 0} for n in range(6)]
    spy, score = measured(tmp_path, None, rows, shots=5)
    assert {len({*re.findall(r"Q(\d)", prompt)}) for prompt in spy.prompts} == {6}
    assert score["replaced"] > 0


@pytest.mark.parametrize(
    ("definition", "shots", "told"),
    [
        ({**LIKELIHOOD, **TEST, "num_fewshot": 0}, 2, "mine always shows 0 examples.*`shots` is 2"),
        ({"output_type": "loglikelihood_rolling", **TEXT, **TEST}, 1, "mine always shows 0 examples.*`shots` is 1"),
        ({**LIKELIHOOD, **TEST}, 6, "mine has fewer than 6 examples besides the question"),
        ({**LIKELIHOOD, **TEST, **FIRST}, 6, "mine has fewer than 6 examples besides the question"),
        ({**LIKELIHOOD, **TEST, "fewshot_config": {"samples": []}}, 1, "mine has fewer than 1 examples"),
        ({**LIKELIHOOD, **TEST, "num_fewshot": 0}, 0, None),
        ({**LIKELIHOOD, **TEST, "num_fewshot": 3}, 5, None),
        ({"output_type": "loglikelihood_rolling", **TEXT, **TEST}, 0, None),
    ],
)
def test_shots_that_can_not_be_shown_are_refused(
    definition: dict[str, Any], shots: int, told: str | None, tmp_path: Path
) -> None:
    if told is None:
        assert measured(tmp_path, definition, shots=shots)[1]["shots"] == [shots]
        return
    with pytest.raises(ConfigError, match=told):
        measured(tmp_path, definition, shots=shots)


@pytest.mark.parametrize(
    ("definition", "context", "cut"),
    [
        ({**LIKELIHOOD, **TEST}, 41, 0),  # of 42 bytes the last is not read
        ({**LIKELIHOOD, **TEST}, 40, 6),
        ({**GENERATION, **TEST}, 43, 0),  # 39 of a prompt, 4 of its answer
        ({**GENERATION, **TEST}, 42, 6),
        ({**CHOICES, **TEST}, 20, 6),  # a question with three choices counts once
    ],
)
def test_prompts_that_lose_their_examples_are_counted_beside_the_score(
    definition: dict[str, Any], context: int, cut: int, tmp_path: Path
) -> None:
    _, score = measured(tmp_path, definition, context=context, shots=4)
    assert score["cut"] == cut
    shown = judged(score, {})
    told = verdict({"models": {"base": {"tasks": {"mine": shown}}}})
    assert (f"base in mine: {cut} questions are longer than the context" in told) == bool(cut)
    assert json.loads(json.dumps(shown)).get("cut", 0) == cut
