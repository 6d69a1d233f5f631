"""The `tokenize` stage: documents are encoded into token shards."""

from tasks.tokenize.split import in_validation
from tasks.tokenize.stage import TokenizeConfig, places_in_shard, tokenize

__all__ = ["TokenizeConfig", "in_validation", "places_in_shard", "tokenize"]
