"""Checks of one section of a profile against another, a function each.

A check yields a message for each contradiction. The checks of SHAPE run first. The others rely on a sound shape, so
they run only then, and all their messages are reported at once.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Callable, Iterator, Sequence

from models.presets import ModelShape, ShapeError, derive
from profiles.sections import Sections
from profiles.stage_names import ALL
from storage.errors import ConfigError
from tasks.evaluate.config import ORIGINAL
from tasks.evaluate.learning_curves.snapshots import check_steps, snapshot_name
from tasks.evaluate.side_by_side.config import names_of
from tasks.export import BEST, HOLD_VIRTUAL
from tasks.posttrain.config import PosttrainConfig
from tasks.posttrain.methods import METHODS
from tasks.posttrain.prune import PruneConfig
from tasks.posttrain.rewards.config import ROUNDING, bounds_of
from tasks.significance.gate_config import BITS, unknown_models, unknown_tasks
from tasks.training.adapters.config import LAYERS, LoraConfig, smaller_sides, why_not_apart
from tasks.training.chain import BASE, BESIDE, BEST_OF_N, FEEDBACK, JUDGE, LINKS, MAKES

Check = Callable[[Sections], Iterator[str]]


def contradictions(profile: Sections) -> list[str]:
    """The messages of all checks that the profile fails."""
    return [message for check in SHAPE for message in check(profile)] or [
        message for check in CHECKS for message in check(profile)
    ]


def one_beginning(profile: Sections) -> Iterator[str]:
    """A model is pretrained on documents, taken from elsewhere, or both."""
    if profile.base is None and profile.pretrain is None:
        yield "pretrain is missing: set it, or `base`, to say which model to train"
    elif profile.base is None and profile.pretrain is not None and profile.pretrain.model is None:
        yield "pretrain.model is missing: set its depth and context, or a `base` to train on"
    if profile.base is not None and profile.pretrain is not None and profile.pretrain.model is not None:
        yield (
            "pretrain.model is the shape of a new model, but the base has its own: set `pretrain.model: null` to train "
            "the base on documents, or `pretrain: null` to only fine-tune it"
        )
    if (profile.base is None or profile.pretrain is not None) and not profile.download.document_sources:
        instead = "set `pretrain: null`" if profile.base else "start from a base"
        yield f"download.sources bring no documents to pretrain on: add a source of documents, or {instead}"
    if profile.base is not None and profile.pretrain is None and not profile.download.benchmark_names:
        yield (
            "download.benchmarks is empty, but with a base its questions are the text that no stage trains on: name one"
        )


def synthesis_has_documents(profile: Sections) -> Iterator[str]:
    """New documents are made for a pretraining, by a model whose address is known."""
    if profile.synthesise is None:
        return
    if profile.pretrain is None:
        yield "synthesise makes documents to pretrain on, but pretrain is null: set `synthesise: null`, or add pretrain"
    if profile.runtime.synthesise.url is None:
        yield (
            "runtime.synthesise.url is missing: set it to the address of the endpoint with synthesise.model, such as "
            "http://127.0.0.1:8000/v1"
        )


def extension_has_a_base(profile: Sections) -> Iterator[str]:
    """New tokens are for the vocabulary of a base, and are learned from documents."""
    if profile.tokenizer.extend is not None and (profile.base is None or profile.pretrain is None):
        lacking = "base" if profile.base is None else "pretrain"
        yield (
            f"tokenizer.extend is {profile.tokenizer.extend:,}, the number of tokens for a base that is trained on "
            f"documents, but the profile has no {lacking}: add it, or set `tokenizer.extend: null`"
        )


def one_tokenizer(profile: Sections) -> Iterator[str]:
    """A base brings its tokenizer."""
    if profile.base is not None and profile.tokenizer.keep is not None:
        yield "tokenizer.keep is for a new model, but a base brings its own tokenizer: set `tokenizer.keep: null`"


def new_tokens_are_trained(profile: Sections) -> Iterator[str]:
    """The rows of new tokens start as means of other rows, so they must be trained."""
    if profile.tokenizer.extend is None or profile.pretrain is None:
        return
    adapter, freeze = profile.pretrain.adapter, profile.pretrain.freeze
    if adapter is not None and "embedding" not in adapter.whole:
        yield (
            "tokenizer.extend adds rows that pretrain.adapter doesn't train: set `whole: [embedding, head]` in it, or "
            "`tokenizer.extend: null`"
        )
    frozen = freeze is not None and {*freeze.parts} & {"embedding", "head"}
    if frozen or (freeze is not None and freeze.all_but_layers is not None):
        yield (
            "tokenizer.extend adds rows that pretrain.freeze leaves as they begin: freeze neither embedding nor head, "
            "or set `tokenizer.extend: null`"
        )


def chain_is_whole(profile: Sections) -> Iterator[str]:
    """`chain` names every link of the profile once."""
    if profile.chain is None:
        return
    if len(set(profile.chain)) < len(profile.chain):
        yield "chain names a stage twice, but a profile has one section for each"
    missing = [name for name in profile.chain if getattr(profile, name) is None]
    if missing:
        yield f"chain names {', '.join(missing)}, which is null"
    unnamed = [name for name in LINKS if getattr(profile, name) is not None and name not in profile.chain]
    if unnamed:
        yield f"chain does not name {', '.join(unnamed)}: add it, or set `{unnamed[0]}: null`"


def snapshots_are_taken(profile: Sections) -> Iterator[str]:
    """The snapshots to evaluate are steps at which the pretraining saves one."""
    config, trained = profile.evaluate, profile.pretrain
    if config is None:
        return
    last = None
    if trained and config.snapshots and (shape := _shape(profile)):
        last = trained.total_steps(shape)
    try:
        check_steps(config.snapshots, trained.snapshot_every if trained else None, last)
    except ValueError as error:
        yield str(error)


def evaluated_models_exist(profile: Sections) -> Iterator[str]:
    """Other models have names of their own, and gates and comparisons name models that are measured."""
    config = profile.evaluate
    if config is None:
        return
    links = _models(profile)
    original = [ORIGINAL] if profile.base and profile.pretrain else []
    for one in config.models:
        if one.name in (*LINKS, BASE, *original):
            yield f"evaluate.models has the name of a link, {one.name}: give it another"
        if one.link is not None and one.link not in links:
            yield f"evaluate.models.{one.name} is of {one.link}, but the links are {', '.join(links)}"
    models = [*links, *(snapshot_name(BASE, step) for step in config.snapshots), *original, *config.named]
    for unknown in unknown_models(config.gates, models)[:1]:
        yield f"evaluate.{unknown}, which this run doesn't measure: it has {', '.join(models)}"
    if config.side_by_side:
        try:
            talking = [*links, *(one.name for one in config.models if one.in_transformers)]
            names_of(config.side_by_side, talking, judge=JUDGE in profile.links)
        except ConfigError as error:
            yield f"{error.message} {error.remedy}".rstrip(".")


def memorised_text_exists(profile: Sections) -> Iterator[str]:
    """Memorisation is measured on the tokens of the pretraining."""
    only_base = profile.base and not profile.pretrain
    if only_base and profile.evaluate and profile.evaluate.safety and profile.evaluate.safety.memorisation:
        yield (
            "evaluate.safety.memorisation needs the tokens that the model was trained on, which a base doesn't have: "
            "set it to null"
        )


def benchmarks_exist(profile: Sections) -> Iterator[str]:
    """`download` prepares every benchmark. A missing one would end the run after the training, or fail a gate."""
    if profile.evaluate is None:
        return
    known = profile.download.benchmark_names
    requested = profile.evaluate.asked(known)
    for name in (task.task for task in requested if task.task not in known):
        yield f"evaluate.tasks names {name}, but the benchmarks of download are {_nearest(name, known)}"
    labels = [task.label for task in requested]
    for task in unknown_tasks(profile.evaluate.gates, labels, profile.evaluate.safety is not None):
        yield f"evaluate.gates names {task}, but the measured tasks are {_nearest(task, labels)}"


def gates_compare_the_same_text(profile: Sections) -> Iterator[str]:
    """A sample of the held-out text is windows of the model's own context and tokens."""
    config, trained = profile.evaluate, profile.pretrain
    if config is None or trained is None or config.language.validation_tokens is None:
        return
    compared = any(ORIGINAL in (gate.model, gate.no_worse_than) and gate.task == BITS for gate in config.gates)
    changed = {"tokenizer.extend": profile.tokenizer.extend, "pretrain.rope_scaling": trained.rope_scaling}
    for name in (one for one, value in changed.items() if compared and value is not None):
        yield (
            f"with {name}, evaluate.gates would compare with original on other parts of the documents: set "
            "evaluate.language.validation_tokens to null, for all held-out text"
        )


