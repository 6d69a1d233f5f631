"""The one checkpoint that all later stages read: what transformers makes of a base, saved by it under its own names.

A folder of weights says some things twice, and programs believe different ones: a tied matrix lies under one name,
under the other or under both, and transformers renames and fuses tensors while it loads them. So the base is loaded
once and saved, and what was saved is proved to load to the same numbers and to give the same logits. What of a config
changes the loss of a training and no logit, such as dropout, is off from here on.
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
from storage.shards.lines import parse_json
from tasks.base.check import loaded, quietly

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedModel

KEPT = {"BF16": "bfloat16", "F16": "float16"}  # of weights that are all of one type; others are of float32
FILE = "5GB"
POSITIONS = 32  # that are compared
CAUSAL = 1e-3  # of the largest logit: what a text's end may change at its beginning, by rounding
# Of a config: noise in training, and losses of a mixture's router beside that of the tokens
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
) -> tuple[list[int], list[str]]:
    """Write config.json, with `fields`, the weights and generation_config.json of the model in `folder`, a generation
    of which ends with any of `ends` too; the ids that end it, and notes on what was left out.

    Raises SourceError for weights that are no numbers, for two matrices that the config calls one, for a generation
    config that transformers refuses, for a model whose words depend on later ones, and for one that transformers can't
    save so that it loads as it was.
    """
    if found := not_finite(folder):
        raise SourceError(
            f"The base computes nothing: {found}.", "Get it again, or choose another: nothing can be learned from it."
        )
    settings = _read(folder / "config.json")
    given = {"eos_token_id": settings.get("eos_token_id")}
    given |= _read(folder / "generation_config.json") or _ids_in(settings)
    generation, ignored = _generation(_known_ids(given, load_config(folder).get_text_config().vocab_size), ends)
    _save(folder, target)
    described = calm({**_read(target / "config.json"), **fields})
    _write(target / "config.json", described)
    _write(target / "generation_config.json", generation)
    _prove(folder, target)
    if generation.keys() - _ids_in(generation).keys() and not _generates(target):
        ignored += sorted(generation.keys() - _ids_in(generation).keys())
        generation = _ids_in(generation)
        _write(target / "generation_config.json", generation)
    notes = [f"what is no setting of its generation is left out: {', '.join(ignored)}"] if ignored else []
    off = sorted(name for name, value in _flat(settings) if NOISE.search(name) and _is_number(value) and value)
    notes += [f"it is trained without what its config has as {', '.join(off)}"] if off else []
    return generation["eos_token_id"], notes


def calm(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config without noise in training and losses beside that of the tokens, whose model answers as usual."""
    found = {}
    for name, value in config.items():
        if isinstance(value, dict):
            value = calm(value)
        elif _is_number(value) and (NOISE.search(name) or ROUTER_LOSS.search(name)):
            value = 0.0
        found[name] = AS_USUAL.get(name, value)
    return found


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _flat(config: Mapping[str, Any]) -> list[tuple[str, Any]]:
    nested = [pair for value in config.values() if isinstance(value, dict) for pair in _flat(value)]
    return [*config.items(), *nested]


def _save(folder: Path, target: Path) -> None:
    """The weights under the names by which transformers saves them, of the type that they are of. A type is kept where
    it is the only one: others are carried by float32, which holds all of them but the last digits of F64."""
    import torch
    from transformers import GenerationConfig

    kinds = {tensor.kind for tensor in stored_tensors(folder).values()}
    dtype = getattr(torch, KEPT.get(kinds.pop(), "float32") if len(kinds) == 1 else "float32")
    with quietly():
        model = loaded(lambda: _loaded(folder, dtype=dtype), "the model of the base")
        tied = loaded(lambda: empty_model(folder).all_tied_weights_keys, "the model of the base")
        for one in sorted(tied.keys() - model.all_tied_weights_keys.keys()):
            raise SourceError(
                f"config.json of the base says that {one} is {tied[one]}, tied, but the files hold two that differ.",
                f"Set tie_word_embeddings to false if the model has both, or remove {one} from the files.",
            )
        model.generation_config = GenerationConfig()
        loaded(lambda: model.save_pretrained(target, max_shard_size=FILE), "the model of the base to save it")


