"""What a plan asks before anything is made: whether every stage has something to read, and every source a reader."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from rich.markup import escape

from flows.estimates.planned_stage import PlannedStage
from profiles.schema import Profile
from storage.errors import ConfigError, harmless
from tasks.download import check_first_rows
from tasks.download.config import EmbeddedSource
from tasks.posttrain.methods import METHODS
from tasks.training.chain import LINKS

OTHERS = ("prune", "feedback", "draft")  # stages beside the methods that read instructions


def check_sources(profile: Profile, lines: Iterable[PlannedStage]) -> None:
    """Raises ConfigError for a stage of these lines that no source has anything for, SourceError for files whose first
    rows lack what is read of them."""
    lines = list(lines)
    lacking = {
        name: role for name, role in _readers(profile, {line.name for line in lines}) if not _brings(profile, role)
    }
    if lacking:
        told = " and ".join(f"{name} reads {role}" for name, role in lacking.items())
        null = [name for name in lacking if name in (*LINKS, "draft")]
        or_null = f", or set {' and '.join(null)} to null" if null else ""
        roles = " and ".join(f"`role: {role}`" for role in dict.fromkeys(lacking.values()))
        raise ConfigError(f"{told}, and no source of download has any.", f"Add a source with {roles}{or_null}.")
    if any(line.name == "download" and not line.hit for line in lines):
        check_first_rows(profile.download)


def told_of_unread(profile: Profile, reached: Iterable[str]) -> Iterator[str]:
    """The sources that no stage of a whole run reads. `reached` are the stages of this run."""
    if {*reached} != {*profile.stage_names}:
        return
    read = {role for _, role in _readers(profile, profile.stage_names)}
    for source in profile.download.sources:
        if isinstance(source, EmbeddedSource) or source.role in read:
            continue
        base = " The profile begins with a base model, and reads pairs alone." if profile.base else ""
        yield f"No stage reads the {source.role} of {escape(harmless(source.name))}.{base}"


def _readers(profile: Profile, reached: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Each stage of those `reached` that reads what `download` brings, with the role of that."""
    if profile.pretrain:
        yield "pretrain", "documents"
    for name in (*profile.links, "draft"):
        if name not in reached or getattr(profile, name) is None:
            continue
        if name in METHODS and profile.learns_from(name) != "feedback":
            yield name, METHODS[name].reads(profile.download.roles)
        elif name in OTHERS:
            yield name, "instructions"


def _brings(profile: Profile, role: str) -> bool:
    """Whether a source has rows of a role."""
    for source in profile.download.sources:
        if isinstance(source, EmbeddedSource):
            if role == "documents" or getattr(source, role, None):
                return True
        elif source.role == role:
            return True
    return False
