"""The artifacts that one was made of, as far as a store still has them.

A stage's inputs are whole stages. What it obtained while it worked, such as the filter's signals, are its parts: their
time is within its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from storage.artifact import Artifact
from storage.errors import DamagedArtifact, StoreError
from storage.manifest import Manifest
from storage.store import Store

AGAINST = "against "  # before the names of earlier runs that dedup compared with: they made nothing of this one


@dataclass(frozen=True)
class Node:
    """An artifact of the lineage. Without a manifest it is gone, or damaged."""

    location: str
    state: Literal["stored", "adopted", "gone", "damaged"]
    manifest: Manifest | None
    inputs: Mapping[str, str]  # locations by name
    uses: Mapping[str, str]

    @property
    def stage(self) -> str:
        """The name of its stage."""
        return self.location.partition("/")[0]


class Lineage:
    """An artifact with all its ancestors: sources first, the artifact itself last."""

    def __init__(self, store: Store, location: str) -> None:
        self.store = store
        self.root = store.twin(location)
        self.nodes: dict[str, Node] = {}
        self._visit(self.root)
        self.whole = {node.location for node in self._inputs(self.root, set())}

    def _visit(self, location: str, *, further: bool = True) -> None:
        """Add an artifact after its ancestors."""
        if location in self.nodes:
            return
        try:
            manifest = self.store.manifest(location)
            state: Literal["stored", "adopted", "gone", "damaged"] = "stored" if manifest else "gone"
        except DamagedArtifact:
            manifest, state = None, "damaged"
        if manifest is not None and manifest.adopted:
            state = "adopted"
        if manifest is None or not further:
            self.nodes[location] = Node(location, state, manifest, {}, {})
            return
        inputs, uses = (
            {name: self.store.twin(ref.location) for name, ref in refs.items() if not ref.location.startswith("/")}
            for refs in (manifest.origins, manifest.uses)
        )
        for name, other in {**inputs, **uses}.items():
            self._visit(other, further=not name.startswith(AGAINST))
        self.nodes[location] = Node(location, state, manifest, inputs, uses)

    def _inputs(self, location: str, seen: set[str]) -> Iterator[Node]:
        if location in seen:
            return
        seen.add(location)
        node = self.nodes[location]
        for other in node.inputs.values():
            yield from self._inputs(other, seen)
        yield node

    def stages(self) -> dict[str, Manifest]:
        """The manifest of each whole stage, sources first. Of several artifacts of one stage, such as models that are
        evaluated beside it, the one that most of the others are made of."""
        readers = dict.fromkeys(self.nodes, 0)
        for node in self.nodes.values():
            for other in {*node.inputs.values(), *node.uses.values()} & readers.keys():
                readers[other] += 1
        found: dict[str, tuple[int, Manifest]] = {}
        for location, node in self.nodes.items():
            if location in self.whole and node.manifest:
                number = readers[location] if location != self.root else len(readers)
                if node.stage not in found or number > found[node.stage][0]:
                    found[node.stage] = number, node.manifest
        return {stage: manifest for stage, (_, manifest) in found.items()}

    def parts(self, stage: str) -> list[Node]:
        """The parts of a kind that any artifact of the lineage used, such as `language`."""
        return [node for node in self.nodes.values() if node.stage == stage and node.location not in self.whole]

    def location_of(self, stage: str) -> str | None:
        """The location of the artifact that `stages` has for a stage."""
        manifest = self.stages().get(stage)
        return next((name for name, node in self.nodes.items() if manifest and node.manifest is manifest), None)

    def open(self, manifest: Manifest) -> Artifact | None:
        """An artifact's files, whose sizes are checked, or None if some are damaged."""
        location = next(name for name, node in self.nodes.items() if node.manifest is manifest)
        try:
            return self.store.get(location, hashed=False)
        except StoreError:
            return None
