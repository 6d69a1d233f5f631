"""The page of a run: its report as sections, from the documents to the lineage."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from flows.report.data import Step
from flows.report.drawing import charts
from flows.report.drawing.graph import Vertex, draw
from flows.report.drawing.page import (
    Bar,
    Block,
    Cell,
    Figure,
    Figures,
    Fold,
    Link,
    Markup,
    Page,
    Passage,
    Section,
    Table,
    Text,
)
from flows.report.model_sections import evaluation, formats, training
from flows.report.report import Card, Report
from storage.units import duration, size_of

LEFT = 200  # characters of a config's value
SHOWN = 24  # reasons in a chart
KEY = 8  # digits of a key
AFTER = {"download": "as downloaded", "dedup": "after dedup", "filter": "kept"}


def page_of(report: Report) -> Page:
    """The page of a report."""
    head = report.headline
    return Page(
        title=head.name,
        kicker=f"Gristmill {head.kind}",
        lede=_lede(report),
        figures=list(_figures(report)),
        sections=[section for section in _sections(report) if section.blocks],
        data=report.model_dump(mode="json"),
    )


def _sections(report: Report) -> Iterator[Section]:
    yield Section("Data", [*_funnel(report), *_sources(report), *_texts(report)])
    yield Section("Tokens", list(_tokens(report)))
    yield Section("Training", [block for one in report.trainings for block in training(one)])
    yield Section("Evaluation", list(evaluation(report.results)) if report.results else [])
    yield Section("Release", list(formats(report.results)) if report.results else [])
    yield Section("Costs", list(_costs(report)))
    yield Section("Lineage", list(_lineage(report)))


def short(number: float) -> str:
    """A count in three digits: `1.57 M`."""
    for size, unit in ((1e12, "T"), (1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= size:
            return f"{number / size:.3g} {unit}"
    return f"{number:,.0f}"


def _lede(report: Report) -> str:
    head = report.headline
    parts = []
    if head.parameters:
        parts.append(f"A model of {short(head.parameters)} parameters")
    if head.tokens:
        parts.append(f"trained on {short(head.tokens)} tokens")
    elif report.tokens and report.tokens.train:
        parts.append(f"{short(report.tokens.train)} tokens to train on")
    if head.sources:
        named = ", ".join(head.sources[:5]) + (f" and {len(head.sources) - 5} more" if len(head.sources) > 5 else "")
        parts.append(f"from {named}")
    links = [one.stage for one in report.trainings if one.stage != "pretrain"]
    text = " ".join(parts)
    text += f", then {', '.join(links)}" if links and text else ""
    text = f"{text[:1].upper()}{text[1:]}." if text else f"{head.kind.capitalize()}."
    return text


def _figures(report: Report) -> Iterator[Figure]:
    head = report.headline
    if head.bits_per_byte is not None:
        yield Figure("Bits per byte", f"{head.bits_per_byte:.3f}", f"held-out text, {head.model or 'base'}")
    if head.documents_in and head.documents_kept is not None:
        yield Figure("Documents kept", f"{head.documents_kept / head.documents_in:.0%}", f"of {head.documents_in:,}")
    if head.tokens:
        per = f"{head.tokens / head.parameters:.1f} a parameter" if head.parameters else ""
        yield Figure("Tokens seen", short(head.tokens), per)
    yield Figure("Size", size_of(head.bytes), head.kind)
    yield Figure("Making took", duration(head.seconds), "all stages")
    gristmill = head.versions.get("gristmill", "")
    yield Figure("Made", head.created[:10], f"Gristmill {gristmill}" if gristmill else "")


def _funnel(report: Report) -> Iterator[Block]:
    if report.gone:
        yield Text(f"Not in the store any more, so left out: {', '.join(report.gone)}.", note=True)
    data = report.data
    if data is None:
        return
    first = data.steps[0].came_in if data.steps else 0
    if data.steps:
        yield Table(_steps(data.steps, first), "Documents through the stages")
    reasons = [
        (f"{step.stage}: {reason}", count)
        for step in data.steps
        for reason, count in [*step.removed.items(), ("quarantined", step.quarantined)]
        if count
    ]
    if reasons:
        reasons.sort(key=lambda one: -one[1])
        more = f" The {SHOWN} most frequent reasons of {len(reasons)}." if len(reasons) > SHOWN else ""
        yield charts.dots(
            "Why documents were removed",
            [{"reason": name, "documents": count} for name, count in reasons[:SHOWN]],
            "reason",
            "documents",
            said=f"{sum(count for _, count in reasons):,} documents, each by the first rule that it failed.{more}",
        )
    if data.examples:
        yield Fold("Examples of removed documents", list(_examples(report)))
    if data.pairs:
        yield Table(_steps(data.pairs, max(step.came_in for step in data.pairs)), "Pairs for post-training")


def _steps(steps: Sequence[Step], most: int) -> list[dict[str, Cell]]:
    """A row a step. Quarantined documents only where there are some."""
    quarantined = any(step.quarantined for step in steps)
    return [
        {
            "stage": step.stage,
            "in": step.came_in,
            "removed": sum(step.removed.values()),
            **({"quarantined": step.quarantined} if quarantined else {}),
            "kept": Bar(f"{step.kept:,}", step.kept / max(1, most)),
        }
        for step in steps
    ]


def _examples(report: Report) -> Iterator[Block]:
    assert report.data is not None
    yield Text(
        "The beginnings of the first ones of each reason. Personal data of a fixed form, such as addresses, is masked.",
        note=True,
    )
    for one in report.data.examples:
        value = "" if one.value is None else f" {one.value:.4g}"
        title = f" · {one.title}" if one.title else ""
        yield Passage(f"{one.stage}: {one.reason}{value} · {one.source}{title} · {one.id[:12]}", one.begins)


def _sources(report: Report) -> Iterator[Block]:
    data = report.data
    if data is None or not data.sources:
        return
    tokens: dict[str, int] = {}
    for one in report.tokens.by_source if report.tokens else []:
        tokens[one.source] = tokens.get(one.source, 0) + one.tokens
    whole = sum(tokens.values())
    rows: list[dict[str, Cell]] = []
    parts: list[dict[str, Cell]] = []
    for source in data.sources:
        row: dict[str, Cell] = {"source": source.name}
        row |= {AFTER.get(stage, stage): count for stage, count in source.documents.items()}
        if whole:
            share = tokens.get(source.name, 0) / whole
            row["of all tokens"] = Bar(f"{share:.1%}", share)
        if source.licence:
            row["licence"] = source.licence
        rows.append(row)
        counts = [*source.documents.items()]
        parts.append({"source": source.name, "documents": counts[-1][1], "fate": "kept"})
        for (_, before), (stage, after) in reversed([*itertools.pairwise(counts)]):
            parts.append({"source": source.name, "documents": before - after, "fate": f"removed by {stage}"})
    parts.sort(key=lambda row: ["kept", "removed by filter", "removed by dedup"].index(str(row["fate"])))
    yield charts.shares("Documents by source", parts, "source", "documents", "fate")
    yield Table(rows, "Sources")
    if data.licences:
        stated: list[dict[str, Cell]] = [{"licence": name, "documents": n} for name, n in data.licences.items()]
        yield Table(stated, "Licences that documents state")


def _texts(report: Report) -> Iterator[Block]:
    data = report.data
    if data is None:
        return
    if data.languages:
        kept = data.languages_kept
        said = (
            f"As the filter identified them. It keeps {', '.join(kept)}." if kept else "As the filter identified them."
        )
        rows: list[dict[str, Cell]] = [
            {"language": name, "documents": count, "kept": not kept or name in kept}
            for name, count in [*data.languages.items()][:12]
        ]
        said += _sampled(sum(data.languages.values()), {step.stage: step.came_in for step in data.steps}.get("filter"))
        yield charts.bars("Languages", rows, "language", "documents", said=said, marked="kept")
    if data.lengths:
        lengths: list[dict[str, Cell]] = [
            {"characters": _range(one.low, one.high), "documents": one.documents} for one in data.lengths
        ]
        said = _sampled(sum(one.documents for one in data.lengths), data.steps[-1].kept if data.steps else None)
        yield charts.histogram("Lengths of the documents kept", lengths, "characters", "documents", said=said.strip())
    if data.clusters:
        clusters: list[dict[str, Cell]] = [
            {"copies removed": _range(one.low, one.high), "documents": one.documents} for one in data.clusters
        ]
        yield Table(clusters, "Documents that stand for copies, by the number of copies")


def _sampled(number: int, whole: int | None) -> str:
    return f" Of the first {number:,} of {whole:,} documents." if whole and number < whole else ""


def _range(low: int, high: int | None) -> str:
    if high is None:
        return f"{low:,}+"
    return f"{low:,}" if high == low + 1 else f"{low:,} to {high - 1:,}"


def _tokens(report: Report) -> Iterator[Block]:
    tokens = report.tokens
    if tokens is None:
        return
    figures = []
    if tokens.ids:
        figures.append(Figure("Vocabulary", f"{tokens.ids:,}", "ids"))
    if tokens.bytes_per_token:
        figures.append(Figure("Bytes a token", f"{tokens.bytes_per_token:.2f}"))
    if tokens.train:
        figures.append(Figure("To train on", short(tokens.train), f"{tokens.train:,} tokens"))
    if tokens.held_out and tokens.train:
        share = tokens.held_out / (tokens.held_out + tokens.train)
        figures.append(Figure("Held out", f"{share:.2%}", f"{tokens.held_out:,} tokens"))
    if figures:
        yield Figures(figures)
    train: list[dict[str, Cell]] = [
        {"source": one.source, "tokens": one.tokens} for one in tokens.by_source if one.split == "train" and one.tokens
    ]
    if train:
        yield charts.bars("Tokens to train on, by source", train, "source", "tokens")
    rows: list[dict[str, Cell]] = [
        {
            "source": one.source,
            "split": one.split,
            "documents": one.documents,
            "tokens": one.tokens,
            "bytes a token": one.bytes_per_token,
        }
        for one in tokens.by_source
        if one.tokens
    ]
    if rows:
        yield Fold("Tokens by source and split", [Table(rows)])


def _costs(report: Report) -> Iterator[Block]:
    costs = report.costs
    timed = [one for one in costs.stages if one.seconds is not None]
    if not timed:
        return
    rows: list[dict[str, Cell]] = [{"stage": one.stage, "seconds": round(one.seconds or 0, 1)} for one in timed]
    yield charts.bars("Time by stage", rows, "stage", "seconds", said="Seconds, whichever run made it.", shown=",.1f")
    most = max((one.peak_memory_bytes or 0 for one in timed), default=0)
    table: list[dict[str, Cell]] = []
    for one in timed:
        energy = sum(one.joules.values())
        row: dict[str, Cell] = {
            "stage": one.stage,
            "time": duration(one.seconds or 0) + (f" in {one.attempts} attempts" if one.attempts else ""),
            "CPU": "" if one.cpu_seconds is None else duration(one.cpu_seconds),
            "peak memory": Bar(size_of(one.peak_memory_bytes), one.peak_memory_bytes / most)
            if one.peak_memory_bytes
            else "",
            "energy": f"{energy / 3.6e6:.4g} kWh" if one.joules else "not measured",
        }
        if costs.usd is not None:
            row["USD"] = "" if one.usd is None else f"{one.usd:,.4f}"
        if any(each.endpoint_tokens for each in costs.stages):
            row["endpoint tokens"] = one.endpoint_tokens
            row["endpoint cost"] = "" if one.endpoint_cost is None else f"{one.endpoint_cost:,.4g}"
        table.append(row)
    yield Table(table)
    whole = f"In all {duration(costs.seconds)}, {duration(costs.cpu_seconds)} of CPU"
    whole += f", {sum(costs.joules.values()) / 3.6e6:.4g} kWh where it was measured" if costs.joules else ""
    whole += f", {costs.usd:,.4f} USD" if costs.usd is not None else ""
    yield Text(f"{whole}. Cost: {costs.assumption}. A stage's parts are within its time.", note=True)


def _lineage(report: Report) -> Iterator[Block]:
    yield Text("Each stage with what it read. Choose one to see its artifact.", note=True)
    yield Markup(draw(_vertices(report.lineage), "Lineage of the artifact, sources first"), "Lineage")
    names: dict[str, str] = {card.location: anchor(card.location) for card in report.lineage}
    for card in report.lineage:
        if not card.part:
            yield _card(card, names)
    if parts := [_card(card, names) for card in report.lineage if card.part]:
        yield Fold("Parts that stages obtained while they worked", parts)
    versions: list[dict[str, Cell]] = [{"": name, "version": one} for name, one in report.headline.versions.items()]
    if versions:
        yield Fold("Versions", [Table(versions)])


def anchor(location: str) -> str:
    """The anchor of an artifact's card."""
    return f"card-{location.replace('/', '-').replace('.', '-')}"


