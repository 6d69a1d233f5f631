"""`python -m benchmarks.tokens encode|train|loader`: from text to tokens to batches, beside peers.

encode  documents to token shards by the `tokenize` stage, beside `tokenizers`, tiktoken and datatrove
train   documents to a tokenizer, as the `tokenizer` stage learns one, beside the trainer of `tokenizers`
loader  token shards to batches, beside the fastest training step

Each run is a process of its own; tools take turns; figures are medians. `COMMAND --help` says what is measured and
how. The corpus, the vocabulary and the peers' environment are made on the first call.
"""

from __future__ import annotations

import argparse

from benchmarks.tokens import encode, loader, train

COMMANDS = {"encode": encode, "train": train, "loader": loader}


def main() -> None:
    """Read the options and run the command."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tokens", description=__doc__, formatter_class=raw)
    commands = parser.add_subparsers(required=True)
    for name, module in COMMANDS.items():
        command = commands.add_parser(name, description=module.__doc__, formatter_class=raw)
        module.add_options(command)
        command.set_defaults(run=module.run)
    options = parser.parse_args()
    options.run(options)


if __name__ == "__main__":
    main()
