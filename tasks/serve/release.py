"""A release that is served: its files checked, its proof and its gates read, its tokenizer and template opened.

The template is the release's, applied here: roles become control tokens, and the text of a message never does. The
engine only sees token ids.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.conversation import TemplateFaultError, render
from models.conversation.render import special_ids
from models.kernels.virtual_tokens import virtual_tokens
from models.pretrained import context_of, load_config
from models.tokenizer import NEEDED_FILES, beginning, load_tokenizer, text_ids, tokenizer_digest
from storage.errors import ConfigError, ParityError, StoreError
from storage.store import Store
from tasks.export.formats import FORMATS
from tasks.export.release import find_release, release_name
from tasks.export.release_folder import verify_unsigned
from tasks.significance.gates import check_gates

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

LIMITS = (  # of a format's proof: the measure and its limit
    ("mean_divergence", "max_divergence"),
    ("runtime_divergence", "max_runtime_divergence"),
    ("increase_high", "max_perplexity_increase"),
    ("weight_error", "max_weight_error"),
)
PLAIN = "safetensors"  # the format of transformers, and the only one that holds virtual tokens
LLAMA, FOLDERS = "gguf-", ("w4a16", "gptq", "awq", "w8a8", PLAIN)  # formats of llama.cpp, and of vLLM


@dataclass(frozen=True)
class Release:
    """A checked release. `digest` is that of its list of files, `parity` the proof of its formats. A release of only an
    adapter has the config and the tokenizer of its `base`."""

    name: str
    folder: Path
    digest: str
    parity: Mapping[str, Any]
    base: Path | None = None

    @cached_property
    def tokenizer(self) -> PreTrainedTokenizerFast:
        """The tokenizer with the chat template."""
        return load_tokenizer(self.base or self.folder)

    @cached_property
    def context(self) -> int:
        """The most tokens that the model sees at a time."""
        return context_of(load_config(self.base or self.folder))

    @cached_property
    def virtual_tokens(self) -> int:
        """How many virtual tokens precede a text."""
        return virtual_tokens(load_config(self.base or self.folder))

    @cached_property
    def tokenizer_digest(self) -> str:
        """That of the vocabulary and the template."""
        return tokenizer_digest(self.base or self.folder)

    @cached_property
    def takes_tools(self) -> bool:
        """Whether the chat template writes tools."""
        return "tools" in str(self.tokenizer.chat_template)

    @cached_property
    def control_ids(self) -> frozenset[int]:
        """Tokens that a prompt of ids may not hold, except at its beginning."""
        return special_ids(self.tokenizer)

    def chat_ids(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] = ()) -> list[int]:
        """The prompt that asks for an answer. Raises TemplateFaultError if the template refuses the conversation."""
        options = {"tools": list(tools)} if tools else {}
        return render(self.tokenizer, messages, add_generation_prompt=True, **options)["input_ids"]

    def text_ids(self, text: str) -> list[int]:
        """The ids of a plain text, in which special tokens stay text."""
        return text_ids(self.tokenizer, text)

    def checked_ids(self, ids: Sequence[int], *, control: bool = False) -> list[int]:
        """A prompt of ids. Raises ValueError for ids beyond the vocabulary and, unless `control`, for control tokens
        after the beginning."""
        begun = beginning(self.tokenizer)
        rest = ids[len(begun) :] if list(ids[: len(begun)]) == begun else ids
        if any(not 0 <= id < len(self.tokenizer) for id in ids):
            raise ValueError(f"the vocabulary has {len(self.tokenizer):,} tokens, from 0")
        if not control and (found := next((id for id in rest if id in self.control_ids), None)) is not None:
            raise ValueError(f"token {found} is a control token")
        return list(ids)

    def count(self, text: str) -> int:
        """The number of tokens of a text that was sent."""
        return len(text_ids(self.tokenizer, text, begun=False))

    def describe(self) -> dict[str, Any]:
        """Card, licence, gates and proof, for `/v1/models/NAME`."""
        card, licence = (self._text(name) for name in ("README.md", "LICENSE"))
        return {"digest": self.digest, "card": card, "licence": licence, "lineage": self._json("lineage.json")}

    def _text(self, name: str) -> str | None:
        path = self.folder / name
        return path.read_text(encoding="utf-8") if path.is_file() else None

    def _json(self, name: str) -> Any:
        text = self._text(name)
        return None if text is None else json.loads(text)


def open_release(where: str, store_url: str, base: Release | None = None) -> Release:
    """The release of a folder or a ref, every byte checked. One of only an adapter needs its `base`, with the tokenizer
    that it was trained with. Raises StoreError, DamagedArtifact, GateError for a ref whose evaluation missed a gate,
    and ParityError for a proof beyond its limit."""
    folder = Path(where)
    if folder.is_dir():
        digest = verify_unsigned(folder)
    else:
        store = Store(store_url)
        store.check_exists()
        artifact = find_release(store, release_name(where))
        assert artifact.manifest is not None
        if scores := artifact.manifest.origins.get("scores"):
            check_gates(store.get(scores.location))
        folder, digest = artifact.path, artifact.digest
    over = base if base is not None and not (folder / "config.json").is_file() else None
    needed = ("config.json", *NEEDED_FILES) if over is None else ("lineage.json",)
    missing = [file for file in ("parity.json", *needed) if not (folder / file).is_file()]
    if missing:
        raise StoreError(
            f"The release {where} lacks {', '.join(missing)}, which a server needs.",
            "Export it again, with safetensors among export.formats.",
        )
    if over is not None and json.loads((folder / "lineage.json").read_text()).get("tokenizer") != over.tokenizer_digest:
        raise StoreError(
            f"The adapter {where} has another tokenizer than {over.name}.", "Name the base that it was trained on."
        )
    parity = json.loads((folder / "parity.json").read_text())
    for name_of_format, proof in parity["formats"].items():
        _check_proof(where, name_of_format, proof)
    release = Release(default_name(where), folder, digest, parity, over.folder if over is not None else None)
    try:
        release.chat_ids([{"role": "user", "content": "a"}])
    except TemplateFaultError as error:
        raise StoreError(f"The chat template of {where} refuses a question ({error}).", "Export it again.") from error
    return release


def default_name(where: str) -> str:
    """The name under which a release is served if none is given: of a folder its own, of a ref without `/export`."""
    folder = Path(where)
    return folder.resolve().name if folder.is_dir() else release_name(where).removesuffix("/export")


def check_factors_only(adapters: Mapping[str, Path]) -> None:
    """Raises ConfigError for a folder of PEFT with parts that were trained whole, which vLLM doesn't read."""
    for name, folder in adapters.items():
        if whole := json.loads((folder / "adapter_config.json").read_text()).get("modules_to_save"):
            raise ConfigError(
                f"The adapter {name} has {whole[0]} whole, and vLLM reads low-rank changes only.",
                "Serve the merged model: add safetensors to export.formats.",
            )


