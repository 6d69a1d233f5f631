"""The edges of a process, put right before anything else: streams that are closed, a locale without Unicode, a working
folder that is gone, arguments that are no text. Each would otherwise be a traceback somewhere in a library.
"""

from __future__ import annotations

import codecs
import io
import os
import sys
from collections.abc import Sequence

from storage.errors import ConfigError, harmless


def mind_streams() -> None:
    """Open what is closed of the three streams on nothing, so that no file of the process gets their numbers; and let
    no character fail on its way out. A process whose file names are ASCII begins anew in Python's UTF-8 mode."""
    _begin_anew_in_utf8()
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115  # for as long as the process lasts
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _begin_anew_in_utf8() -> None:
    """By LC_ALL=C with PYTHONUTF8=0. The process keeps its number, and what it starts has the mode too."""
    if codecs.lookup(sys.getfilesystemencoding()).name == "utf-8" or sys.flags.ignore_environment:
        return
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, "PYTHONUTF8": "1"})


def check_edges(words: Sequence[str]) -> None:
    """Raises ConfigError for a working folder that is gone, for `words` of a command that are no text, and for options
    with control characters, which typer would quote as they are."""
    try:
        os.getcwd()
    except OSError as error:
        raise ConfigError(
            f"The working folder can't be used: {error.strerror}.", "Change to a folder that is there (cd)."
        ) from error
    for word in words:
        if not word.isprintable() and any("\ud800" <= letter <= "\udfff" for letter in word):
            raise ConfigError(f"The argument {word!a} is no UTF-8.", "Write it in UTF-8.")
        option = word.partition("=")[0]
        if word.startswith("-") and harmless(option) != option:
            raise ConfigError(f"There is no option {option}.", "--help lists those of a command.")
