"""The whole pipeline on one page: raw text goes in, a quantized, aligned, benchmarked language model comes out.

A profile with a base model enters it in the middle.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

from flows.deployed.parameters import LastStage, ProfileName, Refreshed, Settings
from flows.deployed.run_lifecycle import told
from flows.pages.names import name_of_run
from flows.provenance import provenance_of
from flows.session import start
from profiles.schema import Profile
from storage.artifact import Artifact
from tasks.base import base
from tasks.dedup import dedup
from tasks.download import download
from tasks.draft import draft
from tasks.evaluate import evaluate
from tasks.evaluate.learning_curves.snapshots import chosen_snapshots
from tasks.evaluate.significance.gates import gate_references
from tasks.export import BEST, check_formats, export
from tasks.filter import filter_documents, filter_pairs
from tasks.posttrain.adapters.lora import check_adapters
from tasks.posttrain.config import PosttrainConfig
from tasks.posttrain.feedback import FeedbackConfig
from tasks.posttrain.methods import METHODS
from tasks.posttrain.methods.distill import DistillConfig
from tasks.posttrain.pair_lengths import check_pairs
from tasks.posttrain.rows.row_sources import Pairs
from tasks.pretrain import PretrainConfig, pretrain
from tasks.stage.decorator import STAGES, Reached
from tasks.tokenize import tokenize
from tasks.tokenizer import train_tokenizer
from tasks.training.chain import BASE, BESIDE, FEEDBACK, JUDGE

NO_NEWS = "No news: earlier runs (dedup.against) have all documents, so the stages after dedup were passed by."


def __getattr__(name: str) -> Any:
    """The flow `pipeline`, made when it is asked for: a plan needs the diagram alone, and Prefect takes two seconds to
    import."""
    if name != "pipeline":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _flow()


@functools.cache
def _flow() -> Any:
    from prefect import flow

    return flow(name="pipeline", flow_run_name=name_of_run)(told(_pipeline))


def _pipeline(
    profile: ProfileName = "tiny", overrides: Settings = (), to: LastStage = None, refresh: Refreshed = ()
) -> str:
    """Raw text to release. `overrides` are `section.key=value`; `to` ends early; `refresh` makes stages anew."""
    with start(profile, overrides, to, refresh) as chosen:
        return stages(chosen).location


class Beginning(NamedTuple):
    """What post-training starts from: a model, pairs, and text that no stage trains on."""

    model: Artifact
    pairs: Artifact
    held_out: Artifact
    contamination: Artifact | None
    documents: Artifact | None = None  # that the filter measured
    training: Artifact | None = None  # tokens
    stages: Mapping[str, Artifact] = {}  # that the data went through


def stages(profile: Profile) -> Artifact:
    """The diagram. Each line is a stage: from the store, or made now."""
    gate_references(profile.evaluate.gates if profile.evaluate else [])  # a ref that there is not ends the run here
    try:
        raw = download(profile.download)
        begun = from_scratch(profile, profile.pretrain, raw) if profile.pretrain else from_base(profile, raw)
        links, judge = post_training(profile, begun)
        scores = evaluation(profile, begun, links, judge, raw.part("benchmarks"))
        return release(profile, begun, links, scores)
    except Reached as reached:
        return reached.artifact


def from_scratch(profile: Profile, config: PretrainConfig, raw: Artifact) -> Beginning:
    """A model pretrained on the documents."""
    unique = dedup(profile.dedup, raw.part("documents"))
    if without_news(unique):
        raise Reached(unique)
    clean = filter_documents(profile.filter, unique.part("documents"), raw.part("benchmarks"))
    tokenizer = train_tokenizer(profile.tokenizer, clean.part("documents"))
    tokens = tokenize(profile.tokenize, clean.part("documents"), tokenizer)
    pairs = clean_pairs(profile, raw)
    context = config.model.context
    pretrain.before(methods(profile), lambda reached: check_pairs(read(profile, reached), pairs, tokenizer, context))
    model = pretrain(config, tokens, tokenizer)
    contamination = clean.part("contamination") if profile.filter and profile.filter.contamination else None
    measured, training = unique.part("documents"), tokens.part("train")
    went = {"download": raw, "dedup": unique, "filter": clean, "tokenize": tokens}
    through = {name: made for name, made in went.items() if getattr(profile, name) is not None}
    return Beginning(model, pairs, tokens.part("validation"), contamination, measured, training, through)


def without_news(unique: Artifact) -> bool:
    """Whether earlier runs, which `dedup.against` names, have all documents: the stages after dedup are passed by.
    False before dedup is made."""
    counts = unique.manifest.counts if unique.manifest else {}
    return bool(counts.get("documents", {}).get("kept") == 0)


def from_base(profile: Profile, raw: Artifact) -> Beginning:
    """A model that others trained; of text there are only the benchmarks."""
    model, pairs = base(profile.base), clean_pairs(profile, raw)
    last = {"evaluate": profile.evaluate, "export": profile.export}

    def check(reached: Mapping[str, Any]) -> None:
        check_formats(reached.get("export"), model.part("model").path)
        check_adapters({name: reached[name] for name in methods(profile) if name in reached}, model.part("model").path)
        check_pairs(read(profile, reached), pairs, model.part("model"))

    for first in profile.links[:1]:
        STAGES[first].before({**methods(profile), **last}, check)
    return Beginning(model, pairs, raw.part("benchmarks"), None)


def post_training(profile: Profile, begun: Beginning) -> tuple[dict[str, Artifact], Artifact | None]:
    """The chain: each link trains the model of the link before, on pairs of its kind. Judge and feedback stand beside
    it; the judge is given too."""
    links, beside = {BASE: begun.model}, dict[str, Artifact]()
    for name in profile.links:
        config, model = getattr(profile, name), list(links.values())[-1].part("model")
        asked = model if not isinstance(config, FeedbackConfig) or config.asks_model else None
        made = STAGES[name](config, asked, pairs_of(name, profile, begun, beside), *others(name, config, links, beside))
        (beside if name in BESIDE else links)[name] = made
    return links, judge_of(beside)


def evaluation(
    profile: Profile, begun: Beginning, links: Mapping[str, Artifact], judge: Artifact | None, benchmarks: Artifact
) -> Artifact | None:
    """The scores of every link, and of chosen snapshots of pretraining. What is not asked for is no input."""
    if profile.evaluate is None:
        return None
    config = profile.evaluate.with_filter(profile.filter).with_release(released(profile, links))
    models = {name: link.part("model") for name, link in links.items()}
    models |= chosen_snapshots(links[BASE], config.snapshots, BASE)
    training = begun.training if config.safety and config.safety.memorisation else None
    documents = begun.documents if config.safety and config.safety.continuations else None
    asked = (begun.held_out, benchmarks, begun.contamination, training, documents)
    return evaluate(config, models, judge if config.asks_judge else None, *asked)


def release(profile: Profile, begun: Beginning, links: Mapping[str, Artifact], scores: Artifact | None) -> Artifact:
    """The model of a link in every format, with a card that tells of all stages before."""
    link = released(profile, links)
    model = links[link].part("model")
    guesser = draft(profile.draft, model, begun.pairs.part("instructions")).part("model") if profile.draft else None
    config = profile.export and profile.export.with_provenance(provenance_of(profile, begun.stages, links, link))
    return export(config, model, scores, begun.held_out, beneath(profile, links, link), guesser)


def beneath(profile: Profile, links: Mapping[str, Artifact], link: str) -> dict[str, Artifact]:
    """The base of others that a link was trained on, whose answers stand beside the link's on the card; and the
    adapters up to it, where a format of the release asks for them."""
    if profile.export is None or profile.base is None or link == BASE:
        return {}
    chain = list(links)
    trained = chain[1 : chain.index(link) + 1] if profile.export.needs_base else []
    return {BASE: links[BASE].part("model"), **{name: links[name].part("adapter") for name in trained}}


def released(profile: Profile, links: Mapping[str, Artifact]) -> str:
    """The link whose model is released: the one that the profile names, or the last; of `best` the last that was not
    worse on its own held-out pairs than before its training."""
    asked = profile.export and profile.export.link
    if asked == BEST:
        return next(name for name in reversed([*links]) if not got_worse(links[name]))
    return asked or list(links)[-1]


def got_worse(link: Artifact) -> bool:
    """Whether held-out pairs say that a training did harm. False where none were held out, and before it is made."""
    counts = link.manifest.counts if link.manifest else {}
    first, last = counts.get("initial_validation_loss"), counts.get("validation_loss")
    return first is not None and last is not None and last > first


def pairs_of(name: str, profile: Profile, begun: Beginning, beside: Mapping[str, Artifact]) -> Pairs:
    """The pairs that a link learns from: those of its kind, or the preferences of feedback, or both."""
    role = METHODS[name].reads(profile.download.roles) if name in METHODS else "instructions"
    if profile.learns_from(name) == "downloaded":
        return begun.pairs.part(role)
    made = beside[FEEDBACK].part("preferences")
    return made if profile.learns_from(name) == "feedback" else {"downloaded": begun.pairs.part(role), FEEDBACK: made}


def others(
    name: str, config: PosttrainConfig, links: Mapping[str, Artifact], beside: Mapping[str, Artifact]
) -> tuple[Artifact | None, ...]:
    """The other model that a link learns from, if it learns from one: its teacher, or the judge."""
    if isinstance(config, DistillConfig):
        return (links[config.teacher].part("model"),)
    return METHODS[name].judges(config, judge_of(beside)) if name in METHODS else ()


def judge_of(beside: Mapping[str, Artifact]) -> Artifact | None:
    """The reward model, if there is one."""
    return beside[JUDGE].part("model") if JUDGE in beside else None


def clean_pairs(profile: Profile, raw: Artifact) -> Artifact:
    """The pairs without personal data."""
    pii = profile.filter and profile.filter.pii
    labelled = raw.part("labelled") if "labelled" in profile.download.roles else None
    return filter_pairs(pii, raw.part("instructions"), raw.part("preferences"), labelled)


def methods(profile: Profile) -> dict[str, PosttrainConfig]:
    """The configs of the methods of post-training, in order."""
    return {name: getattr(profile, name) for name in profile.links if name in METHODS}


def read(profile: Profile, reached: Mapping[str, Any]) -> dict[str, PosttrainConfig]:
    """Of the stages that a run reaches the methods that read pairs of `download`."""
    return {
        name: reached[name] for name in methods(profile) if name in reached and profile.learns_from(name) != "feedback"
    }
