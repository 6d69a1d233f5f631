"""The one checkpoint that all later stages read: a base as transformers loads it, saved under transformers' own names.

A folder of weights says some things twice, and programs differ in what they believe: a tied matrix may be under one
name, the other or both, and transformers renames and fuses tensors while it loads them. So the base is loaded and saved
once, and a proof shows that the saved checkpoint loads to the same numbers and gives the same logits. Config settings
that change the loss of a training but no logit, such as dropout, are off from here on.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.non_finite import not_finite
from models.pretrained import context_of, empty_model, load_config, load_pretrained, stored_tensors
from storage.errors import SourceError
from tasks.base.check import loaded, quietly
from tasks.base.malformed import read_json

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

KEPT = {"BF16": "bfloat16", "F16": "float16"}  # types that are kept if all weights have it, else float32
FILE = "5GB"
POSITIONS = 32  # number of positions to compare
CAUSAL = 1e-3  # share of the largest logit by which a text's end may change logits before it, by rounding
# Names of config fields: noise in training, and losses of a mixture's router besides that of the tokens
NOISE = re.compile(r"drop|jitter")
ROUTER_LOSS = re.compile(r"aux_loss|z_loss|aux_coef")
AS_USUAL = {
    "use_cache": True,
    "return_dict": True,
    "output_attentions": False,
    "output_hidden_states": False,
    "output_router_logits": False,
    "torchscript": False,
    "gradient_checkpointing": False,
}


def write_checkpoint(
    folder: Path, target: Path, fields: Mapping[str, Any], ends: list[int]
) -> tuple[list[int], list[str], float]:
    """Write config.json with `fields`, the weights and generation_config.json of the model in `folder`. `ends` are
    further ids that end a generation. Returns all ids that end one, notes on what was left out, and the largest weight.

    Raises SourceError for NaN and infinite weights, for two different matrices that the config declares tied, for a
    generation config that transformers refuses, for a model whose tokens depend on later ones, and for a model that
    doesn't load the same after transformers has saved it.
    """
    if damage := not_finite(folder):
        raise SourceError(
            f"The base computes nothing: {damage}.", "Get it again, or choose another: nothing can be learned from it."
        )
    settings = read_json(folder / "config.json", "base")
    stated = {"eos_token_id": settings.get("eos_token_id")}
    stated |= read_json(folder / "generation_config.json", "base") or _ids_in(settings)
    generation, ignored = _generation(_known_ids(stated, load_config(folder).get_text_config().vocab_size), ends)
    largest = _save(folder, target)
    described = calm({**read_json(target / "config.json", "base"), **fields})
    _write(target / "config.json", described)
    _write(target / "generation_config.json", generation)
    _prove(folder, target)
    if generation.keys() - _ids_in(generation).keys() and not _generates(target):
        ignored += sorted(generation.keys() - _ids_in(generation).keys())
        generation = _ids_in(generation)
        _write(target / "generation_config.json", generation)
    notes = [f"generation settings that have no effect are left out: {', '.join(ignored)}"] if ignored else []
    off = sorted(name for name, value in _flat(settings) if NOISE.search(name) and _is_number(value) and value)
    notes += [f"training turns off what its config sets as {', '.join(off)}"] if off else []
    return generation["eos_token_id"], notes, largest


def calm(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config without noise in training and without losses besides that of the tokens, and with outputs as usual."""
    calmed = {}
    for name, value in config.items():
        if isinstance(value, dict):
            value = calm(value)
        elif _is_number(value) and (NOISE.search(name) or ROUTER_LOSS.search(name)):
            value = 0.0
        calmed[name] = AS_USUAL.get(name, value)
    return calmed


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _flat(config: Mapping[str, Any]) -> list[tuple[str, Any]]:
    nested = [pair for value in config.values() if isinstance(value, dict) for pair in _flat(value)]
    return [*config.items(), *nested]


def _save(folder: Path, target: Path) -> float:
    """Save the weights under transformers' names. If they all have one type of KEPT, it is kept. Otherwise they become
    float32, which represents all types exactly but F64. Returns the largest, without its sign."""
    import torch
    from transformers import GenerationConfig

    kinds = {tensor.kind for tensor in stored_tensors(folder).values()}
    dtype = getattr(torch, KEPT.get(kinds.pop(), "float32") if len(kinds) == 1 else "float32")
    with quietly():
        model = loaded(lambda: _load_for_saving(folder, dtype=dtype), "the model of the base")
        tied = loaded(lambda: empty_model(folder).all_tied_weights_keys, "the model of the base")
        for one in sorted(tied.keys() - model.all_tied_weights_keys.keys()):
            raise SourceError(
                f"config.json of the base ties {one} to {tied[one]}, but the two differ in the files.",
                f"Set tie_word_embeddings to false if the model has both, or remove {one} from the files.",
            )
        model.generation_config = GenerationConfig()
        loaded(lambda: model.save_pretrained(target, max_shard_size=FILE), "the model of the base to save it")
        return max(float(value.abs().max()) for value in model.parameters() if value.numel())


