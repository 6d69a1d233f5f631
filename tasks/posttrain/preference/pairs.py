"""TRL's DPOTrainer on pairs that are rendered already, with measures that are exact means.

TRL's experimental trainers of ORPO and CPO are not used: they tokenize and cut rows by rules of their own, the
likelihood in their losses is a mean over the tokens of a micro-batch (of prompts too, in ORPO), so that another
micro-batch gives another model, and their validation counts rows twice. What is particular to these methods is a loss.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor
from trl import DPOConfig, DPOTrainer
from trl.trainer.utils import disable_dropout_in_model

from tasks.posttrain.arguments import arguments_of
from tasks.posttrain.method import TrainerParts
from tasks.posttrain.preference.losses import Answers
from tasks.posttrain.token_means import ExactMeans


def pair_arguments(parts: TrainerParts[Any], **settings: Any) -> DPOConfig:
    """The arguments of these trainers, for a method with further `settings`."""
    if parts.config.adapter is not None:
        disable_dropout_in_model(parts.common["model"])
        settings["disable_dropout"] = False  # it would be the adapter's too
    # Under FSDP, TRL loads a reference model for a moment all the same, and lets go of it before the training
    settings = {"loss_type": ["sigmoid"], **settings}  # which a loss of our own doesn't read
    arguments: DPOConfig = arguments_of(
        DPOConfig, parts.arguments, **settings, max_length=None, precompute_ref_log_probs=True
    )
    return arguments


class PairMeans(ExactMeans, DPOTrainer):
    """DPO on rows with `prompt_ids`, `chosen_ids`, `rejected_ids`, and the log-probabilities under the reference."""

    means_over: ClassVar = {
        "loss": "pairs",
        "mean_token_accuracy": "chosen tokens",
        "logits/chosen": "chosen tokens",
        "logits/rejected": "rejected tokens",
        "entropy": "tokens",
    }

    def weigh(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The pairs and the tokens of their answers."""
        answers = inputs["completion_mask"][:, 1:]  # those of all chosen answers, then those of all rejected ones
        chosen, rejected = (mask.sum() for mask in answers.chunk(2))
        pairs = chosen.new_tensor(len(answers) // 2)
        return {"pairs": pairs, "chosen tokens": chosen, "rejected tokens": rejected, "tokens": chosen + rejected}

    def _prepare_dataset(self, dataset: Any, *_: Any) -> Any:
        """Rows are rendered, and known to fit."""
        return dataset

    def _precompute_ref_logps(self, dataset: Any, *_: Any) -> Any:
        """They are in the rows."""
        return dataset


class PairsAlone(PairMeans):
    """Without a reference model: a loss of the pairs' log-probabilities under the model that is trained."""

    def pair_losses(self, chosen: Answers, rejected: Answers) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of each pair, and measures of each pair by TRL's names."""
        raise NotImplementedError

    def _compute_loss(self, model: Any, inputs: Any, return_outputs: bool) -> Any:
        """TRL's, with another loss. The means that are logged are taken over the pairs of a batch."""
        mask = inputs["completion_mask"]
        labels = inputs["input_ids"].masked_fill(mask == 0, -100)
        asked = {name: inputs[name] for name in ("input_ids", "attention_mask")}
        outputs = model(**asked, labels=labels, use_cache=False, fused_lm_head=True)
        sums, tokens = outputs.log_probs.sum(1).float(), mask[:, 1:].sum(1)
        chosen, rejected = (Answers(*halves) for halves in zip(sums.chunk(2), tokens.chunk(2), strict=True))
        losses, measures = self.pair_losses(chosen, rejected)
        measures |= {"logps/chosen": chosen.sums, "logps/rejected": rejected.sums}
        measures["rewards/margins"] = measures["rewards/chosen"] - measures["rewards/rejected"]
        measures["rewards/accuracies"] = (measures["rewards/margins"] > 0).float()
        kept = self._metrics[self._mode]
        for name, values in measures.items():
            kept[name].append(self.accelerator.gather(values.detach()).mean().item())
        right = (outputs.is_top1 & mask[:, 1:].bool()).chunk(2)[0].sum()
        counts = self.accelerator.reduce(right.new_tensor([right, chosen.tokens.sum()]).double(), "sum").tolist()
        kept["mean_token_accuracy"].append(counts[0] / counts[1])
        loss = losses.mean()
        return (loss, outputs) if return_outputs else loss
