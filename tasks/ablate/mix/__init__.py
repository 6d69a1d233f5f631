"""The stage `mix`: which shares of the sources train the best model, from a swarm of small runs."""

from tasks.ablate.mix.config import MixConfig
from tasks.ablate.mix.stage import mix

__all__ = ["MixConfig", "mix"]
