"""The child of `answer_rewards`: `python -m tasks.evaluate.side_by_side.reward SPEC`."""

from __future__ import annotations

import math
from pathlib import Path

import torch

from models.conversation import TemplateFaultError, render
from models.pretrained import context_of
from storage.errors import ConfigError, TrainingError
from storage.shards.lines import read_json_lines, write_json_lines
from tasks.children.child import emit, run_as_child
from tasks.children.devices import device_of
from tasks.evaluate.side_by_side.rewards import FILE, RewardsSpec
from tasks.posttrain.reward_model.model import MEAN_FIELD, Judge
from tasks.training.device_peak import peak_memory

ANSWERS = 64  # between two progress lines


def run(path: Path) -> None:
    """Write rewards.jsonl. The longest conversations come first, so that those of similar length share a batch."""
    spec = RewardsSpec.model_validate_json(path.read_text())
    torch.set_num_threads(spec.runtime.compute.cpu_threads())
    device = device_of(spec.runtime.compute)
    judge = Judge.load(spec.judge, device)
    if not hasattr(judge.model.config, MEAN_FIELD):  # transformers would draw the missing head at random
        raise ConfigError(
            "The judge isn't a reward model.", "Add a section reward to the profile, or use another judge."
        )
    rows = list(read_json_lines(spec.answers))
    asked = [[*row["prompt"], {"role": "assistant", "content": row["answer"]}] for row in rows]
    try:
        lengths = [len(render(judge.tokenizer, messages)["input_ids"]) for messages in asked]
    except TemplateFaultError as error:
        raise ConfigError(
            "The chat template of the reward model refuses a prompt of evaluate.side_by_side.",
            "Leave out prompts with a role that it doesn't accept, such as a system prompt.",
        ) from error
    order = sorted(range(len(rows)), key=lambda place: (-lengths[place], place))
    rewards: dict[int, float] = {}
    for start in range(0, len(order), ANSWERS):
        places = order[start : start + ANSWERS]
        rewards |= dict(zip(places, judge.rewards([asked[place] for place in places]), strict=True))
        emit(done=len(rewards), total=len(rows))
    if not all(map(math.isfinite, rewards.values())):
        raise TrainingError("The reward model gives NaN or infinite rewards.", "Train it again: --refresh reward.")
    write_json_lines(
        spec.out / FILE,
        ({"id": row["id"], "sample": row["sample"], "reward": rewards[place]} for place, row in enumerate(rows)),
    )
    overlong = sum(length > context_of(judge.model.config) for length in lengths)
    spec.finish({"overlong": overlong, "facts": {"peak_memory_bytes": peak_memory(device)}})


if __name__ == "__main__":
    run_as_child(run)
