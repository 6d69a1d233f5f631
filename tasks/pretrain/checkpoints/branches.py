"""Branches: the states at the start of the decay of a wsd training, from which longer trainings go on.

Up to its decay, a training by wsd is the same as any longer one (Hägele et al. 2024). So a ladder over tokens needs one
stable part, and a decay for each length. A training leaves its branch in the store, under a digest of all that shapes
it up to there: the config without its length and end, data, source code, libraries, and how it was spread over
processes and threads. A training that begins takes the latest branch that isn't beyond the start of its own decay, as
a checkpoint to resume from, with the log, the decisions of healing and the snapshots up to there. That changes what a
result costs, never what it is.

A branch is a checkpoint with these files in `beside/`, all of them in its marker, and it is renamed into its place. So
it is there in full or not at all, and one whose files differ from the marker isn't used. Torch isn't imported at first,
because the stage reads branches too.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from storage.files.flush import flush_tree, link_or_copy
from tasks.pretrain.spec import TrainSpec
from tasks.stage.environment import shaping
from tasks.stage.output import Output
from tasks.training.checkpoint_marker import MARKER, complete_checkpoints, damage, flush_and_digest, remove
from tasks.training.recovery.remote_checkpoints import BESIDE, DECISIONS, NEEDED

if TYPE_CHECKING:
    from tasks.pretrain.engines.base import Engine

DRAFT = "branch"  # in the scratch folder
LENGTH = ("steps", "tokens", "max_epochs")
END = ("decay_share", "decay_shape", "final_share", "average", "final_weights", "sample_prompts", "sample_tokens")
# Of runtime.pretrain: these don't shape a step
AROUND = {"async_checkpoints", "keep_every", "preflight", "restarts", "hang_minutes", "branches"}


def branch_identity(spec: TrainSpec, source: str) -> str:
    """SHA-256 over everything that shapes the steps before the decay. `source` is the digest of the stage's source."""
    runtime = spec.runtime
    return spec.digest(
        (*LENGTH, *END),
        source=source,
        environment=shaping(),
        device=runtime.compute.device,
        threads=runtime.rank_threads,
        processes=[runtime.training.processes, runtime.training.hosts, runtime.training.hostfile],
        pretrain=runtime.pretrain.model_dump(mode="json", exclude=AROUND),
    )


@contextmanager
def branching(spec: TrainSpec, out: Output, source: str) -> Iterator[TrainSpec]:
    """Within the block a training may run that leaves its branch in the store, if the runtime asks for branches. One
    that begins has a branch in place of its first checkpoint, if there is one."""
    if not spec.runtime.pretrain.branches:
        yield spec
        return
    name = branch_identity(spec, source)
    with out.branches(name) as folder:
        if folder is not None and not complete_checkpoints(spec.checkpoints):
            _take(spec, folder, out)
        yield spec.model_copy(update={"branches": folder})
        if folder is not None:
            with suppress(OSError):
                folder.rmdir()  # if nothing was left there


def _take(spec: TrainSpec, folder: Path, out: Output) -> None:
    """Put the latest sound branch in the place of a checkpoint. Removes damaged ones. A training that healing has
    already changed takes none."""
    if (spec.scratch / DECISIONS).exists():
        return
    for step, branch in reversed(complete_checkpoints(folder).items()):
        if step > spec.common_steps:
            continue
        fault = damage(branch)
        if fault is None:
            _place(branch, spec)
            out.note(f"the first {step:,} steps are those of a shorter training: beginning from its branch")
            return
        out.warn(f"the branch of step {step:,} is damaged ({fault}): it isn't used")
        with suppress(FileNotFoundError):  # another training was faster
            remove(branch)


def _place(branch: Path, spec: TrainSpec) -> None:
    """Copy a branch to where a resume looks for it. The checkpoint comes last: until then the training is new."""
    draft = spec.scratch / DRAFT
    shutil.rmtree(draft, ignore_errors=True)
    marker = json.loads((branch / MARKER).read_bytes())
    own: dict[str, object] = {}
    for name, entry in marker["files"].items():
        beside = name.removeprefix(f"{BESIDE}/")
        target = draft / name if beside == name else spec.scratch / beside
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        if beside == name:
            own[name] = entry
        if beside == name or "/" in beside:
            link_or_copy(branch / name, target)
        else:  # the log is appended to
            shutil.copyfile(branch / name, target)
    (draft / MARKER).write_text(json.dumps(marker | {"identity": spec.identity, "files": own}))
    flush_tree(draft)
    flush_tree(spec.scratch)
    target = spec.checkpoints / branch.name
    shutil.rmtree(target, ignore_errors=True)  # half-written, else it would be resumed from
    target.parent.mkdir(exist_ok=True)
    draft.rename(target)


def leave(engine: Engine, step: int) -> None:
    """Leave the branch of `step`, unless the store has it. The log must be written up to there. Every rank must call
    it."""
    from tasks.pretrain.checkpoints.manager import Checkpoints, PretrainMarker  # import torch

    spec, world = engine.spec, engine.world
    assert spec.branches is not None
    if any(world.gathered(world.first and step in complete_checkpoints(spec.branches))):
        return
    draft = spec.scratch / DRAFT
    if world.first:
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir()
    world.wait()
    Checkpoints(draft, spec.branches.name, world=world).save(engine, step)
    if world.first:
        folder = complete_checkpoints(draft)[step]
        for pattern in NEEDED:
            for path in sorted(spec.scratch.glob(pattern)):
                target = folder / BESIDE / path.relative_to(spec.scratch)
                target.parent.mkdir(parents=True, exist_ok=True)
                (link_or_copy if "/" in pattern else shutil.copyfile)(path, target)
        marker = PretrainMarker.read(folder)
        marker.model_copy(update={"files": flush_and_digest(folder)}).write(folder)
        spec.branches.mkdir(parents=True, exist_ok=True)
        with suppress(OSError):  # another training has just left it
            folder.rename(spec.branches / folder.name)
        shutil.rmtree(draft)
    world.wait()
