"""The endpoint and the model there. A profile never contains the key itself."""

from __future__ import annotations

from typing import ClassVar

from pydantic import Field, field_validator

from storage.credentials import names_a_secret
from tasks.stage.config import StageConfig
from tasks.stage.runtime import EndpointUrl, KeyVariable

Fields = dict[str, str | int | float | bool | None]
OURS = {  # fields that can't be replaced, and why
    "model": "write it as `model`, which records and the key name",
    "messages": "the prompts are written there",
    "stream": "answers are read whole",
    "n": "one answer is read of each request, and all are paid for",
}


class EndpointConfig(StageConfig):
    """An OpenAI-compatible endpoint."""

    ours: ClassVar = OURS

    url: EndpointUrl = Field(
        description="address, such as https://host/v1 (/chat/completions is added). All prompts and answers are sent "
        "there"
    )
    model: str = Field(min_length=1, description="name of the model there")
    api_key_env: KeyVariable | None = Field(
        None, description="environment variable with the key, such as OPENAI_API_KEY (null: none is sent)"
    )
    fields: Fields = Field(
        {},
        description="further fields of each request, which replace ours but model, messages, stream and n. A field set "
        "to null is left out, as in `{max_tokens: null, max_completion_tokens: 512}`",
    )

    @field_validator("fields")
    @classmethod
    def _is_no_secret(cls, fields: Fields) -> Fields:
        if wrong := [name for name in fields if names_a_secret(name.upper())]:
            raise ValueError(f"{wrong[0]} is a secret: name the variable that holds it in api_key_env")
        if wrong := [name for name in fields if name in cls.ours]:
            raise ValueError(f"{wrong[0]} can't be replaced: {cls.ours[wrong[0]]}. Leave it out")
        return fields
