"""The `distill` stage: a model learns the next-token distributions of a teacher, on the answers of conversations or on
answers of its own.

TRL 1.16 has two trainers for the latter. Its GKDTrainer divides the loss of sampled answers by the tokens of those that
they replace. Its DistillationTrainer doesn't, but it learns from sampled answers only. This one does both.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from models.pretrained import context_of, load_config
from storage.artifact import Artifact
from storage.errors import ConfigError
from tasks.base import BaseConfig, base
from tasks.base.source import fingerprint
from tasks.endpoint.prompts import TokenEndpoint
from tasks.posttrain.config import PosttrainConfig
from tasks.posttrain.method import Method, TrainerParts
from tasks.posttrain.rows.instruction import INSTRUCTION, with_room
from tasks.posttrain.stage import posttrain
from tasks.posttrain.top_tokens.config import TopTokensConfig
from tasks.posttrain.top_tokens.stage import top_tokens
from tasks.stage.output import Output
from tasks.training.chain import BASE
from tasks.training.model_folder import with_tokenizer_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor
    from transformers import Trainer

    from tasks.posttrain.top_tokens.table import TopTokens
    from tasks.stage.runtime import Runtime

Divergence = Literal["forward", "reverse", "jsd"]
GIVEN = ("input_ids", "attention_mask", "position_ids")


class DistillConfig(PosttrainConfig):
    """Divergence from the teacher on the assistant's tokens."""

    learning_rate: float = Field(5e-4, gt=0, le=1000, description="peak (half of supervised fine-tuning's)")
    teacher: str = Field(BASE, description="base, or the earlier link of the chain whose model is the teacher")
    teacher_from: BaseConfig | None = Field(
        None,
        exclude_if=lambda value: value is None,
        description="a teacher outside the chain, with the vocabulary of the model (null: `teacher`)",
    )
    endpoint: TokenEndpoint | None = Field(
        None,
        exclude_if=lambda value: value is None,
        description="a teacher behind an endpoint, with the vocabulary of the model. It is asked once, before the "
        "training, for its likeliest tokens in the place of each that is learned (null: `teacher`)",
    )
    divergence: Divergence = Field(
        "forward", description="KL from the teacher (forward) or to it (reverse), or Jensen–Shannon between both"
    )
    beta: float = Field(
        0.5,
        gt=0,
        lt=1,
        exclude_if=lambda beta: beta == 0.5,  # so that keys from before this field stay valid
        description="jsd: the teacher's weight in the mixture that both are compared with (Agarwal et al. 2024). "
        "Near 0 it behaves as forward, near 1 as reverse",
    )
    temperature: float = Field(
        1.0,
        gt=0,
        description="divisor of both models' logits. The divergence is multiplied by its square (Hinton et al. 2015)",
    )
    hard_share: float = Field(
        0.0, ge=0, lt=1, description="weight of the answers' own cross-entropy (the rest is the divergence's)"
    )
    on_policy_share: float = Field(
        0.0,
        ge=0,
        le=1,
        exclude_if=lambda share: share == 0,
        description="share of conversations whose last answer the student samples again at each step (λ of "
        "Agarwal et al. 2024). 0: it learns on the answers of the conversations",
    )
    max_new_tokens: int = Field(
        128,
        ge=1,
        exclude_if=lambda tokens: tokens == 128,
        description="on_policy_share: maximum tokens of a sampled answer, which is cut there",
    )

    @property
    def samples(self) -> bool:
        return self.on_policy_share > 0

    @property
    def answer_tokens(self) -> int:
        return self.max_new_tokens if self.samples else 0

    @model_validator(mode="after")
    def _sets_what_counts(self) -> Self:
        named = {"teacher": self.teacher != BASE, "teacher_from": self.teacher_from, "endpoint": self.endpoint}
        if len(teachers := [name for name, given in named.items() if given]) > 1:
            raise ValueError(f"{' and '.join(teachers)} name two teachers: leave one out")
        if self.endpoint is not None:
            self._check_known()
        if self.beta != 0.5 and self.divergence != "jsd":
            raise ValueError("beta belongs to `divergence: jsd`: set it, or leave beta out")
        if self.max_new_tokens != 128 and not self.samples:
            raise ValueError("max_new_tokens is for sampled answers: raise on_policy_share, or leave it out")
        if self.hard_share and self.samples:
            raise ValueError(
                "hard_share would teach the student its own samples: set hard_share or on_policy_share to 0"
            )
        return self

    def _check_known(self) -> None:
        """Raises ValueError for what the likeliest tokens of given answers don't tell."""
        usual = {"divergence": "forward", "temperature": 1.0, "on_policy_share": 0.0}
        reasons = {
            "divergence": "needs the teacher's probability of every token",
            "temperature": "needs its logits of every token",
            "on_policy_share": "needs a teacher that reads what the student writes",
        }
        if wrong := [name for name, value in usual.items() if getattr(self, name) != value]:
            name = wrong[0]
            raise ValueError(
                f"{name} {getattr(self, name)} {reasons[name]}, and an endpoint tells the likeliest of given texts: "
                f"set {name} to {usual[name]}, or take a teacher that runs here"
            )

    @property
    def frozen_models(self) -> int:
        return 0 if self.endpoint else 1


