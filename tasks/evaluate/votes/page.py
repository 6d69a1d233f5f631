"""The page: one prompt, two answers side by side, three buttons. Plain HTML that works without JavaScript, plus a few
lines of script for the keys. It loads nothing from anywhere, which the server's policy also forbids."""

from __future__ import annotations

import hmac
import html

from tasks.evaluate.votes.ballot import Ballot

STYLE = """
body { font: 16px/1.5 system-ui, sans-serif; max-width: 76rem; margin: 1rem auto; padding: 0 1rem; color: #222;
  background: #fff; }
.text { white-space: pre-wrap; overflow-wrap: anywhere; border: 1px solid #bbb; border-radius: 6px; padding: .7rem 1rem;
  margin: .3rem 0 1rem; }
.prompt { background: #f3f3f3; }
.pair { display: grid; grid-template-columns: 1fr 1fr; gap: 1rem; }
.pair .text { min-height: 8rem; }
.role { color: #666; font-size: .85em; }
form { display: inline; }
button { font: inherit; padding: .5rem 1rem; margin-right: .5rem; cursor: pointer; }
progress { width: 100%; }
@media (prefers-color-scheme: dark) { body { color: #ddd; background: #1b1b1b; } .prompt { background: #2a2a2a; } }
@media (max-width: 40rem) { .pair { grid-template-columns: 1fr; } }
"""
SCRIPT = """
const keys = {ArrowLeft: "left", "1": "left", ArrowRight: "right", "2": "right", ArrowDown: "tie", "0": "tie",
  t: "tie", u: "undo", Backspace: "undo"};
let sent = false;
document.addEventListener("keydown", event => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.repeat || sent) return;
  const button = document.getElementById(keys[event.key]);
  if (button) { event.preventDefault(); sent = true; button.click(); }
});
"""


def page(ballot: Ballot, token: str, nonce: str) -> str:
    """The page for the next question, or the end. All text of models is escaped."""
    done, total = len(ballot.given), len(ballot.questions)
    body = [
        f'<p><label>{done:,} of {total:,} voted <progress value="{done}" max="{total}"></progress></label></p>',
        _question(ballot, token),
    ]
    if done:
        body.append(_form("/undo", token, "", '<button id="undo">Undo the last vote (u)</button>'))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>Which answer is better?</title>'
        '<meta name="viewport" content="width=device-width"><link rel="icon" href="data:,">'
        f'<style nonce="{nonce}">{STYLE}</style></head><body>{"".join(body)}'
        f'<script nonce="{nonce}">{SCRIPT}</script></body></html>\n'
    )


def _question(ballot: Ballot, token: str) -> str:
    question = ballot.next()
    if question is None:
        return "<h1>That was all. Thank you!</h1><p>Ctrl-C in the terminal ends the server and sums up.</p>"
    prompt = "".join(
        f'<div class="role">{_safe(role)}</div><div class="text prompt">{_safe(content)}</div>'
        for role, content in question.prompt
    )
    (_, left), (_, right) = ballot.sides(question)
    answers = "".join(
        f'<div><div class="role">{where}</div><div class="text" dir="auto">{_safe(answer) or "(empty)"}</div></div>'
        for where, answer in (("Left", left), ("Right", right))
    )
    buttons = "".join(
        f'<button id="{choice}" name="choice" value="{choice}">{label}</button>'
        for choice, label in (
            ("left", "← Left is better (1)"),
            ("tie", "↓ Neither is better (0)"),
            ("right", "Right is better → (2)"),
        )
    )
    field = f'<input type="hidden" name="question" value="{disguised(token, question.key)}">'
    form = _form("/vote", token, field, buttons)
    return f'<h1>Which answer is better?</h1>{prompt}<div class="pair">{answers}</div>{form}'


def disguised(token: str, key: str) -> str:
    """A substitute on the page for a question's key. The key is a digest that includes the models' names, so a voter
    who knows those could work out the sides."""
    return hmac.new(token.encode(), key.encode(), "sha256").hexdigest()


def _form(action: str, token: str, fields: str, buttons: str) -> str:
    hidden = f'<input type="hidden" name="token" value="{_safe(token)}">'
    return f'<form method="post" action="{action}" autocomplete="off">{hidden}{fields}{buttons}</form>'


def _safe(text: str) -> str:
    """Text escaped, and without characters that affect the text around it: NUL and direction marks."""
    shown = "".join(
        "�" if character in "\0\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069" else character
        for character in text
    )
    return html.escape(shown.encode(errors="replace").decode())
