"""The page on rewards: its function returns what the page says, by itself and as a reward."""

from __future__ import annotations

import doctest
import runpy
from pathlib import Path

import pytest
import yaml

from tasks.posttrain.methods.grpo import GrpoConfig
from tasks.posttrain.rewards.config import PythonReward
from tasks.posttrain.rewards.function import FunctionReward
from tasks.posttrain.rewards.score import Answer
from tests.docs.pages import blocks

PAGE = "preferences-and-rewards.md"
CODE, SHOWN = (
    next(block.text for block in blocks("python") if block.page.name == PAGE and block.text.startswith(beginning))
    for beginning in ("# rewards.py", ">>> prompt")
)


def test_the_environment_of_the_page_says_what_the_page_says(tmp_path: Path) -> None:
    code, shown = (
        next(block.text for block in blocks("python") if block.text.startswith(beginning))
        for beginning in ("# countdown.py", ">>> environment")
    )
    (tmp_path / "countdown.py").write_text(code)
    example = doctest.DocTestParser().get_doctest(shown, runpy.run_path(str(tmp_path / "countdown.py")), PAGE, PAGE, 0)
    assert doctest.DocTestRunner().run(example) == doctest.TestResults(failed=0, attempted=4)


def test_the_function_of_the_page_returns_what_the_page_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rewards.py").write_text(CODE)
    assert len(CODE.splitlines()) <= 20
    example = doctest.DocTestParser().get_doctest(SHOWN, runpy.run_path("rewards.py"), PAGE, PAGE, 0)
    assert doctest.DocTestRunner().run(example) == doctest.TestResults(failed=0, attempted=3)
    (profile,) = (block.text for block in blocks("yaml") if block.text.startswith("# own.yaml"))
    config = GrpoConfig.model_validate(yaml.safe_load(profile)["grpo"])
    own = config.rewards[0]
    assert isinstance(own, PythonReward)
    function = FunctionReward(own)
    fields = {"tolerance": 5}
    given = [Answer([], text, 1, "42", fields) for text in ("17 + 25 = 42", "about 44", "no idea")]
    try:
        assert function([*given, Answer([], "42", 1, "42")]) == [1.0, 0.6, 0.0, None]
    finally:
        function.close()
