"""Writes a trained adapter: adapter/, as PEFT loads it, and model/, the model with the adapter merged into it.

Later stages read model/ and don't need to know about the adapter. Before model/ is saved, a proof shows that both
compute the same: PEFT loads the adapter from the published files, over the model that it was trained on, and its logits
are compared with those of the merged model, in float32 on the CPU.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from models.kernels.virtual_tokens import VALUES, WEIGHTS
from storage.errors import TrainingError
from tasks.training.adapters.whole import tie_copies

if TYPE_CHECKING:
    from peft import PeftConfig
    from transformers import PreTrainedModel, Trainer

TOLERANCE = 1e-4  # largest difference of a logit,
RELATIVE = 2e-5  # or this share of the largest logit if more: float32 rounds in every layer (SmolLM2-135M: 1.8e-4)
MEASURED_ROWS = 8
MEASURED_TOKENS = 256  # of a row, since all logits of a batch are in memory twice
Batch = Mapping[str, Tensor]


def save_adapter(
    config: PeftConfig, state: Mapping[str, Tensor], base: PreTrainedModel, name: str, folder: Path
) -> None:
    """Write adapter_config.json and adapter_model.safetensors: the same bytes for the same weights, without any path.

    `state` is the whole state of the trained model, gathered if it was sharded. `base` is the model without its
    adapter, and `name` its name in adapter_config.json. It gets an adapter here, because PEFT takes the names of
    weights from a model, and FSDP changes those of the trained one.
    """
    from peft import get_peft_model, get_peft_model_state_dict
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    if config.is_prompt_learning:
        weights = {VALUES: state["prompt_encoder.default.embedding.weight"]}
    else:  # without save_embedding_layers, PEFT would look for the base model on the hub
        weights = get_peft_model_state_dict(
            get_peft_model(base, config), state_dict=dict(state), save_embedding_layers=False
        )
    # Copied, as a file of safetensors refuses names that share memory, such as those of a tied matrix
    tensors = {name: value.detach().to("cpu", torch.float32, copy=True).contiguous() for name, value in weights.items()}
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    settings: dict[str, Any] = config.to_dict()
    settings |= {"base_model_name_or_path": name, "inference_mode": True}
    in_order = {name: sorted(value) if isinstance(value, set) else value for name, value in settings.items()}
    (folder / "adapter_config.json").write_text(json.dumps(in_order, indent=2, sort_keys=True) + "\n")


def merge(
    method: str, base: PreTrainedModel, adapter: Path, batches: Sequence[Batch]
) -> tuple[PreTrainedModel, dict[str, Any]]:
    """`base` with the adapter merged into it, and its counts: the parameters that were trained, all parameters, the
    share, and the largest difference of a logit.

    Raises TrainingError if a logit differs by more than the tolerance, or if PEFT doesn't find all weights in the file.
    """
    from peft import PeftModel, get_peft_model_state_dict
    from safetensors import safe_open

    model = PeftModel.from_pretrained(base, adapter, torch_device="cpu").eval()
    tie_copies(model)  # else PEFT would call the merged model untied
    with safe_open(adapter / WEIGHTS, framework="pt") as file:
        lost = get_peft_model_state_dict(model, save_embedding_layers=False).keys() ^ set(file.keys())
    if lost:  # PEFT only warns
        raise TrainingError(f"{WEIGHTS} and PEFT's adapter differ in the weight {min(lost)}.", "Report this defect.")
    # Beside a module that was trained whole PEFT keeps the original
    numbers = {name: value.numel() for name, value in model.named_parameters() if ".original_module." not in name}
    trained = sum(number for name, number in numbers.items() if "lora_" in name or ".modules_to_save." in name)
    parameters = sum(numbers.values())
    before = logits_of(model, batches)
    merged: PreTrainedModel = model.merge_and_unload()
    after = logits_of(merged, batches)
    difference = max(float((one - other).abs().max()) for one, other in zip(before, after, strict=True))
    allowed = max(TOLERANCE, RELATIVE * max(float(one.abs().max()) for one in before))
    if not difference <= allowed:  # true for NaN too
        raise TrainingError(
            f"Merged into the model, the adapter gives logits that differ from its own by {difference:.1e}, "
            f"more than {allowed:.1e}.",
            f"Lower {method}.learning_rate or {method}.adapter.alpha: merging rounds so large an adapter.",
        )
    counts = {
        "trained_parameters": trained,
        "parameters": parameters,
        "trainable_share": round(trained / parameters, 6),
        "merged_logit_difference": float(f"{difference:.2e}"),
    }
    return merged, counts


def proof_batches(trainer: Trainer) -> list[Batch]:
    """Some rows, each a batch of the trainer: held-out rows, or training rows if none are held out."""
    rows: Any = trainer.eval_dataset or trainer.train_dataset
    return [trainer.data_collator([rows[number]]) for number in range(min(len(rows), MEASURED_ROWS))]


def logits_of(model: torch.nn.Module, batches: Sequence[Batch]) -> list[Tensor]:
    """The logits of the first MEASURED_TOKENS of each row, without padding and virtual tokens."""
    logits_of_rows = []
    for batch in batches:
        ids, mask = (batch[name][:, :MEASURED_TOKENS] for name in ("input_ids", "attention_mask"))
        with torch.no_grad():
            logits = model(input_ids=ids, attention_mask=mask).logits[:, -ids.shape[1] :]
        logits_of_rows.append(logits[mask.bool()])
    return logits_of_rows
