"""The actions on personal data, and the thresholds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field, field_serializer, field_validator, model_validator

from tasks.filter.pii.config import Action, NameEntity, PatternEntity, PiiConfig
from tasks.filter.pii.salt import HIDDEN, REMEDY, SaltSource, without_secret
from tasks.filter.rules import Section

# Half of all sentences name a place or a people. A person's name gets a surrogate, so that sentences stay readable
USUAL_ACTIONS: dict[str, Action] = {"PERSON": "surrogate", "LOCATION": "keep", "NRP": "keep", "ORGANIZATION": "keep"}


class PiiRules(Section):
    """Actions on personal data by kind: redact (insert a placeholder), surrogate (insert a made-up value), drop (remove
    the document), keep."""

    measure: PiiConfig = Field(default_factory=PiiConfig, description="how personal data is found")
    confidence: float = Field(0.4, ge=0, le=1, description="minimum score of a finding, as Presidio scores it")
    max_findings: int | None = Field(
        None, ge=0, description="maximum number of findings. A document with more is a directory, and is removed"
    )
    action: Action = Field(
        "redact",
        description="action for kinds that aren't in `actions`, except PERSON (surrogate), LOCATION, NRP and "
        "ORGANIZATION (keep)",
    )
    actions: dict[PatternEntity | NameEntity, Action] = Field(
        {},
        description="actions by entity, such as {EMAIL_ADDRESS: surrogate}. Entities without reserved values are "
        "redacted instead of getting a surrogate",
    )
    salt: SaltSource | None = Field(
        None,
        description="where to read the secret salt of surrogates: {env: NAME} or {file: PATH}. Without a salt, anyone "
        "can compute the surrogate of a value that they guess",
    )

    @model_validator(mode="before")
    @classmethod
    def _hide_salt(cls, data: Any) -> Any:
        """Errors quote their input, so remove a salt in clear before any check."""
        if isinstance(data, Mapping) and "salt" in data:
            return {**data, "salt": without_secret(data["salt"])}
        return data

    @field_validator("salt", mode="before")
    @classmethod
    def _refuse_salt_in_clear(cls, value: Any) -> Any:
        if value == HIDDEN:
            raise ValueError(REMEDY)
        return value

    @field_serializer("salt", when_used="json")
    def _spell_no_salt(self, salt: SaltSource | None) -> dict[str, str] | str:
        """Write a missing salt as an empty string in keys, as keys did when a salt was a string."""
        return "" if salt is None else salt.model_dump(exclude_none=True)

    def action_of(self, entity: str) -> Action:
        """The action for findings of a kind."""
        named = {str(name): action for name, action in self.actions.items()}
        return (USUAL_ACTIONS | named).get(entity, self.action)

    def kinds(self, *actions: Action) -> list[str]:
        """The kinds of findings with one of these actions."""
        return [entity for entity in self.measure.entities if self.action_of(entity) in actions]
