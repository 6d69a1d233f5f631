"""The environments that ship: one tool, and an answer that calls it or ends the conversation."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import regex

from tasks.posttrain.rewards.environments.calculator import CalculationError, calculate
from tasks.posttrain.rewards.environments.config import CalculatorConfig, PythonToolConfig
from tasks.posttrain.rewards.environments.protocol import Opening, Step
from tasks.sandbox import Program, Sandbox

CALL = regex.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", regex.DOTALL)
SECONDS = 5.0  # of CPU time for a match
Replies = list[tuple[str, str]]  # what a tool says, and why it failed, for each call
PRINTING = """import contextlib, io
class Printed(Exception): pass
_text = io.StringIO()
with contextlib.redirect_stdout(_text):
    exec(compile({source!r}, "<tool>", "exec"), {{"__name__": "__main__"}})
raise Printed(_text.getvalue())
"""


TOOLS = {
    "calculator": ("calculator", "expression", "Calculates an expression of numbers."),
    "python": ("python", "code", "Runs a program and returns what it prints."),
}


def shown_tools(config: CalculatorConfig | PythonToolConfig) -> list[dict[str, Any]]:
    """The tools that a prompt describes, as JSON schemas of functions."""
    name, argument, about = TOOLS[config.kind]
    parameters = {"type": "object", "properties": {argument: {"type": "string"}}, "required": [argument]}
    function = {"name": name, "description": about, "parameters": parameters}
    return [{"type": "function", "function": function}] if config.shows_tools else []


class ToolEnvironments:
    """Conversations with one tool. An answer without a call is the last one."""

    def __init__(self, config: CalculatorConfig | PythonToolConfig) -> None:
        self.config = config
        self.name, self.argument, _ = TOOLS[config.kind]
        self._replies: Callable[[Sequence[str]], Replies] = (
            _calculated if isinstance(config, CalculatorConfig) else _Printed(Sandbox(config.sandbox))
        )

    def reset(self, rows: Sequence[Mapping[str, Any]]) -> list[Opening]:
        """The prompts as they are."""
        return [Opening(row["prompt"], shown_tools(self.config)) for row in rows]

    def step(self, answers: Mapping[int, str]) -> dict[int, Step | str]:
        """What the tool says to each call."""
        calls = {place: self._call(answer) for place, answer in answers.items()}
        asked = [place for place, (text, wrong) in calls.items() if text is not None and not wrong]
        replies = dict(zip(asked, self._replies([calls[place][0] or "" for place in asked]), strict=True))
        steps: dict[int, Step | str] = {}
        for place, (text, wrong) in calls.items():
            if text is None:
                steps[place] = Step(done=True)
                continue
            said, why = replies.get(place, (f"error: {wrong}", wrong))
            steps[place] = Step(said, called=True, failed=why)
        return steps

    def close(self) -> None:
        """Nothing to end: programs end with their call, and workers with the process."""

    def _call(self, answer: str) -> tuple[str | None, str]:
        """What an answer gives the tool, None if it doesn't call it, and what is wrong with the call."""
        pattern = CALL if self.config.pattern is None else regex.compile(self.config.pattern, regex.DOTALL)
        try:
            match = pattern.search(answer, timeout=SECONDS)
        except TimeoutError:
            return "", "the pattern takes too long to find a call"
        if match is None:
            return None, ""
        if self.config.pattern is not None:
            return match[1] or "", ""
        try:
            call = json.loads(match[1])
            name, given = call["name"], call["arguments"][self.argument]
        except (ValueError, TypeError, KeyError, RecursionError):
            return "", f'a call is {{"name": "{self.name}", "arguments": {{"{self.argument}": …}}}}'
        if name != self.name or not isinstance(given, str):
            return "", f"the only tool is {self.name}, and its {self.argument} is a text"
        return given, ""


def _calculated(expressions: Sequence[str]) -> Replies:
    replies: Replies = []
    for text in expressions:
        try:
            replies.append((calculate(text), ""))
        except CalculationError as error:
            replies.append((f"error: {error}", str(error)))
    return replies


class _Printed:
    """Programs → what they print, up to the thousand characters that the sandbox reports."""

    def __init__(self, sandbox: Sandbox) -> None:
        self._sandbox = sandbox

    def __call__(self, programs: Sequence[str]) -> Replies:
        outcomes = self._sandbox.run([Program(PRINTING.format(source=program), "") for program in programs])
        return [
            (outcome.message.rstrip("\n"), "")
            if outcome.error == "Printed"
            else (f"error: {outcome.detail or outcome.state}", outcome.detail or outcome.state)
            for outcome in outcomes
        ]
