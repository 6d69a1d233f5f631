"""What the newest ladder of a profile says of its pretraining, for a plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from flows.estimates.arithmetic import TrainingPlan
from flows.estimates.planned_stage import Pending, PlannedStage
from models.presets import flops_per_token
from profiles.schema import Profile
from storage import refs
from storage.artifact import Artifact
from storage.errors import ConfigError
from storage.manifest import Manifest
from storage.store import Store


def ladder_notes(
    profile: Profile, store: Store, lines: Sequence[PlannedStage], training: TrainingPlan | None
) -> list[str]:
    """The predicted loss of a pretraining that isn't made yet, and the best size for its compute. Says so if the ladder
    can't tell. Nothing for a profile without a ladder."""
    line = next((line for line in lines if line.name == "pretrain" and not line.hit), None)
    name = f"{profile.name}/scaling"
    entries = refs.history(store, name)
    if line is None or training is None or not training.is_new or not entries:
        return []
    from flows.matrix.ladder import recipe_of
    from tasks.ablate.laws.optimum import best_size
    from tasks.ablate.scaling import ScalingConfig, read_law
    from tasks.ablate.scaling.report import UNIT, in_words, nearest

    ladder = store.get(entries[-1].location)
    assert ladder.manifest is not None
    assert profile.pretrain is not None
    config, recipe = ScalingConfig.model_validate(ladder.manifest.payload.config), recipe_of(profile.pretrain)
    others = [key for key, value in config.recipe.items() if recipe.get(key) != value]
    if others or not _same_data(store, ladder.manifest, line):
        of = f"had other {', '.join(others)}" if others else "was trained on other data, or this data isn't made yet"
        return [f"The ladder {name} says nothing of this pretraining: it {of}."]
    fitted, size = read_law(ladder), flops_per_token(training.shape) / 6
    try:
        loss = fitted.predict(size, training.tokens)
    except ConfigError as error:
        return [f"The ladder {name} says nothing of this pretraining. {error.message}"]
    how = "" if profile.pretrain.schedule == "wsd" else ", if it went by wsd"
    said = f"By the ladder {name} pretraining would end at {in_words(loss, 3)} {UNIT} of the held-out text{how}."
    if len(fitted.axes) == 2:
        flops = 6 * size * training.tokens
        best = best_size(fitted, flops)
        there = nearest(config.sizes, best.value)
        least = fitted.predict(there.size, flops / 6 / there.size)
        if best.low <= size <= best.high:
            said += " No size is known to be better for its compute."
        else:
            said += (
                f" For its compute {there.parameters:,} parameters (width {there.width}, depth {there.depth}) would be "
                f"best, with {least.value:.3f}."
            )
    return [said]


def stored_ladder(profile: Profile, store: Store, made: Mapping[str, Artifact]) -> Artifact | None:
    """The newest ladder of a profile, if its law is one of this run: of the same recipe and data."""
    from flows.matrix.ladder import recipe_of
    from tasks.ablate.scaling import ScalingConfig

    trained, config = made["pretrain"].manifest, profile.pretrain
    entries = refs.history(store, f"{profile.name}/scaling")
    if not entries or trained is None or config is None or config.model is None:
        return None
    ladder = store.get(entries[-1].location)
    assert ladder.manifest is not None
    known = ScalingConfig.model_validate(ladder.manifest.payload.config).recipe
    same = all(recipe_of(config).get(key) == value for key, value in known.items())
    return ladder if same and _tokens_of(store, ladder.manifest) == trained.payload.inputs["tokens"] else None


def _same_data(store: Store, ladder: Manifest, line: PlannedStage) -> bool:
    """Whether the trainings of a ladder had the token shards that this one will have."""
    tokens = line.inputs[0]
    if isinstance(tokens, Pending) or tokens is None:
        return False
    return getattr(tokens, "digest", "") == _tokens_of(store, ladder)


def _tokens_of(store: Store, ladder: Manifest) -> str | None:
    """The digest of the token shards of a ladder's trainings, None if they are gone."""
    text = next(store.manifest(origin.location) for name, origin in ladder.origins.items() if name.startswith("text."))
    model = text and store.manifest(text.origins["model"].location)
    return model.payload.inputs["tokens"] if model else None