def gates_can_be_met(profile: Sections) -> Iterator[str]:
    """No gate asks more than all answers of a benchmark right. Tasks of the harness may have scores above 1."""
    if profile.evaluate is None:
        return
    harness = [source.name for source in profile.download.harness]
    ours = [name for name in profile.download.benchmark_names if name not in harness]
    for number, gate in enumerate(profile.evaluate.gates):
        if gate.metric is None and gate.task in ours and gate.at_least is not None and gate.at_least > 1:
            yield (
                f"evaluate.gates.{number}.at_least is {gate.at_least:g}, but {gate.task} is scored as a share of right "
                "answers, at most 1"
            )


def runtime_names_stages(profile: Sections) -> Iterator[str]:
    """Work pools and approvals are of stages that exist."""
    for key, names in (("pools.stages", profile.runtime.pools.stages), ("approve", profile.runtime.approve)):
        for name in names:
            if name not in ALL:
                yield f"runtime.{key} names {name}, but the stages are {_nearest(name, ALL)}"


def enough_is_left_to_prune(profile: Sections) -> Iterator[str]:
    """Pruning keeps no more than there is. An existing base is checked in its stage, which knows its sizes."""
    draft = profile.draft.prune if profile.draft and not profile.draft.base else None
    config = profile.prune or draft
    if config is not None and (shape := _shape(profile)):
        sizes = {"layers": shape.depth, "feed_forward": shape.feed_forward, "kv_heads": shape.kv_heads}
        if message := config.beyond({**sizes, "width": shape.width}):
            yield message if profile.prune else f"draft.{message}"


