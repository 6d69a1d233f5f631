"""`python -m benchmarks.filter.cascade`: a classifier of transformers alone, and behind the fast model of a cascade.

A BERT of two layers learns on a part of the corpus to tell prose (speeches, encyclopedia) from all else. On documents
that it has not seen, the model of a cascade is trained; on others again, each document is scored with it and without.
Said are CPU seconds of scoring in one process, the share settled, and how often the two agree: on the pieces that the
cascade held out itself, and on whole documents that it never saw.
"""

from __future__ import annotations

import json
import platform
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.measure import corpus, corpus_parser
from storage.artifact import Artifact
from storage.shards.documents import Document, read_documents, shard_name, write_documents
from tasks.filter.classifier.scorer import open_classifier
from tasks.filter.fasttext_model.sample import draw
from tasks.filter.side_files import read_signals
from tasks.filter.signals.config import ClassifierSignalConfig
from tasks.filter.signals.stage import signals, signals_model
from tasks.stage.output import Output
from tasks.stage.runtime import ComputeRuntime, DataRuntime, Runtime

PROSE = ("speeches", "encyclopedia-en")
TOKENS, VOCABULARY, STEPS, BATCH = 128, 4096, 150, 16
TAUGHT, SAMPLE = BATCH * STEPS, 6000  # documents
RUNTIME = Runtime(data=DataRuntime(workers=1), compute=ComputeRuntime(device="cpu", threads=1))


def main() -> None:
    """Read the options, train, measure, print."""
    parser = corpus_parser(__doc__, megabytes=40, runs="not used")
    parser.add_argument("--scored", type=int, default=800, help="documents scored by both (default 800)")
    parser.add_argument("--agreement", type=float, default=0.97, help="asked of each side (default 0.97)")
    options = parser.parse_args()
    first = {"sample": SAMPLE, "agreement": options.agreement}
    folder = corpus(options.data, options.megabytes).folder
    found = {doc.id: doc for path in sorted(folder.glob("*.parquet")) for doc in read_documents(path)}
    ordered = sorted(found.values(), key=lambda doc: draw(doc.id, "benchmark"))
    taught, sampled, rest = (
        ordered[:TAUGHT],
        ordered[TAUGHT : TAUGHT + SAMPLE],
        ordered[TAUGHT + SAMPLE :][: options.scored],
    )
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        train(place / "classifier", taught)
        write_documents(place / "sampled" / shard_name(0), sampled)
        write_documents(place / "rest" / shard_name(0), rest)
        config: dict[str, Any] = {"folder": str(place / "classifier"), "label": "prose"}
        alone, plain, plain_seconds = scored(place / "alone", config, place)
        both, mixed, mixed_seconds = scored(place / "both", {**config, "first": first}, place)
        assert not alone.counts.get("first_settled")
        megabytes = sum(len(doc.text.encode()) for doc in rest) / 1e6
        agree = np.mean((np.array(plain["score"]) >= 0.5) == (np.array(mixed["score"]) >= 0.5))
        print(f"{platform.processor() or platform.machine()}, {len(rest):,} documents of {megabytes:.1f} MB")
        print(
            f"alone {plain_seconds:.1f} CPU s, cascade {mixed_seconds:.1f} CPU s: {plain_seconds / mixed_seconds:.1f} x"
        )
        print(f"settled of their characters: {np.mean(mixed['settled']):.3f}; decisions that agree: {agree:.4f}")
        print(json.dumps({key: value for key, value in both.counts.items() if key.startswith("first")}))
        for row in both.counts["tables"]["Cascade"]:
            print(json.dumps(row))


def train(folder: Path, documents: list[Document]) -> None:
    """A classifier of prose, of the first tokens of documents."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
    from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

    made = Tokenizer(models.BPE())
    made.pre_tokenizer, made.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    special = ["[PAD]", "[CLS]", "[SEP]"]
    texts = [doc.text[:4000] for doc in documents]
    made.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=VOCABULARY, special_tokens=special))
    made.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=made, pad_token="[PAD]", cls_token="[CLS]", sep_token="[SEP]", model_max_length=TOKENS
    )
    torch.manual_seed(1)
    torch.set_num_threads(1)
    model: Any = BertForSequenceClassification(
        BertConfig(
            vocab_size=VOCABULARY,
            hidden_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=512,
            max_position_embeddings=TOKENS,
            id2label={0: "other", 1: "prose"},
            pad_token_id=0,
        )
    )
    optimizer = torch.optim.AdamW(model.parameters(), 5e-4)
    labels = torch.tensor([int(doc.source in PROSE) for doc in documents])
    for step in range(STEPS):
        rows = [(step * BATCH + n) % len(texts) for n in range(BATCH)]
        inputs = tokenizer([texts[n] for n in rows], padding=True, truncation=True, return_tensors="pt")
        inputs.pop("token_type_ids", None)
        loss = torch.nn.functional.cross_entropy(model(**inputs).logits, labels[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    print(f"classifier: loss of the last batch {loss.item():.4f}", flush=True)


def scored(folder: Path, config: dict[str, Any], place: Path) -> tuple[Output, dict[str, list[Any]], float]:
    """The output of the model, the columns of the documents, and the CPU seconds of scoring."""
    chosen = ClassifierSignalConfig.model_validate(config)
    model = Output.at(folder / "model", stage="signals_model", runtime=RUNTIME)
    signals_model.function(chosen.scorer(), Artifact.at(place / "sampled"), model)
    open_classifier(model.path, "cpu").score_pieces(["warm"])
    out = Output.at(folder / "signals", stage="signals", runtime=RUNTIME)
    documents, made = Artifact.at(place / "rest"), Artifact.at(model.path)
    before = time.process_time()
    signals.function(chosen, documents, made, out)
    seconds = time.process_time() - before
    batches = [batch for path in sorted(out.path.glob("*.parquet")) for batch in read_signals(path)]
    return model, pa.Table.from_batches(batches).to_pydict(), seconds


if __name__ == "__main__":
    main()
