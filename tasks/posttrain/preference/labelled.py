"""KTO over TRL's KTOTrainer, with a reference point that depends neither on micro-batches nor on processes.

KTO compares an answer with a point z₀, the divergence of the model from the reference, which it estimates by answers
to other prompts of the batch. TRL pairs prompts with such answers once, in blocks of a micro-batch, and takes the mean
over a micro-batch. So other micro-batches would give another model. Here the prompts of a global batch get each other's
answers, and the point is the mean over all of them, measured before the first micro-batch is learned from. For held-out
rows, it is the mean over all of these.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from trl import KTOTrainer
from trl.trainer.utils import use_adapter

from tasks.posttrain.preference.losses import kto_losses
from tasks.posttrain.reference.score import answer_log_probabilities
from tasks.posttrain.token_means import ExactMeans

PARTS = ("input_ids", "attention_mask", "completion_mask")


class LabelledMeans(ExactMeans, KTOTrainer):
    """KTO on rows with `prompt_ids`, `completion_ids` and `label`."""

    means_over: ClassVar = {
        "loss": "rows",
        "rewards/chosen": "desirable",
        "logps/chosen": "desirable",
        "rewards/rejected": "undesirable",
        "logps/rejected": "undesirable",
    }

    train_dataset: Any
    eval_dataset: Any

    def __init__(self, *args: Any, global_batch: int, divergence: bool, **settings: Any) -> None:
        self._global_batch, self._divergence = global_batch, divergence
        self._point: Tensor | None = None  # z₀ of the current batch, or of the held-out rows in a validation
        super().__init__(*args, **settings)
        if self.eval_dataset is not None:
            self.eval_dataset = self._with_others(self.eval_dataset, len(self.eval_dataset))

    def weigh(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The number of rows, in total and by label."""
        desirable = inputs["label"].sum()
        rows = desirable.new_tensor(len(inputs["label"]))
        return {"rows": rows, "desirable": desirable, "undesirable": rows - desirable}

    def train(self, *args: Any, **settings: Any) -> Any:
        """Pair the rows with answers to other prompts, and train: only now are they in the order of training."""
        self.train_dataset = self._with_others(self.train_dataset, self._global_batch)
        return super().train(*args, **settings)

    def get_batch_samples(self, *args: Any) -> Any:
        """The micro-batches of a step. Measures the step's reference point first."""
        batches, items = super().get_batch_samples(*args)
        if self._divergence and batches:
            self._point = self._mean_log_ratio(batches)
        return batches, items

    def evaluation_loop(self, dataloader: Any, *args: Any, **settings: Any) -> Any:
        """Validate as TRL does. Measures the reference point of the held-out rows first."""
        if self._divergence:
            learning = self.model.training
            self.model.eval()
            self._point = self._mean_log_ratio(dataloader)
            self.model.train(learning)
        return super().evaluation_loop(dataloader, *args, **settings)

    def _prepare_dataset(self, dataset: Any, *_: Any) -> Any:
        """Nothing to prepare: rows are rendered, and known to fit."""
        return dataset

    def _with_others(self, dataset: Any, block: int) -> Any:
        """Each row with the answer of the previous row of its block. The first gets that of the last."""
        if not self._divergence:
            return dataset
        answers = list(dataset["completion_ids"])
        blocks = [answers[start : start + block] for start in range(0, len(answers), block)]
        others = [other for block in blocks for other in (block[-1], *block[:-1])]
        return dataset.add_column("KL_completion_ids", others)

    @torch.no_grad()
    def _mean_log_ratio(self, batches: Iterable[Mapping[str, Tensor]]) -> Tensor:
        """The mean log-ratio of the other prompts' answers over all rows of all processes, at least 0. Rows that every
        process has count once."""
        ratios, rows = [], []
        for batch in batches:
            other = self._prepare_inputs({name: batch[f"KL_{name}"] for name in PARTS})
            with self.compute_loss_context_manager():
                ratio = answer_log_probabilities(self.model_wrapped, other) - self._under_reference(other)
            ratios.append(ratio.double().sum())
            rows.append(ratio.new_tensor(len(ratio), dtype=torch.double))
        sums = self.accelerator.reduce(torch.stack([torch.stack(ratios), torch.stack(rows)]), "sum")
        if not self.model.training and self._repeated:
            sums[:, -self._repeated :] /= self.args.world_size
        total, number = sums.sum(1)
        return (total / number).clamp(min=0).float()

    @torch.no_grad()
    def _under_reference(self, batch: Mapping[str, Tensor]) -> Tensor:
        """The log-probabilities under the reference model, which is the model without its adapter if it has one."""
        if self.ref_model is not None:
            return answer_log_probabilities(self.ref_model, batch)
        with use_adapter(self.accelerator.unwrap_model(self.model), adapter_name=None):
            return answer_log_probabilities(self.model_wrapped, batch)

    def _compute_loss(self, model: Any, inputs: Any, return_outputs: bool) -> Any:
        """TRL's loss, with the measured point. A logged mean over no rows gets no weight later."""
        desirable = inputs["label"].bool()
        sums = answer_log_probabilities(model, inputs)
        ratios = sums - self._under_reference(inputs)
        point = sums.new_zeros(()) if self._point is None else self._point
        weights = torch.where(desirable, self.desirable_weight, self.undesirable_weight)
        loss = (weights * kto_losses(ratios, desirable, point, self.beta)).mean()
        kept = self._metrics[self._mode]
        for name, chosen in (("chosen", desirable), ("rejected", ~desirable)):
            for measure, values in (("rewards", self.beta * ratios), ("logps", sums)):
                both = torch.stack([(values.detach() * chosen).sum(), chosen.sum().to(values.dtype)])
                total, number = self.accelerator.reduce(both, "sum").tolist()
                kept[f"{measure}/{name}"].append(total / max(1.0, number))
        kept["kl"].append(float(point))
        return (loss, None) if return_outputs else loss