def _vertices(cards: list[Card]) -> dict[str, Vertex]:
    """A node for each whole stage."""
    whole = {card.location: card for card in cards if not card.part}
    vertices = {}
    for card in whole.values():
        parts = len({*card.uses.values()})
        remark = card.state if card.state != "stored" else f"{parts} parts" if parts > 1 else "1 part" * parts
        inputs = dict.fromkeys(one for one in (*card.inputs.values(), *card.uses.values()) if one in whole)
        vertices[card.location] = Vertex(card.stage, remark, anchor(card.location), card.state, list(inputs))
    return vertices


def _card(card: Card, names: dict[str, str]) -> Fold:
    stage, _, key = card.location.partition("/")
    title = f"{stage} {key[:KEY]}"
    if card.state in ("gone", "damaged"):
        return Fold(f"{title}: {card.state}", [Text("The store has no manifest of it.")], anchor(card.location))
    title += f" · {card.summary}" if card.summary else ""
    facts: list[dict[str, Cell]] = [
        {"": "location", " ": card.location},
        {"": "digest", " ": card.digest},
        {"": "version of the stage", " ": str(card.version)},
        {"": "made", " ": f"{card.created[:19].replace('T', ' ')} UTC"},
        {"": "took", " ": "" if card.seconds is None else duration(card.seconds)},
        {"": "size", " ": "" if card.bytes is None else size_of(card.bytes)},
    ]
    facts += [{"": "origin", " ": card.how}] if card.how else []
    blocks: list[Block] = [Table(facts)]
    reads: list[dict[str, Cell]] = [
        {"input": name, "artifact": Link(f"{where.partition('/')[0]} {where.partition('/')[2][:KEY]}", names[where])}
        for name, where in {**card.inputs, **card.uses}.items()
        if where in names
    ]
    if reads:
        blocks.append(Table(reads, "Made of"))
    if card.settings:
        blocks.append(
            Table(
                [{"setting": n, "value": v[:LEFT]} for n, v in card.settings.items()],
                "Settings other than the defaults",
            )
        )
    if card.counts:
        blocks.append(Table([{"count": n, "value": v} for n, v in card.counts.items()], "Counts"))
    files: list[dict[str, Cell]] = [
        {"files": name, "number": number, "size": size_of(size)} for name, (number, size) in card.files.items()
    ]
    if files:
        blocks.append(Table(files, "Files"))
    for title_of_table, rows in card.tables.items():
        if rows:
            shown: list[dict[str, Cell]] = [{str(n): _plain(v) for n, v in row.items()} for row in rows]
            blocks.append(Fold(title_of_table, [Table(shown)]))
    return Fold(title, blocks, anchor(card.location))


def _plain(value: object) -> Cell:
    return value if value is None or isinstance(value, str | int | float) else str(value)