def _load_for_saving(folder: Path, **options: Any) -> PreTrainedModel:
    """The model of a folder, without generation settings in its config: transformers would refuse to save it."""
    config = load_config(folder)
    for name, value in AS_USUAL.items():
        if hasattr(config, name):
            setattr(config, name, value)
    for name in config._get_generation_parameters():
        if hasattr(config, name):
            delattr(config, name)
    return load_pretrained(folder, config=config, **options).eval()


def _prove(folder: Path, target: Path) -> None:
    """Raises SourceError if the saved model is not the one that transformers loads from the base, if its output is more
    than a matrix over its last layer, and if a token depends on later ones."""
    import torch

    with quietly():
        theirs = loaded(lambda: _load_for_saving(folder), "the model of the base")
        ours = loaded(lambda: load_pretrained(target).eval(), "the model of the base once it is saved")
    one, other = theirs.state_dict(), ours.state_dict()
    lost = sorted(name for name in one.keys() | other.keys() if not _same(one.get(name), other.get(name)))
    ids = torch.arange(min(POSITIONS, context_of(theirs.config)))[None] * 7919 % theirs.config.vocab_size
    with torch.no_grad():
        logits, again = loaded(lambda: (theirs(ids).logits, ours(ids).logits), "the model of the base to run it")
        half = ids.shape[1] // 2
        plain = loaded(
            lambda: theirs.get_output_embeddings()(theirs.base_model(ids).last_hidden_state),
            "the model of the base to run it without its head",
        )
        # TRL computes losses from the last layer and the matrix, without a head's code: scaling or capping keeps order
        in_order = logits.gather(-1, plain.argsort(-1))
        change = (theirs(ids[:, :half]).logits - logits[:, :half]).abs().max() if half else torch.tensor(0.0)
    if lost or not torch.equal(logits, again):
        raise SourceError(
            f"transformers can't save the base as it loads it: {lost[0] if lost else 'its logits'} would differ.",
            "Report it with the name of the model, and choose another base until it is fixed.",
        )
    if (in_order[..., :-1] - in_order[..., 1:]).max() > CAUSAL * logits.abs().max():
        raise SourceError(
            f"The output of a {theirs.config.model_type} is more than a matrix over its last layer, but training "
            "computes the loss from that.",
            "Choose another base.",
        )
    if change > CAUSAL * logits.abs().max():
        raise SourceError(
            "The base is not a decoder: its output for a token depends on later tokens.",
            "Choose another, or set is_decoder to true in its config.json if it was trained as a decoder.",
        )


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    import torch

    return one is not None and other is not None and torch.equal(one, other)


def _generation(stated: Mapping[str, Any], ends: list[int]) -> tuple[dict[str, Any], list[str]]:
    """A generation config that transformers saves, and the names of the stated settings that it would ignore."""
    from transformers import GenerationConfig

    eos = stated.get("eos_token_id")
    known = eos if isinstance(eos, list) else [eos]
    settings = {**stated, "eos_token_id": [id for id in dict.fromkeys([*known, *ends]) if id is not None]}
    ignored: list[str] = []
    while True:
        try:
            GenerationConfig(**settings).validate(strict=True)
            return settings, ignored
        except (ValueError, TypeError, AttributeError) as error:
            names = [name for name in re.findall(r"^- `(\w+)`:", str(error), re.M) if name in settings]
            if not names:
                raise SourceError(
                    f"transformers can't use generation_config.json of the base: {error}.",
                    "Correct it, or remove it: the ids that end a text are known without it.",
                ) from error
            ignored += names
            settings = {name: value for name, value in settings.items() if name not in names}


def _known_ids(settings: Mapping[str, Any], vocabulary: int) -> dict[str, Any]:
    """The settings without ids that are outside of the vocabulary."""

    def known(value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < vocabulary

    valid = dict(settings)
    for name, value in _ids_in(settings).items():
        if isinstance(value, list):
            valid[name] = [one for one in value if known(one)]
        elif not known(value):
            del valid[name]
    return valid


def _generates(target: Path) -> bool:
    """Whether the model generates text with its generation_config.json, and greedily. Some bad settings show only
    here."""
    import torch

    with quietly(), torch.no_grad():
        model: Any = load_pretrained(target).eval()
        try:
            for how in ({}, {"do_sample": False}):
                model.generate(torch.zeros(1, 2, dtype=torch.int64), max_new_tokens=2, **how)
        except (ValueError, TypeError, LookupError, AttributeError, RuntimeError, ImportError):
            return False
    return True


def _ids_in(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: settings[name] for name in ("bos_token_id", "eos_token_id", "pad_token_id") if name in settings}


def _write(path: Path, values: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(values, indent=2, sort_keys=True) + "\n", encoding="utf-8")
