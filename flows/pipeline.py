"""The whole pipeline on one page: raw text goes in, a quantized, aligned, benchmarked language model comes out.

Every call of a stage takes its artifact from the store, or makes it. A profile with a base model enters in the middle,
or trains that on its documents.
"""

from __future__ import annotations

from flows.chain import Chain, Start
from flows.early import check_base, check_first_link, check_kept, check_pretraining, check_references, end_without_news
from flows.provenance import provenance_of
from profiles.schema import Profile
from storage.artifact import Artifact
from tasks.base import base
from tasks.dedup import dedup
from tasks.download import download
from tasks.draft import draft
from tasks.evaluate import evaluate
from tasks.export import export
from tasks.filter import filter_documents, filter_pairs
from tasks.pretrain import pretrain
from tasks.stage.decorator import STAGES, Reached
from tasks.synthesise import synthesise
from tasks.tokenize import tokenize
from tasks.tokenizer import train_tokenizer


def stages(profile: Profile) -> Artifact:
    """The diagram, as code. Returns the run's last artifact."""
    check_references(profile)
    try:
        raw = download(profile.download)
        start = from_documents(profile, raw) if profile.pretrain else from_base(profile, raw)
        chain = post_training(profile, start)
        scores = evaluation(profile, chain, raw)
        return release(profile, chain, scores)
    except Reached as run_to:
        return run_to.artifact


def from_documents(profile: Profile, raw: Artifact) -> Start:
    """Documents to a pretrained model: a new one, or a base that is trained on, in the ids of its own tokenizer."""
    start = base(profile.base).part("model") if profile.base else None
    check_base(profile, start)
    texts = synthesise(profile.synthesise, raw.part("documents"))
    unique = dedup(profile.dedup, texts.part("documents"))
    end_without_news(unique)
    clean = filter_documents(profile.filter and profile.filter.texts, unique.part("documents"), raw.part("benchmarks"))
    check_kept(profile, clean)
    tokenizer = vocabulary(profile, clean.part("documents"), start)
    tokens = tokenize(profile.tokenize, clean.part("documents"), tokenizer)
    pairs = clean_pairs(profile, raw)
    check_pretraining(profile, pairs, start or tokenizer, tokens)
    model = pretrain(profile.pretrain, tokens, tokenizer, start if profile.tokenizer.extend else None)
    return Start.trained(
        profile, model, pairs, download=raw, synthesise=texts, dedup=unique, filter=clean, tokenize=tokens
    )


def vocabulary(profile: Profile, documents: Artifact, start: Artifact | None) -> Artifact:
    """A new tokenizer, that of the base, or the base's with more tokens."""
    if start and not profile.tokenizer.extend:
        return start
    return train_tokenizer(profile.tokenizer, documents, start)


def from_base(profile: Profile, raw: Artifact) -> Start:
    """An existing model; the benchmarks are the only text."""
    model = base(profile.base)
    pairs = clean_pairs(profile, raw)
    check_first_link(profile, model.part("model"), pairs)
    return Start(model, pairs, raw.part("benchmarks"))


def clean_pairs(profile: Profile, raw: Artifact) -> Artifact:
    """Instruction and preference pairs without personal data, and by choice without questions of the benchmarks."""
    rules = profile.filter and profile.filter.pair_rules
    labelled = raw.part("labelled") if "labelled" in profile.download.roles else None
    benchmarks = raw.part("benchmarks") if profile.filter and "contamination" in profile.filter.pairs else None
    return filter_pairs(rules, raw.part("instructions"), raw.part("preferences"), labelled, benchmarks)


def post_training(profile: Profile, start: Start) -> Chain:
    """The chain: each link trains the model of the link before it."""
    chain = Chain(profile, start)
    for link in profile.links:
        chain.add(link, STAGES[link](getattr(profile, link), *chain.inputs(link)))
    return chain


def evaluation(profile: Profile, chain: Chain, raw: Artifact) -> Artifact | None:
    """The scores of every model of the chain."""
    if profile.evaluate is None:
        return None
    config = chain.evaluation_config(profile.evaluate)
    judge = chain.judge if config.asks_judge else None
    texts = chain.start.held_out, raw.part("benchmarks"), *chain.texts_of_training(config)
    return evaluate(config, chain.measured(config), judge, *texts)


def release(profile: Profile, chain: Chain, scores: Artifact | None) -> Artifact:
    """One model of the chain in every format, with a card that covers all stages before it."""
    link, model, start = chain.released, chain.released_model, chain.start
    guesser = draft(profile.draft, model, start.pairs.part("instructions")).part("model") if profile.draft else None
    config = profile.export and profile.export.with_provenance(provenance_of(profile, start.stages, chain.models, link))
    return export(config, model, scores, start.held_out, chain.beneath(link), guesser)
