"""The arms of a matrix: profiles that differ from a reference in the settings that are varied, each with several seeds.

    --vary filter.fineweb=null --vary 'pretrain.learning_rate=[3e-3, 6e-3]'

has the profile as it is, and each value of a key in place of its own: here 2 × 3 arms, or with `each` 1 + 1 + 2, one
change at a time. Keys that belong together are one arm:

    --arm '{pretrain.global_batch: 64, pretrain.learning_rate: 6e-3}'
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import yaml

from flows.deployed.parameters import MOST_SEEDS
from profiles.load import load, parse_value
from profiles.schema import Profile
from profiles.sections import NAME
from profiles.stage_names import AT_THE_END, FROM_SCRATCH, TRAINED
from storage.errors import ConfigError
from tasks.training.chain import BASE, BESIDE

MOST_ARMS = 200
LONGEST_NAME = 80  # of a member's profile, which names its refs
UNVARIED = ("runtime", "name", "description", *AT_THE_END)


class Arm(NamedTuple):
    """A profile of the matrix. `settings` are values by key, as on the command line, and empty for the reference."""

    name: str
    settings: Mapping[str, str]


class Member(NamedTuple):
    """A run of the matrix: an arm with a seed, both by number, and its profile, with the overrides that make it."""

    arm: int
    seed: int
    profile: Profile
    sets: list[str]


class Matrix(NamedTuple):
    """All runs, by arm and seed, the reference first. `link` is the stage whose model is measured, and `name` the
    profile's, as it was asked for."""

    name: str
    arms: list[Arm]
    seeds: list[int]
    members: list[list[Member]]
    link: str

    @property
    def reference(self) -> Profile:
        """The profile as it is."""
        return self.members[0][0].profile

    def name_of(self, member: Member) -> str:
        """The name of a run, for people."""
        seed = f", seed {self.seeds[member.seed]}" if len(self.seeds) > 1 else ""
        return f"{self.arms[member.arm].name}{seed}"

    def only(self, arms: Sequence[int]) -> Matrix:
        """The matrix of some arms, by their numbers, of which the first is the reference."""
        members = [[one._replace(arm=place) for one in self.members[number]] for place, number in enumerate(arms)]
        return self._replace(arms=[self.arms[number] for number in arms], members=members)

    def with_sets(self, member: Member, sets: Sequence[str], suffix: str) -> Member:
        """A run with further overrides, under a name that ends with `suffix`."""
        sets = [*member.sets, *sets, f"name={named(member.profile.name, suffix)}"]
        return member._replace(profile=load(self.name, sets), sets=sets)


def matrix_of(
    name: str,
    overrides: Sequence[str],
    vary: Sequence[str],
    seeds: int,
    *,
    arm: Sequence[str] = (),
    each: bool = False,
    link: str | None = None,
) -> Matrix:
    """The matrix of a profile with `overrides`. Raises ConfigError for settings that can't be varied, values that the
    profile refuses, and arms that don't differ."""
    reference = load(name, overrides)
    levels = levels_of(vary)
    together = [settings_of_arm(one) for one in arm]
    keys = list(dict.fromkeys([*levels, *(key for settings in together for key in settings)]))
    measured = link_of(reference, keys, link)
    if not 1 <= seeds <= MOST_SEEDS:
        raise ConfigError(f"{seeds} seeds are not between 1 and {MOST_SEEDS}.", "Three to five are usual.")
    arms, profiles = [Arm(reference.name, {})], [reference]
    for settings in [*combinations(levels, each=each), *together]:
        shown = ", ".join(f"{key}={value}" for key, value in settings.items())
        profile = load(name, [*overrides, *(f"{key}={value}" for key, value in settings.items())])
        if _choices(profile) not in map(_choices, profiles):
            arms.append(Arm(shown, settings))
            profiles.append(profile)
    if keys and len(arms) == 1:
        raise ConfigError(f"{', '.join(keys)}: every value is the profile's own.", "Give another value.")
    _check_stages(profiles, keys)
    _check_seeds(profiles, measured)
    first = seed_of(reference, measured)
    return matrix_from(name, overrides, arms, range(first, first + seeds), measured)


def matrix_from(name: str, overrides: Sequence[str], arms: Sequence[Arm], seeds: Sequence[int], link: str) -> Matrix:
    """The matrix of these arms and seeds."""
    profile = load(name, overrides)
    first, members, names = seed_of(profile, link), [], set[str]()
    for number, arm in enumerate(arms):
        of_arm = []
        for place, seed in enumerate(seeds):
            sets = [*overrides, *(f"{key}={value}" for key, value in arm.settings.items())]
            if seed != first:
                sets += [f"{key}={own + seed - first}" for key, own in seeds_of(load(name, sets), link).items()]
            if arm.settings or seed != first:
                parts = [f"{key}-{value}" for key, value in arm.settings.items()]
                parts += [f"seed-{seed - first}"] if seed != first else []
                sets.append(f"name={named(profile.name, *parts, taken=names)}")
            of_arm.append(Member(number, place, load(name, sets), sets))
        members.append(of_arm)
    return Matrix(name, [*arms], [*seeds], members, link)


def _check_stages(profiles: Sequence[Profile], keys: Iterable[str]) -> None:
    """Raises ConfigError for keys of a stage that no arm has. Pairs are filtered in profiles without `filter` too."""
    for key in keys:
        section = key.partition(".")[0]
        if section in FROM_SCRATCH and section != "filter" and all(section not in one.stage_names for one in profiles):
            raise ConfigError(
                f"{key} can't be varied: {profiles[0].name} has no stage {section}.",
                "Vary a setting of one that it has. `gristmill plan` lists them.",
            )


