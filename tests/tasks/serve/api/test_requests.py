"""Bodies of the three routes: what clients send is read, and anything else is one sentence that names the field."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.serve.api import chat, completions, messages
from tasks.serve.api.errors import Refusal
from tasks.serve.api.fields import parse
from tasks.serve.ask import Ask, Conversation

ASKED = [{"role": "user", "content": "Where?"}]
READERS: dict[str, Callable[[bytes], Ask]] = {
    "chat": lambda body: chat.read(parse(body), most_messages=5, most_answers=4),
    "completions": lambda body: completions.read(parse(body), most_answers=4),
    "messages": lambda body: messages.read(parse(body), most_messages=5),
}
LEAST: dict[str, dict[str, Any]] = {
    "chat": {"messages": ASKED},
    "completions": {"prompt": "Where?"},
    "messages": {"messages": ASKED, "max_tokens": 9},
}
EACH = pytest.mark.parametrize("route", READERS)
TOOL = {"type": "function", "function": {"name": "weather", "parameters": {"type": "object"}}}
CALL = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}


def _calling(arguments: Any) -> dict[str, Any]:
    call = {"id": "1", "type": "function", "function": {"name": "weather", "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [call]}


def read(route: str, **fields: Any) -> Ask:
    return READERS[route](json.dumps({**LEAST[route], **fields}).encode())


def refused(route: str, body: bytes) -> Refusal:
    with pytest.raises(Refusal) as caught:
        READERS[route](body)
    return checked(caught.value)


def checked(refusal: Refusal) -> Refusal:
    """A refusal that can be sent: one short sentence."""
    assert refusal.status == 400
    assert refusal.message.endswith(".")
    assert refusal.message.isprintable()
    assert len(refusal.message) < 400
    for body in (refusal.openai(), refusal.anthropic()):
        assert orjson.loads(orjson.dumps(body)) == body
    return refusal


def nested(levels: int) -> str:
    return "[" * levels + "]" * levels


@EACH
@pytest.mark.parametrize(
    ("body", "told"),
    [
        (b"", "The body is not JSON"),
        (b"{", "The body is not JSON"),
        (b"[]", "The body is not a JSON object."),
        (b"null", "The body is not a JSON object."),
        (b"\xff\xfe", "The body is not UTF-8."),
        (b'{"a": 1, "a": 2}', "The body is not JSON: the key 'a' is given twice."),
        (b'{"a": {"b": 1, "b": 1}}', "the key 'b' is given twice."),
        (b'{"temperature": NaN}', "NaN is not a JSON number."),
        (b'{"temperature": -Infinity}', "-Infinity is not a JSON number."),
        (b'{"seed": 1' + b"0" * 30 + b"}", "has more than 64 bits."),
        (b'{"seed": 18446744073709551616}', "has more than 64 bits."),
        (b'{"seed": 1' + b"0" * 9999 + b"}", "has more than 64 bits."),
        (b'{"user": "\\ud800"}', "The body has half of a surrogate pair."),
        (b'{"\\uDFFF": 1}', "The body has half of a surrogate pair."),
        (f'{{"a": {nested(70)}}}'.encode(), "The body is nested too deep."),
        (f'{{"a": {nested(700)}}}'.encode(), "The body is nested too deep."),
        (f'{{"a": {nested(100_000)}}}'.encode(), "The body is nested too deep."),
    ],
)
def test_a_body_that_is_not_plain_json_is_refused(route: str, body: bytes, told: str) -> None:
    assert told in refused(route, body).message


@EACH
def test_a_body_of_many_keys_is_refused_in_time(route: str) -> None:
    names = [f'"{number}": 0' for number in range(200_000)]
    began = time.process_time()
    assert "given twice" in refused(route, f"{{{','.join([*names, names[-1]])}}}".encode()).message
    assert time.process_time() - began < 5


SHARED: list[tuple[dict[str, Any], str]] = [
    ({"nothing": 1}, "The field 'nothing' is not supported."),
    ({"x" * 999: 1}, "is not supported."),
    ({"model": 1}, "model is not a text."),
    ({"max_tokens": 0}, "max_tokens is 0, but must be between 1 and"),
    ({"max_tokens": 1.5}, "max_tokens is not a whole number."),
    ({"max_tokens": True}, "max_tokens is not a whole number."),
    ({"max_tokens": "9"}, "max_tokens is not a whole number."),
    ({"temperature": "hot"}, "temperature is not a number."),
    ({"temperature": True}, "temperature is not a number."),
    ({"temperature": -0.1}, "temperature is -0.1, but must be between 0 and"),
    ({"top_p": 1.01}, "top_p is 1.01, but must be between 0 and 1."),
    ({"top_k": 10**9}, "top_k is 1000000000, but must be between"),
    ({"stream": "yes"}, "stream is not true or false."),
    ({"stream": 1}, "stream is not true or false."),
]
OF_OPENAI: list[tuple[dict[str, Any], str]] = [
    ({"n": 5}, "n is 5, but must be between 1 and 4."),
    ({"stop": [""]}, "stop is neither a text nor a list of texts."),
    ({"stop": 0}, "stop is neither a text nor a list of texts."),
    ({"stop": False}, "stop is neither a text nor a list of texts."),
    ({"stop": ["a"] * 17}, "stop has more than 16 texts, or one of over 256 characters."),
    ({"stop": "a" * 257}, "stop has more than 16 texts, or one of over 256 characters."),
    ({"stream_options": {"include_usage": True}}, "stream_options needs stream: true."),
    ({"stream": True, "stream_options": {"other": 1}}, "The field 'other' is not supported."),
    ({"min_p": 2}, "min_p is 2, but must be between 0 and 1."),
    ({"presence_penalty": 2.1}, "presence_penalty is 2.1, but must be between -2 and 2."),
    ({"repetition_penalty": 0}, "repetition_penalty is 0, but must be between"),
    ({"seed": 2**63}, "seed is 9223372036854775808, but must be between"),
    ({"response_format": {"type": "xml"}}, "response_format.type is none of text, json_object and json_schema."),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema.schema is not an object."),
    ({"grammar": "root ::= [a]", "response_format": {"type": "json_object"}}, "both a schema and a grammar."),
    ({"grammar": "a" * 70_000}, "has more than 65,536 characters."),
]
MALFORMED: dict[str, list[tuple[dict[str, Any], str]]] = {
    "chat": [
        *SHARED,
        *OF_OPENAI,
        ({"messages": None}, "messages is missing or empty."),
        ({"messages": []}, "messages is missing or empty."),
        ({"messages": "hi"}, "messages is not a list."),
        ({"messages": ["hi"]}, "messages.0 is not an object."),
        ({"messages": ASKED * 6}, "messages has 6 messages, but at most 5 are allowed."),
        ({"messages": [{"content": "hi"}]}, "messages.0.role is none of system, developer, user, assistant, tool."),
        ({"messages": [{"role": [], "content": "hi"}]}, "messages.0.role is none of"),
        ({"messages": [{"role": "user"}]}, "messages.0.content is not a text."),
        ({"messages": [{"role": "user", "content": 1}]}, "messages.0.content is not a text."),
        ({"messages": [{"role": "user", "content": [1]}]}, "messages.0.content.0 is of type int"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "is of type image_url"),
        ({"messages": [{"role": "user", "content": [{"type": []}]}]}, "messages.0.content.0 is of type []"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages.0.content.0.text is not a text."),
        ({"messages": [{**ASKED[0], "extra": 1}]}, "messages.0 has the field 'extra', which is not supported."),
        ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "tool_calls is not a list of calls of functions."),
        ({"messages": [{"role": "assistant", "tool_calls": 1}]}, "tool_calls is not a list of calls of functions."),
        ({"messages": [{"role": "tool", "content": "1", "name": 1}]}, "messages.0.name is not a text."),
        ({"messages": [{"role": "tool", "content": "1", "tool_call_id": 1}]}, "messages.0.tool_call_id is not a text."),
        ({"messages": [_calling("{")]}, "messages.0.tool_calls.0.function.arguments is not a JSON object."),
        ({"messages": [_calling("[]")]}, "messages.0.tool_calls.0.function.arguments is not a JSON object."),
        ({"messages": [_calling([])]}, "messages.0.tool_calls.0.function.arguments is not a JSON object."),
        ({"tools": {}}, "tools is not a list."),
        ({"tools": [{"type": "function"}]}, "tools.0 is not a function with a name."),
        ({"tools": [TOOL], "tool_choice": "required"}, "tool_choice is neither auto nor none"),
        ({"tools": [TOOL], "tool_choice": TOOL}, "tool_choice is neither auto nor none"),
        ({"logprobs": 1}, "logprobs is not true or false."),
        ({"top_logprobs": 2}, "top_logprobs needs logprobs: true."),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs is 21, but must be between 0 and 20."),
        ({"logit_bias": {"1": 1}}, "The field 'logit_bias' is not supported."),
    ],
    "completions": [
        *SHARED,
        *OF_OPENAI,
        ({"prompt": None}, "prompt is neither one text nor one list of token ids."),
        ({"prompt": []}, "prompt is neither one text nor one list of token ids."),
        ({"prompt": ["a", "b"]}, "prompt is neither one text nor one list of token ids."),
        ({"prompt": [1, True]}, "prompt is neither one text nor one list of token ids."),
        ({"prompt": [[1], [2]]}, "prompt is neither one text nor one list of token ids."),
        ({"prompt": {"a": 1}}, "prompt is neither one text nor one list of token ids."),
        ({"logprobs": 6}, "logprobs is 6, but must be between 0 and 5."),
        ({"echo": True}, "echo is not supported."),
        ({"best_of": 2}, "best_of is not supported."),
        ({"suffix": "x"}, "suffix is not supported."),
        ({"prompt_logprobs": True}, "prompt_logprobs is not a whole number."),
        ({"prompt_logprobs": 101}, "prompt_logprobs is 101, but must be between 0 and 100."),
        ({"prompt_logprobs": 1, "stream": True}, "prompt_logprobs come in one whole answer: leave out stream and n."),
        ({"prompt_logprobs": 1, "n": 2}, "prompt_logprobs come in one whole answer: leave out stream and n."),
    ],
    "messages": [
        *SHARED,
        ({"max_tokens": None}, "max_tokens is missing."),
        ({"messages": []}, "messages is missing or empty"),
        ({"messages": ASKED * 6}, "messages is missing or empty, or has over 5 messages."),
        ({"messages": [1]}, "messages.0 is not an object."),
        ({"messages": [{"role": "system", "content": "hi"}]}, "messages.0.role is neither user nor assistant."),
        ({"messages": [{**ASKED[0], "name": "me"}]}, "messages.0 has the field 'name', which is not supported."),
        ({"messages": [{"role": "user", "content": [{"type": {}}]}]}, "messages.0.content.0 is of type {}"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "is of type image"),
        ({"messages": [{"role": "assistant", "content": [{"type": "tool_use"}]}]}, "content.0.name is not a text."),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "tool_use", "name": "f", "input": 1}]}]},
            "messages.0.content.0.input is not an object.",
        ),
        ({"system": 1}, "system is not a text."),
        ({"tools": [{"description": "x"}]}, "tools.0 is not a tool with a name."),
        ({"tool_choice": {"type": "any"}}, "tool_choice.type is neither auto nor none"),
        ({"tool_choice": "auto"}, "tool_choice is not an object."),
        ({"stop_sequences": {}}, "stop_sequences is neither a text nor a list of texts."),
        ({"thinking": {"type": "enabled"}}, "The field 'thinking' is not supported."),
    ],
}


@pytest.mark.parametrize(
    ("route", "fields", "told"), [(route, *case) for route, cases in MALFORMED.items() for case in cases]
)
def test_a_wrong_field_is_named_in_one_sentence(route: str, fields: dict[str, Any], told: str) -> None:
    body = {name: value for name, value in {**LEAST[route], **fields}.items() if value is not None}
    assert told in refused(route, json.dumps(body).encode()).message


@EACH
def test_null_and_fields_that_change_nothing_are_taken(route: str) -> None:
    usual = read(route)
    ignored = {"messages": {"metadata": {"user_id": "me"}}}.get(route, {"user": "me", "store": True, "metadata": {}})
    assert read(route, **ignored, temperature=None, top_p=None, stream=None, model=None) == usual
    assert (usual.sampling.temperature, usual.sampling.top_p, usual.stream, usual.answers) == (1.0, 1.0, False, 1)


def test_a_chat_as_the_client_of_openai_sends_it() -> None:
    asked = [
        {"role": "developer", "content": "Be short."},
        {"role": "user", "content": [{"type": "text", "text": "Wh"}, {"type": "text", "text": "ere?"}]},
        {"role": "assistant", "content": None, "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "1", "content": "12"},
    ]
    ask = read(
        "chat",
        model="tiny",
        messages=asked,
        tools=[TOOL],
        tool_choice="auto",
        stream=True,
        stream_options={"include_usage": True},
        max_completion_tokens=7,
        temperature=0,
        top_p=0.5,
        seed=-3,
        stop="a",
        n=2,
        logprobs=True,
        top_logprobs=3,
        frequency_penalty=0.5,
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}},
    )
    assert isinstance(ask.prompt, Conversation)
    assert [(message["role"], message["content"]) for message in ask.prompt.messages] == [
        ("system", "Be short."),
        ("user", "Where?"),
        ("assistant", ""),
        ("tool", "12"),
    ]
    assert ask.prompt.messages[2]["tool_calls"][0]["function"]["arguments"] == {}
    assert ask.prompt.messages[3]["tool_call_id"] == "1"
    assert (ask.model, ask.answers, ask.stream, ask.usage, list(ask.prompt.tools)) == ("tiny", 2, True, True, [TOOL])
    sampling = ask.sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.seed, sampling.stop) == (7, 0.0, -3, ("a",))
    assert (sampling.logprobs, sampling.json_schema, sampling.top_p) == (3, {"type": "object"}, 0.5)
    assert read("chat").sampling.max_tokens == 0, "whatever the context leaves"
    plain = read("chat", tools=[TOOL], tool_choice="none").prompt
    assert isinstance(plain, Conversation)
    assert list(plain.tools) == []


def test_prompts_of_completions_are_a_text_or_ids() -> None:
    for prompt in ("Where?", ["Where?"]):
        assert read("completions", prompt=prompt).prompt == "Where?"
    for ids in ([1, 2], [[1, 2]]):
        assert read("completions", prompt=ids).prompt == [1, 2]
    ask = read("completions", logprobs=0, echo=False, best_of=1, suffix=None)
    assert (ask.sampling.max_tokens, ask.sampling.logprobs) == (16, 0)


def test_messages_as_the_client_of_anthropic_sends_them() -> None:
    asked = [
        {"role": "user", "content": [{"type": "text", "text": "Weather?", "cache_control": {"type": "ephemeral"}}]},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "I look."},
                {"type": "tool_use", "id": "1", "name": "weather", "input": {"place": "here"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "12"}]},
                {"type": "text", "text": "Well?"},
            ],
        },
    ]
    ask = read(
        "messages",
        messages=asked,
        system=[{"type": "text", "text": "Be short."}],
        tools=[{"name": "weather", "description": "d", "input_schema": {"type": "object"}}],
        tool_choice={"type": "auto"},
        stop_sequences=["a", "b"],
        top_k=5,
        stream=True,
    )
    assert isinstance(ask.prompt, Conversation)
    assert [(message["role"], message["content"]) for message in ask.prompt.messages] == [
        ("system", "Be short."),
        ("user", "Weather?"),
        ("assistant", "I look."),
        ("tool", "12"),
        ("user", "Well?"),
    ]
    (call,) = ask.prompt.messages[2]["tool_calls"]
    assert call["function"] == {"name": "weather", "arguments": {"place": "here"}}
    assert ask.prompt.messages[3]["tool_call_id"] == "1"
    assert ask.prompt.tools[0]["function"]["parameters"] == {"type": "object"}
    assert (ask.sampling.stop, ask.sampling.top_k, ask.stream) == (("a", "b"), 5, True)


NAMES = (
    *("model", "messages", "prompt", "max_tokens", "stream", "stream_options", "stop", "stop_sequences", "n", "seed"),
    *("temperature", "top_p", "top_k", "logprobs", "top_logprobs", "response_format", "grammar", "tools", "system"),
    *("tool_choice", "role", "content", "type", "text", "tool_calls", "function", "name", "input", "json_schema"),
    *("schema", "include_usage", "echo", "best_of", "input_schema", "id", "\ud800", "a"),
)
KINDS = ("user", "assistant", "tool", "text", "tool_use", "tool_result", "json_schema", "auto", "", "\ud800")
LEAVES = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(0, 3)
    | st.floats()
    | st.sampled_from(KINDS)
    | st.text(max_size=3)
)
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(NAMES), inner, max_size=4),
    max_leaves=12,
)
BODIES = st.dictionaries(st.sampled_from(NAMES), VALUES, max_size=5)


@EACH
@settings(max_examples=150, deadline=None)
@given(BODIES, st.booleans())
def test_any_json_is_read_or_refused(route: str, body: dict[str, Any], complete: bool) -> None:
    try:
        ask = READERS[route](json.dumps({**LEAST[route], **body} if complete else body).encode())
    except Refusal as refusal:
        checked(refusal)
        return
    sampling = ask.sampling
    orjson.dumps([ask.model, sampling.stop, sampling.json_schema, sampling.grammar, sampling.seed])
    if isinstance(ask.prompt, Conversation):
        orjson.dumps([*ask.prompt.messages, *ask.prompt.tools])
        assert all(isinstance(message["content"], str) for message in ask.prompt.messages)


@EACH
@given(st.binary(max_size=60))
def test_bytes_are_refused(route: str, body: bytes) -> None:
    refused(route, body)
