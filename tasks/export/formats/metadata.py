"""What a safetensors file says beside its tensors, in one order: the library writes it in another each time."""

from __future__ import annotations

import json
from pathlib import Path

_LENGTH = 8  # bytes before the header, which say how long it is: a little-endian number
_METADATA = "__metadata__"


def sort_metadata(file: Path) -> None:
    """Sort the metadata of a file by name, in place. The header keeps its length, and no tensor moves."""
    with file.open("r+b") as opened:
        length = int.from_bytes(opened.read(_LENGTH), "little")
        header = json.loads(opened.read(length))
        header[_METADATA] = dict(sorted(header.get(_METADATA, {}).items()))
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        if len(text) > length:
            raise ValueError(f"the header of {file} was not written as compactly as it can be")
        opened.seek(_LENGTH)
        opened.write(text.ljust(length))
