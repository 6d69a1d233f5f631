"""The `tokenize` stage: documents are encoded into token shards."""

from tasks.tokenize.stage import TokenizeConfig, tokenize

__all__ = ["TokenizeConfig", "tokenize"]
