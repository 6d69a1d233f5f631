"""The tokenizer of a base model, written as the later stages read it: tokenizer.json, its config, one chat template.

From here on it is the pipeline's tokenizer, and its template the only one (law 6). A base without a template gets ours,
in which the token that ends its texts also ends a turn. So its vocabulary and its weights stay as they are.

Template and tokenizer are third-party programs: a template may loop for days, and so may the pattern that splits text.
So they are tried in a child with little time and memory: `python -m tasks.base.tokenizer SPEC`.
"""

from __future__ import annotations

import resource
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.conversation import TemplateFaultError, Turns, generation_ends, render, turns_of
from models.pretrained import load_config
from models.tokenizer import (
    WITH_BOS,
    begins_with_bos,
    load_tokenizer,
    other_ids,
    read_tokenizer,
    roles_as_text,
    save_tokenizer,
)
from storage.errors import LostProcess, SourceError, TokenizerMismatch
from tasks.base.chat import learned_rows, turn_rows
from tasks.base.check import SAFE, loaded, quietly
from tasks.base.malformed import SAVE_TOKENIZER
from tasks.children.child import run_as_child
from tasks.children.spec import ChildSpec
from tasks.children.supervise import run_module
from tasks.stage.output import Output
from tasks.tokenizer.load import Loading

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

MOST_SECONDS = 30  # of CPU time. Tokenizers with the largest vocabularies take five
TEMPLATE_SECONDS = 3  # of CPU time, to render one question and its answer
MOST_BYTES = 4 << 30  # beyond the child's memory when it starts
TEMPLATE_BYTES = 1 << 30
OWN, BEGUN, OURS = "its own", "its own, with BOS before it", "ours, as it has none"  # whose the chat template is


class TokenizerSpec(ChildSpec):
    """Written as JSON by the stage: `source` is the folder of the base. The tokenizer goes to `out`."""

    source: Path


def take_tokenizer(source: Path, out: Output) -> dict[str, Any]:
    """Write the tokenizer of the folder `source` into model/, in a child. Returns the result of `write_tokenizer`.

    Raises what that does, and SourceError for a tokenizer or a template that doesn't finish in time.
    """
    target = out.path / "model"
    spec = TokenizerSpec(
        runtime=out.runtime, scratch=out.scratch.resolve(), out=target.resolve(), source=source.resolve()
    )
    try:
        return run_module("tasks.base.tokenizer", spec, out, on_line=lambda _: None, ranks=False, keeps="nothing")
    except LostProcess as error:
        if "SIGXCPU" not in error.facts["how"]:
            raise
        raise SourceError(
            "The tokenizer or the chat template of the base doesn't finish with a few lines of text.",
            "Correct its chat_template.jinja or the pattern in its tokenizer.json, or choose another base.",
        ) from error


def main(path: Path) -> None:
    """Write the tokenizer within the limits, and the result of `write_tokenizer`."""
    spec = TokenizerSpec.model_validate_json(path.read_text())
    with quietly(), Limited(MOST_SECONDS, MOST_BYTES):
        written = write_tokenizer(spec.source, spec.out)
    spec.finish(written)


def write_tokenizer(source: Path, target: Path) -> dict[str, Any]:
    """Write the tokenizer of the folder `source` to `target`. Returns the ids that end a generation, the number of
    tokens and ids, the template's origin, how it renders turns, and the class with which transformers' AutoTokenizer
    would give other ids.

    Raises SourceError for a tokenizer that transformers can't load or write as a tokenizer.json, for one that lacks a
    token for the end of a text or decodes a token to another text, and for a template that can't render a question and
    its answer. Raises TokenizerMismatch if the written tokenizer gives other ids, and DamagedArtifact for an invalid
    tokenizer.json.
    """
    theirs = open_tokenizer(source, "base", SAFE)
    if theirs.eos_token is None:
        raise SourceError("The tokenizer of the base lacks an eos_token.", "Name it in its tokenizer_config.json.")
    template = theirs.chat_template
    if isinstance(template, dict):
        template = template.get("default")
    theirs.chat_template = template or roles_as_text(theirs.eos_token)
    with Limited(TEMPLATE_SECONDS, TEMPLATE_BYTES):
        lacks_bos = _lacks_bos(theirs)
    if lacks_bos:
        theirs.chat_template = WITH_BOS + theirs.chat_template
    if not theirs.encode("The river rises.", add_special_tokens=False):
        raise SourceError("The tokenizer of the base encodes nothing.", "Use the tokenizer that belongs to it.")
    target.mkdir(parents=True, exist_ok=True)
    save_tokenizer(theirs, target)
    tokenizer = load_tokenizer(target)
    truth = check_ids(tokenizer, source, theirs, "base")
    _check_decoding(truth)
    turns = _turns(tokenizer)
    return {
        "ends": generation_ends(tokenizer),
        "ends_turns": turns.by,
        "tokens": len(tokenizer),
        "ids": max(tokenizer.get_vocab().values()) + 1,
        "template": OURS if not template else BEGUN if lacks_bos else OWN,
        "turns": turn_rows(tokenizer),
        "learned": learned_rows(tokenizer),
        "rebuilt_as": _rebuilt_as(source, target, truth),
    }


