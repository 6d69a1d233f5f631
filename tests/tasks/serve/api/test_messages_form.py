"""Answers in Anthropic's form are of its client's types, with calls of tools as blocks."""

from __future__ import annotations

from typing import Any

import orjson
from anthropic.types import Message, RawMessageStreamEvent
from pydantic import TypeAdapter

from tasks.serve.api.messages import MessageForm
from tasks.serve.ask import Ask, Conversation, Delta, Usage
from tasks.serve.engines.protocol import Sampling

CALLS = tuple(
    {"id": f"call_{place}", "type": "function", "function": {"name": "weather", "arguments": '{"place": "wood"}'}}
    for place in (1, 2)
)
DELTAS = (Delta(0, "So"), Delta(0, "."), Delta(0, "", finish="tool_calls", calls=CALLS))
USED = [{"type": "tool_use", "id": call["id"], "name": "weather", "input": {"place": "wood"}} for call in CALLS]


def form() -> MessageForm:
    ask = Ask("tiny", Conversation([{"role": "user", "content": "?"}]), Sampling(max_tokens=9))
    return MessageForm(ask, "tiny", "request1", 1, "digest")


def test_a_whole_answer_has_a_block_for_each_call() -> None:
    body = orjson.dumps(form().whole([DELTAS], Usage(3, 4)))
    message = Message.model_validate_json(body, strict=True)
    assert message.stop_reason == "tool_use"
    assert orjson.loads(body)["content"] == [{"type": "text", "text": "So."}, *USED]


def test_a_stream_adds_up_to_the_same_blocks() -> None:
    made = form()
    sent = [*made.begin(Usage(3, 0)), *(part for delta in DELTAS for part in made.add(delta)), *made.end(Usage(3, 4))]
    blocks: list[dict[str, Any]] = []
    written = ""
    for part in sent:
        name, data = part.decode().strip().split("\n")
        body = data.removeprefix("data: ")
        TypeAdapter(RawMessageStreamEvent).validate_json(body, strict=True)
        event = orjson.loads(body)
        assert name == f"event: {event['type']}"
        match event["type"]:
            case "content_block_start":
                assert event["index"] == len(blocks)
                blocks.append(event["content_block"])
                written = ""
            case "content_block_delta":
                written += event["delta"].get("text", event["delta"].get("partial_json"))
            case "content_block_stop":
                assert event["index"] == len(blocks) - 1
                last = blocks[-1]
                last |= {"text": written} if last["type"] == "text" else {"input": orjson.loads(written)}
            case "message_delta":
                assert event["delta"]["stop_reason"] == "tool_use"
    assert blocks == [{"type": "text", "text": "So."}, *USED]
