"""A second opinion on languages, by lingua or by another fastText model.

lingua knows n-grams of up to five characters, and words that only one language has. It errs on other texts than lid.176
does, so where both agree they are right more often than either by itself.
"""

from __future__ import annotations

import functools
import importlib
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tasks.filter.language.config import FastTextOpinion
from tasks.filter.language.identify import likeliest, read_identifier
from tasks.text.scan import utf8

# ISO 639-3 codes in lid.176's spelling: the two letters of ISO 639-1 if they exist, and the language for a variety
_PAIRS = """
afr:af amh:am arg:an ara:ar arb:ar asm:as ava:av aze:az azj:az bak:ba bel:be bul:bg bho:bh ben:bn bod:bo bre:br bos:bs
cat:ca che:ce cos:co ces:cs chv:cv cym:cy dan:da deu:de div:dv ell:el eng:en epo:eo spa:es est:et ekk:et eus:eu fas:fa
pes:fa prs:fa fin:fi fra:fr fry:fy gle:ga gla:gd glg:gl grn:gn gug:gn guj:gu glv:gv heb:he hin:hi hrv:hr hat:ht hun:hu
hye:hy ina:ia ind:id ile:ie ido:io isl:is ita:it jpn:ja jav:jv kat:ka kaz:kk khm:km kan:kn kor:ko kur:ku kmr:ku kom:kv
kpv:kv cor:kw kir:ky lat:la ltz:lb lim:li lao:lo lit:lt lav:lv lvs:lv mlg:mg plt:mg mkd:mk mal:ml mon:mn khk:mn mar:mr
msa:ms zsm:ms mlt:mt mya:my nep:ne npi:ne nld:nl nno:nn nor:no nob:no oci:oc ori:or ory:or oss:os pan:pa pol:pl pus:ps
pbt:ps pbu:ps por:pt que:qu quy:qu quz:qu roh:rm ron:ro rus:ru san:sa srd:sc snd:sd hbs:sh sin:si slk:sk slv:sl som:so
sqi:sq als:sq aln:sq gsw:als srp:sr sun:su swe:sv swa:sw swh:sw tam:ta tel:te tgk:tg tha:th tuk:tk tgl:tl fil:tl tur:tr
tat:tt uig:ug ukr:uk urd:ur uzb:uz uzn:uz vie:vi vol:vo wln:wa yid:yi ydd:yi yor:yo zho:zh cmn:zh
"""
ISO_CODES: dict[str, str] = dict(pair.split(":") for pair in _PAIRS.split())

LINGUA_CODES = {"nb": "no"}  # Bokmål, which lid.176 calls Norwegian


def code_of(label: str) -> str:
    """The code of a label such as `eng_Latn`, without the script. An unlisted code stays as it is."""
    language = label.partition("_")[0]
    return ISO_CODES.get(language, language)


def add_lingua(first: pa.RecordBatch, texts: pa.Array, characters: int) -> pa.RecordBatch:
    """Add `language_second` and `language_second_score` to the signals, from the first `characters` of each text."""
    detector, known = _detector()
    languages: list[str | None] = []
    scores: list[float | None] = []
    for text, language in zip(texts.to_pylist(), first["language"].to_pylist(), strict=True):
        top = detector.compute_language_confidence_values(text[:characters])[0] if language in known else None
        if top is None or top.value == 0:  # without a letter, all languages are at 0
            languages.append(None)
            scores.append(None)
        else:
            languages.append(_code(top.language))
            scores.append(top.value)
    return _add(first, languages, scores)


def add_fasttext(opinion: FastTextOpinion, first: pa.RecordBatch, texts: pa.Array, characters: int) -> pa.RecordBatch:
    """Like `add_lingua`, but from a fastText model."""
    lid = read_identifier(Path(opinion.model).expanduser())
    codes = [opinion.codes.get(label, code_of(label)) for label in lid.labels]
    known = frozenset(codes)
    data, offsets = utf8(pc.utf8_slice_codeunits(texts, 0, characters))
    parts = lid.classifier.sum(data, offsets[:-1], offsets[1:])
    labels, shares = likeliest(lid, parts.sums, parts.counts)
    counts = [language in known for language in first["language"].to_pylist()]
    languages = [codes[label] if is_counted else None for label, is_counted in zip(labels[:, 0], counts, strict=True)]
    scores = [float(share) if is_counted else None for share, is_counted in zip(shares[:, 0], counts, strict=True)]
    return _add(first, languages, scores)


def _add(first: pa.RecordBatch, languages: list[str | None], scores: list[float | None]) -> pa.RecordBatch:
    columns = dict(zip(first.schema.names, first.columns, strict=True))
    columns["language_second"] = pa.array(languages, pa.string())
    columns["language_second_score"] = pa.array(scores, pa.float64())
    return pa.record_batch(columns)


def known_languages() -> frozenset[str]:
    """The codes of the languages that lingua knows, as lid.176 spells them."""
    return _detector()[1]


def _code(language: Any) -> str:
    code = language.iso_code_639_1.name.lower()
    return LINGUA_CODES.get(code, code)


@functools.cache
def _detector() -> tuple[Any, frozenset[str]]:
    """lingua's detector of all its languages, and their codes."""
    lingua = importlib.import_module("lingua")  # an extra
    return lingua.LanguageDetectorBuilder.from_all_languages().build(), frozenset(map(_code, lingua.Language.all()))
