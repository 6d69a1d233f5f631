"""A storm of faults: runs of every stage are disturbed, and after each one the store must be sound and the run finish.

For each fault a store is laid out as it is just before the stage. The stage runs and meets the fault. Then nothing that
was published may be lost, every artifact must be whole, no process may live on, and no file may lie about that no
garbage collection names. The run is repeated undisturbed and must end with the bytes of a store that knew no fault.

Every choice comes from the seed and the fault's number, so that one fault can be repeated by itself.
"""

from __future__ import annotations

import itertools
import json
import queue
import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from profiles.stage_names import STAGE_NAMES
from tests.faults.checks import digests, finished, problems
from tests.faults.kinds import Kind, killed_at
from tests.faults.layer import What
from tests.faults.scene import Scene, Undisturbed

BATCH = 8  # faults of a job, between two looks at whether there were enough
# Stages by how often they are disturbed: those of seconds more often than those that start a trainer
WEIGHTS = {"pretrain": 6, "sft": 3, "dpo": 3, "evaluate": 2, "export": 4}
USUAL_WEIGHT = 12


@dataclass
class Fault:
    """One fault, and what came of it. It `struck` unless the run was over before."""

    number: int
    stage: str
    kind: Kind
    chance: random.Random
    code: int = 0
    struck: bool = False
    problems: list[str] = field(default_factory=list)
    log: str = ""


def undisturbed(folder: Path, stages: Sequence[str] = STAGE_NAMES) -> Undisturbed:
    """Run the first stages of the pipeline once, one at a time, counting what each does to files. It is kept."""
    store, measured = folder / "reference" / "store", folder / "undisturbed.json"
    if measured.exists():
        made, seconds, counted = json.loads(measured.read_text())
        operations = {stage: {What(int(what)): count for what, count in of.items()} for stage, of in counted.items()}
        return Undisturbed(store, made, seconds, operations)
    made, seconds, operations = {}, {}, {}
    with Scene(folder / "reference") as scene:
        scene.temporary.mkdir()
        for stage in stages:
            scene.layer.arm(store)
            started, known = time.monotonic(), digests(scene.open())
            scene.begin(stage)
            code = scene.end()
            seconds[stage], operations[stage] = time.monotonic() - started, scene.layer.disarm()
            assert code == 0, scene.log.read_text()
            made[stage] = {place: digest for place, digest in digests(scene.open()).items() if place not in known}
    measured.write_text(json.dumps([made, seconds, operations]))
    return Undisturbed(store, made, seconds, operations)


def drawn(base: Undisturbed, kinds: Sequence[Kind], seed: int, numbers: Iterable[int]) -> Iterator[Fault]:
    """The faults of these numbers, each of a kind and in a stage that its number and the seed decide."""
    stages = [*base.seconds]
    weights = [WEIGHTS.get(name, USUAL_WEIGHT) for name in stages]
    for number in numbers:
        chance = random.Random(f"{seed}-{number}")
        stage = chance.choices(stages, weights)[0]
        yield Fault(number, stage, chance.choice(kinds), chance)


def at_every_commit(base: Undisturbed, stages: Iterable[str]) -> Iterator[Fault]:
    """Kill -9 at each commit that each of these stages makes, one fault for each."""
    number = itertools.count(1)
    for stage in stages:
        for commit in range(1, base.count(stage, What.COMMITS) + 1):
            yield Fault(next(number), stage, killed_at(commit), random.Random(0))


def storm(base: Undisturbed, scenes: Sequence[Callable[[], Scene]], faults: Iterator[Fault]) -> Iterator[Fault]:
    """These faults, which need not end, one at a time on each scene."""
    idle: queue.SimpleQueue[Scene] = queue.SimpleQueue()

    def meet(fault: Fault) -> Fault:
        scene = idle.get()
        try:
            return strike(scene, base, fault)
        finally:
            idle.put(scene)

    with ExitStack() as stack, ThreadPoolExecutor(len(scenes)) as pool:
        for scene in scenes:
            idle.put(stack.enter_context(scene()))
        while batch := list(itertools.islice(faults, BATCH * len(scenes))):
            yield from pool.map(meet, batch)


def strike(scene: Scene, base: Undisturbed, fault: Fault) -> Fault:
    """Meet a fault, and say what is wrong afterwards."""
    stage = fault.stage
    scene.lay_out(base, stage)
    known = digests(scene.open())
    met = fault.kind.meet(scene, base, stage, fault.chance)
    fault.code, fault.struck = met.code, met.struck
    fault.log = scene.log.read_text(errors="replace")
    if scene.hung:
        fault.problems.append("it hung")
    if met.code not in (fault.kind.codes if met.struck else {0}):
        fault.problems.append(f"it ended with {met.code}")
    fault.problems += [*scene.orphans(), *problems(scene.open(), known)]
    scene.begin(stage)
    code = scene.end()
    if code != 0:
        fault.problems.append(f"the rerun {'hung' if scene.hung else f'ended with {code}'}")
        fault.log = scene.log.read_text(errors="replace")
    fault.problems += [*scene.orphans(), *finished(scene, base, stage)]
    return fault
