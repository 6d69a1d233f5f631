"""vLLM: `vllm serve FOLDER` as a child that ends with this process, on a Unix socket that only this user reaches."""

from __future__ import annotations

import asyncio
import json
import os
import re
import secrets
import time
from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Literal

from pydantic import Field, field_validator

from tasks.serve.engines import group
from tasks.serve.engines.client import ask, open_client
from tasks.serve.engines.completions import Completions
from tasks.serve.engines.protocol import EngineFault
from tasks.stage.config import StageConfig

MODEL = "model"  # its name in requests
STOP_SECONDS = 10.0  # between TERM and KILL
POLL_SECONDS = 0.5
LONGEST_SOCKET = 100  # bytes of its path. Systems allow 103 to 107
ENVIRONMENT = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1", "VLLM_HOST_IP": "127.0.0.1"}
LAST_LINES = 5  # of its log in an error
# What its log says of a start, and in our words
STEPS = (
    (r"Starting to load model|Loading weights", "loads the weights"),
    (r"Compiling a graph|Dynamo bytecode transform", "compiles the model"),
    (r"KV cache size: ([\d,]+) tokens", "has a cache for {} tokens"),
    (r"[Cc]apturing", "records CUDA graphs"),
)
OURS = ("--uds", "--host", "--port", "--api-key", "--served-model-name", "--lora-modules", "--trust-remote-code")


class VllmConfig(StageConfig):
    """How `vllm serve` runs."""

    program: str = Field(
        "vllm", min_length=1, description="the command, such as the path of one in another environment"
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "auto", description="type of activations. auto is bfloat16 for quantized weights, and vLLM's choice for others"
    )
    arguments: tuple[str, ...] = Field((), description="further arguments, such as [--tensor-parallel-size, '2']")
    guesses: int = Field(4, ge=1, description="tokens that a release's draft guesses ahead at a time")
    start_minutes: float = Field(30.0, gt=0, description="longest start. It is ended after them")

    @field_validator("arguments")
    @classmethod
    def _are_free(cls, arguments: tuple[str, ...]) -> tuple[str, ...]:
        if taken := [word for word in arguments if word.partition("=")[0].replace("_", "-") in OURS]:
            raise ValueError(f"{taken[0]} can't be set: Gristmill sets where vLLM listens, and runs no remote code")
        return arguments


class VllmEngine(Completions):
    """A model folder of a release in vLLM, with adapters over it by name, or a draft that guesses for it. Its log is
    `vllm.log` in the folder `state`. `say` gets the progress of the start in words."""

    def __init__(
        self,
        folder: Path,
        state: Path,
        config: VllmConfig,
        *,
        context: int | None = None,
        adapters: Mapping[str, Path] | None = None,
        draft: Path | None = None,
        say: Callable[[str], None] = lambda words: None,
    ) -> None:
        self.folder, self.config, self.context, self.say = folder, config, context, say
        self.adapters, self.draft = adapters or {}, draft
        self.log = state / "vllm.log"
        self._key = secrets.token_urlsafe(32)
        self._sockets = TemporaryDirectory(prefix="gristmill-")
        if len(os.fsencode(self._sockets.name)) + len("/vllm.sock") > LONGEST_SOCKET:
            self._sockets = TemporaryDirectory(prefix="gristmill-", dir="/tmp")
        self.socket = Path(self._sockets.name) / "vllm.sock"
        self._process: asyncio.subprocess.Process | None = None
        client = open_client("http://vllm/v1", key=self._key, socket=str(self.socket))
        super().__init__(client, MODEL, kind="vllm", name="vllm")
        self.metrics = "http://vllm/metrics"

    @property
    def alive(self) -> bool:
        return self._process is not None and self._process.returncode is None

    async def start(self) -> None:
        await self.stop()
        self.log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self.log.open("wb") as log:
            self._process = await asyncio.create_subprocess_exec(
                *group.command(STOP_SECONDS, *self._command()),
                env={**os.environ, **ENVIRONMENT, "VLLM_API_KEY": self._key},
                stdin=asyncio.subprocess.PIPE,
                stdout=log,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
            )
        self.say("vLLM starts")
        async with AsyncExitStack() as failing:
            failing.push_async_callback(self.stop)
            await self._wait(self._process, time.monotonic())
            failing.pop_all()

    async def _wait(self, process: asyncio.subprocess.Process, begun: float) -> None:
        """Wait until it answers, and say how far it is."""
        said = 0
        while not await self._is_ready():
            steps = self._steps()
            for step in steps[said:]:
                self.say(f"vLLM {step}, after {time.monotonic() - begun:.0f} s")
            said = len(steps)
            if process.returncode is not None:
                raise EngineFault(f"vLLM ended with code {process.returncode}.{self._last_lines()}")
            if time.monotonic() > begun + 60 * self.config.start_minutes:
                raise EngineFault(f"vLLM didn't start in {self.config.start_minutes:g} min.{self._last_lines()}")
            await asyncio.sleep(POLL_SECONDS)
        self.say(f"vLLM answers, after {time.monotonic() - begun:.0f} s")

    async def stop(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            assert process.stdin is not None
            process.stdin.close()
            await process.wait()
        self.socket.unlink(missing_ok=True)

    def _command(self) -> list[str]:
        quantized = "quantization_config" in json.loads((self.folder / "config.json").read_text(encoding="utf-8"))
        dtype = "bfloat16" if quantized and self.config.dtype == "auto" else self.config.dtype
        words = [self.config.program, "serve", str(self.folder), "--uds", str(self.socket), "--dtype", dtype]
        words += ["--served-model-name", MODEL, "--disable-uvicorn-access-log"]
        if self.context is not None:
            words += ["--max-model-len", str(self.context)]
        if self.adapters:
            words += ["--enable-lora", "--lora-modules", *(f"{name}={path}" for name, path in self.adapters.items())]
        if self.draft is not None:
            guessing = {
                "method": "draft_model",
                "model": str(self.draft),
                "num_speculative_tokens": self.config.guesses,
            }
            words += ["--speculative-config", json.dumps(guessing)]
        return [*words, *self.config.arguments]

    async def _is_ready(self) -> bool:
        with suppress(EngineFault, TimeoutError):
            async with asyncio.timeout(10 * POLL_SECONDS):
                await ask(self.client, "GET", "http://vllm/health")
                return True
        return False

    def _steps(self) -> list[str]:
        """The steps of a start that the log names, each once."""
        log = self.log.read_text(encoding="utf-8", errors="replace")
        found = [(re.search(pattern, log), words) for pattern, words in STEPS]
        matches = sorted(((match.start(), words.format(*match.groups())) for match, words in found if match))
        return [words for _, words in matches]

    def _last_lines(self) -> str:
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        errors = [line for line in lines if re.search(r"error|exception", line, re.IGNORECASE)] or lines
        return "".join(f"\n{line[:300]}" for line in ["", *errors[-LAST_LINES:]]) + f"\nIts log: {self.log}"
