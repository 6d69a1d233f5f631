"""LICENSE and NOTICE of a release, and warnings about some licences of its data.

Only the owner can license the weights: if the profile names no licence, none is granted and the card says so. Licences
of sources are passed on as stated, and nothing is concluded from them. Two kinds come first as warnings, because they
bind whoever passes the weights on, if they bind weights at all.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import Annotated

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression
from pydantic import AfterValidator, Field

from storage.errors import ConfigError
from tasks.export.card.provenance import Provenance

OWN = "Apache-2.0"  # Gristmill's own, whose text ships with its code
WARNING = "Warning: "  # begins a paragraph of NOTICE that a publisher should read first
BASE = "base"
NOT_STATED, OTHERS = "not stated", "others"  # the latter are the rarest together
_KINDS = {
    "share-alike": r"\bCC-BY(-NC)?-SA|\b[AL]?GPL|\bODbL|\bGFDL|\bEUPL|\bMPL|\bOSL|\bCDLA-Sharing|share-?alike",
    "non-commercial": r"\bCC-BY-NC|\bnon-?commercial|\bresearch-only",
}
_NOT_IN_LICENCES = re.compile(r"[^\w.+:/ -]")
_ASKS = {
    "share-alike": "requires that works made from it be passed on under the same terms",
    "non-commercial": "does not allow commercial use",
}
_NONE = (
    "The owner of these weights has not named a licence. Without one, nobody else may copy, change or use them, except "
    "as the law allows everyone: ask the owner."
)


def _spdx(text: str) -> str:
    try:
        return canonicalize_license_expression(text)
    except InvalidLicenseExpression as error:
        raise ValueError(
            f"{text!r} isn't an SPDX licence expression: write one of spdx.org/licenses, such as Apache-2.0, or "
            "LicenseRef-NAME for your own terms"
        ) from error


Licence = Annotated[str, Field(pattern=r"^[^\x00-\x1f\x7f]+$", max_length=200)]
SpdxLicence = Annotated[str, AfterValidator(_spdx)]


def stated(provenance: Provenance | None) -> dict[str, str]:
    """The licence of each source and of the base model, by name. `not stated` if nobody stated one."""
    if provenance is None:
        return {}
    sources = {source.name: source.licence or NOT_STATED for source in provenance.sources}
    base = {f"{provenance.base} (the base model)": provenance.base_licence or NOT_STATED} if provenance.base else {}
    return base | sources


def by_licence(provenance: Provenance | None) -> dict[str, int]:
    """Documents by the licence that they state themselves, summed over sources, the most frequent first."""
    counts = Counter[str]()
    for one in provenance.document_licences if provenance else ():
        counts[one.licence] += one.documents
    return dict(sorted(counts.items(), key=lambda item: (item[0] in (NOT_STATED, OTHERS), -item[1], item[0])))


def bound(provenance: Provenance | None) -> list[tuple[str, str]]:
    """(what is licensed, its licence) for `warnings`: sources, and documents by what they state, which is foreign
    text."""
    documents = ((f"{number:,} documents", licence) for licence, number in by_licence(provenance).items())
    return [*stated(provenance).items(), *((what, _NOT_IN_LICENCES.sub("?", licence)) for what, licence in documents)]


def warnings(licences: Iterable[tuple[str, str]]) -> list[str]:
    """A sentence for each kind of licence that binds whoever passes the weights on, with what is under it."""
    licences = list(licences)
    sentences = []
    for kind, pattern in _KINDS.items():
        named = [
            f"{name} ({licence})"
            for name, licence in licences
            if re.search(pattern, re.sub(r"\s+", "-", licence), re.IGNORECASE)
        ]
        if named:
            sentences.append(
                f"some of the data is under a {kind} licence, which {_ASKS[kind]}: {', '.join(named)}. Whether that "
                "binds weights trained on it is not settled: check before you publish them."
            )
    return sentences


def licence_text(weights: str) -> str:
    """LICENSE: the full text of Gristmill's own licence, or the address of any other. No other text is taken from what
    happens to be installed, as a release depends only on its inputs."""
    if weights == OWN:
        return own_text()
    where = [
        f"https://spdx.org/licenses/{name}.html"
        for name in re.findall(r"[\w.+-]+", weights)
        if name not in ("AND", "OR", "WITH") and not name.startswith("LicenseRef-")
    ]
    text = f"SPDX-License-Identifier: {weights}\n\nThese weights are licensed under {weights}"
    return text + (f", whose text is at:\n\n{chr(10).join(where)}\n" if where else ". Ask the owner for its text.\n")


def own_text() -> str:
    """The text of Gristmill's licence, from its installation or the checkout. Raises ConfigError if it is in
    neither."""
    checkout = Path(__file__).parents[3] / "LICENSE"
    try:
        installed = [Path(str(file.locate())) for file in files("gristmill") or () if file.name == "LICENSE"]
    except PackageNotFoundError:
        installed = []
    for path in (*installed, checkout):
        if path.is_file() and "Apache License" in (text := path.read_text(encoding="utf-8"))[:200]:
            return text
    raise ConfigError(
        "Gristmill's installation lacks the text of Apache-2.0.", "Install Gristmill again, from a wheel."
    )


def notice(provenance: Provenance | None, weights: str | None, statement: str) -> str:
    """NOTICE: warnings, the owner's statement, and every source with its licence."""
    licences = stated(provenance)
    parts = [f"{WARNING}{one}" for one in warnings(bound(provenance))]
    parts.append(f"The weights are licensed under {weights}: see LICENSE." if weights else _NONE)
    parts += [f"The owner says of the data: {statement}"] if statement else []
    if licences:
        lines = [f"- {name}: {licence}{_origin(provenance, name)}" for name, licence in licences.items()]
        parts.append(
            "The weights were made from these sources, under the licences stated for them:\n\n" + "\n".join(lines)
        )
    else:
        parts.append("The sources of the weights were not recorded.")
    return "\n\n".join(parts) + "\n"


def licence_sections(provenance: Provenance | None, weights: str | None, statement: str) -> list[str]:
    """The same licences for the model card."""
    licences = stated(provenance)
    lines = [f"- {name}: {licence}" for name, licence in licences.items()]
    parts = [f"Weights: {weights}, see [LICENSE](LICENSE)." if weights else _NONE]
    parts += ["\n".join(f"> {line}" for line in statement.splitlines())] if statement else []
    return [*parts, *(["Sources, with the licences stated for them:", "\n".join(lines)] if lines else [])]


def _origin(provenance: Provenance | None, name: str) -> str:
    for source in provenance.sources if provenance else ():
        if source.name == name and source.dataset:
            return f", https://huggingface.co/datasets/{source.dataset} at {source.revision}"
    return ""
