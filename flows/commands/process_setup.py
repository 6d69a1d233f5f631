"""Prepares the process before anything else: closed streams, a locale without Unicode, a missing working folder, and
arguments that are not text. Each would otherwise be a traceback somewhere in a library.
"""

from __future__ import annotations

import codecs
import io
import logging
import os
import sys
from collections.abc import Sequence

from storage.errors import ConfigError, harmless


def mind_streams() -> None:
    """Open closed standard streams on /dev/null, so that no file gets their numbers, and escape characters that can't
    be printed. Restart a process with an ASCII locale in Python's UTF-8 mode."""
    _restart_in_utf8()
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    if sys.stdin is None:
        sys.stdin = open(os.devnull, encoding="utf-8")  # noqa: SIM115  # stays open until the process ends
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        stream = getattr(sys, name)
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def ask_this_machine_directly() -> None:
    """Take servers of this machine out of what a proxy is asked for, which knows none of them: HTTP_PROXY would keep a
    run from its Prefect server."""
    names = {name.lower() for name, value in os.environ.items() if value}
    if names & {"http_proxy", "all_proxy"}:
        for name in [name for name in ("no_proxy", "NO_PROXY") if name in os.environ] or ["NO_PROXY"]:
            os.environ[name] = ",".join(filter(None, [os.environ.get(name), "127.0.0.1", "localhost"]))


def quiet_libraries() -> None:
    """Leave out what libraries log on import, which concerns GPUs."""
    for library in ("bitsandbytes", "torchao", "torch.utils._pytree"):
        logging.getLogger(library).setLevel(logging.ERROR)
    # DeepSpeed sets its level when it is imported
    logging.getLogger("DeepSpeed").addFilter(lambda record: record.levelno >= logging.ERROR)


def _restart_in_utf8() -> None:
    """Restart where file names are ASCII (LC_ALL=C with PYTHONUTF8=0). The process keeps its id, and its children
    inherit the mode."""
    if codecs.lookup(sys.getfilesystemencoding()).name == "utf-8" or sys.flags.ignore_environment:
        return
    os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, "PYTHONUTF8": "1"})


def check_edges(words: Sequence[str]) -> None:
    """Raises ConfigError for a missing working folder, for `words` of a command that are not text, and for options with
    control characters, which typer would print as they are."""
    try:
        os.getcwd()
    except OSError as error:
        raise ConfigError(
            f"The working folder can't be used: {error.strerror}.", "Change to an existing folder (cd)."
        ) from error
    for word in words:
        if not word.isprintable() and any("\ud800" <= letter <= "\udfff" for letter in word):
            raise ConfigError(f"The argument {word!a} is not UTF-8.", "Write it in UTF-8.")
        option = word.partition("=")[0]
        if word.startswith("-") and harmless(option) != option:
            raise ConfigError(f"Option {option} is unknown.", "--help lists a command's options.")
