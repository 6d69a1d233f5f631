"""The `tokenize` stage: documents become token shards."""

from tasks.tokenize.stage import TokenizeConfig, tokenize

__all__ = ["TokenizeConfig", "tokenize"]
