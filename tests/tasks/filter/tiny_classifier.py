"""A sequence classifier of transformers small enough for a test: one layer, a vocabulary of words, trained on the spot
to tell two kinds of texts."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

GOOD = ["river", "hill", "town", "history", "century", "people", "water", "bridge", "castle", "mountain", "forest"]
POOR = ["click", "buy", "cheap", "offer", "login", "cookie", "subscribe", "discount", "banner", "checkout", "coupon"]
BOTH = ["the", "of", "and", "to", "in", "a", "is", "for", "with", "on"]
LENGTH = 32  # tokens that the model can read, two of them its own


def texts(number: int, *, seed: int = 1, words: int = 12) -> list[str]:
    """Texts, of which each second one is of poor words, and a tenth of both kinds."""
    draw = random.Random(seed)
    kinds = [(GOOD, POOR, GOOD, POOR, GOOD, POOR, GOOD, POOR, GOOD, GOOD + POOR)[n % 10] for n in range(number)]
    return [" ".join(draw.choices(kind + BOTH, k=words)) + f" {n}." for n, kind in enumerate(kinds)]


def save_classifier(folder: Path, *, steps: int = 40, seed: int = 1, **config: Any) -> Path:
    """A BERT with the labels poor and good, or as `config` says, after `steps` steps of training on `texts`."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification

    tokenizer = word_tokenizer()
    torch.manual_seed(seed)
    settings = {"id2label": {0: "poor", 1: "good"}, "max_position_embeddings": LENGTH, **config}
    model: Any = BertForSequenceClassification(
        BertConfig(
            vocab_size=len(tokenizer),
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=32,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            initializer_range=0.2,
            pad_token_id=0,
            **settings,
        )
    )
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for step in range(steps):
        batch = texts(64, seed=1000 + step)
        labels = torch.tensor([sum(word in GOOD for word in text.split()) > 0 for text in batch]).long()
        inputs = tokenizer(batch, padding=True, return_tensors="pt")
        loss = torch.nn.functional.cross_entropy(model(**inputs).logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def word_tokenizer() -> Any:
    """A tokenizer whose tokens are words. The texts' numbers and dots are unknown to it."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    vocabulary = {word: number for number, word in enumerate([*special, *GOOD, *POOR, *BOTH])}
    made = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    )
