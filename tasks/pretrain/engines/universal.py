"""Converts DeepSpeed's states for another number of processes or another ZeRO stage.

DeepSpeed saves each process's flat shard. Its converter (Lian et al. 2024, "Universal Checkpointing") merges the shards
into a folder per parameter. Its output differs by stage, and is unified here. One process converts, once, into the
scratch folder.
"""

from __future__ import annotations

import argparse
import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from storage.errors import TrainingError
from storage.files.flush import link_or_copy
from tasks.pretrain.config import AVERAGES
from tasks.training.states_only import load_states, states_only

STATES = ("fp32", "exp_avg", "exp_avg_sq")
PARAMETER = "param"  # DeepSpeed's key of the tensor in each file
NOTE = "topology.json"


@dataclass(frozen=True)
class Topology:
    """How states are stored in DeepSpeed's files. They load without conversion only if every field is the same."""

    zero_stage: int
    processes: int  # 0 at stage 0, where nothing is sharded
    precision: str
    groups: tuple[tuple[str, ...], ...]  # the parameters of each of the optimizer's groups, by name

    def write(self, folder: Path) -> None:
        """Write it beside the states."""
        (folder / NOTE).write_text(json.dumps(asdict(self)))

    @staticmethod
    def read(folder: Path) -> Topology:
        """The topology of saved states."""
        fields = json.loads((folder / NOTE).read_text())
        return Topology(**{**fields, "groups": tuple(map(tuple, fields["groups"]))})


def convert(
    folder: Path, out: Path, saved: Topology, groups: Sequence[Mapping[str, Any]], sizes: Mapping[str, torch.Size]
) -> None:
    """Convert what DeepSpeed saved in `folder` into `out`, for an optimizer with these groups. `sizes` are those of the
    trained parameters.

    Raises TrainingError for states of an optimizer other than Adam.
    """
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    try:
        step = _split(folder, out, saved) if saved.zero_stage == 0 else _merge(folder, out)
        if saved.zero_stage:
            for name in AVERAGES:
                _merge_average(folder, out, name)
    except KeyError as error:
        raise TrainingError(
            f"The states in {folder} lack {error}: only those of AdamW can be converted.",
            "Run with the zero_stage and the number of processes that saved them.",
        ) from error
    for name, size in sizes.items():
        place = out / "zero" / name
        torch.save(step, place / "step.pt")
        for path in (path for key in (*STATES, *AVERAGES) if (path := place / f"{key}.pt").exists()):
            state = load_states(path)
            if isinstance(state, Tensor):  # from stage 3, and flat: the other stages load a dict with the whole shape
                torch.save({PARAMETER: state.view(size)}, path)
    _write_common(folder, out, step, groups)


def _split(folder: Path, out: Path, saved: Topology) -> Tensor:
    """Stage 0: nothing is sharded, and everything is in one file. Returns the step counter."""
    stored = load_states(folder / "mp_rank_00_model_states.pt")
    names = [name for group in saved.groups for name in group]
    optimizer = stored["optimizer"]
    if "fp32_groups" in optimizer:  # 16-bit weights, which earlier versions trained at this stage
        masters = [master.detach() for group in optimizer["fp32_groups"] for master in group]
        optimizer = optimizer["optimizer_state_dict"]
    else:
        masters = [stored["module"][name] for name in names]
    states = optimizer["state"]
    for number, (name, master) in enumerate(zip(names, masters, strict=True)):
        place = out / "zero" / name
        place.mkdir(parents=True)
        for key in (*STATES, *(name for name in AVERAGES if name in states[number])):
            value = master if key == "fp32" else states[number][key]
            torch.save({PARAMETER: value.clone()}, place / f"{key}.pt")
    step: Tensor = states[0]["step"]
    return step


def _merge(folder: Path, out: Path) -> Tensor:
    """Stages 1 to 3: run DeepSpeed's converter. Returns the step counter."""
    from deepspeed.checkpoint import ds_to_universal

    arguments = argparse.Namespace(
        input_folder=str(folder),
        output_folder=str(out),
        num_extract_workers=1,
        num_merge_workers=1,
        keep_temp_folder=False,
        strict=True,
        inject_missing_state=True,
    )
    with states_only(deepspeed=True):
        ds_to_universal.main(arguments)
    counter = next(iter(sorted((out / "zero").glob("*/step.pt"))), None)
    if counter is not None:  # stages 1 and 2 write one for each parameter, all equal
        step = load_states(counter)
    else:  # stage 3 leaves it among the optimizer's common states
        common = load_states(out / "zero" / "optimizer_state.pt")
        step = common["optimizer_state_dict"]["state"][0]["step"]
    return torch.as_tensor(step)


def _merge_average(folder: Path, out: Path, name: str) -> None:
    """Merge the shards of an average of the weights, if there is one. DeepSpeed's converter knows Adam's states only.
    So it gets a copy of the shards in which the average is in the place of Adam's first moment."""
    copy, merged = out / "renamed", out / "merged"
    copy.mkdir()
    for path in folder.glob("*model_states.pt"):
        link_or_copy(path, copy / path.name)
    found = False
    for path in folder.glob("*optim_states.pt"):
        held = load_states(path)
        optimizer = held["optimizer_state_dict"]
        inner = optimizer["base_optimizer_state" if "base_optimizer_state" in optimizer else "optimizer_state_dict"]
        states = inner["state"]
        for state in states.values() if isinstance(states, dict) else states:
            found |= name in state
            state["exp_avg"] = state.get(name)
        if found:
            torch.save(held, copy / path.name)
    if found:
        _merge(copy, merged)
        for path in (merged / "zero").glob("*/exp_avg.pt"):
            path.replace(out / "zero" / path.parent.name / f"{name}.pt")
        shutil.rmtree(merged)
    shutil.rmtree(copy)


def _write_common(folder: Path, out: Path, step: Tensor, groups: Sequence[Mapping[str, Any]]) -> None:
    """Write the states that don't belong to a parameter, wherever each stage expects them."""
    import deepspeed

    path = out / "zero" / "optimizer_state.pt"
    common = load_states(path) if path.exists() else {}
    plain = [{key: value for key, value in group.items() if key != "params"} | {"params": []} for group in groups]
    common |= {
        "ds_version": deepspeed.__version__,
        "param_groups": plain,
        "optimizer_state_dict": {"state": {0: {"step": step}}, "param_groups": plain},
    }
    torch.save(common, path)
    # DeepSpeed takes only counters from this file, whose name at stages 1 and 2 differs from that at stage 3
    counts = sorted(folder.glob("*model_states.pt"))[0]
    for name in ("mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_model_states.pt"):
        shutil.copyfile(counts, out / name)


@torch.no_grad()
def load_whole(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, topology: Topology) -> None:
    """Stage 0: load what `convert` left in `folder` into an unsharded model and its optimizer."""
    parameters = dict(model.named_parameters())
    for name in (name for group in topology.groups for name in group):
        held, place = parameters[name], folder / "zero" / name
        keys = [key for key in (*STATES, *AVERAGES) if (place / f"{key}.pt").exists()]
        kept = {key: load_states(place / f"{key}.pt")[PARAMETER].view_as(held).to(held.device) for key in keys}
        held.copy_(kept.pop("fp32"))
        step = load_states(place / "step.pt").clone()
        optimizer.state[held] = {"step": step.to(held.device), **kept}
