"""A trainer whose model answers itself, for on-policy distillation (Agarwal et al. 2024, GKD).

A row's last answer is replaced by one that the model samples. Whether it is, and what is sampled, follows from the
seed, the step and the prompt, so a resumed run has the same answers, over any number of processes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from transformers import Trainer

from models.kernels.cross_entropy import IGNORED
from models.runtimes.greedy import ends_of
from tasks.posttrain.rollouts.sampling import numbers_of, sample, seed_of
from tasks.posttrain.rows.form import Row
from tasks.posttrain.rows.instruction import prompt_tokens


class OwnAnswers(NamedTuple):
    """Rows with answers of the model's, the tokens of these answers, and how many of them were cut."""

    rows: list[Row]
    lengths: list[int]
    cut: int


class OnPolicy(Trainer):
    """Mixed into TRL's SFTTrainer, before it. A `share` of the rows gets answers of at most `max_new_tokens`, before
    the tokens of a step are counted. Its measures are those of the answers of all processes."""

    share = 0.0
    max_new_tokens = 0
    _metrics: dict[str, dict[str, list[float]]]  # TRL's

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: Any) -> tuple[list[Any], Any]:
        """The micro-batches of a step, and the tokens that are learned in it."""
        batches, items = super().get_batch_samples(epoch_iterator, num_batches, device)
        if not self.share or not batches:
            return batches, items
        rows = [rows_of(batch) for batch in batches]
        model, tokenizer = self.accelerator.unwrap_model(self.model), self.processing_class
        with self.compute_loss_context_manager():
            own = own_answers(
                model,
                tokenizer,
                [row for batch in rows for row in batch],
                share=self.share,
                seed=f"{self.args.seed} {self.state.global_step}",
                ends=ends_of(model, tokenizer),
                max_new_tokens=self.max_new_tokens,
                learned=self.args.per_device_train_batch_size,
            )
        sums = torch.tensor([[len(own.lengths), sum(own.lengths), own.cut]], device=self.args.device)
        answers, tokens, cut = self.accelerator.gather(sums).sum(0).tolist()
        if answers:
            self._metrics["train"]["completions/mean_length"] = [tokens / answers]
            self._metrics["train"]["completions/clipped_ratio"] = [cut / answers]
        in_order = iter(own.rows)
        batches = [self.data_collator([next(in_order) for _ in batch]) for batch in rows]
        return batches, self._get_num_items_in_batch(batches, device)


def own_answers(
    model: Any,
    tokenizer: Any,
    rows: Sequence[Row],
    *,
    share: float,
    seed: str,
    ends: Sequence[int],
    max_new_tokens: int,
    learned: int,
) -> OwnAnswers:
    """The rows of a step, a `share` of them with an answer of the model's. `seed` names the step, and `learned` rows
    are in a forward pass."""
    answered = list(rows)
    prompts = [row["input_ids"][: prompt_tokens(row["labels"])] for row in rows]
    names = [f"on-policy {seed} {' '.join(map(str, ids))}" for ids in prompts]
    chosen = [number for number, name in enumerate(names) if float(numbers_of(seed_of(f"{name} share"), 1)) < share]
    asked, seeds = [prompts[number] for number in chosen], [seed_of(names[number]) for number in chosen]
    answers = sample(model, tokenizer, asked, seeds, ends, max_new_tokens, temperature=1.0, learned=learned)
    for number, prompt, answer in zip(chosen, asked, answers, strict=True):
        answered[number] = {"input_ids": [*prompt, *answer], "labels": [*[IGNORED] * len(prompt), *answer]}
    return OwnAnswers(answered, [len(one) for one in answers], sum(one[-1] not in ends for one in answers))


def rows_of(batch: Mapping[str, Any]) -> list[Row]:
    """The rows of a padded batch."""
    lengths = batch["attention_mask"].sum(1).tolist()
    return [
        {name: batch[name][number, :length].tolist() for name in ("input_ids", "labels")}
        for number, length in enumerate(lengths)
    ]
