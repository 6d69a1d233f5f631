"""The scripts of the pages, each by itself in a real browser: events of a stream, and markdown."""

from __future__ import annotations

import base64
import json
import time
from typing import Any

import pytest

from tests.tasks.serve.pages.driven import Driven

PARSE = """
(async (encoded, sizes) => {
  const {events} = await import("/pages/sse.js"), found = [];
  const bytes = Uint8Array.from(atob(encoded), each => each.charCodeAt(0));
  for (const size of sizes) {
    const stream = new ReadableStream({start(to) {
      for (let at = 0; at < bytes.length; at += size) to.enqueue(bytes.slice(at, at + size));
      to.close();
    }});
    const all = [];
    for await (const each of events(stream)) all.push([each.event, each.data]);
    found.push(all);
  }
  return found;
})
"""
ANSWERS = """
(async text => {
  const {answers} = await import("/pages/sse.js"), found = [];
  for await (const each of answers(new Blob([text]).stream())) found.push(each);
  return found;
})
"""
SHOW = """
(async text => {
  const {show} = await import("/pages/markdown.js"), place = document.createElement("div");
  show(place, text);
  return place.innerHTML;
})
"""
STEPWISE = """
(async text => {
  const {show} = await import("/pages/markdown.js"), make = () => document.createElement("div");
  const place = make(), whole = make();
  for (let end = 1; end <= text.length; end++) show(place, text.slice(0, end));
  show(whole, text);
  return place.innerHTML === whole.innerHTML;
})
"""
KEPT = """
(async () => {
  const {show} = await import("/pages/markdown.js"), place = document.createElement("div");
  show(place, "one\\n\\ntwo");
  const [one, two] = place.children;
  show(place, "one\\n\\ntwo more\\n\\nthree");
  return [place.children[0] === one, place.children[1] === two, place.children.length];
})()
"""


@pytest.fixture
def blank(shared: Driven) -> Driven:
    """A page without content, of the server that has the scripts."""
    shared.open("/blank")
    return shared


def called(blank: Driven, script: str, *arguments: Any) -> Any:
    return blank.run(f"({script.strip()})({', '.join(json.dumps(each) for each in arguments)})")


@pytest.mark.parametrize("end", ["\n", "\r\n", "\r"])
def test_events_are_the_same_however_the_bytes_are_cut(end: str, blank: Driven) -> None:
    lines = [
        ": a comment", "data: Größe 🌾 日本", "", "event: error", "data: {", "data:  two", "data", "",
        "event: lost", "",
        "id: 7", "retry: 10", "data:no blank:and a colon", "", "data: unfinished",
    ]  # fmt: skip
    text = "\ufeff" + end.join(lines)
    sizes = list(range(1, len(text.encode()) + 1))
    found = called(blank, PARSE, base64.b64encode(text.encode()).decode(), sizes)
    expected = [["message", "Größe 🌾 日本"], ["error", "{\n two\n"], ["message", "no blank:and a colon"]]
    assert found == [expected] * len(sizes)


def test_a_stream_says_text_usage_finish_errors_and_its_end(blank: Driven) -> None:
    def event(value: Any) -> str:
        return f"data: {json.dumps(value)}\n\n"

    delta = event({"choices": [{"delta": {"content": "a"}, "finish_reason": None}], "usage": None})
    last = event({"choices": [{"delta": {"content": "b"}, "finish_reason": "stop"}]})
    usage = event({"choices": [], "usage": {"completion_tokens": 2}})
    role = event({"choices": [{"delta": {"role": "assistant", "content": None}}]})
    assert called(blank, ANSWERS, f"{role}{delta}{last}{usage}data: [DONE]\n\n{delta}") == [
        {"text": "a"},
        {"text": "b"},
        {"finish": "stop"},
        {"usage": {"completion_tokens": 2}},
        {"done": True},
    ]
    assert called(blank, ANSWERS, delta) == [{"text": "a"}], "no end where none came"
    for body in ({"error": {"message": "It ended."}}, {"error": "It ended."}):
        assert called(blank, ANSWERS, event(body)) == [{"error": "It ended."}]
    assert called(blank, ANSWERS, 'event: error\ndata: {"message": "It ended."}\n\n') == [{"error": "It ended."}]
    assert called(blank, ANSWERS, 'data: {"error": {"code": 7}}\n\n')[0]["error"].startswith(
        "The server reported an error"
    )
    assert called(blank, ANSWERS, f"data: {{\n\n{delta}") == [{"error": "The server sent an event that isn't JSON."}]
    odds: list[Any] = [
        None,
        7,
        [],
        {"choices": None},
        {"choices": [None]},
        {"choices": [{"delta": None}]},
        {"choices": {}},
    ]
    for odd in odds:
        assert called(blank, ANSWERS, event(odd)) == []


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        ("a *b* **c** `d` _e_", "<p>a <em>b</em> <strong>c</strong> <code>d</code> <em>e</em></p>"),
        ("**a *b* c** ``x ` y``", "<p><strong>a <em>b</em> c</strong> <code>x ` y</code></p>"),
        ("snake_case_name 2 * 3 * 4 **", "<p>snake_case_name 2 * 3 * 4 **</p>"),
        (r"\*no\* \<b>", "<p>*no* &lt;b&gt;</p>"),
        ("one\ntwo\r\n\r\nthree", "<p>one\ntwo</p><p>three</p>"),
        ("# A\n## B #\n####### no", "<h3>A</h3><h4>B</h4><p>####### no</p>"),
        ("- a\n  - b\n    - c", "<ul><li>a<ul><li>b<ul><li>c</li></ul></li></ul></li></ul>"),
        ("- a\n  - b\n\n  c\n* d", "<ul><li>a<ul><li>b</li></ul><p>c</p></li><li>d</li></ul>"),
        ("3. a\n4) b\n\n   c\n\nd", '<ol start="3"><li>a</li><li>b<p>c</p></li></ol><p>d</p>'),
        ("- \ttab\n\t- below", "<ul><li>tab<ul><li>below</li></ul></li></ul>"),
        ("> a\n> > b\n\nc", "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote><p>c</p>"),
        ("a\n***\n- - -", "<p>a</p><hr><hr>"),
        ("a | b\n--|--", "<p>a | b\n--|--</p>"),
        ("[a](javascript:b) [c](//d) ![e](/f) [g](data:h)", "<p>[a](javascript:b) [c](//d) ![e](/f) [g](data:h)</p>"),
        ("a\u202eb\0", "<p>a\ufffdb\ufffd</p>"),
        ("<b>&amp;", "<p>&lt;b&gt;&amp;amp;</p>"),
        ("", ""),
    ],
)  # fmt: skip
def test_markdown_is_shown(source: str, shown: str, blank: Driven) -> None:
    assert called(blank, SHOW, source) == shown


