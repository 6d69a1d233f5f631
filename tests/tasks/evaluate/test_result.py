"""The harness's results as rows: clusters, metrics of several filters, and the command that repeats them."""

from __future__ import annotations

import math
import statistics
from typing import Any

import pytest

from storage.errors import ConfigError
from tasks.evaluate.score.config import ScoreConfig
from tasks.evaluate.score.result import clustered, command_of, items_of, score_of
from tasks.evaluate.score.run import check_generation


def sample(number: int, right: float, text: str, chosen: str = "none") -> dict[str, Any]:
    """One question as the harness logs it."""
    return {
        "doc_id": number,
        "doc": {"passage": text, "question": f"{number}?"},
        "metrics": ["acc"],
        "filter": chosen,
        "acc": right,
        "resps": [[(-1.0, False)], [(-2.0, False)]],
        "arguments": [("Q:", " no"), ("Q:", " café")],
        "filtered_resps": [(-1.0, False), (-2.0, False)],
        "target": 1,
    }


def measured(samples: list[dict[str, Any]], value: float, error: float) -> dict[str, Any]:
    """The result of simple_evaluate for one task."""
    result = {"alias": "t", "acc,none": value, "acc_stderr,none": error}
    return {
        "results": {"t": result},
        "samples": {"t": samples},
        "higher_is_better": {"t": {"acc": True}},
        "versions": {"t": 1},
        "n-shot": {"t": 0},
    }


def test_questions_about_the_same_text_are_one_cluster() -> None:
    right = [1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0]
    texts = ["a", "a", "a", "b", "b", "b", "c", "d"]
    given = measured([sample(n, r, t) for n, (r, t) in enumerate(zip(right, texts, strict=True))], 0.5, 0.2)
    items = items_of("t", given, named=False, cluster="passage")
    assert len({item["cluster"] for item in items}) == 4
    score = score_of("t", given, items)
    assert (score["headline"], score["chance"], score["items"]) == ("acc", 0.5, 8)
    found = clustered(score["metrics"], items)["acc"]["stderr"]
    # Miller 2024, eq. 4, by hand: the sums of the deviations of each cluster
    away = [value - 0.5 for value in right]
    independent = statistics.stdev(right) / math.sqrt(8)
    assert score_of("t", given, items)["metrics"]["acc"]["stderr"] == 0.2
    between = sum(
        away[one] * away[other] for one in range(8) for other in range(8) if one != other and texts[one] == texts[other]
    )
    assert found == pytest.approx(math.sqrt(independent**2 + between / 64), rel=1e-6)
    assert found > independent
    with pytest.raises(ConfigError, match=r"lack the column text\. Their columns: passage, question"):
        items_of("t", given, named=False, cluster="text")


def test_an_answer_may_be_read_in_two_ways() -> None:
    samples = [sample(0, 1.0, "a", "strict-match"), sample(0, 0.0, "a", "flexible-extract")]
    (item,) = items_of("t", measured(samples, 0.5, 0.0), named=False)
    assert item["scores"] == {"acc,strict-match": 1.0, "acc,flexible-extract": 0.0}


def test_a_line_says_why_an_answer_is_right_or_wrong() -> None:
    (item,) = items_of("t", measured([sample(0, 0.0, "a")], 0.0, 0.0), named=False)
    assert (item["likelihoods"], item["bytes"], item["target"]) == ([-1.0, -2.0], [3, 6], 1)
    said = {"resps": [["so 3 #### 4"]], "target": "2 + 2\n#### 4"}
    two = [
        {**sample(0, 1.0, "a", "strict-match"), **said, "filtered_resps": ["4"]},
        {**sample(0, 0.0, "a", "flexible-extract"), **said, "filtered_resps": ["3"]},
    ]
    (item,) = items_of("t", measured(two, 0.5, 0.0), named=False)
    assert item["answers"] == ["so 3 #### 4"]
    assert item["taken"] == {"strict-match": ["4"], "flexible-extract": ["3"]}
    assert item["target"] == "2 + 2\n#### 4"


def test_arguments_that_nobody_knows_are_refused_by_name() -> None:
    check_generation(ScoreConfig(task="gsm8k", generation={"max_gen_toks": 9, "until": ["."], "temperature": 0.5}))
    with pytest.raises(ConfigError, match="gsm8k: temprature isn't an argument of generation") as raised:
        check_generation(ScoreConfig(task="gsm8k", generation={"temprature": 0.5}))
    assert "temperature" in raised.value.remedy


def test_the_command_repeats_what_was_asked() -> None:
    config = ScoreConfig(task="gsm8k", shots=2, limit=9, chat=True, generation={"max_gen_toks": 12}, seed=7)
    assert command_of(config) == (
        "lm_eval run --model hf --model_args pretrained=MODEL,dtype=float32 --include_path FILES --tasks gsm8k "
        "--batch_size 32 --num_fewshot 2 --limit 9 --apply_chat_template --fewshot_as_multiturn --gen_kwargs "
        "'{\"max_gen_toks\": 12}' --seed 0,7,7,7 --confirm_run_unsafe_code"
    )
    some = command_of(ScoreConfig(task="blimp"), ["blimp_causative", "blimp_passive_2"])
    assert "--tasks blimp_causative,blimp_passive_2 --batch_size" in some
