"""`python -m benchmarks.filter.pii_phones`: telephone numbers of all countries, found and falsely found.

Numbers are the examples that `phonenumbers` has of each region's plan (fixed and mobile), the last digits replaced, in
the ways they are written (international, with 00, national; dots, hyphens, no separators), in sentences of twenty
languages that either say what the number is or do not. Regions and sentences are halved: in sight while the rules were
made, and held out. The search asks the same plans, so it knows the numbers by nature; sentences and forms test it.
Without a word and without a country's code a national number is found only where its groups give it away, so these
sentences are told apart. `--text FOLDER…` counts findings in real text.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import random
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import phonenumbers
import pyarrow as pa

from tasks.filter.pii.config import PiiConfig
from tasks.filter.pii.measure import measure_pii

MIN_SCORE = 0.4
PRESIDIO = ("US", "GB", "DE", "FE", "IL", "IN", "CA", "BR")  # the regions that its recogniser knows
SAYING = (
    "Tel.: {}", "Phone: {}", "You can call me at {} after six.", "Fax {}", "My mobile number is {}, thanks.",
    "Appelez le {} pour réserver.", "Téléphone : {}", "Mon numéro est le {}.", "Telefon: {}", "Meine Handynummer: {}",
    "Sie erreichen uns unter {}.", "Teléfono: {}", "Llámame al {} mañana.", "Telefono {}", "Chiamaci al {}.",
    "Telefone: {}", "Ligue para {} agora.", "Тел. {}", "Позвоните по номеру {}.", "Telefon numaram {}.",
    "Telefoon: {}", "Bel {} voor een afspraak.", "電話：{}", "联系电话：{}", "전화 {}", "هاتف: {}", "फ़ोन: {}",
    "Tlf. {}", "Puh. {}", "Zadzwoń: {}", "WhatsApp {}", "Contact: Jane Doe, {}",
)  # fmt: skip
SILENT = (
    "Jane Doe, 12 High Street, {}",
    "{}",
    "Meet Ali there ({}).",
    "Dupont Marie\n{}\nParis",
    "Anna | {} | Berlin",
    "Write to us or use {} instead.",
    "It is {}, ask for Maria.",
    "Ivan Petrov – {}",
)


class Case(NamedTuple):
    """A sentence with a number in it."""

    region: str
    form: str
    says: bool
    text: str
    start: int
    end: int


def half(name: str) -> int:
    """0 for what may be looked at, 1 for what is reported."""
    return hashlib.sha1(name.encode()).digest()[0] % 2


def numbers(region: str, draw: random.Random) -> Iterator[tuple[str, str]]:
    """(form, number as written) of a region's numbers."""
    types = (phonenumbers.PhoneNumberType.FIXED_LINE, phonenumbers.PhoneNumberType.MOBILE)
    for kind in types:
        number = phonenumbers.example_number_for_type(region, kind)
        if number is None:
            continue
        for _ in range(20):  # the last four digits drawn, where the plan has such a number
            other = phonenumbers.PhoneNumber()
            other.merge_from(number)
            other.national_number = (number.national_number or 0) // 10_000 * 10_000 + draw.randrange(10_000)
            if phonenumbers.is_valid_number_for_region(other, region):
                number = other
                break
        international = phonenumbers.format_number(number, phonenumbers.PhoneNumberFormat.INTERNATIONAL)
        national = phonenumbers.format_number(number, phonenumbers.PhoneNumberFormat.NATIONAL)
        yield "international", international
        yield "E.164", phonenumbers.format_number(number, phonenumbers.PhoneNumberFormat.E164)
        yield "00", international.replace("+", "00", 1)
        yield "international, hyphens", international.replace(" ", "-")
        yield "national", national
        yield "national, dots", national.replace(" ", ".").replace("-", ".")
        yield "national, digits", "".join(filter(str.isdigit, national))


def cases(part: int) -> list[Case]:
    """The sentences of a half: its regions in its templates."""
    made = []
    for region in sorted(phonenumbers.SUPPORTED_REGIONS):
        if half(f"region {region}") != part:
            continue
        draw = random.Random(f"{region} {part}")
        for form, number in numbers(region, draw):
            for says, templates in ((True, SAYING), (False, SILENT)):
                mine = [template for template in templates if half(template) == part]
                template = draw.choice(mine)
                start = template.index("{}")
                made.append(Case(region, form, says, template.format(number), start, start + len(number)))
    return made