def teacher_comes_before(profile: Sections) -> Iterator[str]:
    """`distill` learns from a model that is made before it."""
    if profile.distill is not None:
        earlier = (BASE, *(name for name in profile.links[: profile.links.index("distill")] if name not in BESIDE))
        if profile.distill.teacher not in earlier:
            yield f"distill.teacher is {profile.distill.teacher}, but the models before it are {', '.join(earlier)}"


def merged_models_come_before(profile: Sections) -> Iterator[str]:
    """`merge` takes models that are made before it, the last of them included: else that would be trained in vain."""
    if profile.merge is not None:
        before = profile.links[: profile.links.index("merge")]
        earlier = [BASE, *(name for name in before if name not in BESIDE)]
        for name in (name for name in profile.merge.links if name not in earlier):
            yield f"merge.models names {name}, but the models before it are {', '.join(earlier)}"
        if "prune" in before:
            yield "merge combines changes to the base of the chain, of which prune leaves parts out: set `prune: null`"
        if earlier[-1] not in (BASE, *profile.merge.links):
            yield f"merge.models leaves out {earlier[-1]}, the link before it: name it, or set `{earlier[-1]}: null`"


def answers_have_room(profile: Sections) -> Iterator[str]:
    """Prompt and answer fit the context. An existing base is checked in its stage, which knows its context."""
    context = profile.pretrain.model.context if profile.pretrain and profile.pretrain.model else None
    for name in profile.links:
        config = getattr(profile, name)
        virtual = getattr(config, "virtual_tokens", 0)
        length = getattr(config, "max_length", None) or (context and context - virtual)
        answer = getattr(config, "answer_tokens", 0)
        if context and virtual >= context:
            yield f"{name}.adapter.tokens is {virtual:,}, which leaves none of pretrain.model.context, {context:,}"
        elif context and length is not None and not 0 < length <= context - virtual:
            of_it = f", of which the adapter takes {virtual:,}" if virtual else ""
            yield f"{name}.max_length is {length:,}, but pretrain.model.context is {context:,}{of_it}"
        elif length and answer >= length:
            said = config.generated_text if isinstance(config, PosttrainConfig) else f"{answer:,}"
            yield (
                f"{name}.max_new_tokens is {said}, which leaves none of {length:,} tokens for a "
                "prompt: lower it, or raise pretrain.model.context"
            )


def processes_share_heads(profile: Sections) -> Iterator[str]:
    """Processes that share the tokens of rows exchange them for heads. An existing base is checked in its stage."""
    ranks, shape = profile.runtime.posttrain.context_parallel, _shape(profile)
    trained = [name for name in profile.links if isinstance(getattr(profile, name), PosttrainConfig)]
    if ranks == 1 or not trained or shape is None:
        return
    kept = profile.prune and profile.prune.kv_heads
    for name, heads in (("heads", shape.heads), ("kv_heads", kept or shape.kv_heads)):
        if heads % ranks:
            yield (
                f"runtime.posttrain.context_parallel is {ranks}, but {trained[0]} trains a model with {name} = "
                f"{heads}, which so many processes can't share: choose a divisor"
            )


