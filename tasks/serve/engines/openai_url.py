"""A model behind any OpenAI-compatible server, by its URL: another host's vLLM or llama.cpp, or a provider."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from models.tokenizer import beginning
from tasks.endpoint.client import api_key
from tasks.endpoint.config import EndpointConfig
from tasks.serve.engines.client import ask_json, open_client
from tasks.serve.engines.completions import FEATURES, Completions, Kind
from tasks.serve.engines.protocol import EngineFault, EngineRefusal

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

OWNERS: dict[str, Kind] = {"vllm": "vllm", "llamacpp": "llama.cpp"}  # `owned_by` in their lists of models


class UrlConfig(EndpointConfig):
    """An OpenAI-compatible server that holds the release's model."""

    url: str = Field(
        pattern=r"^https?://[^\s/?#]+[^\s?#]*$",
        description="address, such as https://host/v1 (/completions is added). All prompts and answers are sent there",
    )
    prompt: Literal["ids", "text"] = Field(
        "ids",
        description="how prompts are sent: as token ids, or as text to a server that takes only that. Text that it "
        "would read as other tokens is refused",
    )


class UrlEngine(Completions):
    """The model of a server that someone else starts and ends. Its tokenizer is needed for prompts as text. Raises
    ConfigError for a variable without a key."""

    def __init__(self, config: UrlConfig, tokenizer: PreTrainedTokenizerFast, *, section: str = "engine") -> None:
        client = open_client(config.url.rstrip("/"), key=api_key(config, section))
        super().__init__(client, config.model, kind="openai", name=client.base_url.host)
        self.config, self.tokenizer, self.further = config, tokenizer, config.fields
        self.shortest = tokenizer.encode("a", add_special_tokens=False)
        self._beginning = beginning(tokenizer)

    async def start(self) -> None:
        """Ask the server for its models, and recognise its kind. Raises EngineFault for a server without the model."""
        models = (await ask_json(self.client, "GET", "/models")).get("data") or []
        owners = {str(model.get("id")): str(model.get("owned_by")) for model in models if isinstance(model, dict)}
        owner = owners.get(self.model) or ("llamacpp" if "llamacpp" in owners.values() else None)  # it takes any name
        if owner is None:
            known = ", ".join(owners) or "no models"
            raise EngineFault(f"The server at {self.name} doesn't have {self.model}. It has {known}.")
        if owner == "gristmill" and self.config.prompt == "text":
            raise EngineFault(
                f"The server at {self.name} takes no control tokens in a text. Set engine.url.prompt to ids."
            )
        self.kind = OWNERS.get(owner, "openai")
        self.features = FEATURES[self.kind]
        await self.find_features()

    def prompt(self, ids: Sequence[int]) -> list[int] | str:
        """Ids, or the text that the server encodes as these ids. Raises EngineRefusal for ids without such a text."""
        if self.config.prompt == "ids":
            return list(ids)
        plain = list(ids)
        if self._beginning and plain[: len(self._beginning)] == self._beginning:
            plain = plain[len(self._beginning) :]  # the server puts it before every text itself
        text: str = self.tokenizer.decode(plain, clean_up_tokenization_spaces=False)
        if self.tokenizer.encode(text) != list(ids):
            raise EngineRefusal(
                "This model's server takes prompts as text only, and would read this one differently: it contains the "
                "text of a special token, or isn't valid UTF-8."
            )
        return text
