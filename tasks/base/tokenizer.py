"""The tokenizer of a base model, written as the later stages read it: tokenizer.json, its config, one chat template.

From here on it is the tokenizer of the pipeline, and its template the only one (law 6). A base without a template gets
ours, in which the token that ends its texts ends a turn too: so its vocabulary stays as it is, and so do its weights.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.conversation import TemplateFaultError, turn_end
from models.tokenizer import CHAT_TEMPLATE_PATH, END, load_tokenizer
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


def write_tokenizer(source: Path, target: Path) -> tuple[PreTrainedTokenizerFast, bool]:
    """Write the tokenizer of the folder `source`; it as later stages load it, and whether the template is ours.

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
        turn_end(tokenizer)
    except TemplateFaultError as fault:
        why = f" ({type(fault.__cause__).__name__}: {fault.__cause__})" if fault.__cause__ else ""
        raise SourceError(
            f"The chat template of the base can't be trained on: {fault}{why}.",
            "Correct its chat_template.jinja: it must take a question of the user's, and what stands before an answer "
            "must be the prompt that asks for it.",
        ) from fault
    return tokenizer, not template


def our_template(eos: str) -> str:
    """Our chat template for a vocabulary without its tokens: a turn ends with `eos`, and the roles are plain text."""
    quoted = eos.replace("\\", "\\\\").replace("'", "\\'")
    return CHAT_TEMPLATE_PATH.read_text(encoding="utf-8").replace(END, quoted)
