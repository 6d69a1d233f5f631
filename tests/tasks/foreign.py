"""Models as others make them, small enough to make in a test: architectures, tokenizers and chat templates not ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.tasks.tiny_model import texts

CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'"
    " }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CONTEXT = 128


def make_foreign_tokenizer(
    *, template: str | None = CHATML, special: list[str] = SPECIAL, eos: str = SPECIAL[0], **named: str
) -> Any:
    """A byte-level BPE of 400 merges with GPT-2's pattern and these special tokens, without a PAD."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=500,
        special_tokens=special,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts(), trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=eos, chat_template=template, **named)


def make_foreign(folder: Path, architecture: str, tokenizer: Any | None = None, **changes: Any) -> Path:
    """A folder with a model of random weights (seed 1) in an architecture of transformers, and its tokenizer."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    tokenizer = tokenizer or make_foreign_tokenizer()
    usual = {
        "vocab_size": len(tokenizer),
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": CONTEXT,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
    }
    if architecture == "gpt2":
        del usual["intermediate_size"], usual["num_key_value_heads"]
    if architecture == "gemma":
        usual |= {"head_dim": 16}
    torch.manual_seed(1)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(architecture, **{**usual, **changes}))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