def _check_seeds(profiles: Sequence[Profile], link: str) -> None:
    """Raises ConfigError for arms that set a seed. Each has the same seeds, as differences are taken within one."""
    first = seeds_of(profiles[0], link)
    for profile in profiles[1:]:
        for key, seed in seeds_of(profile, link).items():
            if first.get(key, seed) != seed:
                raise ConfigError(
                    f"{key} can't be varied: all arms have the same seeds.",
                    f"Write --seeds N, and --set {key}=N for the first.",
                )


def levels_of(vary: Sequence[str]) -> dict[str, list[str]]:
    """The values by key of `KEY=VALUE` and `KEY=[VALUE, …]`, as text for `--set`."""
    levels: dict[str, list[str]] = {}
    for one in vary:
        key, separator, text = one.partition("=")
        if not separator or not key or not text:
            raise ConfigError(f"--vary {one} lacks a {'value' if key else 'key'}.", "Write --vary section.key=value.")
        _check_varied(key)
        if key in levels:
            raise ConfigError(f"--vary {key} is given twice.", f"Write --vary '{key}=[…, …]'.")
        try:
            value = parse_value(text)
        except yaml.YAMLError as error:
            raise ConfigError(f"--vary {key}: the value is not YAML.", "Quote it, or close it.") from error
        levels[key] = [_text(level) for level in value] if isinstance(value, list) and value else [text]
    return levels


def settings_of_arm(text: str) -> dict[str, str]:
    """The settings of an arm from `{KEY: VALUE, …}`, as text for `--set`."""
    try:
        found = parse_value(text)
    except yaml.YAMLError:
        found = None
    if not isinstance(found, dict) or not found:
        raise ConfigError(f"--arm {text} has no settings.", "Write --arm '{section.key: value, section.key: value}'.")
    settings = {str(key): _text(value) for key, value in found.items()}
    for key in settings:
        _check_varied(key)
    return settings


def _check_varied(key: str) -> None:
    if key.partition(".")[0] in UNVARIED:
        raise ConfigError(
            f"{key} can't be varied: no model depends on it.",
            "Vary a setting of download, of a stage after it, or of base.",
        )


def combinations(levels: Mapping[str, Sequence[str]], *, each: bool) -> list[dict[str, str]]:
    """The settings of every arm but the reference. Raises ConfigError for too many, and for a key inside
    another."""
    if each:
        return [{key: value} for key, values in levels.items() for value in values]
    for inner in levels:
        if outer := next((key for key in levels if inner.startswith(f"{key}.")), None):
            raise ConfigError(f"--vary {outer} replaces {inner}, which is varied too.", "Add --each: one at a time.")
    number = 1
    for values in levels.values():
        number *= len(values) + 1
    if number > MOST_ARMS:
        raise ConfigError(f"These settings give {number:,} arms, more than {MOST_ARMS}.", "Add --each: one at a time.")
    ways = product(*([None, *values] for values in levels.values()))
    settings = [{key: value for key, value in zip(levels, way, strict=True) if value is not None} for way in ways]
    return sorted((one for one in settings if one), key=len)


def link_of(profile: Profile, keys: Sequence[str], asked: str | None) -> str:
    """The stage whose model is measured: the first that all varied `keys` can change, or the one `asked` for."""
    models = [name for name in profile.stage_names if name in TRAINED and name not in BESIDE]
    models = models or [name for name in profile.stage_names if name == BASE]
    if not models:
        raise ConfigError(f"{profile.name} trains no model.", "Give a profile with pretrain or a base.")
    order = ["download", *profile.stage_names]
    sections = [key.partition(".")[0] for key in keys]
    last = max((order.index(name) for name in sections if name in order), default=0)
    able = [name for name in models if order.index(name) >= last] or models[-1:]
    if "chain" in sections or any(name in TRAINED and name not in order for name in sections):
        able = models[-1:]  # a link that the profile lacks
    if asked is None:
        return able[0]
    if asked not in models:
        raise ConfigError(f"{asked} makes no model of {profile.name}.", f"Measure one of {', '.join(models)}.")
    if asked not in able:
        raise ConfigError(f"{asked} comes before what is varied.", f"Measure one of {', '.join(able)}.")
    return asked


def seed_of(profile: Profile, link: str) -> int:
    """The seed of the last training up to `link`."""
    return next(reversed(seeds_of(profile, link).values()), 0)


def seeds_of(profile: Profile, link: str) -> dict[str, int]:
    """The seeds of all trainings up to `link`, by key, in their order."""
    sections = {name: getattr(profile, name) for name in profile.names_to(link) if name in TRAINED}
    return {f"{name}.seed": int(section.seed) for name, section in sections.items() if hasattr(section, "seed")}


def named(*parts: str, taken: set[str] | None = None) -> str:
    """The name of a run's profile, which its refs begin with: `tiny-filter-fineweb-null-seed-1`. It has a digest if it
    is long or already `taken`, as by another value that differs in signs only. Adds it to these."""
    taken = set() if taken is None else taken
    name = re.sub(r"[^a-z0-9_]+", "-", "-".join(parts).lower()).strip("-")
    if len(name) > LONGEST_NAME or name in taken:
        name = f"{name[:LONGEST_NAME]}-{hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:8]}"
    assert re.fullmatch(NAME, name)
    taken.add(name)
    return name


def _choices(profile: Profile) -> Any:
    """All that shapes the result."""
    return profile.model_dump(exclude={"name", "description", "runtime"})


def _text(level: Any) -> str:
    return level if isinstance(level, str) and parse_value(level) == level else json.dumps(level, ensure_ascii=False)
