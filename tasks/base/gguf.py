"""A GGUF file as a folder in the format of transformers: its weights in float32, its tokenizer, its chat template.

transformers reads all three, but loses how the tokenizer splits numbers before merging. So the pre-tokenizer that the
file names is restored here. llama.cpp, for which the file was made, proves that model and tokenizer are right: by the
same ids, and by the same probabilities but for its rounding of activations.
"""

from __future__ import annotations

import io
from contextlib import redirect_stderr
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from models.pretrained import load_pretrained
from models.runtimes.llama_cpp import LlamaCppRuntime
from models.runtimes.protocol import RuntimeFault
from models.tokenizer import HOSTILE, load_tokenizer, save_tokenizer
from storage.errors import SourceError, TokenizerMismatch
from tasks.base.check import loaded, quietly
from tasks.base.malformed import AGAIN, refuse_pointer
from tasks.tokenizer.patterns import gguf_names, gguf_pre_tokenizer

if TYPE_CHECKING:
    from gguf import GGUFReader
    from tokenizers.pre_tokenizers import PreTokenizer

ARCHITECTURE = "llama"
NOT_CARRIED = ("rope_freqs.weight", ".rope.scaling.type", ".expert_count", ".attention.sliding_window")
LARGEST_DIVERGENCE = 0.05  # nats: llama.cpp rounds activations to 8 bits if weights are quantized
# Of a Llama's fields, and of its blocks
SIZES = ("embedding_length", "attention.head_count", "block_count", "feed_forward_length", "context_length")
VOCABULARY = ("tokenizer.ggml.tokens", "tokenizer.ggml.merges")
PARTS = ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down")
ELSE = "Use the model in the format of transformers, in base.folder."


def convert(path: Path, folder: Path) -> None:
    """Write the model of a GGUF file into a folder.

    Raises SourceError for a damaged file, and for an architecture, a tokenizer or a setting that isn't supported.
    """
    from safetensors.torch import save_file
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    splits = _pre_tokenizer(path)
    folder.mkdir(parents=True, exist_ok=True)
    # In a folder by itself: transformers would read a tokenizer_config.json beside the file, though another model's
    separate, file = folder / "gguf", path.name
    separate.mkdir(exist_ok=True)
    (separate / file).unlink(missing_ok=True)
    (separate / file).symlink_to(path.resolve())
    with quietly(), redirect_stderr(io.StringIO()):  # a progress bar that no setting turns off
        config = loaded(
            lambda: AutoConfig.from_pretrained(
                separate, gguf_file=file, local_files_only=True, trust_remote_code=False
            ),
            f"the config in {file} of the base",
        )
        tokenizer: Any = loaded(
            lambda: AutoTokenizer.from_pretrained(
                separate, gguf_file=file, local_files_only=True, trust_remote_code=False
            ),
            f"the tokenizer in {file} of the base",
        )
        model = loaded(
            lambda: AutoModelForCausalLM.from_pretrained(
                separate,
                gguf_file=file,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                dtype="float32",
            ),
            f"{file} of the base",
        )
    tokenizer.backend_tokenizer.pre_tokenizer = splits
    save_tokenizer(tokenizer, folder)
    # Not by the model's save_pretrained: the model counts as quantized, and its config would say so
    config.architectures = [type(model).__name__]
    config.save_pretrained(folder)
    state = model.state_dict()
    save_file(
        {name: state[name].contiguous() for name in state.keys() - model.all_tied_weights_keys.keys()},
        folder / "model.safetensors",
        {"format": "pt"},
    )


def prove(path: Path, model: Path) -> None:
    """Compare the model in a folder with llama.cpp on the GGUF file that it was read from. Raises TokenizerMismatch for
    other ids, SourceError for other probabilities. llama.cpp renders the file's chat template, so that must have been
    tried in a limited process before."""
    try:
        with LlamaCppRuntime(path) as runtime, quietly():
            _compare(runtime, load_pretrained(model).eval(), load_tokenizer(model))
    except RuntimeFault as fault:
        raise SourceError(f"{fault}.", ELSE) from fault


