"""An adapter's settings as PEFT's, and the layers of a model that LoRA is laid over."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from models.pretrained import empty_model
from storage.errors import ConfigError
from tasks.training.adapters.config import AnyAdapter, LoraConfig, PrefixConfig, check_sight
from tasks.training.adapters.whole import modules_to_train, tie_copies

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def check_adapters(adapters: Mapping[str, AnyAdapter | None], source: Any) -> None:
    """Raises ConfigError for an adapter of these sections that can't be laid over the model of a folder, or of a config
    of transformers."""
    chosen = {name: adapter for name, adapter in adapters.items() if adapter is not None}
    model = empty_model(source) if chosen else None
    for section, adapter in chosen.items():
        assert model is not None
        if isinstance(adapter, LoraConfig):
            peft_config(section, adapter, model)
        else:
            check_sight(section, model.config)


def _other_matrices(model: PreTrainedModel, layers: Collection[str]) -> list[str]:
    """The names of matrices outside of linear layers, embeddings and convolutions, such as those of experts."""
    from torch import nn

    whole = (nn.Linear, nn.Embedding, nn.Conv1d)
    names = {
        ".".join(f"{module}.{name}".split(".")[-2:])
        for module, part in model.named_modules()
        if module not in layers and not isinstance(part, whole)
        for name, value in part.named_parameters(recurse=False)
        if value.ndim > 1
    }
    return sorted(names)


def targets_of(method: str, adapter: LoraConfig, model: PreTrainedModel) -> tuple[list[str], bool]:
    """The names of the layers that get an adapter, and whether their weights are transposed (GPT-2's Conv1D). Those are
    ends of names as the adapter has them, or whole names if one of its targets is a pattern.

    Raises ConfigError for targets that the model doesn't have, naming those that it has, and for a rank above a layer's
    sides. Without targets, raises it for weights that LoRA can't be laid over, such as those of experts.
    """
    from torch import nn
    from transformers.pytorch_utils import Conv1D

    head = model.get_output_embeddings()
    layers = {
        name: isinstance(module, Conv1D)
        for name, module in model.named_modules()
        if isinstance(module, (nn.Linear, Conv1D)) and module is not head
    }
    known = sorted({name.rpartition(".")[2] for name in layers})
    targets = adapter.targets or known
    others = _other_matrices(model, layers) if adapter.targets is None else []
    if others:
        raise ConfigError(
            f"{method}.adapter would leave out {', '.join(others)}: LoRA is laid over linear layers, and these weights "
            f"of the {model.config.model_type} are not in one.",
            f"Name the layers to train in {method}.adapter.targets ({', '.join(known)}), or leave adapter out and "
            "train all weights.",
        )
    meant = {target: [name for name in layers if fnmatchcase(f".{name}", f"*.{target}")] for target in targets}
    unknown = [target for target, names in meant.items() if not names]
    if unknown:
        raise ConfigError(
            f"{method}.adapter.targets has {', '.join(unknown)}, but the model's linear layers, except the head, are "
            f"{', '.join(known)}.",
            "Name some of these, or leave targets out for all.",
        )
    sides = [
        (layer.nx, layer.nf) if isinstance(layer, Conv1D) else (layer.in_features, layer.out_features)
        for layer in (model.get_submodule(name) for names in meant.values() for name in names)
    ]
    smallest = min(map(min, sides))
    if adapter.rank > smallest:
        raise ConfigError(
            f"{method}.adapter.rank is {adapter.rank:,}, but the smallest side of a layer is {smallest:,}: the adapter "
            "would have more numbers than the layer.",
            "Lower the rank, or leave adapter out and train all weights.",
        )
    if any({*target} & {*"*?["} for target in targets):
        targets = sorted({name for names in meant.values() for name in names})
    return targets, any(layers.values())


def peft_config(method: str, adapter: AnyAdapter, model: PreTrainedModel) -> Any:
    """The settings for TRL's trainers, whose seed draws LoRA's first weights. PEFT trains a copy of each part that is
    trained whole, so the model without its adapter has the original.

    Raises as `targets_of` and `modules_to_train` do."""
    import peft

    if not isinstance(adapter, LoraConfig):
        kind = peft.PrefixTuningConfig if isinstance(adapter, PrefixConfig) else peft.PromptTuningConfig
        return kind(task_type="CAUSAL_LM", num_virtual_tokens=adapter.tokens)
    targets, transposed = targets_of(method, adapter, model)
    whole = modules_to_train(f"{method}.adapter.whole", adapter.whole, model, model.get_output_embeddings())
    return peft.LoraConfig(
        task_type="CAUSAL_LM",
        r=adapter.rank,
        lora_alpha=adapter.alpha,
        lora_dropout=adapter.dropout,
        target_modules=targets,
        use_rslora=adapter.rslora,
        use_dora=adapter.dora,
        fan_in_fan_out=transposed,
        modules_to_save=whole or None,
    )


def inject(section: str, adapter: LoraConfig, model: PreTrainedModel) -> None:
    """Put the adapter's layers into a model, in place, on its device: the meta device too. Raises as `peft_config`."""
    import peft

    peft.inject_adapter_in_model(peft_config(section, adapter, model), model)
    tie_copies(model)