def adapters_have_layers(profile: Sections) -> Iterator[str]:
    """Adapters name layers of the model's family. An existing base is checked before the first link trains it."""
    if profile.pretrain is None or profile.pretrain.model is None:
        return
    family = profile.pretrain.model.family
    for name in profile.links:
        adapter = getattr(getattr(profile, name), "adapter", None)
        if not isinstance(adapter, LoraConfig):
            continue
        if family == "qwen3_moe" and adapter.targets is None:
            yield (
                f"{name}.adapter would leave out the experts of a qwen3_moe, which aren't linear layers: name layers "
                f"to train in {name}.adapter.targets ({', '.join(LAYERS[family])}), or leave adapter out"
            )
        pruned = profile.prune if "prune" in profile.links[: profile.links.index(name)] else None
        shape = _shape(profile)
        depth = (pruned and pruned.layers) or (shape.depth if shape else 1)
        unknown = adapter.unknown_targets(family, depth)
        if unknown:
            yield (
                f"{name}.adapter.targets has {', '.join(unknown)}, but the linear layers of a {family} are "
                f"{', '.join(LAYERS[family])}, each in layers.0 to layers.{depth - 1}"
            )
        if shape is None or unknown:
            continue
        if adapter.rank > (smallest := adapter.smallest_side(family, depth, sides_of(shape, pruned))):
            yield f"{name}.adapter.rank is {adapter.rank:,}, but the smallest side of a layer is {smallest:,}: lower it"
        ends = {*adapter.whole} & {"embedding", "head"}
        if shape.tie_embeddings and len(ends) == 1:
            yield (
                f"{name}.adapter.whole has {ends.pop()}, but the model's embedding and head are one matrix: name both, "
                "or neither"
            )


def sides_of(shape: ModelShape, pruned: PruneConfig | None) -> dict[str, int]:
    """The smaller sides of the layers of a model that is pretrained, and pruned."""
    kept = (pruned and pruned.kv_heads) or shape.kv_heads
    return smaller_sides(
        shape.family,
        width=(pruned and pruned.width) or shape.width,
        queries=shape.heads // shape.kv_heads * kept * shape.head_dim,
        keys=kept * shape.head_dim,
        feed_forward=(pruned and pruned.feed_forward) or shape.feed_forward,
    )


def virtual_tokens_stay_beside(profile: Sections) -> Iterator[str]:
    """Virtual tokens can't be merged: no link trains the model after them, and few formats hold them."""
    learns = {name: getattr(getattr(profile, name), "virtual_tokens", 0) for name in profile.links}
    for number, name in enumerate(profile.links):
        after = profile.links[number + 1 :]
        if not learns[name]:
            continue
        kind = f"{name}.adapter learns a {getattr(profile, name).adapter.kind}, which can't be merged into the model"
        if after:
            yield (
                f"{kind}, so {', '.join(after)} can't continue with it: make {name} the last link, or give it a LoRA "
                "adapter (kind: lora)"
            )
        if (shape := _shape(profile)) and shape.windowed:
            yield f"{kind}, and layers of a {shape.family} see only a window, which loses it: give it a LoRA adapter"
        for one in profile.evaluate.models if profile.evaluate else ():
            if one.link == name and one.format not in HOLD_VIRTUAL:
                yield f"{kind}, so evaluate.models.{one.name} can't be in {one.format}: leave it out"
        if profile.export and (profile.export.link or profile.links[-1]) in (name, BEST):
            formats = profile.export.formats
            if wrong := [one for one in formats if one not in HOLD_VIRTUAL]:
                yield (
                    f"{kind}, so export.formats can't have {', '.join(wrong)}: choose {' or '.join(HOLD_VIRTUAL)}, "
                    "release an earlier link (export.link), or give it a LoRA adapter"
                )
            elif {*HOLD_VIRTUAL} <= {*formats}:
                yield f"export.formats has {' and '.join(HOLD_VIRTUAL)}, which both hold the adapter: choose one"
            if profile.export.speculation or profile.draft:
                what = "export.speculation" if profile.export.speculation else "draft"
                yield f"{kind}, and {what} guesses tokens without it: leave it out"