def open_tokenizer(folder: Path, what: str, remedy: str) -> PreTrainedTokenizerFast:
    """The tokenizer of a third-party model, which `what` names in errors. Raises SourceError for one that transformers
    can't load, or that isn't of the library `tokenizers`, and DamagedArtifact for an invalid tokenizer.json."""
    file = folder / "tokenizer.json"
    with Loading(file, f"{file.name} of the {what}", SAVE_TOKENIZER), quietly():
        tokenizer = loaded(lambda: read_tokenizer(folder), f"the tokenizer of the {what}", remedy)
    if not tokenizer.is_fast:
        raise SourceError(
            f"The tokenizer of the {what} is not a fast one: it lacks a tokenizer.json.",
            "Convert it once, as described in transformers' documentation of fast tokenizers.",
        )
    return tokenizer


def check_ids(
    tokenizer: PreTrainedTokenizerFast, folder: Path, theirs: PreTrainedTokenizerFast, what: str
) -> Tokenizer:
    """The tokenizer in the tokenizer.json of a folder, or that of `theirs` if the folder doesn't have one. Raises
    TokenizerMismatch if `tokenizer` gives other ids."""
    from tokenizers import Tokenizer

    file = folder / "tokenizer.json"
    truth: Tokenizer = Tokenizer.from_file(str(file)) if file.is_file() else theirs.backend_tokenizer
    if (text := other_ids(tokenizer, truth)) is not None:
        raise TokenizerMismatch(
            f"The tokenizer of the {what} gives {text!r} other ids with its tokenizer_config.json than with its "
            "tokenizer.json only.",
            "Correct the settings that add tokens in tokenizer_config.json, such as add_bos_token, or choose another.",
        )
    return truth


def _check_decoding(truth: Tokenizer) -> None:
    around = truth.encode("a", add_special_tokens=False).ids
    for id, token in truth.get_added_tokens_decoder().items():
        # A decoder with a byte map may read the letters of a token as bytes, such as č as \r
        if token.content.strip() not in truth.decode([*around, id, *around], skip_special_tokens=False):
            raise SourceError(
                f"The tokenizer of the base decodes its added token {token.content!r} to "
                f"{truth.decode([id], skip_special_tokens=False)!r}.",
                "Remove it from added_tokens in tokenizer.json, or choose another base.",
            )


def _lacks_bos(tokenizer: PreTrainedTokenizerFast) -> bool:
    """Whether every text begins with BOS except conversations. No runtime makes that distinction: llama.cpp puts BOS
    before both or before neither."""
    if not begins_with_bos(tokenizer):
        return False
    try:
        ids = render(tokenizer, [{"role": "user", "content": "a"}])["input_ids"]
    except TemplateFaultError:
        return False
    return ids[:1] != [tokenizer.bos_token_id]


def _turns(tokenizer: PreTrainedTokenizerFast) -> Turns:
    """How the template ends turns. Raises SourceError if it can't render conversations, within the limits."""
    try:
        with Limited(TEMPLATE_SECONDS, TEMPLATE_BYTES):
            return turns_of(tokenizer)
    except TemplateFaultError as fault:
        why = f" ({type(fault.__cause__).__name__}: {fault.__cause__})" if fault.__cause__ else ""
        raise SourceError(
            f"The chat template of the base can't be trained on: {fault}{why}.",
            "Correct its chat_template.jinja: it must accept a question of the user's, and render it the same with and "
            "without the answer.",
        ) from fault


def _rebuilt_as(source: Path, target: Path, truth: Tokenizer) -> str:
    """The class that AutoTokenizer loads the written tokenizer as, if it gives other ids, else "". For some
    architectures AutoTokenizer has a fixed class, whatever the files say."""
    from transformers import AutoTokenizer

    automatic: Any = loaded(
        lambda: AutoTokenizer.from_pretrained(
            target, config=load_config(source), local_files_only=True, trust_remote_code=False
        ),
        "the tokenizer of the base",
    )
    return type(automatic).__name__ if other_ids(automatic, truth) is not None else ""


class Limited:
    """Limits this process to `seconds` more of CPU time and `size` more bytes within the block. Beyond the first the
    system ends it (SIGXCPU), beyond the second Python raises MemoryError."""

    def __init__(self, seconds: int, size: int) -> None:
        self.seconds, self.size = seconds, size

    def __enter__(self) -> None:
        self.before = resource.getrlimit(resource.RLIMIT_CPU), resource.getrlimit(resource.RLIMIT_DATA)
        used = resource.getrusage(resource.RUSAGE_SELF)
        _lower(resource.RLIMIT_CPU, int(used.ru_utime + used.ru_stime) + 1 + self.seconds)
        _lower(resource.RLIMIT_DATA, _data_bytes() + self.size)

    def __exit__(self, *_: object) -> None:
        for which, before in zip((resource.RLIMIT_CPU, resource.RLIMIT_DATA), self.before, strict=True):
            resource.setrlimit(which, before)


def _lower(which: int, most: int) -> None:
    soft, hard = resource.getrlimit(which)
    resource.setrlimit(which, (most if soft == resource.RLIM_INFINITY else min(soft, most), hard))


def _data_bytes() -> int:
    status = Path("/proc/self/status")
    lines = status.read_text().splitlines() if status.is_file() else []
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith("VmData:")), 0)


if __name__ == "__main__":
    run_as_child(main)
