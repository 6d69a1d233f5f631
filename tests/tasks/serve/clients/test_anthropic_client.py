"""Anthropic's own client against the server: its types, its order of events, its classes of errors."""

from __future__ import annotations

from typing import Any

import anthropic
import httpx
import pytest
from anthropic.types import Message

from tests.tasks.serve.clients.conftest import Clients

ASKED: list[Any] = [{"role": "user", "content": "Where does the fox live?"}]
SYSTEM = "Be brief. <|end|>"
LIKELIEST: dict[str, Any] = {"extra_body": {"top_k": 1}}  # the client's own arguments lack it
WEATHER: Any = {"name": "weather", "description": "The weather", "input_schema": {"type": "object"}}


def test_a_message_is_of_the_clients_types(clients: Clients) -> None:
    asked: dict[str, Any] = {"model": "plain", "messages": ASKED, "max_tokens": 9, "system": SYSTEM, **LIKELIEST}
    message = clients.anthropic.messages.create(**asked)
    (block,) = message.content
    assert block.type == "text"
    assert message.stop_reason == "max_tokens"
    prompt = [{"role": "system", "content": SYSTEM}, *ASKED]
    assert message.usage.input_tokens == clients.prompt_tokens(prompt)
    assert message.usage.output_tokens == clients.tokens(block.text)
    del asked["extra_body"]
    raw = httpx.post(f"{clients.server.url}/v1/messages", json=asked).content
    Message.model_validate_json(raw, strict=True)
    del asked["max_tokens"]
    assert clients.anthropic.messages.count_tokens(**asked).input_tokens == message.usage.input_tokens


def test_a_stream_has_its_events_in_order_and_adds_up(clients: Clients) -> None:
    asked: dict[str, Any] = {"model": "plain", "messages": ASKED, "max_tokens": 9, **LIKELIEST}
    whole = clients.anthropic.messages.create(**asked)
    kinds = [event.type for event in clients.anthropic.messages.create(**asked, stream=True)]
    middle = ["content_block_delta"] * (len(kinds) - 5)
    assert middle
    assert kinds == [
        *("message_start", "content_block_start", *middle, "content_block_stop", "message_delta", "message_stop")
    ]
    with clients.anthropic.messages.stream(**asked) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert [block.type for block in final.content] == ["text"]
    assert text == final.content[0].text == whole.content[0].text
    assert (final.stop_reason, final.usage.input_tokens) == (whole.stop_reason, whole.usage.input_tokens)
    assert final.usage.output_tokens == whole.usage.output_tokens


def test_a_stop_sequence_is_named(clients: Clients) -> None:
    asked: dict[str, Any] = {"model": "plain", "messages": ASKED, "max_tokens": 40, **LIKELIEST}
    text = clients.anthropic.messages.create(**asked).content[0].text
    stop = text[-3:]
    asked["stop_sequences"] = ["nowhere", stop]
    message = clients.anthropic.messages.create(**asked)
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", stop)
    assert "".join(block.text for block in message.content) == text[: text.index(stop)]
    with clients.anthropic.messages.stream(**asked) as stream:
        final = stream.get_final_message()
    assert (final.stop_reason, final.stop_sequence) == ("stop_sequence", stop)


def test_errors_are_of_the_clients_classes(clients: Clients) -> None:
    asked: dict[str, Any] = {"model": "plain", "messages": ASKED, "max_tokens": 9}
    for stream in (False, True):
        with pytest.raises(anthropic.BadRequestError, match="temperature is 2, but must be between 0 and 1"):
            clients.anthropic.messages.create(**asked, extra_body={"temperature": 2}, stream=stream)
        with pytest.raises(anthropic.BadRequestError, match="The chat template of plain has no tools"):
            clients.anthropic.messages.create(**asked, tools=[WEATHER], stream=stream)
        with pytest.raises(anthropic.NotFoundError, match="not served"):
            clients.anthropic.messages.create(**{**asked, "model": "other"}, stream=stream)
    for call in (clients.anthropic.messages.create, clients.anthropic.messages.count_tokens):
        given = asked if call == clients.anthropic.messages.create else {"model": "other", "messages": ASKED}
        wrong = clients.anthropic_with(f"gsk-{'a' * 8}-{'b' * 43}")
        with pytest.raises(anthropic.AuthenticationError) as caught:
            getattr(wrong.messages, call.__name__)(**given)
        assert caught.value.body == {
            "type": "error",
            "error": {"type": "authentication_error", "message": "This key isn't valid."},
        }
    with pytest.raises(anthropic.NotFoundError):
        clients.anthropic.messages.count_tokens(model="other", messages=ASKED)
    with pytest.raises(anthropic.NotFoundError) as missing:
        clients.anthropic.get("/v1/nothing", cast_to=object)
    assert missing.value.body == {
        "type": "error",
        "error": {"type": "not_found_error", "message": "/v1/nothing is not a path of this server."},
    }


def test_calls_of_tools_are_blocks_and_come_back(clients: Clients) -> None:
    """A grammar isn't in Anthropic's API, so the model is taught by the conversation's tokens only: what it says is
    drawn, and the form of its answers is tested where a grammar is (chat completions)."""
    asked: dict[str, Any] = {"model": "tools", "max_tokens": 4, "tools": [WEATHER], **LIKELIEST}
    used = {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"place": "wood"}}
    result = {"type": "tool_result", "tool_use_id": "toolu_1", "content": "12 degrees"}
    messages = [
        *ASKED,
        {"role": "assistant", "content": [{"type": "text", "text": "So."}, used]},
        {"role": "user", "content": [result]},
    ]
    message = clients.anthropic.messages.create(**asked, messages=messages)
    function = {"name": "weather", "arguments": '{"place": "wood"}'}
    call: Any = {"id": "toolu_1", "type": "function", "function": function}
    same = clients.openai.chat.completions.create(
        model="tools",
        messages=[
            *ASKED,
            {"role": "assistant", "content": "So.", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "toolu_1", "content": "12 degrees"},
        ],
        tools=[
            {
                "type": "function",
                "function": {"name": "weather", "description": "The weather", "parameters": {"type": "object"}},
            }
        ],
        max_tokens=1,
    )
    assert same.usage is not None
    assert message.usage.input_tokens == same.usage.prompt_tokens, "both APIs say the same to the model"
