"""The policy of the guards: what they look for in requests and answers, and what happens to a finding.

It is the section `guards` of `serve.yaml`, or a file of its own. Every rule has one of three actions:

allow    the finding is only reported, to the metrics and the audit log
mask     a label such as <EMAIL_ADDRESS> replaces it
refuse   a request ends with a 400, an answer with the finish reason `content_filter`
"""

from __future__ import annotations

from typing import Literal, Self

import regex
from pydantic import Field, field_validator, model_validator

from tasks.filter.pii.config import PatternEntity
from tasks.filter.signals.config import NAME
from tasks.filter.signals.family import SignalRules
from tasks.stage.config import StageConfig

Action = Literal["allow", "mask", "refuse"]
Direction = Literal["input", "output"]
SECRETS = ("API_KEY", "PASSWORD", "JSON_WEB_TOKEN", "PRIVATE_KEY")
# In an answer, a public address or a device's is mostly an example of networking, and seldom a person's
USUAL_KINDS: dict[str, Action] = {"IP_ADDRESS": "allow", "MAC_ADDRESS": "allow"}


class OutputRules(StageConfig):
    """Rules for answers, whether streamed or not."""

    personal: Action = Field(
        "mask",
        description="action on personal data with a fixed form: addresses, telephone numbers, cards, accounts, IDs",
    )
    secrets: Action = Field(
        "mask",
        description="action on passwords, private keys, JSON web tokens and API keys, by their form or a name before "
        "them",
    )
    kinds: dict[PatternEntity, Action] = Field(
        {},
        description="action by kind, such as {CREDIT_CARD: refuse}, in place of `personal` and `secrets`. IP_ADDRESS "
        "and MAC_ADDRESS are allowed unless they are here",
    )
    passes: list[str] = Field(
        [],
        description="values that always pass, such as your support address. One that begins with @ is the domain "
        "of e-mail addresses",
    )
    random: Action | None = Field(
        None,
        description="action on words of 20 characters or more that look random. Many keys do, but so do hashes and "
        "IDs. null doesn't look for them",
    )
    confidence: float = Field(
        0.4, ge=0, le=1, description="minimum score of personal data and secrets, as in filter.pii"
    )
    slurs: Action = Field("mask", description="action on the words of a short list of English slurs")

    def action_of(self, entity: str) -> Action:
        """The action on a kind of personal data or secret."""
        named = USUAL_KINDS | {str(kind): action for kind, action in self.kinds.items()}
        return named.get(entity, self.secrets if entity in SECRETS else self.personal)


class InputRules(OutputRules):
    """Rules for requests. Those on text only report by default: what users write is theirs, and without it the model
    can't do what they ask."""

    personal: Action = Field("allow", description="action on personal data with a fixed form, as in answers")
    secrets: Action = Field("allow", description="action on passwords, keys and tokens, as in answers")
    slurs: Action = Field("allow", description="action on slurs, as in answers")
    max_messages: int = Field(1000, ge=1, description="maximum messages of a request, which is refused with more")
    max_characters: int = Field(200_000, ge=1, description="maximum characters of a message")
    max_bytes: int = Field(1_000_000, ge=1, description="maximum UTF-8 bytes of all messages together")
    encoding: Action = Field(
        "refuse", description="action on lone surrogates, which UTF-8 can't hold. mask and allow replace them by U+FFFD"
    )
    control: Action = Field(
        "mask", description="action on control characters other than tabs and line ends. mask removes them"
    )
    invisible: Action = Field(
        "mask",
        description="action on characters that hide text from people: zero-width characters, bidirectional controls, "
        "tags and fillers. Those that emoji or a script need pass. mask removes the others",
    )
    injection: Action = Field(
        "allow",
        description="action on phrases that try to override the instructions, and on role markers. Honest questions "
        "have them too, and no list is complete",
    )
    repeated: Action = Field(
        "allow", description="action on a message that repeats itself. mask keeps its first 1,000 characters"
    )
    max_repetition: float = Field(
        30,
        gt=1,
        description="a message of over 1,000 characters repeats itself if zlib compresses it by more than this factor",
    )


class ListRule(StageConfig):
    """Your own words and patterns. The label is the rule's name."""

    words: list[str] = Field([], description="words or phrases, found as whole words in upper or lower case")
    files: list[str] = Field(
        [], description="files with a word or phrase per line. A line that starts with # is a comment"
    )
    patterns: list[str] = Field(
        [], description="regular expressions of the package regex. One that may take too long is refused at the start"
    )
    longest: int = Field(
        200,
        ge=1,
        le=1000,
        description="maximum characters of a pattern's match. Where a match may have begun, at most as many "
        "characters of an answer are held back",
    )
    action: Action = Field("mask", description="action on a finding")
    applies_to: list[Direction] = Field(["input", "output"], min_length=1, description="requests, answers, or both")

    @field_validator("patterns")
    @classmethod
    def _compile(cls, patterns: list[str]) -> list[str]:
        for pattern in patterns:
            try:
                compiled = regex.compile(pattern)
            except regex.error as error:
                raise ValueError(f"{pattern!r} is not a regular expression: {error}") from error
            if compiled.fullmatch(""):
                raise ValueError(f"{pattern!r} matches the empty text, which is everywhere")
        return patterns

    @model_validator(mode="after")
    def _has_entries(self) -> Self:
        if not (self.words or self.files or self.patterns):
            raise ValueError("name words, files or patterns")
        return self


class ToxicityRule(StageConfig):
    """A classifier's score of each sentence. Unless the action is allow, each sentence of an answer is held back to its
    end."""

    folder: str | None = Field(
        None,
        description="folder of a `toxicity_model` artifact. Default: the models of the packages alt-profanity-check "
        "and tox-block, in English",
    )
    max_score: float = Field(0.5, ge=0, le=1, description="maximum score of a sentence")
    action: Action = Field("allow", description="action on a sentence above it")
    applies_to: list[Direction] = Field(["output"], min_length=1, description="requests, answers, or both")


class OwnRule(SignalRules):
    """Your own guard: a Python function or a sequence classifier, as under `filter.signals`, which is asked about each
    sentence. A sentence outside the bounds is a finding, and so is one that the guard fails on.

    It runs within the server's process, which waits for it.
    """

    action: Action = Field("mask", description="action on a sentence outside the bounds")
    applies_to: list[Direction] = Field(["input", "output"], min_length=1, description="requests, answers, or both")

    @model_validator(mode="after")
    def _is_bounded(self) -> Self:
        if not (self.min or self.max):
            raise ValueError("set a bound: min or max of a column")
        return self


class GuardsConfig(StageConfig):
    """The policy. The default masks personal data, secrets and slurs in answers, removes hidden characters from
    requests, and reports the rest."""

    input: InputRules = Field(default_factory=InputRules, description="rules for requests")
    output: OutputRules = Field(default_factory=OutputRules, description="rules for answers")
    lists: dict[str, ListRule] = Field({}, description="your own words and patterns, by name")
    toxicity: ToxicityRule | None = Field(None, description="a classifier of toxic sentences, or null for none")
    own: dict[str, OwnRule] = Field({}, description="your own guards, by name")

    @model_validator(mode="after")
    def _names(self) -> Self:
        for name in (*self.lists, *self.own):
            if not NAME.fullmatch(name):
                raise ValueError(f"a rule is named {name!r}: write names in lower-case letters, digits and _")
        return self
