"""The `sft` stage: supervised fine-tuning of the base model on conversations, by TRL's SFTTrainer."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from storage.artifact import Artifact
from tasks.posttrain.config import PosttrainConfig
from tasks.posttrain.method import Method, TrainerParts
from tasks.posttrain.rows.instruction import INSTRUCTION
from tasks.posttrain.stage import posttrain
from tasks.stage.output import Output

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor
    from transformers import Trainer


class SftConfig(PosttrainConfig):
    """Cross-entropy on the assistant's tokens, and nothing else."""


def _make_trainer(parts: TrainerParts[SftConfig]) -> Trainer:
    from trl import SFTConfig, SFTTrainer

    from models.kernels.cross_entropy import IGNORED
    from tasks.posttrain.means import ExactMeans

    class TokenMeans(ExactMeans, SFTTrainer):
        means_over: ClassVar = {"loss": "tokens"}

        def weigh(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
            return {"tokens": (inputs["labels"][:, 1:] != IGNORED).sum()}

    # Rows are known to fit, so TRL's own truncation is off
    arguments = SFTConfig(**parts.arguments, max_length=None, packing=False)
    trainer: Trainer = TokenMeans(args=arguments, **parts.common)
    return trainer


SFT = Method(
    name="sft",
    config=SftConfig,
    pairs="instructions",
    rows=INSTRUCTION,
    make_trainer=_make_trainer,
    loss_unit="nats a token",
    measures={"mean_token_accuracy": "token_accuracy"},
)


@SFT.stage(version=6)
def sft(config: SftConfig, model: Artifact, instructions: Artifact, out: Output) -> None:
    """Supervised fine-tuning (Ouyang et al. 2022, step 1) with the loss on the assistant's tokens only.

    Reads model/ and conversations; writes model/ in the same format, log.jsonl and loss.png. Overlong conversations
    are dropped and counted, never truncated. Killed at any instant, it resumes from its last checkpoint, bit for bit
    on a CPU.
    """
    posttrain(SFT, config, model, instructions, out)
