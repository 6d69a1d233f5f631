"""The prompts of ours, and how a document is put into a prompt.

A document is data: it is inserted in one pass, so whatever braces it has stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

PLACES = ("text", "source", "title", "url", "language", "license")
_PLACE = re.compile(r"\{\{([A-Za-z_]\w*)\}\}|\{([A-Za-z_]\w*)\}")
# The end of a paragraph, a line, a sentence, a word, the best first
_ENDS = (r"\n[ \t]*\n", r"\n", r"(?<=[.!?…])[\"'”’)\]]*\s|(?<=[。！？])", r"\s")

REWRITE = """\
Rewrite the text below as an article of a good encyclopedia.

- Keep every fact, name, number and date. Add none that the text doesn't have, and leave out advertising and navigation.
- Write clear, complete sentences in whole paragraphs, for a reader who is new to the subject.
- Use the language of the text and words of your own rather than its sentences.
- Begin with the article itself, and write nothing before or after it.

Text:

{text}"""

QUESTIONS = """\
Write questions and answers about the text below, from which somebody could learn what it says.

- Ask about facts, reasons and connections. Each question must make sense without the text.
- Answer each in one to three full sentences, only by what the text says.
- Use the language of the text. Write between three and eight pairs, fewer if the text says little.
- Write each pair as two lines that begin with "Question:" and "Answer:", with an empty line between pairs, and write \
nothing else.

Text:

{text}"""

SUMMARY = """\
Sum up the text below in one or two paragraphs.

- Say what it is about first, then its main points in an order that makes sense without the text.
- Keep the names, numbers and dates that matter. Add nothing that the text doesn't say.
- Use the language of the text and words of your own.
- Begin with the summary itself, and write nothing before or after it.

Text:

{text}"""

OURS: Mapping[str, str] = {"rewrite": REWRITE, "questions": QUESTIONS, "summary": SUMMARY}


def wrong_with(prompt: str) -> str:
    """What is wrong with the text of a prompt, as the end of a sentence, or nothing."""
    places = [bare for _, bare in _PLACE.findall(prompt) if bare]
    if unknown := sorted({place for place in places if place not in PLACES}):
        known = ", ".join(f"{{{place}}}" for place in PLACES)
        return f"has {{{unknown[0]}}}, but a document has {known}: write {{{{{unknown[0]}}}}} if it means no place"
    if (times := places.count("text")) != 1:
        return f"has {{text}} {times} times: write it once, in the place of the document"
    return ""


def filled(prompt: str, values: Mapping[str, str]) -> str:
    """The prompt with a document in it."""
    return _PLACE.sub(lambda found: f"{{{found[1]}}}" if found[1] else values.get(found[2], ""), prompt)


def excerpt_of(text: str, most: int) -> str:
    """The beginning of a text: up to the last paragraph within `most` characters, or else up to the last line, sentence
    or word, if at least half of them are left."""
    if len(text) <= most:
        return text
    for end in _ENDS:
        places = [found.end() for found in re.finditer(end, text[: most + 1])]
        if places and places[-1] >= most // 2:
            return text[: places[-1]].rstrip()
    return text[:most]
