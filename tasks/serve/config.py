"""The settings of a server: one YAML file, of which the command line sets the most common keys."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, field_validator

from tasks.serve.access.config import LimitsConfig
from tasks.serve.engines.openai_url import UrlConfig
from tasks.serve.engines.vllm import VllmConfig
from tasks.serve.guards.config import GuardsConfig
from tasks.serve.watch.config import WatchConfig
from tasks.stage.config import StageConfig

NAME = r"[A-Za-z0-9][A-Za-z0-9._/@:-]*"


class EngineConfig(StageConfig):
    """What computes the answers."""

    name: Literal["auto", "llama.cpp", "vllm", "transformers", "url"] = Field(
        "auto",
        description="auto: `url` if that is set, transformers for a release with virtual tokens, vLLM on a GPU if it "
        "is installed, otherwise llama.cpp",
    )
    slots: int = Field(8, ge=1, le=1024, description="requests that are answered at the same time")
    context: int | None = Field(
        None, ge=16, description="tokens of a prompt and its answer (default: those of the model)"
    )
    threads: int | None = Field(
        None, ge=1, description="CPU threads of llama.cpp and transformers (default: one a core)"
    )
    gpu_layers: int = Field(0, ge=0, description="layers that llama.cpp puts on a GPU")
    draft: bool = Field(False, description="decode speculatively with the draft of the release")
    vllm: VllmConfig = Field(default_factory=VllmConfig, description="how vLLM runs, for the engine vllm")
    url: UrlConfig | None = Field(None, description="the server that holds the model, for the engine url")


class ModelConfig(StageConfig):
    """A release to serve."""

    release: str = Field(description="a ref of the store such as tiny/export, or a folder that `release save` wrote")
    name: str | None = Field(None, pattern=NAME, description="name in requests (default: that of the release)")
    format: str | None = Field(None, description="format of the release (default: the best for the engine)")
    adapters: dict[str, str] = Field(
        {}, description="releases with the format gguf-adapter over this one, by the names under which they are served"
    )
    also: str | None = Field(None, description="a second release under the same name, for a share of the requests")
    share: float = Field(0.0, ge=0, le=1, description="share of the requests that `also` answers")
    usd_per_million_prompt: float | None = Field(
        None, ge=0, description="price of prompt tokens (default: measured speed × usd_per_hour)"
    )
    usd_per_million_completion: float | None = Field(
        None, ge=0, description="price of answered tokens (default: measured speed × usd_per_hour)"
    )


class RequestConfig(StageConfig):
    """Bounds of a request. Beyond them it is refused, or ends in order."""

    max_bytes: int = Field(4 << 20, ge=1024, description="bytes of a body")
    max_messages: int = Field(2000, ge=1, description="messages of a conversation")
    max_tokens: int | None = Field(None, ge=1, description="tokens of an answer (default: what the context leaves)")
    max_choices: int = Field(8, ge=1, description="answers to a request (`n`)")
    control_tokens: bool = Field(
        False,
        description="take control tokens in prompts of ids, as a Gristmill server in front with the engine url sends "
        "them. Whoever may send them can write in the name of any role",
    )
    read_seconds: float = Field(30.0, gt=0, description="time to send a request")
    write_seconds: float = Field(60.0, gt=0, description="time for which a client may not read")
    total_seconds: float = Field(600.0, gt=0, description="time of an answer, in the queue and in the engine")
    queue: int = Field(64, ge=0, description="requests that wait for the engine. More are refused with 429")
    queue_seconds: float = Field(60.0, gt=0, description="longest time in the queue")


class ServeConfig(StageConfig):
    """A server."""

    models: list[ModelConfig] = Field(default_factory=list, description="releases, each under its name")
    store: str = Field("store", description="store of the refs")
    host: str = Field("127.0.0.1", description="address to listen at. Any but a loopback address requires keys")
    port: int = Field(8000, ge=0, le=65535, description="port (0: any free one)")
    tls_certificate: Path | None = Field(None, description="certificate chain, PEM")
    tls_key: Path | None = Field(None, description="private key, PEM")
    hosts: list[str] = Field([], description="further names by which clients reach this server (header Host)")
    origins: list[str] = Field([], description="web origins whose pages may call the API (CORS). Usually none")
    state: Path = Field(Path("serve"), description="folder of keys, audit log and logs, mode 0700")
    usd_per_hour: float | None = Field(None, ge=0, description="price of this machine, from which tokens get theirs")
    swap_seconds: float = Field(
        10.0, ge=0, description="time for which a release that was replaced waits, to come back if the new one fails"
    )
    drain_seconds: float = Field(120.0, ge=0, description="time for running answers after SIGTERM")
    watchers: list[str] = Field(
        [], description="ids of the keys that may read /metrics and /status.json from other machines. This machine may"
    )
    page: bool = Field(True, description="the chat page at /")
    engine: EngineConfig = Field(default_factory=EngineConfig, description="what computes the answers")
    requests: RequestConfig = Field(default_factory=RequestConfig, description="bounds of a request")
    limits: LimitsConfig = Field(default_factory=LimitsConfig, description="limits of each key")
    guards: GuardsConfig = Field(default_factory=GuardsConfig, description="checks of prompts and answers")
    watch: WatchConfig = Field(default_factory=WatchConfig, description="audit log, logs, metrics and traces")

    @field_validator("state", "tls_certificate", "tls_key")
    @classmethod
    def _in_home(cls, path: Path | None) -> Path | None:
        return None if path is None else path.expanduser()