def found(texts: list[str]) -> list[list[tuple[int, int]]]:
    """The telephone numbers that we find."""
    config = PiiConfig(entities=["PHONE_NUMBER"])
    rows = measure_pii(config, pa.array(texts, pa.string()))["pii"].to_pylist()
    return [[(one["start"], one["end"]) for one in row if one["score"] >= MIN_SCORE] for row in rows]


def presidio(texts: list[str]) -> list[list[tuple[int, int]]]:
    """Those of Presidio's recogniser as it comes."""
    from presidio_analyzer.predefined_recognizers import PhoneRecognizer

    recogniser = PhoneRecognizer()
    return [
        [(one.start, one.end) for one in recogniser.analyze(text, ["PHONE_NUMBER"]) if one.score >= MIN_SCORE]
        for text in texts
    ]


def recall(rows: list[Case], places: list[list[tuple[int, int]]], exact: bool) -> dict[tuple[str, bool], list[int]]:
    """[found, all] by form and whether the sentence says what the number is."""
    counts: dict[tuple[str, bool], list[int]] = {}
    for case, spans in zip(rows, places, strict=True):
        hit = any(
            (start, end) == (case.start, case.end) if exact else start < case.end and case.start < end
            for start, end in spans
        )
        for key in ((case.form, case.says), ("all", case.says)):
            counts.setdefault(key, [0, 0])
            counts[key][0] += hit
            counts[key][1] += 1
    return counts


def table(part: int, misses: bool) -> None:
    """Recall of a half by form, ours beside Presidio's."""
    rows = cases(part)
    texts = [case.text for case in rows]
    tools = {"ours": found(texts), "presidio": presidio(texts)}
    named = "held out" if part else "in sight while the rules were made"
    regions = len({case.region for case in rows})
    print(f"\n### {regions} regions and their sentences, {named}: {len(rows)} numbers\n")
    print("| written | a word says so | numbers | ours, exact | ours, overlap | presidio, exact | presidio, overlap |")
    print("|---|---|---|---|---|---|---|")
    counted = [recall(rows, places, exact) for places in tools.values() for exact in (True, False)]
    for (form, says), (_, total) in sorted(counted[0].items(), key=lambda item: (not item[0][1], item[0][0])):
        shares = " | ".join(f"{count[form, says][0] / total:.3f}" for count in counted)
        print(f"| {form} | {'yes' if says else 'no'} | {total} | {shares} |")
    if misses:
        for case, spans in zip(rows, tools["ours"], strict=True):
            if (case.start, case.end) not in spans and (case.says or case.form.startswith("int")):
                print(case.region, case.form, repr(case.text), [case.text[a:b] for a, b in spans])


def texts_of(folder: Path) -> Iterator[str]:
    """The texts in a folder."""
    for path in sorted(folder.rglob("*")):
        if path.suffix in (".txt", ".rst", ".md", ".py"):
            yield path.read_text("utf-8", errors="replace")
        elif path.name.endswith((".jsonl", ".jsonl.gz")):
            opened = gzip.open if path.suffix == ".gz" else open
            with opened(path, "rt", encoding="utf-8") as lines:
                yield from (json.loads(line).get("text") or "" for line in lines)


def false_alarms(folders: list[Path], show: int) -> None:
    """Findings per MB in texts where none, or few, are to be found."""
    print("\n| text | MB | telephone numbers found | per MB |\n|---|---|---|---|")
    for folder in folders:
        texts = list(texts_of(folder))
        size = sum(len(text.encode("utf-8", "replace")) for text in texts) / 1e6
        places = found([text.encode("utf-8", "replace").decode() for text in texts])
        count = sum(map(len, places))
        print(f"| {folder.name} | {size:.1f} | {count} | {count / size:.2f} |")
        values = Counter(
            text[max(start - 40, 0) : end + 10]
            for text, spans in zip(texts, places, strict=True)
            for start, end in spans
        )
        for value, times in values.most_common(show):
            print(f"    {times} × {value!r}")


def main() -> None:
    """Read the options, print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--half", type=int, choices=(0, 1), default=1, help="0: the half that was looked at (default 1)"
    )
    parser.add_argument("--misses", action="store_true", help="print the numbers that are not found")
    parser.add_argument("--text", type=Path, nargs="*", default=[], help="folders of real text")
    parser.add_argument("--show", type=int, default=0, help="so many of the findings in real text")
    options = parser.parse_args()
    print(f"phonenumbers {phonenumbers.__version__}")
    table(options.half, options.misses)
    if options.text:
        false_alarms(options.text, options.show)


if __name__ == "__main__":
    main()
