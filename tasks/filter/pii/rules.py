"""What is done with personal data."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import Field, field_serializer, field_validator, model_validator

from tasks.filter.pii.config import Action, NameEntity, PatternEntity, PiiConfig
from tasks.filter.pii.salt import HIDDEN, REMEDY, SaltSource, without_secret
from tasks.filter.rules import Section

# Half of all sentences name a place or a people; a person's name gets a surrogate, so that sentences stay readable
USUAL_ACTIONS: dict[str, Action] = {
    "PERSON": "surrogate", "LOCATION": "keep", "NRP": "keep", "ORGANIZATION": "keep",
}  # fmt: skip


class PiiRules(Section):
    """What is done with personal data, by kind: redact (a placeholder), surrogate (a stand-in), drop, keep."""

    measure: PiiConfig = Field(default_factory=PiiConfig, description="the measuring half: what is looked for")
    confidence: float = Field(0.4, ge=0, le=1, description="Presidio's score from which a finding counts")
    max_findings: int | None = Field(None, ge=0, description="a document with more goes: it is a directory")
    action: Action = Field(
        "redact",
        description="for every kind that `actions` does not name, but persons (surrogate), places, peoples and "
        "organizations (keep)",
    )
    actions: dict[PatternEntity | NameEntity, Action] = Field(
        {},
        description="by Presidio's name, such as {EMAIL_ADDRESS: surrogate}; placeholders where no values are reserved",
    )
    salt: SaltSource | None = Field(
        None,
        description="where the secret that surrogates depend on is: {env: NAME} or {file: PATH}. Without one, anyone "
        "can compute the surrogate of a value that they guess",
    )

    @model_validator(mode="before")
    @classmethod
    def _hide_salt(cls, data: Any) -> Any:
        """Errors quote their input, so a salt in clear is taken out before anything is checked."""
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
        """No salt is spelled as an empty string in keys, as it was when a salt was a string."""
        return "" if salt is None else salt.model_dump(exclude_none=True)

    def action_of(self, entity: str) -> Action:
        """What is done with findings of a kind."""
        named = {str(name): action for name, action in self.actions.items()}
        return (USUAL_ACTIONS | named).get(entity, self.action)

    def kinds(self, *actions: Action) -> list[str]:
        """The kinds of findings with which one of these is done."""
        return [entity for entity in self.measure.entities if self.action_of(entity) in actions]
