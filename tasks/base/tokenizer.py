"""The tokenizer of a base model, written as the later stages read it: tokenizer.json, its config, one chat template.

From here on it is the tokenizer of the pipeline, and its template the only one (law 6). A base without a template gets
ours, in which the token that ends its texts ends a turn too: so its vocabulary stays as it is, and so do its weights.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.conversation import TemplateFaultError, render, turns_of
from models.tokenizer import WITH_BOS, begins_with_bos, load_tokenizer, our_template
from storage.errors import SourceError, TokenizerMismatch
from tasks.base.check import loaded
from tasks.tokenizer.load import Loading

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

SAMPLES = (
    "The river rises in the hills, 12 km south of 3.5 villages.",
    "  def f(x):\n\treturn x  # doesn't\n\n\n",
    "Übergröße, 東京, привет, עולם 🙂 e\N{COMBINING ACUTE ACCENT}",
)


OWN, BEGUN, OURS = "its own", "its own, with BOS before it", "ours, as it has none"  # whose the chat template is


def write_tokenizer(source: Path, target: Path) -> tuple[PreTrainedTokenizerFast, str]:
    """Write the tokenizer of the folder `source`; it as later stages load it, and whose its chat template is.

    Raises SourceError for a tokenizer that transformers can't load or write as a tokenizer.json, for one that has no
    token for the end of a text, and for a template that can't render a question and its answer; TokenizerMismatch if
    what was written gives other ids; DamagedArtifact for a tokenizer.json that is none.
    """
    from transformers import AutoTokenizer

    with Loading(source / "tokenizer.json"):
        theirs: Any = loaded(
            lambda: AutoTokenizer.from_pretrained(source, local_files_only=True, trust_remote_code=False),
            "the tokenizer of the base",
        )
    if theirs.eos_token is None:
        raise SourceError("The tokenizer of the base has no eos_token.", "Name it in its tokenizer_config.json.")
    template = theirs.chat_template
    if isinstance(template, dict):
        template = template.get("default")
    theirs.chat_template = template or our_template(theirs.eos_token)
    lacks_bos = _lacks_bos(theirs)
    if lacks_bos:
        theirs.chat_template = WITH_BOS + theirs.chat_template
    theirs.save_pretrained(target)
    if not (target / "tokenizer.json").is_file():
        raise SourceError(
            "transformers can't write the tokenizer of the base as a tokenizer.json.",
            "Convert it once, as transformers' documentation says of fast tokenizers.",
        )
    tokenizer = load_tokenizer(target)
    for text in SAMPLES:
        if theirs(text)["input_ids"] != tokenizer(text)["input_ids"]:
            raise TokenizerMismatch(
                f"The tokenizer of the base gives {text!r} other ids once it is saved.",
                "Report it, with the name of the model; until then choose another base.",
            )
    try:
        turns_of(tokenizer)
    except TemplateFaultError as fault:
        why = f" ({type(fault.__cause__).__name__}: {fault.__cause__})" if fault.__cause__ else ""
        raise SourceError(
            f"The chat template of the base can't be trained on: {fault}{why}.",
            "Correct its chat_template.jinja: it must take a question of the user's, and what stands before an answer "
            "must be the prompt that asks for it.",
        ) from fault
    return tokenizer, OURS if not template else BEGUN if lacks_bos else OWN


def _lacks_bos(tokenizer: PreTrainedTokenizerFast) -> bool:
    """Whether every text begins with BOS but a conversation, which no runtime tells apart: llama.cpp puts it before
    both, or before none."""
    if not begins_with_bos(tokenizer):
        return False
    try:
        ids = render(tokenizer, [{"role": "user", "content": "a"}])["input_ids"]
    except TemplateFaultError:
        return False
    return ids[:1] != [tokenizer.bos_token_id]