def test_links_and_tables_are_shown(blank: Driven) -> None:
    def link(target: str, label: str) -> str:
        return f'<a href="{target}" rel="noopener noreferrer" target="_blank" title="{target}">{label}</a>'

    for source, shown in (
        ("https://a.example/b_c_d, www.no", link("https://a.example/b_c_d", "https://a.example/b_c_d") + ", www.no"),
        ('[a](mailto:b@c.example "d")', link("mailto:b@c.example", "a")),
        ('[<b>](https://a.example/"onclick="b)', link("https://a.example/%22onclick=%22b", "&lt;b&gt;")),
    ):
        assert called(blank, SHOW, source) == f"<p>{shown}</p>"
    assert called(blank, SHOW, "|a\\|b|c|\n|:-:|-:|\n|**x**|") == (
        '<div class="wide" tabindex="0"><table>'
        '<thead><tr><th class="center">a|b</th><th class="right">c</th></tr></thead>'
        '<tbody><tr><td class="center"><strong>x</strong></td></tr></tbody></table></div>'
    )


@pytest.mark.parametrize(
    ("source", "code", "after"),
    [
        ("```python\na\n\n  b\n```\nafter", "a\n\n  b", "<p>after</p>"),
        ("~~~\n```\n<b>\n~~~~\nafter", "```\n&lt;b&gt;", "<p>after</p>"),
        ("````\n```\n````", "```", ""),
        ("```\nstill open\n\n# a", "still open\n\n# a", ""),
    ],
)
def test_code_is_kept_as_it_is(source: str, code: str, after: str, blank: Driven) -> None:
    shown = called(blank, SHOW, source)
    assert f'<pre tabindex="0"><code>{code}</code></pre></div>{after}' in shown
    assert shown.endswith(after or "</div>")


@pytest.mark.parametrize(
    "unit",
    ["*", "**a ", "_a ", "`", "`a", "[a](", "[", "![a](b", "> ", "- ", "  - a\n", "|a", "|a|\n", "```\n", "#", "https://a",
     "\\", "\n", "1. ", "a\n", "<b>", "\u202e", "** a**", "*a_b*c_", "(((", "- a\n  > "],
)  # fmt: skip
def test_a_megabyte_of_anything_is_shown_in_bounded_time_and_depth(unit: str, blank: Driven) -> None:
    script = f"""(async () => {{
      const {{show}} = await import("/pages/markdown.js"), place = document.createElement("div");
      const depth = node => 1 + Math.max(0, ...[...node.children].slice(0, 500).map(depth));
      show(place, {json.dumps(unit)}.repeat({1_000_000 // len(unit)}));
      return depth(place);
    }})()"""
    begin = time.monotonic()
    assert blank.run(script) < 40
    assert time.monotonic() - begin < 5


def test_a_growing_answer_ends_as_the_whole_would_and_keeps_what_has_not_changed(blank: Driven) -> None:
    from tests.tasks.serve.pages.stand_in import HOSTILE, MARKDOWN

    for text in (HOSTILE, MARKDOWN):
        assert called(blank, STEPWISE, text)
    assert blank.run(KEPT) == [True, False, 3]
