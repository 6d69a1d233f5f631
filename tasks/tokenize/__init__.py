"""The `tokenize` stage: documents are encoded into token shards."""

from tasks.tokenize.stage import TokenizeConfig, in_validation, places_in_shard, tokenize

__all__ = ["TokenizeConfig", "in_validation", "places_in_shard", "tokenize"]
