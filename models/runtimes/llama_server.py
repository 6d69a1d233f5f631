"""llama.cpp's own server as a process: `python -m models.runtimes.llama_server SPEC`, on a Unix socket.

It batches requests continuously and reuses the cache of a common prefix within a slot. Its cache in memory across
slots is off: it is reported to hand one conversation to another (llama.cpp#27148). So are its page, its templates, its
tools and CORS: prompts come as token ids.
"""

from __future__ import annotations

import json
import signal
import sys
from dataclasses import asdict, dataclass
from typing import Any

NO_OUTPUT = -1  # llama.cpp's verbosity


@dataclass(frozen=True)
class LlamaServerSpec:
    """A GGUF file and how it is served. `context` is in tokens per request, of which `slots` run at a time."""

    model: str
    socket: str
    context: int
    slots: int
    threads: int
    gpu_layers: int = 0
    adapters: tuple[str, ...] = ()  # GGUF files. A request names those that apply to it by their place
    draft: str | None = None
    draft_tokens: int = 4

    def as_json(self) -> str:
        """The argument of the process."""
        return json.dumps(asdict(self))


def parameters(spec: LlamaServerSpec) -> Any:
    """llama.cpp's parameters. Each that changes an answer or shares memory between requests is set."""
    from xllamacpp import CommonAdapterLoraInfo, CommonParams
    from xllamacpp import common_speculative_type as types

    params = CommonParams()
    params.model.path = spec.model
    params.hostnames = [spec.socket]
    params.n_ctx = spec.context * spec.slots
    params.n_parallel = spec.slots
    params.kv_unified = False
    params.cont_batching = True
    params.cache_prompt = True
    params.cache_ram_mib = 0
    params.cache_idle_slots = False
    params.ctx_shift = False
    params.n_gpu_layers = spec.gpu_layers
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = spec.threads
    params.warmup = True
    params.fit_params = False
    params.use_jinja = False
    params.ui = False
    params.cors_origins = ""
    params.endpoint_metrics = True
    params.endpoint_slots = False
    params.verbosity = NO_OUTPUT
    params.lora_adapters = [CommonAdapterLoraInfo(path, 0.0) for path in spec.adapters]
    if spec.draft is not None:
        chosen = params.speculative
        chosen.types = [types.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
        chosen.draft.mparams.path = spec.draft
        chosen.draft.n_max = spec.draft_tokens
        chosen.draft.n_gpu_layers = spec.gpu_layers
        chosen.draft.cpuparams.n_threads = chosen.draft.cpuparams_batch.n_threads = spec.threads
    return params


def main(argument: str) -> None:
    """Serve until SIGTERM. Prints the reason and exits with 1 if llama.cpp can't load the file."""
    from xllamacpp import Server

    spec = json.loads(argument)
    ends = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, ends)  # before llama.cpp starts threads, so that only sigwait gets them
    try:
        server = Server(parameters(LlamaServerSpec(**{**spec, "adapters": tuple(spec["adapters"])})))
    except RuntimeError as error:
        sys.exit(f"llama.cpp can't load {spec['model']}: {error}")
    server.handle_metrics()  # one of its tasks: its loop runs once this returns
    print("ready", flush=True)
    signal.sigwait(ends)
    sys.stdout.flush()
    del server


if __name__ == "__main__":
    main(sys.argv[1])
