"""TRL's DPOTrainer on pairs that are already rendered, with measures that are exact means.

TRL's experimental trainers for ORPO and CPO are not used. They tokenize and cut rows by their own rules. The likelihood
in their losses is a mean over the tokens of a micro-batch (including prompts, in ORPO), so that another micro-batch
gives another model. Their validation counts rows twice. Only the loss is particular to these methods.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM
from trl import DPOConfig, DPOTrainer
from trl.trainer.utils import disable_dropout_in_model

from tasks.posttrain.arguments import arguments_of
from tasks.posttrain.method import TrainerParts
from tasks.posttrain.preference.losses import Answers
from tasks.posttrain.token_means import ExactMeans


def pair_arguments(parts: TrainerParts[Any], **settings: Any) -> DPOConfig:
    """The arguments for these trainers, with further `settings` of the method."""
    if parts.config.adapter is not None:
        disable_dropout_in_model(parts.common["model"])
        settings["disable_dropout"] = False  # True would disable the adapter's dropout too
    settings = {"loss_type": ["sigmoid"], **settings}  # our own losses don't read it
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

    def __init__(self, *, args: DPOConfig, **settings: Any) -> None:
        super().__init__(ref_model=no_reference(args, settings), args=args, **settings)
        self.ref_model = None

    def weigh(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The numbers of pairs and of the tokens of their answers."""
        answers = inputs["completion_mask"][:, 1:]  # the rows of all chosen answers, then those of all rejected ones
        chosen, rejected = (mask.sum() for mask in answers.chunk(2))
        pairs = chosen.new_tensor(len(answers) // 2)
        return {"pairs": pairs, "chosen tokens": chosen, "rejected tokens": rejected, "tokens": chosen + rejected}

    def _prepare_dataset(self, dataset: Any, *_: Any) -> Any:
        """Nothing to prepare: rows are rendered, and known to fit."""
        return dataset

    def _precompute_ref_logps(self, dataset: Any, *_: Any) -> Any:
        """Nothing to compute: the rows have them."""
        return dataset


def no_reference(args: Any, settings: Mapping[str, Any]) -> LlamaForCausalLM | None:
    """The reference for a trainer of TRL that needs none. Under FSDP it would load one, whole, on every rank, unless it
    is given a model: this takes no memory."""
    if not args.fsdp or "peft_config" in settings:
        return None
    sizes = {"hidden_size": 2, "intermediate_size": 2, "num_hidden_layers": 1, "num_attention_heads": 1}
    return LlamaForCausalLM(LlamaConfig(vocab_size=2, **sizes))


class PairsAlone(PairMeans):
    """Trains without a reference model, by a loss of the pairs' log-probabilities under the trained model."""

    def pair_losses(self, chosen: Answers, rejected: Answers) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss of each pair, and measures of each pair under TRL's names."""
        raise NotImplementedError

    def _compute_loss(self, model: Any, inputs: Any, return_outputs: bool) -> Any:
        """The mean of `pair_losses`. Logs its measures as TRL does, as means over the pairs of a batch."""
        mask = inputs["completion_mask"]
        labels = inputs["input_ids"].masked_fill(mask == 0, -100)
        rows = {name: inputs[name] for name in ("input_ids", "attention_mask")}
        outputs = model(**rows, labels=labels, use_cache=False, fused_lm_head=True)
        sums, tokens = outputs.log_probs.sum(1).float(), mask[:, 1:].sum(1)
        chosen, rejected = (Answers(*halves) for halves in zip(sums.chunk(2), tokens.chunk(2), strict=True))
        losses, measures = self.pair_losses(chosen, rejected)
        measures |= {"logps/chosen": chosen.sums, "logps/rejected": rejected.sums}
        measures["rewards/margins"] = measures["rewards/chosen"] - measures["rewards/rejected"]
        measures["rewards/accuracies"] = (measures["rewards/margins"] > 0).float()
        kept = self._metrics[self._mode]
        for name, values in measures.items():
            kept[name].append(self.accelerator.gather(values.detach()).mean().item())
        answers = mask[:, 1:].bool()
        right = (outputs.is_top1[:, -answers.shape[1] :] & answers).chunk(2)[0].sum()  # a prompt's tokens come before
        counts = self.accelerator.reduce(right.new_tensor([right, chosen.tokens.sum()]).double(), "sum").tolist()
        kept["mean_token_accuracy"].append(counts[0] / counts[1])
        loss = losses.mean()
        return (loss, outputs) if return_outputs else loss