def _pre_tokenizer(path: Path) -> PreTokenizer:
    """The pre-tokenizer of the file's tokenizer. Raises SourceError for a damaged or unsupported file."""
    reader = open_gguf(path)
    try:
        architecture, vocabulary, pre_tokenizer = (
            _text(reader, key) for key in ("general.architecture", "tokenizer.ggml.model", "tokenizer.ggml.pre")
        )
    except (ValueError, IndexError, KeyError, OverflowError, UnicodeDecodeError) as error:
        raise SourceError(f"{path.name} is a damaged GGUF file: {error}.", AGAIN) from error
    if architecture != ARCHITECTURE:
        kind = f"a {architecture}" if architecture else "of no architecture"
        raise SourceError(f"{path.name} is {kind}, but only a {ARCHITECTURE} is read from GGUF files.", ELSE)
    names = [*reader.fields, *(tensor.name for tensor in reader.tensors)]
    lost = [name for name in names if name.endswith(NOT_CARRIED)]
    if lost:
        raise SourceError(f"{path.name} has {', '.join(lost)}, which isn't read from GGUF files.", ELSE)
    splits = gguf_pre_tokenizer(pre_tokenizer) if vocabulary == "gpt2" else None
    if splits is None:
        found = " ".join(name for name in (vocabulary, pre_tokenizer) if name) or "missing"
        raise SourceError(
            f"The tokenizer of {path.name} is {found}, but only gpt2 is read from GGUF files, "
            f"with {', '.join(gguf_names())}.",
            ELSE,
        )
    _check_parts(path.name, reader)
    return splits


def open_gguf(path: Path) -> GGUFReader:
    """The header of a GGUF file. Raises SourceError for another file, and for one that isn't whole."""
    from gguf import GGUFReader
    from gguf.constants import GGUF_MAGIC, GGUF_VERSION

    with path.open("rb") as file:
        begin = file.read(64)
    refuse_pointer(path, begin, "base")
    if begin[:4] != GGUF_MAGIC.to_bytes(4, "little"):
        raise SourceError(f"{path.name} is not a GGUF file.", AGAIN)
    version = int.from_bytes(begin[4:8], "little")
    if version & 0xFFFF and version not in (2, GGUF_VERSION):
        raise SourceError(f"{path.name} is a GGUF file of version {version}, but 2 and {GGUF_VERSION} are read.", ELSE)
    try:
        return GGUFReader(path)
    except (ValueError, IndexError, KeyError, OverflowError, OSError) as error:
        size = path.stat().st_size
        raise SourceError(
            f"{path.name} is not a whole GGUF file: {size:,} bytes are too few, or damaged.", AGAIN
        ) from error


def _check_parts(name: str, reader: GGUFReader) -> None:
    """Raises SourceError for a Llama that lacks fields or tensors, or whose sizes can't be."""
    sizes = [f"{ARCHITECTURE}.{one}" for one in SIZES]
    for field in (*sizes, *VOCABULARY):
        if reader.get_field(field) is None:
            raise SourceError(f"{name} lacks {field}.", ELSE)
    known: dict[str, Any] = {field: reader.fields[field].contents() for field in sizes}
    for field, value in known.items():
        if not (isinstance(value, int) and value > 0):
            raise SourceError(f"{name} sets {field} to {value!r}, not a whole number above 0.", ELSE)
    width, heads, layers = (known[field] for field in sizes[:3])
    if width % heads:
        raise SourceError(
            f"{name} sets {ARCHITECTURE}.{SIZES[0]} to {width:,}, which {ARCHITECTURE}.{SIZES[1]}, {heads:,}, doesn't "
            "divide.",
            ELSE,
        )
    tensors = {tensor.name for tensor in reader.tensors}
    blocks = {one.split(".")[1] for one in tensors if one.startswith("blk.")}
    if len(blocks) != layers:
        raise SourceError(f"{name} sets {ARCHITECTURE}.{SIZES[2]} to {layers:,}, but has {len(blocks):,} blocks.", ELSE)
    needed = ["token_embd", "output_norm", *(f"blk.{block}.{part}" for block in range(layers) for part in PARTS)]
    if lost := [one for one in needed if f"{one}.weight" not in tensors]:
        raise SourceError(f"{name} lacks the tensor {lost[0]}.weight.", ELSE)


def _text(reader: GGUFReader, key: str) -> str:
    field = reader.get_field(key)
    return "" if field is None else str(field.contents())


def _compare(runtime: LlamaCppRuntime, model: Any, tokenizer: Any) -> None:
    import torch

    for text in HOSTILE:
        ids = tokenizer(text)["input_ids"]
        if ids != runtime.tokenize(text):
            raise TokenizerMismatch(
                f"The tokenizer read from {runtime.path.name} gives {text!r} other ids than llama.cpp does.", ELSE
            )
        with torch.no_grad():
            ours = model(torch.tensor([ids])).logits[0, -1].double().log_softmax(-1).numpy()
        theirs = runtime.log_probabilities(ids)
        known = np.isfinite(theirs)
        divergence = float((np.exp(theirs[known]) * (theirs - ours)[known]).sum())
        if not divergence <= LARGEST_DIVERGENCE:
            raise SourceError(
                f"The model read from {runtime.path.name} differs from llama.cpp's by {divergence:.2g} nats after "
                f"{text!r}.",
                ELSE,
            )