def _loaded(folder: Path, **options: Any) -> PreTrainedModel:
    """The model of a folder, without those words of its config that no checkpoint needs and that forbid to save it."""
    config = load_config(folder)
    for name, value in AS_USUAL.items():
        if hasattr(config, name):
            setattr(config, name, value)
    for name in config._get_generation_parameters():
        if hasattr(config, name):
            delattr(config, name)
    return load_pretrained(folder, config=config, **options).eval()


def _prove(folder: Path, target: Path) -> None:
    """Raises SourceError where what was saved is another model than transformers makes of the base, and where a word
    depends on later ones."""
    import torch

    with quietly():
        theirs = loaded(lambda: _loaded(folder), "the model of the base")
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
        # TRL takes losses of these numbers, scaled or capped, which keeps their order, and runs no code of a head
        in_order = logits.gather(-1, plain.argsort(-1))
        change = (theirs(ids[:, :half]).logits - logits[:, :half]).abs().max() if half else torch.tensor(0.0)
    if lost or not torch.equal(logits, again):
        raise SourceError(
            f"transformers can't save the base as it loads it: {lost[0] if lost else 'its logits'} would differ.",
            "Report it, with the name of the model; until then choose another base.",
        )
    if (in_order[..., :-1] - in_order[..., 1:]).max() > CAUSAL * logits.abs().max():
        raise SourceError(
            f"The output of a {theirs.config.model_type} is more than a matrix over its last layer, of which trainings "
            "take the loss.",
            "Choose another base.",
        )
    if change > CAUSAL * logits.abs().max():
        raise SourceError(
            "The base is no decoder: what it says of a word depends on later words.",
            "Choose another, or set is_decoder to true in its config.json if it was trained as one.",
        )


def _same(one: Tensor | None, other: Tensor | None) -> bool:
    import torch

    return one is not None and other is not None and torch.equal(one, other)


def _generation(given: Mapping[str, Any], ends: list[int]) -> tuple[dict[str, Any], list[str]]:
    """A generation config that transformers saves, and the names of what it would ignore in the given one."""
    from transformers import GenerationConfig

    stated = given.get("eos_token_id")
    known = stated if isinstance(stated, list) else [stated]
    found = {**given, "eos_token_id": [id for id in dict.fromkeys([*known, *ends]) if id is not None]}
    ignored: list[str] = []
    while True:
        try:
            GenerationConfig(**found).validate(strict=True)
            return found, ignored
        except (ValueError, TypeError, AttributeError) as error:
            names = [name for name in re.findall(r"^- `(\w+)`:", str(error), re.M) if name in found]
            if not names:
                raise SourceError(
                    f"transformers can't use generation_config.json of the base: {error}.",
                    "Correct it, or remove it: what ends a text is known without.",
                ) from error
            ignored += names
            found = {name: value for name, value in found.items() if name not in names}


def _known_ids(settings: Mapping[str, Any], vocabulary: int) -> dict[str, Any]:
    """The settings without ids that are no token's."""

    def known(value: Any) -> bool:
        return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < vocabulary

    found = dict(settings)
    for name, value in _ids_in(settings).items():
        if isinstance(value, list):
            found[name] = [one for one in value if known(one)]
        elif not known(value):
            del found[name]
    return found


def _generates(target: Path) -> bool:
    """Whether the model writes as its generation_config.json says, and greedily: of some settings that is all that
    tells."""
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


def _read(path: Path) -> dict[str, Any]:
    try:
        found = parse_json(path.read_bytes()) if path.is_file() else {}
    except ValueError as error:
        raise SourceError(f"{path.name} of the base is no JSON: {error}.", "Get it again, or correct it.") from error
    if not isinstance(found, dict):
        raise SourceError(f"{path.name} of the base is no mapping.", "Get it again, or correct it.")
    return found
