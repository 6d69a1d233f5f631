"""Measures of TRL's trainers as means over tokens or pairs.

TRL logs the mean over batches of each batch's mean, and transformers the mean of batch losses. In both, a token of a
small batch counts for more than one of a large batch. Over several processes, accelerate also fills up the last batch
of held-out rows with earlier rows, which TRL counts twice. Here each batch is weighted by what it holds, and each
held-out row is measured once. If a method gives the loss of each row, a validation also reports those.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from transformers import Trainer

from tasks.posttrain.batches import held_out_batches

ROWS = "eval_rows"  # the name under which callbacks get the losses of the held-out rows


class ExactMeans(Trainer):
    """Mixed into a trainer of TRL, before it. `weigh` gives the counts of a batch by name, and `means_over` names the
    count that each measure is a mean over. A measure that it doesn't name is a mean over the count of "loss"."""

    means_over: ClassVar[Mapping[str, str]]
    context_parallel = 1  # processes that share rows (attention/context.py)
    _metrics: dict[str, dict[str, list[float]]]  # TRL's: a value for each batch, over all processes

    def __init__(self, *args: Any, **settings: Any) -> None:
        self._seen: dict[str, list[dict[str, Tensor]]] = defaultdict(list)  # counts and losses of this process
        self._rows: list[Tensor] = []  # of the current validation, as row_losses gives them
        self._repeated = 0  # last batches of a validation that are the same on every process
        super().__init__(*args, **settings)

    def weigh(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Counts of a batch, such as its supervised tokens."""
        raise NotImplementedError

    def row_losses(self, inputs: Mapping[str, Tensor], outputs: Any) -> Tensor | None:
        """For each row of a batch, the sum of its loss and the count that the loss is a mean over, or None if a method
        doesn't give them."""
        return None

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader[Any]:
        """The held-out rows: each is in one batch of one process, but every process has the last few."""
        dataset: Any = self.eval_dataset if eval_dataset is None else eval_dataset
        ranks = self.context_parallel
        batches, self._repeated = held_out_batches(
            len(dataset), self.args.eval_batch_size, self.args.process_index // ranks, self.args.world_size // ranks
        )
        return DataLoader(dataset, batch_sampler=batches, collate_fn=self.data_collator)

    def get_train_dataloader(self) -> DataLoader[Any]:
        """The micro-batches of this process, which are those of all that share its rows."""
        if self.context_parallel == 1:
            return super().get_train_dataloader()
        dataset: Any = self.train_dataset
        size, ranks = self.args.per_device_train_batch_size, self.context_parallel
        starts = range(self.args.process_index // ranks * size, len(dataset), self.args.world_size // ranks * size)
        batches = [list(range(start, start + size)) for start in starts]
        return DataLoader(dataset, batch_sampler=batches, collate_fn=self.data_collator)

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **settings: Any) -> Any:
        """TRL's loss, kept with the counts of the batch."""
        kept: AbstractContextManager[list[Any]] = _outputs_of(model) if self._mode == "eval" else nullcontext([])
        with kept as outputs:
            result = super().compute_loss(model, inputs, *args, **settings)
        loss = (result[0] if isinstance(result, tuple) else result).detach()
        counts = {name: count.double() for name, count in self.weigh(inputs).items()}
        self._seen[self._mode].append({**counts, "of loss": loss.double() * counts[self.means_over["loss"]]})
        if self._mode == "eval" and (rows := self.row_losses(inputs, outputs[0])) is not None:
            self._rows.append(rows.detach().double())
        return result

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        """TRL's, with exact means in place of its measures. TRL adds those to `logs`."""
        mode = self._mode
        if seen := self._seen.pop(mode, None):
            sums = self._over_processes(seen, self._repeated if mode == "eval" else 0)
            for measure, values in list(self._metrics[mode].items()):
                if len(values) == len(seen):
                    weights = sums[self.means_over.get(measure, self.means_over["loss"])]
                    if sum(weights):
                        self._metrics[mode][measure] = [_weighted_mean(values, weights)]
                    else:  # a mean over nothing, such as over a label that no row has
                        del self._metrics[mode][measure]
            if mode == "eval":
                logs["eval_loss"] = sum(sums["of loss"]) / sum(sums[self.means_over["loss"]])
        rows = self._all_rows() if mode == "eval" else None
        super().log(logs, start_time)
        if rows is not None:
            logs[ROWS] = rows  # type: ignore[assignment]  # for callbacks only: checkpoints keep what is logged

    def _all_rows(self) -> list[list[float]] | None:
        """The rows of all processes, each once, in the same order in every validation."""
        batches, self._rows = self._rows, []
        if not batches:
            return None
        shared, all_have = batches[: len(batches) - self._repeated], batches[len(batches) - self._repeated :]
        parts = []
        if shared:
            rows_of_processes = self.accelerator.gather(torch.cat(shared)).unflatten(0, (self.args.world_size, -1))
            parts = [rows_of_processes[:: self.context_parallel].flatten(0, 1)]
        rows: list[list[float]] = torch.cat([*parts, *all_have]).tolist()
        return rows

    @property
    def _mode(self) -> str:
        return "train" if self.model.training else "eval"

    def _over_processes(self, seen: list[dict[str, Tensor]], repeated: int) -> dict[str, list[float]]:
        """The sums of each batch over the processes. All have the same rows in the last `repeated` batches."""
        sums = torch.stack([torch.stack(list(batch.values())) for batch in seen])
        sums = self.accelerator.reduce(sums, "sum")
        if repeated:
            sums[-repeated:] /= self.args.world_size / self.context_parallel
        return dict(zip(seen[0], sums.T.tolist(), strict=True))


@contextmanager
def _outputs_of(model: nn.Module) -> Iterator[list[Any]]:
    """Collects the outputs of a model's forward passes. TRL's trainer doesn't return its fused head's
    log-probabilities."""
    outputs: list[Any] = []
    hook = model.register_forward_hook(lambda module, inputs, output: outputs.append(output))
    try:
        yield outputs
    finally:
        hook.remove()


def _weighted_mean(values: list[float], weights: list[float]) -> float:
    return sum(value * weight for value, weight in zip(values, weights, strict=True)) / sum(weights)
