"""The `tokenize` stage: documents are encoded into token shards."""

from tasks.tokenize.stage import TokenizeConfig, places_in_shard, tokenize

__all__ = ["TokenizeConfig", "places_in_shard", "tokenize"]
