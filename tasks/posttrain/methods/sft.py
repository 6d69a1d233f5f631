"""The `sft` stage: supervised fine-tuning of the base model on conversations, by TRL's SFTTrainer."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from storage.artifact import Artifact
from tasks.posttrain.config import PosttrainConfig
from tasks.posttrain.method import Method, TrainerParts
from tasks.posttrain.rows.instruction import INSTRUCTION, LossOn, Overlong, instructions
from tasks.posttrain.stage import posttrain
from tasks.stage.output import Output

if TYPE_CHECKING:
    from transformers import Trainer

    from tasks.posttrain.conversations.layout import Layout


class SftConfig(PosttrainConfig):
    """Cross-entropy on the assistant's tokens, and nothing else."""

    takes_virtual_tokens: ClassVar[bool] = True

    # The defaults are left out of keys, so keys from before these fields stay valid
    loss_on: LossOn = Field(
        "all",
        exclude_if=lambda value: value == "all",
        description="all: the assistant's tokens of every turn. last: only those of the last turn of a conversation",
    )
    overlong: Overlong = Field(
        "drop",
        exclude_if=lambda value: value == "drop",
        description="what happens to conversations longer than max_length. split: they are split between turns. Each "
        "part begins with the system prompt, if any, and a turn of the user's, and each answer is in one part",
    )
    neftune_alpha: float | None = Field(
        None,
        gt=0,
        exclude_if=lambda value: value is None,
        description="noise on the embeddings in training (NEFTune, Jain et al. 2023, who use 5 to 15). null: none",
    )
    learns_from: Literal["downloaded", "best_of_n", "both"] | None = Field(
        None,
        exclude_if=lambda value: value is None,
        description="downloaded: instructions of `download`. best_of_n: those of that earlier link. both (default: "
        "best_of_n if that link comes before, downloaded otherwise)",
    )

    @model_validator(mode="after")
    def _parts_bear_loss(self) -> Self:
        if self.loss_on == "last" and self.overlong == "split":
            raise ValueError("loss_on last would leave all parts of a split conversation but one without loss: use all")
        return self


def _make_trainer(parts: TrainerParts[SftConfig]) -> Trainer:
    from trl import SFTConfig, SFTTrainer

    from tasks.posttrain.arguments import arguments_of
    from tasks.posttrain.attention.isolation import Isolation, isolate
    from tasks.posttrain.conversations.noise import EmbeddingNoise
    from tasks.posttrain.conversations.speed import Speed
    from tasks.posttrain.conversations.trainer import ConversationTrainer
    from tasks.posttrain.engines import divides

    class TokenMeans(ConversationTrainer, SFTTrainer):
        """The mixin over TRL's trainer."""

    packing, config, common = parts.runtime.posttrain.packing, parts.config, dict(parts.common)
    divided = divides(parts.runtime.posttrain)
    if packing and not divided:
        isolate(common["model"])
    layout, lengths, supervised = _laid_out(parts)
    if (held_out := common["eval_dataset"]) is not None:
        common["eval_dataset"] = held_out.select(_longest_first(held_out))
    # Rows are known to fit, so TRL's own truncation is off. Its packing would let the global batch vary
    settings = {**parts.arguments, "gradient_accumulation_steps": layout.micro_steps}
    trainer = TokenMeans(args=arguments_of(SFTConfig, settings, max_length=None), **common)
    noise = None
    if config.neftune_alpha is not None:
        noise = EmbeddingNoise(trainer.model.get_input_embeddings(), config.neftune_alpha, config.seed)
    trainer.lay_out(layout, Speed(layout, lengths, supervised), noise, packed=packing)
    if packing and divided:
        trainer.add_callback(Isolation())
    return trainer


def _laid_out(parts: TrainerParts[SftConfig]) -> tuple[Layout, list[int], list[int]]:
    """The layout of conversations, and each one's tokens and supervised tokens, in the order of training."""
    from models.kernels.cross_entropy import IGNORED
    from tasks.posttrain.batches import training_order
    from tasks.posttrain.conversations import layout

    rows: Any = parts.common["train_dataset"]
    labels = rows["labels"]
    order = training_order(parts.config, len(rows))
    lengths = [len(row) for row in labels]
    supervised = [sum(label != IGNORED for label in row[1:]) for row in labels]
    lengths, supervised = [lengths[number] for number in order], [supervised[number] for number in order]
    micro_batch = parts.arguments["per_device_train_batch_size"]
    processes = int(os.environ.get("WORLD_SIZE", "1")) // parts.runtime.posttrain.context_parallel
    if parts.runtime.posttrain.packing:
        laid_out = layout.packed(lengths, parts.config.global_batch, parts.max_length, micro_batch, processes)
    else:
        steps = parts.arguments["gradient_accumulation_steps"]
        laid_out = layout.padded(len(order), micro_batch, steps, processes)
    return laid_out, lengths, supervised


def _longest_first(rows: Any) -> list[int]:
    """The order of rows by length: similar lengths in one batch need little padding. The mean over all tokens is the
    same in any order."""
    lengths = [len(labels) for labels in rows["labels"]]
    return sorted(range(len(lengths)), key=lambda number: -lengths[number])


SFT = Method(
    name="sft",
    config=SftConfig,
    pairs="instructions",
    rows=INSTRUCTION,
    rows_of=lambda config: instructions(config.loss_on, config.overlong),
    make_trainer=_make_trainer,
    shares_rows=True,
    loss_unit="nats a token",
    measures={"mean_token_accuracy": "token_accuracy"},
    facts=lambda trainer: trainer.speed.facts(),
)


@SFT.stage(version=9)
def sft(config: SftConfig, model: Artifact, instructions: Artifact, out: Output) -> None:
    """Supervised fine-tuning (Ouyang et al. 2022, step 1) with the loss on the assistant's tokens only.

    Reads model/ and conversations. Writes model/ in the same format, log.jsonl and loss.png. Overlong conversations
    are dropped or split between turns, and counted, but never truncated. Killed at any instant, it resumes from its
    last checkpoint, bit for bit on a CPU.
    """
    posttrain(SFT, config, model, instructions, out)
