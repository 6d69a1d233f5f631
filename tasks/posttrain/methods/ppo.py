"""The `ppo` stage: a model learns from the rewards of a reward model, by proximal policy optimisation."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from storage.artifact import Artifact
from tasks.posttrain.check import check_engine_runtime
from tasks.posttrain.method import Method, TrainerParts
from tasks.posttrain.ppo.config import PpoConfig
from tasks.posttrain.rewards.outside import check_rows, open_scorer
from tasks.posttrain.rewards.watch import check_watched
from tasks.posttrain.rollouts.config import check_engine_here
from tasks.posttrain.rollouts.mismatch import MEASURES
from tasks.posttrain.rows.form import Row
from tasks.posttrain.rows.prompt import PROMPT
from tasks.posttrain.stage import posttrain
from tasks.stage.output import Output
from tasks.stage.runtime import Runtime

if TYPE_CHECKING:
    from collections.abc import Sequence

    from transformers import Trainer


def _make_trainer(parts: TrainerParts[PpoConfig]) -> Trainer:
    from transformers import TrainingArguments, set_seed
    from trl.trainer.utils import disable_dropout_in_model

    from models.runtimes.greedy import ends_of
    from tasks.posttrain.arguments import arguments_of
    from tasks.posttrain.engines import callable_beside, divides
    from tasks.posttrain.ppo.policy import attach
    from tasks.posttrain.ppo.rollout import Sampler
    from tasks.posttrain.ppo.trainer import PpoTrainer
    from tasks.posttrain.reward_model.model import MEAN_FIELD, Judge, load_classifier
    from tasks.posttrain.rewards.score import Scorer
    from tasks.posttrain.rollouts.mismatch import Cost
    from tasks.posttrain.rollouts.open import open_engine

    config, given, common = parts.config, dict(parts.arguments), dict(parts.common)
    for name in ("max_steps", "warmup_steps", "eval_steps"):  # they count rollouts, each of which takes several steps
        given[name] *= config.passes
    measured = given["eval_strategy"] != "no"
    arguments = arguments_of(TrainingArguments, given, remove_unused_columns=False, eval_on_start=measured)
    assert parts.judge is not None, "the profile is checked for one"
    policy, adapter, tokenizer = common.pop("model"), common.pop("peft_config", None), common["processing_class"]
    ends, folder, reference = ends_of(policy, tokenizer), Path(policy.name_or_path), None
    critic = load_classifier(parts.judge, 0, read=not divides(parts.runtime.posttrain))
    if adapter is None:
        reference = parts.load_model().eval().requires_grad_(False)
    else:
        import peft

        set_seed(config.seed)
        policy = peft.get_peft_model(policy, adapter)
    for model in filter(None, (policy, critic, reference)):
        disable_dropout_in_model(model)
    attach(policy, critic, config.temperature, adapter)
    scorer = Scorer(config.rewards)
    if not arguments.process_index:
        judge = Judge.load(parts.judge, arguments.device)
        scorer = open_scorer(config.rewards, judge, parts.digests, parts.runtime, parts.scratch)
    mean, learned = float(getattr(critic.config, MEAN_FIELD, 0.0)), arguments.per_device_train_batch_size
    asked = config.rollout, folder, tokenizer, ends, config.temperature
    engine = open_engine(*asked, learned=learned, threads=parts.runtime.rank_threads)
    cost = Cost(config.rollout.engine)
    sampler = Sampler(config, scorer, engine, reference, tokenizer, ends, mean, learned, cost)
    trainer = PpoTrainer(sampler, model=policy, args=arguments, **common)
    if reference is not None:
        callable_beside(trainer, reference)
    return trainer


def _check_rows(config: PpoConfig, train: Sequence[Row], held_out: Sequence[Row]) -> None:
    check_watched(config, len(train), len(held_out), "ppo")
    check_rows(config.rewards, train, held_out, "ppo")


def _check_more(config: PpoConfig, runtime: Runtime, here: bool) -> None:
    check_engine_runtime("ppo", config.rollout, runtime)
    if here:
        check_engine_here("ppo", config.rollout)


PPO = Method(
    name="ppo",
    config=PpoConfig,
    pairs="instructions",
    rows=PROMPT,
    make_trainer=_make_trainer,
    loss_unit="reward",
    measures={
        "reward": "reward",
        "reward_std": "reward_deviation",
        "kl": "kl",
        "kl_of_answer": "kl_of_answer",
        "coefficient": "kl_coefficient",
        "policy_loss": "policy_loss",
        "value_loss": "value_loss",
        "clipped": "ratios_clipped",
        "answer_tokens": "answer_tokens",
        "rewards/model/mean": "model_reward",  # here for its place in the log
        "completions/mean_length": "answer_tokens",
        **MEASURES,
    },
    curve="reward",
    check_rows=_check_rows,
    rewards_of=lambda config: config.rewards,
    facts=lambda trainer: trainer.facts(),
    check_more=_check_more,
    samples=True,
)


@PPO.stage(version=4)
def ppo(config: PpoConfig, model: Artifact, instructions: Artifact, judge: Artifact, out: Output) -> None:
    """Proximal policy optimisation (Schulman et al. 2017) as for human feedback (Stiennon et al. 2020, Ouyang et al.
    2022): an answer's reward comes with its last token, and divergence from the reference is penalised at each token.

    Reads model/, conversations and the reward model. Writes model/ in the same format, log.jsonl and reward.png, and
    with an adapter adapter/.
    Samples depend only on the seed and the step: killed at any instant, it resumes from its last checkpoint, bit for
    bit on a CPU.
    """
    posttrain(PPO, config, model, instructions, out, judge=judge)
