"""Shards of MDS and dumps of MediaWiki made byte by byte, as their definitions say."""

from __future__ import annotations

import itertools
import json
import struct
from html import escape

ENCODINGS = {"text": "str", "n": "int", "f": "float64", "j": "json", "d": "str_decimal", "p": "pkl", "u": "uint8"}
SIZES = {"int": 8, "float64": 8, "uint8": 1}


def mds(number: int) -> bytes:
    """A shard, as its definition says."""
    names = sorted(ENCODINGS)
    told = {
        "column_names": names,
        "column_encodings": [ENCODINGS[name] for name in names],
        "column_sizes": [SIZES.get(ENCODINGS[name]) for name in names],
    }
    config = json.dumps(told).encode()
    samples = []
    for at in range(number):
        values = {
            "text": f"text {at}".encode(),
            "n": struct.pack("<q", -at),
            "f": struct.pack("<d", at / 2),
            "j": json.dumps({"a": [at]}).encode(),
            "d": b"1.10",
            "p": b"cos\nsystem\n",
            "u": bytes([at]),
        }
        sizes = [len(values[name]) for name in names if ENCODINGS[name] not in SIZES]
        samples.append(struct.pack(f"<{len(sizes)}I", *sizes) + b"".join(values[name] for name in names))
    before = 4 * (number + 2) + len(config)
    offsets = [before, *(before + size for size in itertools.accumulate(map(len, samples)))]
    return struct.pack(f"<{number + 2}I", number, *offsets) + config + b"".join(samples)


HEAD = """<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" version="0.11" xml:lang="en">
  <siteinfo>
    <sitename>Wikipedia</sitename>
    <base>https://en.wikipedia.org/wiki/Main_Page</base>
    <namespaces>
      <namespace key="0" case="first-letter" />
      <namespace key="6" case="first-letter">Datei</namespace>
      <namespace key="14" case="first-letter">Kategorie</namespace>
    </namespaces>
  </siteinfo>
"""
TAIL = "</mediawiki>\n"


def page(title: str, text: str, space: int = 0, more: str = "", model: str = "wikitext", number: int = 7) -> str:
    return (
        f"  <page>\n    <title>{escape(title)}</title>\n    <ns>{space}</ns>\n    <id>{number}</id>\n{more}"
        f"    <revision>\n      <id>{number}00</id>\n      <timestamp>2024-05-01T00:00:00Z</timestamp>\n"
        f'      <model>{model}</model>\n      <text xml:space="preserve">{escape(text)}</text>\n'
        "    </revision>\n  </page>\n"
    )
