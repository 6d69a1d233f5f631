"""KTO over TRL's KTOTrainer, with a reference point that depends neither on micro-batches nor on processes.

KTO compares an answer with a point z₀, the divergence of the model from the reference, which it estimates by answers
to other prompts of the batch. TRL pairs prompts with such answers once, in blocks of a micro-batch, and takes the mean
over a micro-batch. So other micro-batches would give another model. Here the prompts of a global batch get each other's
answers, and the point is the mean over all of them, measured before the first micro-batch is learned from. For held-out
rows, it is the mean over all of these.

At the start the model is its own reference. So all log-probabilities under the reference are measured then, in batches
of the training, and checkpoints contain them. No second model is in memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any, ClassVar

import torch
from accelerate.utils import is_peft_model
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import TrainerCallback
from trl import KTOTrainer
from trl.trainer.utils import use_adapter

from tasks.posttrain.batches import held_out_batches
from tasks.posttrain.preference.losses import kto_losses
from tasks.posttrain.preference.pairs import no_reference
from tasks.posttrain.reference.score import answer_log_probabilities
from tasks.posttrain.token_means import ExactMeans

REFERENCE = "reference.safetensors"  # in a checkpoint
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

    def __init__(self, *, args: Any, global_batch: int, divergence: bool, **settings: Any) -> None:
        self._global_batch, self._divergence = global_batch, divergence
        self._point: Tensor | None = None  # z₀ of the current batch, or of the held-out rows in a validation
        self._known: dict[str, Tensor] = {}  # log-probabilities under the reference, of rows in the order of training
        super().__init__(ref_model=no_reference(args, settings), args=args, **settings)
        self.ref_model = None
        self.add_callback(_AtStart(self))
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
        steps, size, world = (
            self.args.gradient_accumulation_steps,
            self.args.per_device_train_batch_size,
            self.args.world_size,
        )
        for number, batch in enumerate(batches, self.state.global_step * steps):
            start = (number * world + self.args.process_index) * size
            batch |= {name: self._known[f"train.{name}"][start : start + size] for name in self._columns}
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

    def _precompute_ref_logps(self, dataset: Any, *_: Any) -> Any:
        """Nothing yet: the engine doesn't hold the model."""
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
                ratio = answer_log_probabilities(self.model_wrapped, other)
                ratio = ratio - batch["ref_KL_logps"].to(ratio.device)
            ratios.append(ratio.double().sum())
            rows.append(ratio.new_tensor(len(ratio), dtype=torch.double))
        sums = self.accelerator.reduce(torch.stack([torch.stack(ratios), torch.stack(rows)]), "sum")
        if not self.model.training and self._repeated:
            sums[:, -self._repeated :] /= self.args.world_size
        total, number = sums.sum(1)
        return (total / number).clamp(min=0).float()

    @property
    def _columns(self) -> list[str]:
        """TRL's names of the log-probabilities under the reference: of an answer, and of another prompt's."""
        return ["ref_logps", "ref_KL_logps"] if self._divergence else ["ref_logps"]

    def measure_reference(self) -> None:
        """Measure the log-probabilities of all rows under the model as it is, without virtual tokens, unless they are
        known from before. Other adapters change nothing yet."""
        if not self._known:
            learning = self.model.training
            self.model.eval()
            size, place, world = self.args.per_device_train_batch_size, self.args.process_index, self.args.world_size
            blocks = [range(start, start + size) for start in range(0, len(self.train_dataset), size)][place::world]
            model = self.accelerator.unwrap_model(self.model)
            virtual = is_peft_model(model) and model.active_peft_config.is_prompt_learning
            with use_adapter(model, None) if virtual else nullcontext():
                self._known |= self._measured("train", self.train_dataset, blocks, 0)
                if self.eval_dataset is not None:
                    held_out, same = held_out_batches(len(self.eval_dataset), self.args.eval_batch_size, place, world)
                    self._known |= self._measured("eval", self.eval_dataset, held_out, same)
            self.model.train(learning)
        if self.eval_dataset is not None:
            for name in self._columns:
                self.eval_dataset = self.eval_dataset.add_column(name, self._known[f"eval.{name}"].tolist())

    @torch.no_grad()
    def _measured(self, part: str, rows: Any, batches: Sequence[Sequence[int]], same: int) -> dict[str, Tensor]:
        """The log-probabilities of rows, on every process, from each one's batches. All have the last `same` ones."""
        names = {"ref_logps": "", "ref_KL_logps": "KL_"}
        found = {name: torch.zeros(len(rows), device=self.args.device) for name in self._columns}
        for number, places in enumerate(batches):
            batch = self._prepare_inputs(self.data_collator([rows[place] for place in places]))
            for name, values in found.items():
                given = {key: batch[f"{names[name]}{key}"] for key in PARTS}
                with self.compute_loss_context_manager():
                    sums = answer_log_probabilities(self.model_wrapped, given)
                if number < len(batches) - same or not self.args.process_index:
                    values[list(places)] = sums
            self.callback_handler.on_prediction_step(self.args, self.state, self.control)  # reports progress
        return {f"{part}.{name}": self.accelerator.reduce(values, "sum").cpu() for name, values in found.items()}

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        super()._save_checkpoint(model, trial)
        if self.is_world_process_zero():
            save_file(self._known, Path(self.args.output_dir) / f"checkpoint-{self.state.global_step}" / REFERENCE)

    def _load_optimizer_and_scheduler(self, checkpoint: Any) -> None:
        super()._load_optimizer_and_scheduler(checkpoint)
        self._known = load_file(Path(checkpoint) / REFERENCE)

    def _compute_loss(self, model: Any, inputs: Any, return_outputs: bool) -> Any:
        """TRL's loss, with the measured point. A logged mean over no rows gets no weight later."""
        desirable = inputs["label"].bool()
        sums = answer_log_probabilities(model, inputs)
        ratios = sums - inputs["ref_logps"]
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


class _AtStart(TrainerCallback):
    """Has the reference measured once the engine holds the model, before it learns anything."""

    def __init__(self, trainer: LabelledMeans) -> None:
        self.trainer = trainer

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Measure it."""
        self.trainer.measure_reference()