def _make_trainer(parts: TrainerParts[DistillConfig]) -> Trainer:
    import torch
    import torch.nn.functional as F
    from trl import SFTConfig, SFTTrainer

    from models.kernels.cross_entropy import IGNORED
    from tasks.posttrain.arguments import arguments_of
    from tasks.posttrain.conversations.divergence import divergence, divergence_of_top
    from tasks.posttrain.conversations.on_policy import OnPolicy, rows_of
    from tasks.posttrain.engines import callable_beside, load_frozen
    from tasks.posttrain.token_means import ExactMeans

    config = parts.config
    arguments = arguments_of(SFTConfig, parts.arguments, max_length=None)  # rows are known to fit
    answers = _answers(parts)
    teacher: Any = None
    if answers is None:
        assert parts.teacher is not None
        teacher = load_frozen(parts.teacher, parts.runtime.posttrain, bfloat16=arguments.bf16)
        teacher.eval().requires_grad_(False)

    def nats(student: Tensor, inputs: Any, given: Any, learned: Tensor) -> Tensor:
        """The divergence of each learned token."""
        if answers is not None:
            return divergence_of_top(student, *answers.of(rows_of(inputs), student.device))
        with torch.no_grad():
            theirs = teacher(**given, use_cache=False).logits[:, :-1][learned]
        return divergence(student, theirs, config.divergence, config.temperature, config.beta)

    class FromTeacher(OnPolicy, SFTTrainer):
        share, max_new_tokens = config.on_policy_share, config.max_new_tokens

        def compute_loss(
            self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
        ) -> Any:
            given = {name: inputs[name] for name in GIVEN if name in inputs}
            labels = inputs["labels"][:, 1:]
            learned = labels != IGNORED
            outputs = model(**given, use_cache=False)
            student, targets = outputs.logits[:, :-1][learned].float(), labels[learned]
            soft = nats(student, inputs, given, learned).sum()
            hard = F.cross_entropy(student, targets, reduction="sum")
            tokens = learned.sum()
            right = (student.argmax(-1) == targets).sum()
            # Measures as TRL keeps them: over all processes, then weighted in ExactMeans
            sums = torch.stack([tokens, right, soft.detach(), hard.detach()])
            all_sums = self.accelerator.gather_for_metrics(sums[None]).sum(0).tolist()
            metrics = self._metrics["train" if self.model.training else "eval"]
            for name, total in zip(("mean_token_accuracy", "divergence", "cross_entropy"), all_sums[1:], strict=True):
                metrics[name].append(total / max(1.0, all_sums[0]))
            loss = (1 - config.hard_share) * soft + config.hard_share * hard
            if num_items_in_batch is None:
                loss = loss / tokens.clamp(min=1)
            else:  # it counts the tokens of all processes, and the engine averages gradients over processes
                loss = loss / num_items_in_batch * self.accelerator.num_processes
            return (loss, outputs) if return_outputs else loss

    class TokenMeans(ExactMeans, FromTeacher):
        means_over: ClassVar = {"loss": "tokens"}

        def weigh(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
            return {"tokens": (inputs["labels"][:, 1:] != IGNORED).sum()}

    trainer: Trainer = TokenMeans(args=arguments, **parts.common)
    if teacher is not None:
        teacher = callable_beside(trainer, teacher)
    return trainer


def _answers(parts: TrainerParts[DistillConfig]) -> TopTokens | None:
    """What an endpoint answered about all rows. Raises DamagedArtifact if it lacks one."""
    from tasks.posttrain.top_tokens.table import TopTokens

    if parts.config.endpoint is None:
        return None
    assert parts.top_tokens is not None
    answers = TopTokens(parts.top_tokens, parts.config.endpoint)
    for rows in (parts.common["train_dataset"], parts.common["eval_dataset"] or ()):
        answers.check(rows)
    return answers


def _check_endpoint(config: DistillConfig, runtime: Runtime, here: bool) -> None:
    """Raises ConfigError for an invalid address, and for a key that this machine lacks."""
    from tasks.endpoint.client import address_of, api_key

    if config.endpoint is not None:
        address_of(config.endpoint, "distill.endpoint")
        if here:
            api_key(config.endpoint, "distill.endpoint")


DISTILL = Method(
    name="distill",
    config=DistillConfig,
    pairs="instructions",
    rows=INSTRUCTION,
    make_trainer=_make_trainer,
    loss_unit="nats a token",
    measures={
        "mean_token_accuracy": "token_accuracy",
        "divergence": "divergence",
        "cross_entropy": "cross_entropy",
        "completions/mean_length": "answer_tokens",
        "completions/clipped_ratio": "answers_cut",
    },
    summary=("validation_divergence",),
    sources_of=lambda config: fingerprint(config.teacher_from, "distill.teacher_from") if config.teacher_from else {},
    check_more=_check_endpoint,
    rows_of=lambda config: with_room(config.max_new_tokens) if config.samples else INSTRUCTION,
)


@DISTILL.stage(version=3)
def distill(
    config: DistillConfig, model: Artifact, instructions: Artifact, teacher: Artifact | None, out: Output
) -> None:
    """Distillation on logits (Hinton et al. 2015) over the answers of the instructions, or over answers of the student
    (Agarwal et al. 2024), or on the likeliest tokens of an endpoint's model. It can heal a pruned model.

    Writes model/, log.jsonl and loss.png. Both models must have the same tokenizer. What an endpoint answers is an
    artifact of its own, shared by all learning rates. Sampled answers depend on the seed,
    the step and the prompt: killed at any instant, it resumes bit for bit on a CPU. Raises EmptyOutput as `sft` does.
    """
    DISTILL.check_runtime(config, out.runtime)
    if config.teacher_from is not None:
        teacher = _taken(config, config.teacher_from, model, out)
    asked = None
    if config.endpoint is not None:
        settings = config.model_dump(include={*TopTokensConfig.model_fields})
        asked = out.obtain(top_tokens, TopTokensConfig.model_validate(settings), model, instructions)
    posttrain(DISTILL, config, model, instructions, out, teacher=teacher, top_tokens=asked)


def _taken(config: DistillConfig, source: BaseConfig, model: Artifact, out: Output) -> Artifact:
    """A teacher outside the chain, with the tokenizer and the chat template of the model."""
    taken = out.obtain(base, source, name="distill.teacher").part("model")
    remedy = (
        "Choose a teacher with the same tokenizer, or learn its answers: a link best_of_n with this teacher, n: 1 and "
        "rewards: [], before sft."
    )
    folder = with_tokenizer_of(model.path, taken.path, out.scratch / "teacher", "The teacher", remedy)
    context = context_of(load_config(folder))
    if context < (config.max_length or context_of(load_config(model.path))):
        raise ConfigError(
            f"The teacher's context has {context:,} tokens, fewer than a row may have.",
            f"Set distill.max_length to {context}, or less.",
        )
    return Artifact.at(folder)
