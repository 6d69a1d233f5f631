"""What `synthesise` will ask and what that will cost, by the documents that it is given and the answers that exist.

Of many shards some are read, and the rest are taken to be like them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from flows.estimates.planned_stage import Pending, PlannedStage
from profiles.schema import Profile
from storage.artifact import Artifact
from storage.store import Store
from tasks.endpoint.paid import answers_in, known_answers
from tasks.stage.history import ever_made
from tasks.synthesise import SynthesiseConfig
from tasks.synthesise.choose import Chosen, prompts_of, requests_of
from tasks.synthesise.report import money
from tasks.synthesise.stage import SHARDS

READ = 16  # shards
CHARACTERS = 4.0  # of a token, about


def synthesis_notes(profile: Profile, store: Store, lines: Sequence[PlannedStage]) -> Iterator[str]:
    """What a run of this plan asks the model of `synthesise`, and what that costs, as far as it is known."""
    for line in lines:
        if line.name != "synthesise" or line.hit:
            continue
        assert isinstance(line.config, SynthesiseConfig)
        documents = line.inputs[0]
        assert isinstance(documents, Artifact)
        where = f"synthesise sends documents to {profile.runtime.synthesise.url}"
        if isinstance(documents, Pending):
            most = line.config.limit and line.config.limit * len(line.config.prompts)
            limited = f", at most {most:,}" if most else ""
            yield f"{where}. How many requests that takes{limited}, is known once download is made."
        else:
            yield f"{where}: {_expected(profile, store, line, line.config, documents)}."


def _expected(profile: Profile, store: Store, line: PlannedStage, config: SynthesiseConfig, documents: Artifact) -> str:
    names = documents.names(SHARDS)
    sampled = names if len(names) <= READ else names[:: len(names) // READ + 1]
    documents.bring(sampled)
    whole = len(sampled) == len(names)
    asked = config if whole else config.model_copy(update={"limit": None})
    chosen, prompts = Chosen(asked, [documents.folder / name for name in sampled]), prompts_of(config)
    known, tokens_each = _answers(store, line)
    keys, about, new, characters = set[str](), set[str](), 0, 0
    for number in range(len(sampled)):
        for wanted in requests_of(chosen, prompts, number):
            about.add(wanted.document.id)
            if wanted.key not in keys and wanted.key not in known:
                new += 1
                characters += sum(len(str(one["content"])) for one in wanted.messages)
            keys.add(wanted.key)
    share = len(names) / len(sampled)
    if not whole and config.limit is not None:
        share = min(share, config.limit / max(1, len(about)))
    tokens_in = characters * share / CHARACTERS
    tokens_out = new * share * (tokens_each or config.max_new_tokens)
    price = profile.runtime.synthesise.price
    cost = f", {money(price.of(tokens_in, tokens_out))} by runtime.synthesise.price" if price else ""
    return (
        f"{'' if whole else 'about '}{new * share:,.0f} new requests, and {(len(keys) - new) * share:,.0f} that are "
        f"answered already, on {len(about) * share:,.0f} documents. About {tokens_in:,.0f} tokens in and "
        f"{'' if tokens_each else 'at most '}{tokens_out:,.0f} out{cost}"
    )


def _answers(store: Store, line: PlannedStage) -> tuple[set[str], float]:
    """The keys of the requests that are answered already, and the mean of tokens of these answers."""
    if line.name in line.refresh:
        return set(), 0.0
    files = known_answers(ever_made(store, line.name, lambda _: None), store.unfinished(line.name, ""), lambda _: None)
    tokens = {request: answer["completion_tokens"] for path in files for request, answer in answers_in(path)}
    return {*tokens}, sum(tokens.values()) / max(1, len(tokens))
