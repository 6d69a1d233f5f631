"""LoRA's settings as PEFT's, for the layers that a model has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from storage.errors import ConfigError
from tasks.posttrain.adapters.config import LoraConfig

if TYPE_CHECKING:
    import peft
    from transformers import PreTrainedModel


def peft_config(method: str, adapter: LoraConfig, model: PreTrainedModel) -> peft.LoraConfig:
    """What TRL's trainers make the adapter of. Its first weights come from their seed.

    Raises ConfigError for targets that the model does not have, naming those that it has.
    """
    import peft
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
    unknown = [target for target in targets if not any(f".{name}".endswith(f".{target}") for name in layers)]
    if unknown:
        raise ConfigError(
            f"{method}.adapter.targets has {', '.join(unknown)}, but the linear layers of the model, the head apart, "
            f"are {', '.join(known)}.",
            "Name some of these, or leave the targets out for all.",
        )
    sides = [
        (layer.nx, layer.nf) if isinstance(layer, Conv1D) else (layer.in_features, layer.out_features)
        for layer in map(model.get_submodule, layers)
    ]
    smallest = min(map(min, sides))
    if adapter.rank > smallest:
        raise ConfigError(
            f"{method}.adapter.rank is {adapter.rank:,}, but the smallest side of a layer is {smallest:,}: the adapter "
            "would have more numbers than the layer.",
            "Lower the rank, or leave adapter out and train all weights.",
        )
    return peft.LoraConfig(
        task_type="CAUSAL_LM",
        r=adapter.rank,
        lora_alpha=adapter.alpha,
        lora_dropout=adapter.dropout,
        target_modules=targets,
        use_rslora=adapter.rslora,
        use_dora=adapter.dora,
        fan_in_fan_out=any(layers.values()),  # GPT-2's Conv1D is a transposed linear layer
    )