def choose_format(release: Release, kind: str, wanted: str | None) -> str:
    """The format of a release for an engine: the one that `gristmill chat` prefers for llama.cpp, the smallest for
    vLLM. Raises StoreError if the release doesn't hold one, and ConfigError for virtual tokens that it doesn't read."""
    if release.virtual_tokens and kind != "transformers":
        raise ConfigError(
            f"{release.name} has virtual tokens before every text, which {kind} doesn't read.",
            "Leave engine.name at auto, or set it to transformers.",
        )
    held = [name for name, known in FORMATS.items() if known.files(release.folder)]
    if kind == "llama.cpp":
        fitting = [name for name in held if name.startswith(LLAMA) and not FORMATS[name].needs_base]
    else:
        fitting = [name for name in (FOLDERS if kind == "vllm" else (PLAIN,)) if name in held]
    if wanted is not None:
        fitting = [name for name in fitting if name == wanted]
    if not fitting:
        needed = {"llama.cpp": "a GGUF file", "vllm": f"one of {', '.join(FOLDERS)}"}.get(kind, PLAIN)
        raise StoreError(
            f"{release.name} doesn't hold {wanted or needed} for {kind}: it holds {', '.join(held) or 'no model'}.",
            "Add the format to export.formats and export again, or choose another engine with --engine.",
        )
    return min(fitting, key=lambda name: FORMATS[name].chat_rank) if kind == "llama.cpp" else fitting[0]


def _check_proof(where: str, name: str, proof: Mapping[str, Any]) -> None:
    limits = proof["tolerance"]
    for measure, limit in LIMITS:
        value = proof.get(measure)
        if value is not None and not value <= limits[limit]:
            raise ParityError(
                f"The format {name} of {where} is beyond its limit: {measure} {value:g}, at most {limits[limit]:g}.",
                "Export it again.",
            )
