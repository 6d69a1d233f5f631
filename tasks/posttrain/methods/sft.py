"""The `sft` stage: the base model learns to answer, by TRL's SFTTrainer on rendered conversations."""

from __future__ import annotations

from storage.artifact import Artifact
from tasks.posttrain.config import PosttrainConfig
from tasks.posttrain.stage import posttrain
from tasks.stage import stage
from tasks.stage.output import Output


class SftConfig(PosttrainConfig):
    """Cross-entropy on the assistant's tokens, and nothing else."""


@stage(version=1, runtime=("compute", "training", "posttrain"))
def sft(config: SftConfig, model: Artifact, instructions: Artifact, out: Output) -> None:
    """Supervised fine-tuning (Ouyang et al. 2022, step 1) with the loss on the assistant's tokens only.

    Reads model/ and conversations; writes model/ in the same form, log.jsonl and loss.png. Overlong conversations are
    dropped and counted, never cut. Killed at any instant it goes on from its last checkpoint, bit for bit on a CPU.
    """
    posttrain("sft", config, model, instructions, out)
