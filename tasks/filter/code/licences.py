"""The licence that a file's header names: by an SPDX identifier or a typical phrase."""

from __future__ import annotations

import re

HEAD = 4000  # characters: a header is at the beginning, and shorter than a whole licence
SPDX = re.compile(r"SPDX-License-Identifier:\s*\(?\s*([A-Za-z0-9.+-]+)")
# The order matters: the earlier licences quote the texts of the later ones, never the other way round
PHRASES = tuple(
    (name, re.compile(pattern, re.IGNORECASE))
    for name, pattern in (
        ("AGPL-3.0", r"GNU\s+Affero\s+General\s+Public\s+License"),
        ("LGPL", r"GNU\s+(Lesser|Library)\s+General\s+Public\s+License"),
        ("GPL-3.0", r"GNU\s+General\s+Public\s+License.{0,200}?version\s+3"),
        ("GPL-2.0", r"GNU\s+General\s+Public\s+License.{0,200}?version\s+2"),
        ("GPL", r"GNU\s+General\s+Public\s+License|\bGPL\b"),
        ("MPL-2.0", r"Mozilla\s+Public\s+License"),
        ("EPL-2.0", r"Eclipse\s+Public\s+License.{0,60}?2\.0"),
        ("EPL-1.0", r"Eclipse\s+Public\s+License"),
        ("Apache-2.0", r"Apache\s+License,?\s+Version\s+2\.0|apache\.org/licenses/LICENSE-2\.0"),
        ("BSL-1.0", r"Boost\s+Software\s+License"),
        ("MIT", r"Permission\s+is\s+hereby\s+granted,\s+free\s+of\s+charge|\bMIT\s+Licen[sc]e\b"),
        ("ISC", r"Permission\s+to\s+use,\s+copy,\s+modify,\s+and(/or)?\s+distribute|\bISC\s+Licen[sc]e\b"),
        ("BSD-3-Clause", r"Neither\s+the\s+names?\s+of|BSD[\s-]3[\s-]Clause"),
        ("BSD-2-Clause", r"Redistribution\s+and\s+use\s+in\s+source\s+and\s+binary\s+forms|BSD[\s-]2[\s-]Clause"),
        ("BSD", r"BSD[\s-]style\s+licen[sc]e|\bBSD\s+licen[sc]e\b"),
        ("Unlicense", r"released\s+into\s+the\s+public\s+domain|unlicense\.org"),
        ("CC0-1.0", r"CC0\s+1\.0|creativecommons\.org/publicdomain/zero"),
        ("proprietary", r"\b(confidential\s+and\s+proprietary|proprietary\s+and\s+confidential|trade\s+secrets?)\b"),
    )
)
COPYRIGHT = re.compile(r"copyright\s+(\(c\)|©|\d{4})|all\s+rights\s+reserved", re.IGNORECASE)


def licence_of(text: str) -> str:
    """The licence of a file: an SPDX identifier or a name of PHRASES, `unknown` for a copyright notice without a known
    licence, "" if the file has neither."""
    head = re.sub(r"[\s#/*;%-]+", " ", text[:HEAD]) if "SPDX" not in text[:HEAD] else text[:HEAD]
    named = SPDX.search(head)
    if named:
        return named[1]
    for name, pattern in PHRASES:
        if pattern.search(head):
            return name
    return "unknown" if COPYRIGHT.search(head) else ""
