"""The profile: sections that agree with each other."""

from __future__ import annotations

from typing import Self

from pydantic import model_validator

from profiles.checks import contradictions
from profiles.sections import Sections


class Profile(Sections):
    """One file under `profiles/`, or a user's own."""

    @model_validator(mode="after")
    def _sections_agree(self) -> Self:
        if messages := contradictions(self):
            raise ValueError("; ".join(messages))
        return self