def experts_are_carried(profile: Sections) -> Iterator[str]:
    """A mixture of experts is neither cut nor released in a form that has only linear layers or a graph."""
    if profile.pretrain is None or profile.pretrain.model is None or profile.pretrain.model.family != "qwen3_moe":
        return
    draft = profile.draft is not None and profile.draft.base is None and profile.draft.prune is not None
    for name, asked in {"prune": profile.prune is not None, "draft.prune": draft}.items():
        if asked:
            yield f"{name} can't cut a qwen3_moe: leave it out"
    formats = profile.export.formats if profile.export else []
    if wrong := [name for name in formats if not name.startswith(("safetensors", "gguf", "adapter"))]:
        yield (
            f"export.formats has {', '.join(wrong)}, which can't hold the experts of a qwen3_moe: choose safetensors "
            "and kinds of gguf"
        )


def judge_comes_first(profile: Sections) -> Iterator[str]:
    """A link that learns from a reward model comes after it."""
    for number, name in enumerate(profile.links):
        config = getattr(profile, name)
        if getattr(config, "judged", False) and JUDGE not in profile.links[:number]:
            yield (
                f"{name} learns from a reward model, but no {JUDGE} comes before it: add the section, and {JUDGE} "
                f"before {name} if the profile has a chain"
            )


def rewards_have_fields(profile: Sections) -> Iterator[str]:
    """Fields of rows that rewards need are kept by some source."""
    kept = {field for source in profile.download.sources for field in getattr(source, "fields", ())}
    for name in profile.links:
        for reward in getattr(getattr(profile, name), "rewards", ()):
            for field in (field for field in reward.needs if field not in kept):
                yield (
                    f"{name}.rewards: {reward.title} needs the field {field} of rows, which no source keeps: write "
                    f"`fields: [{field}]` for a source of instructions in download.sources, or correct the name"
                )


def feedback_comes_first(profile: Sections) -> Iterator[str]:
    """A link that learns from what an earlier link makes comes after it."""
    for name in profile.links:
        origin, makers = profile.learns_from(name), profile.makers_before(name)
        if origin not in ("downloaded", *makers) and not (origin == "both" and makers):
            able = FEEDBACK if profile.role_of_made(name) == "preferences" else "best_of_n"
            maker = able if origin == "both" else origin
            yield (
                f"{name}.learns_from is {origin}, but no {maker} comes before it: add the "
                f"section, and {maker} before {name} where there is a chain"
            )


def best_answers_can_be_chosen(profile: Sections) -> Iterator[str]:
    """Rewards can reach what `best_of_n` asks of them, so that the links after it have something to learn from."""
    if (config := profile.best_of_n) is None or not (config.rewards or config.n == 1):
        return
    lowest, highest = bounds_of(config.rewards)
    for name in profile.links:
        if profile.learns_from(name) not in (BEST_OF_N, "both") or BEST_OF_N not in profile.makers_before(name):
            continue
        pairs = profile.role_of_made(name) == "preferences"
        if pairs and config.n == 1:
            yield (
                f"best_of_n.n is 1, so it makes no pairs for {name} to learn from: raise it, or set "
                f"{name}.learns_from to downloaded"
            )
        elif pairs and config.gap > highest - lowest + ROUNDING:
            yield (
                f"best_of_n.gap is {config.gap:g}, but its rewards differ by {highest - lowest:g} at most: lower it, "
                f"or {name} has no pairs to learn from"
            )
        elif not pairs and config.rewards and (config.threshold or -math.inf) > highest + ROUNDING:
            yield (
                f"best_of_n.threshold is {config.threshold:g}, but its rewards sum to {highest:g} at most: lower it, "
                f"or {name} has nothing to learn from"
            )


def held_out_prompts_stay_out(profile: Sections) -> Iterator[str]:
    """Links that ask a model prompts of the instructions don't ask those that another holds out."""
    asking = [name for name in profile.links if name in MAKES]
    for name in (name for name in profile.links if name in METHODS and METHODS[name].pairs == "instructions"):
        share = getattr(profile, name).validation_share
        for maker in (one for one in asking if share > getattr(profile, one).validation_share):
            yield (
                f"{name} holds out a share of {share:g} of the instructions, of which {maker} would ask some: set "
                f"{maker}.validation_share to {share:g}"
            )


def released_link_exists(profile: Sections) -> Iterator[str]:
    """The released model is one of the chain."""
    requested = profile.export and profile.export.link
    models = _models(profile)
    if requested and requested not in (*models, BEST):
        known = f"the models of the chain are {', '.join(models)}; {BEST} chooses among them"
        yield f"export.link is {requested}, but {known}"


