"""The whole pipeline on one page: raw text goes in, a quantized, aligned, benchmarked language model comes out."""

from __future__ import annotations

from prefect import flow

from flows.report import publish_report
from flows.session import Settings, Word, start
from profiles.schema import Profile
from storage.artifact import Artifact
from tasks.dedup import dedup
from tasks.download import download
from tasks.evaluate import evaluate
from tasks.export import export
from tasks.filter import filter_documents, filter_pairs
from tasks.posttrain.fit import check_pairs
from tasks.posttrain.methods.dpo import dpo
from tasks.posttrain.methods.sft import sft
from tasks.pretrain import pretrain
from tasks.stage.decorator import Reached
from tasks.tokenize import tokenize
from tasks.tokenizer import train_tokenizer


@flow(flow_run_name="{profile}")
def pipeline(
    profile: Word = "tiny",
    overrides: Settings | None = None,
    to: Word | None = None,
    refresh: list[Word] | None = None,
) -> str:
    """Raw text to release. `overrides` are `section.key=value`; `to` ends early; `refresh` makes stages anew."""
    with start(profile, overrides or (), to, refresh or ()) as chosen:
        location = stages(chosen).location
        publish_report(chosen)
        return location


def stages(profile: Profile) -> Artifact:
    """The diagram. Each line is a stage: from the store, or made now."""
    try:
        raw = download(profile.download)
        unique = dedup(profile.dedup, raw.part("documents"))
        clean = filter_documents(profile.filter, unique.part("documents"), raw.part("benchmarks"))
        tokenizer = train_tokenizer(profile.tokenizer, clean.part("documents"))
        tokens = tokenize(profile.tokenize, clean.part("documents"), tokenizer)
        pii = profile.filter and profile.filter.pii
        pairs = filter_pairs(pii, raw.part("instructions"), raw.part("preferences"))
        methods = {"sft": profile.sft, "dpo": profile.dpo}
        pretrain.before(methods, lambda reached: check_pairs(reached, pairs, tokenizer, profile.pretrain.model.context))
        base = pretrain(profile.pretrain, tokens, tokenizer)
        tuned = sft(profile.sft, base.part("model"), pairs.part("instructions"))
        aligned = dpo(profile.dpo, tuned.part("model"), pairs.part("preferences"))
        links = {"base": base, "sft": profile.sft and tuned, "dpo": profile.dpo and aligned}
        models = {name: link.part("model") for name, link in links.items() if isinstance(link, Artifact)}
        asked = (
            tokens.part("validation"),
            raw.part("benchmarks"),
            clean.part("contamination") if profile.filter else None,
        )
        scores = evaluate(profile.evaluate, models, *asked) if profile.evaluate else None
        return export(profile.export, aligned.part("model"), scores, tokens.part("validation"))
    except Reached as reached:
        return reached.artifact
