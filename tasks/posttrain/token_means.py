"""Measures of TRL's trainers as means over tokens or pairs.

TRL logs the mean over batches of each batch's mean, and transformers the mean of batch losses, in which a token of a
small batch counts for more than one of a large batch. Over several processes accelerate fills the last batch of the
held-out rows up with rows that came before, which TRL counts twice. Here each batch has the weight of what it holds,
and each held-out row is measured once. Where a method gives the loss of each row, a validation has these too.
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

ROWS = "eval_rows"  # what a callback finds the losses of the held-out rows by


class ExactMeans(Trainer):
    """Mixed into a trainer of TRL, before it. `weigh` names the counts of a batch, and `means_over` the count that a
    measure is a mean over: by name, or that of "loss" for any other."""

    means_over: ClassVar[Mapping[str, str]]
    _metrics: dict[str, dict[str, list[float]]]  # of TRL: a value for each batch, over all processes

    def __init__(self, *args: Any, **settings: Any) -> None:
        self._seen: dict[str, list[dict[str, Tensor]]] = defaultdict(list)  # counts and losses of this process
        self._rows: list[Tensor] = []  # of the validation that is under way, as row_losses gives them
        self._repeated = 0
        super().__init__(*args, **settings)

    def weigh(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Counts of what a batch holds, such as its supervised tokens."""
        raise NotImplementedError

    def row_losses(self, inputs: Mapping[str, Tensor], outputs: Any) -> Tensor | None:
        """For each row of a batch the sum of its loss, and the count that the loss is a mean over; None where a method
        doesn't tell."""
        return None

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader[Any]:
        """The held-out rows, each in one batch of one process but for the last few, which every process has."""
        dataset: Any = self.eval_dataset if eval_dataset is None else eval_dataset
        batches, self._repeated = held_out_batches(
            len(dataset), self.args.eval_batch_size, self.args.process_index, self.args.world_size
        )
        return DataLoader(dataset, batch_sampler=batches, collate_fn=self.data_collator)

    def compute_loss(self, model: Any, inputs: Any, *args: Any, **settings: Any) -> Any:
        """TRL's, remembered with the counts of the batch."""
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
        """TRL's, which adds its measures to `logs`."""
        mode = self._mode
        if seen := self._seen.pop(mode, None):
            sums = self._over_processes(seen, self._repeated if mode == "eval" else 0)
            for measure, values in list(self._metrics[mode].items()):
                if len(values) == len(seen):
                    weights = sums[self.means_over.get(measure, self.means_over["loss"])]
                    if sum(weights):
                        self._metrics[mode][measure] = [_weighted_mean(values, weights)]
                    else:  # of nothing, as of a label that no row of the batch has
                        del self._metrics[mode][measure]
            if mode == "eval":
                logs["eval_loss"] = sum(sums["of loss"]) / sum(sums[self.means_over["loss"]])
        rows = self._all_rows() if mode == "eval" else None
        super().log(logs, start_time)
        if rows is not None:
            logs[ROWS] = rows  # type: ignore[assignment]  # for callbacks; after the log, which is kept in checkpoints

    def _all_rows(self) -> list[list[float]] | None:
        """Those of all processes; of the last batches, which every process has, only once. The order is the same in
        every validation."""
        batches, self._rows = self._rows, []
        if not batches:
            return None
        shared, all_have = batches[: len(batches) - self._repeated], batches[len(batches) - self._repeated :]
        parts = [self.accelerator.gather(torch.cat(shared))] if shared else []
        rows: list[list[float]] = torch.cat([*parts, *all_have]).tolist()
        return rows

    @property
    def _mode(self) -> str:
        return "train" if self.model.training else "eval"

    def _over_processes(self, seen: list[dict[str, Tensor]], repeated: int) -> dict[str, list[float]]:
        """The sums of each batch over the processes; of the last `repeated` batches each has the same rows."""
        sums = torch.stack([torch.stack(list(batch.values())) for batch in seen])
        sums = self.accelerator.reduce(sums, "sum")
        if repeated:
            sums[-repeated:] /= self.args.world_size
        return dict(zip(seen[0], sums.T.tolist(), strict=True))


@contextmanager
def _outputs_of(model: nn.Module) -> Iterator[list[Any]]:
    """What the forward passes of a model return: of TRL's fused head, log-probabilities, which its trainer keeps."""
    outputs: list[Any] = []
    hook = model.register_forward_hook(lambda module, given, output: outputs.append(output))
    try:
        yield outputs
    finally:
        hook.remove()


def _weighted_mean(values: list[float], weights: list[float]) -> float:
    return sum(value * weight for value, weight in zip(values, weights, strict=True)) / sum(weights)