def draft_is_released(profile: Sections) -> Iterator[str]:
    """A draft model is released with a format that can use it."""
    if profile.draft is not None and (profile.export is None or not profile.export.guessed):
        yield (
            "no format of the release can use the draft: add safetensors or a GGUF to export.formats, or set "
            "`draft: null`"
        )


def released_adapters_have_a_base(profile: Sections) -> Iterator[str]:
    """An adapter is released only if its users can get its base."""
    if not profile.export or not (formats := profile.export.needs_base):
        return
    chain = _models(profile)
    last = profile.export.link or chain[-1]
    trained = chain[1 : chain.index(last) + 1] if last in chain else []
    adapters = {name: getattr(getattr(profile, name), "adapter", None) for name in trained}
    why = why_not_apart(adapters) if profile.base else "the model doesn't start from a public base: add one"
    if profile.base and profile.pretrain:
        why = "the base is trained on documents first, so its users don't have what they adapt: set `pretrain: null`"
    if last == BEST:
        why = "the best link may be the base itself: name a link in export.link"
    if why:
        yield f"export.formats has {' and '.join(formats)}, but {why}, or remove {formats[0]}"
    if "gguf-adapter" in formats:
        for name in (name for name, adapter in adapters.items() if isinstance(adapter, LoraConfig) and adapter.whole):
            yield (
                f"export.formats has gguf-adapter, which has no place for the parts of {name}.adapter.whole: leave "
                "whole out, or remove gguf-adapter"
            )


def sources_exist(profile: Sections) -> Iterator[str]:
    """Filters, mixtures and gates name sources that bring documents. They would fail only after the stages before."""
    known = profile.document_sources
    if len({*known}) < len(known):
        yield (
            f"download.sources and synthesise.prompts both have {max(known, key=known.count)}: rename one. Documents "
            "that a prompt makes have the source synthetic/NAME"
        )
    if profile.synthesise is not None:
        downloaded = profile.download.document_sources
        if missing := sorted({*(profile.synthesise.sources or ())} - {*downloaded}):
            yield (
                f"synthesise.sources names {', '.join(missing)}, but the downloaded sources of documents are "
                f"{', '.join(downloaded)}"
            )
    sections = {
        name: section.named_sources()
        for name in ("dedup", "filter", "pretrain", "evaluate")
        if profile.pretrain is not None and (section := getattr(profile, name)) is not None
    }
    wrong = [
        f"{section}.{path} names {', '.join(missing)}"
        for section, paths in sections.items()
        for path, named in paths.items()
        if (missing := sorted(set(named) - set(known)))
    ]
    if wrong:
        yield f"{'; '.join(wrong)}, but the sources of documents are {', '.join(known)}"


SHAPE: tuple[Check, ...] = (
    one_beginning,
    synthesis_has_documents,
    extension_has_a_base,
    one_tokenizer,
    new_tokens_are_trained,
    chain_is_whole,
)
CHECKS: tuple[Check, ...] = (
    snapshots_are_taken,
    evaluated_models_exist,
    memorised_text_exists,
    benchmarks_exist,
    gates_can_be_met,
    gates_compare_the_same_text,
    runtime_names_stages,
    enough_is_left_to_prune,
    teacher_comes_before,
    merged_models_come_before,
    answers_have_room,
    processes_share_heads,
    adapters_have_layers,
    virtual_tokens_stay_beside,
    experts_are_carried,
    judge_comes_first,
    rewards_have_fields,
    feedback_comes_first,
    best_answers_can_be_chosen,
    held_out_prompts_stay_out,
    released_link_exists,
    draft_is_released,
    released_adapters_have_a_base,
    sources_exist,
)


def _models(profile: Sections) -> list[str]:
    """The models of the chain, the base first."""
    return [BASE, *(name for name in profile.links if name not in BESIDE)]


def _shape(profile: Sections) -> ModelShape | None:
    """The shape of the model to pretrain. None if there is none, or if it is refused where the shape is needed."""
    if profile.pretrain is None or profile.pretrain.model is None:
        return None
    try:
        return derive(profile.pretrain.model, profile.tokenizer.vocab_size)
    except ShapeError:
        return None


def _nearest(name: str, known: Sequence[str]) -> str:
    """The known names, with the likely intended ones."""
    if not known:
        return "none"
    near = difflib.get_close_matches(name, known)
    return f"{', '.join(known)} (did you mean {' or '.join(near)}?)" if near else ", ".join(known)
