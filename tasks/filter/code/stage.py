"""The stage that measures source code."""

from __future__ import annotations

import functools

from storage.artifact import Artifact
from tasks.filter.code.config import CodeConfig
from tasks.filter.side_files import write_signals
from tasks.stage import stage
from tasks.stage.output import Output


@stage(version=3, name="code", part_of="filter", runtime=("data",))
def code_signals(config: CodeConfig, documents: Artifact, out: Output) -> None:
    """Measure source code as The Stack and StarCoder 2 do (Kocetkov et al. 2022, Lozhkov et al. 2024).

    Columns: `code_language` (linguist's name, null for other documents), `code_lines`, `code_mean_line`,
    `code_longest_line` (in characters, without line ends), the shares of characters `code_alphabetic`,
    `code_alphanumeric`, `code_white_space`, `code_encoded` (base64, hexadecimal and \\u data), `code_numbers` (lines of
    numbers only) and `code_comments` (null for languages whose comments are unknown), `code_longest_encoded`
    (characters), `code_visible` and `code_visible_characters` (the part of HTML that a reader sees), `code_generated`
    (the mark of a generated file) and `code_licence` (the licence in the header).
    """
    from tasks.filter.code.measure import measure_code

    write_signals(
        functools.partial(measure_code, config), documents, out, columns=["text", "metadata"], releases_gil=True
    )
