"""The memory that post-training needs, for each link of the chain that trains or merges models.

It is the most: a step on rows of `max_length` tokens, or as long as the longest that the sources show, traced with the
module of transformers (models/memory/tuned.py), and the models that aren't trained. A link that samples answers may
need more for those than for a step. For a model that can't be traced it is the least: what the states of it and the
frozen models take.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from flows.estimates.expected import bytes_per_token
from flows.estimates.sources import Rows, rows_of
from models.memory import LIBRARIES, Setup, most_memory
from models.presets import ModelShape, Shape, ShapeError, UntracedError, count_parameters
from profiles.schema import Profile
from storage.errors import ConfigError, SourceError
from tasks.base.source import known_config, unreadable
from tasks.posttrain.check import MEASURED_ROWS, processes_of, row_share
from tasks.posttrain.config import PosttrainConfig
from tasks.posttrain.merge import MergeConfig
from tasks.posttrain.methods import METHODS
from tasks.posttrain.methods.grpo import GrpoConfig
from tasks.posttrain.ppo.config import PpoConfig
from tasks.posttrain.rollouts.engine import PAGE, TOGETHER
from tasks.training.adapters.config import LoraConfig

ROWS = {"sft": 1, "orpo": 2, "cpo": 2, "dpo": 2, "kto": 1, "reward": 2, "distill": 1, "grpo": 1, "ppo": 1}  # of a pair
HEADS: dict[str, Any] = {"reward": "score", "distill": "student", "ppo": "policy"}  # of models/memory/tuned.py
TRL = 120_000_000  # bytes of TRL and its trainer's libraries, in a process on a CPU
WHOLE = 4  # bytes a parameter in float32
DENSE = 0.75  # bytes a token of the text with most tokens, beside usual text
ONE_ANSWER = 0.5  # of a pair with two, and its prompt
AT_ONCE = 8  # as in tasks/posttrain/rollouts/sampling.py, which imports torch
DISTRIBUTION = 28  # bytes for each id of a token that is sampled: its logit, probability, their sums


@dataclass(frozen=True)
class Need:
    """Bytes that a process of a link needs: at most, and what for (`most`), or at least, and `why` no more is known."""

    bytes: int
    most: str = ""
    why: str = ""


def needs(
    profile: Profile, links: Iterable[str], shape: Shape | None, parameters: int, *, cuda: bool
) -> dict[str, Need]:
    """The memory of each process of the links that train or merge models. `shape` is that of the pretraining before, if
    any, and `parameters` are those of the model that the chain begins with. On a CPU it is the first process, which
    gathers a divided model at the end."""
    found, (theirs, context) = {}, _start(profile, shape)
    for name in links:
        if name in METHODS:
            most: Need | str = "its base isn't on this machine"
            if theirs is not None:
                most = _most(profile, name, theirs, context, cuda=cuda)
            if isinstance(most, str):
                most = Need(_least(profile, name, parameters, cuda=cuda), why=most)
            found[name] = most
        elif profile.merge is not None and name == "merge" and theirs is not None and not cuda:
            found[name] = _of_merge(profile.merge, theirs)
    return found


def divided(profile: Profile) -> bool:
    """Whether each process reads only its part of a model."""
    return _setup(profile).sharded == 3


def _start(profile: Profile, shape: Shape | None) -> tuple[Any, int]:
    """transformers' config and the context of the model that the chain begins with. No config for a base that isn't on
    this machine."""
    from models.convert import config_of
    from models.pretrained import context_of

    if profile.base is None:
        return (config_of(shape), shape.context) if isinstance(shape, ModelShape) else (None, 0)
    with suppress(*unreadable()):
        if (theirs := known_config(profile.base)) is not None:
            extended = profile.pretrain is not None and profile.pretrain.rope_scaling is not None
            return theirs, shape.context if extended and shape is not None else context_of(theirs)
    return None, 0


def _most(profile: Profile, name: str, theirs: Any, context: int, *, cuda: bool) -> Need | str:
    """The memory of the largest step, or why it isn't known."""
    from models.memory.tuned import TunedShape
    from tasks.training.adapters.lora import inject

    config: PosttrainConfig = getattr(profile, name)
    if config.quantized:
        return "steps over quantized weights aren't traced"
    if config.virtual_tokens:
        return "steps with virtual tokens aren't traced"
    most = min(config.max_length or context, context)
    packed = name == "sft" and profile.runtime.posttrain.packing
    length = most if packed else min(most, _longest(profile, name, theirs) + config.generated_tokens)
    adapt = partial(inject, name, config.adapter) if isinstance(config.adapter, LoraConfig) else None
    rows, samples = ROWS[name] * getattr(config, "group", 1), METHODS[name].samples
    measured = MEASURED_ROWS if config.validation_share and not samples else 0
    with suppress(UntracedError, ShapeError, ConfigError, *unreadable()):
        shape = TunedShape.of(theirs, adapt, rows=rows, measured=measured, head=HEADS.get(name, "folded"))
        share = math.ceil(length / profile.runtime.posttrain.context_parallel)
        shape, whole = replace(shape, context=share), count_parameters(TunedShape.of(theirs))
        setup = _setup(profile, config, name, cuda=cuda)
        setup = replace(setup, trained=shape.learned / count_parameters(shape))
        bytes_, libraries = most_memory(shape, setup), 0 if cuda else LIBRARIES
        if name == "ppo":  # the critic, trained too
            bytes_ += most_memory(replace(shape, head="score"), setup) - libraries
        ways = profile.runtime.training.processes if divided(profile) else 1
        frozen = WHOLE * whole // ways * config.frozen_models
        bytes_ += frozen
        if samples:
            answers = min(AT_ONCE * rows * setup.micro_batch, rows * setup.micro_batch * setup.micro_steps)
            states = _states(profile, round(setup.trained * whole)) + WHOLE * round((1 - setup.trained) * whole)
            engine = config.rollout.engine if isinstance(config, GrpoConfig | PpoConfig) else "transformers"
            held = _cache(theirs, TOGETHER, PAGE * (length // PAGE + 2))  # of an engine's largest batch
            cache = held if engine == "continuous" else _cache(theirs, answers, length)
            bytes_ = max(bytes_, libraries + (1 + (name == "ppo")) * states + frozen + cache)
            if engine == "llama.cpp" and not cuda:  # a copy on the CPU, with a cache that stays
                bytes_ += WHOLE * whole + held
        if not cuda:  # an adapter is laid over another copy, whose file is mapped
            bytes_ += TRL + (WHOLE * count_parameters(shape) if adapt else 0)
        count = rows * setup.micro_batch
        seen = "" if length == most else ", about the longest in the sources"
        return Need(bytes_, f"a step on {count:,} {'row' if count == 1 else 'rows'} of {length:,} tokens{seen}")
    return "its module can't be run without numbers, as a mixture of experts can't"


def _of_merge(config: MergeConfig, theirs: Any) -> Need:
    """The merged model and the files of the others, which are mapped, with what is computed of the largest tensor. TIES
    sorts copies of it."""
    from models.memory.tuned import TunedShape

    shape, models = TunedShape.of(theirs), len(config.models)
    largest = max(map(math.prod, shape.sizes.values()))
    copies = 3 * models + 4 if config.method.endswith("ties") else models + 1
    bytes_ = LIBRARIES + WHOLE * ((models + 1) * count_parameters(shape) + copies * largest)
    return Need(bytes_, f"the merged model, the files of {models:,} and their largest tensor")


def _cache(theirs: Any, answers: int, length: int) -> int:
    """Keys and values of answers that are sampled together, and the distributions of their next tokens."""
    config = theirs.get_text_config()
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    width = heads * (getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
    kept = 2 * WHOLE * width * config.num_hidden_layers * length
    return int(answers * (kept + DISTRIBUTION * config.vocab_size))


def _longest(profile: Profile, name: str, theirs: Any) -> int:
    """Tokens of the longest row, by the bytes of those that the sources show. A large number if they show none."""
    rows, read = Rows(longest=math.inf), METHODS[name].reads(profile.download.roles)
    with suppress(SourceError):
        rows = rows_of(profile.download).get(read, rows)
    if not math.isfinite(rows.longest) or not rows.longest:
        return sys.maxsize
    share = ONE_ANSWER if read == "preferences" else 1.0
    return math.ceil(share * rows.longest / (DENSE * bytes_per_token(theirs.get_text_config().vocab_size)))


def _least(profile: Profile, name: str, parameters: int, *, cuda: bool) -> int:
    """The states of the model, and the models beside it. An adapter's states are left out."""
    config: PosttrainConfig = getattr(profile, name)
    ways = profile.runtime.training.processes if divided(profile) else 1
    if config.adapter is not None:
        states = parameters // 2 if config.quantized else WHOLE * parameters // ways
    else:
        states = _states(profile, parameters)
    states += WHOLE * parameters // ways * config.frozen_models
    if cuda:
        return states
    return states + (WHOLE * parameters if ways > 1 else 0) + LIBRARIES + TRL


def _setup(profile: Profile, config: PosttrainConfig | None = None, name: str = "", *, cuda: bool = True) -> Setup:
    runtime = profile.runtime.posttrain
    setup = Setup(engine=runtime.engine, zero_stage=runtime.zero_stage, offload=runtime.offload, cuda=cuda)
    if config is None:
        return setup
    processes = processes_of(profile.runtime) or profile.runtime.training.processes
    share = row_share(name, config, profile.runtime, processes)
    halves = config.precision == "bfloat16" or (config.precision == "auto" and cuda)
    return replace(
        setup,
        precision="mixed" if halves else "float32",
        devices=processes,
        recompute=runtime.recompute,
        micro_batch=share.micro_batch,
        micro_steps=share.micro_steps,
    )


def _states(profile: Profile, parameters: int) -> int:
    """Weights, gradients and AdamW's moments in float32, as far as the engine doesn't divide them over processes."""
    sharded = _setup(profile).sharded
    moments, gradients, weights = (
        size // (profile.runtime.training.processes if sharded >= stage else 1)
        for stage, size in ((1, 8 * parameters), (2, 4 * parameters), (3, 4 * parameters))
    )
    return moments + gradients + weights
