"""Refusals of a request, as each API words them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

TYPES = {  # of OpenAI's errors, by status
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


@dataclass
class Refusal(Exception):
    """A request that isn't answered. `message` is one sentence, `param` the field that is wrong."""

    status: int
    message: str
    code: str | None = None
    param: str | None = None
    retry_after: float | None = None
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def type(self) -> str:
        """The kind of error in the body."""
        return TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")

    def openai(self) -> dict[str, Any]:
        """The body as OpenAI's API has it."""
        return {"error": {"message": self.message, "type": self.type, "param": self.param, "code": self.code}}

    def anthropic(self) -> dict[str, Any]:
        """The body as Anthropic's API has it."""
        kind = {"server_error": "api_error"}.get(self.type, self.type)
        return {"type": "error", "error": {"type": kind, "message": self.message}}


def unfit(message: str, param: str | None = None, code: str | None = None) -> Refusal:
    """A request with a wrong field."""
    return Refusal(400, message, code, param)
