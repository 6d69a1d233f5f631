"""A question and its answer, each under a key: Alpaca, Dolly, prompt and completion."""

from __future__ import annotations

from typing import Any

from tasks.download.pairs.form import Form, Message, Values, bad
from tasks.download.pairs.texts import assistant, kind_of, optional_text, system_of, text_of, user
from tasks.download.pairs.transcript import as_turns, without_prompt


def asked(row: Values, *keys: str) -> str:
    """The user's text: the texts of the keys that aren't empty, one below the other."""
    texts = [text for key in keys if (text := optional_text(row, key)) is not None]
    if not texts:
        raise bad("empty", f"{' and '.join(keys)} are empty")
    return "\n".join(texts)


def before(row: Values) -> list[Message]:
    """The turns before an Alpaca row's question: `system`, and `history`, a list of questions with their answers."""
    return [*system_of(row), *_history(row.get("history"))]


def _history(history: Any) -> list[Message]:
    if history is None:
        return []
    if not isinstance(history, list):
        raise bad("no_messages", f"history is {kind_of(history)}, not a list")
    turns = []
    for number, said in enumerate(history):
        if not isinstance(said, list | tuple) or len(said) != 2:
            raise bad("no_messages", f"history[{number}] is not a question and its answer")
        turns.append(user(text_of(said[0], f"history[{number}][0]")))
        turns.append(assistant(text_of(said[1], f"history[{number}][1]")))
    return turns


def _alpaca(row: Values) -> list[Message]:
    return [*before(row), user(asked(row, "instruction", "input")), assistant(text_of(row["output"], "output"))]


def _dolly(row: Values) -> list[Message]:
    question, answer = asked(row, "instruction", "context"), text_of(row["response"], "response")
    return [*system_of(row), user(question), assistant(answer)]


def _prompt_completion(row: Values) -> list[Message]:
    prompt = [*system_of(row), *as_turns(row["prompt"], "prompt", user)]
    return [*prompt, *without_prompt(prompt, as_turns(row["completion"], "completion", assistant), "completion")]


ALPACA = Form("alpaca", (("instruction", "output"), ("input", "output")), _alpaca)
DOLLY = Form("dolly", (("instruction", "response"),), _dolly)
PROMPT_COMPLETION = Form("prompt_completion", (("prompt", "completion"),), _prompt_completion)
