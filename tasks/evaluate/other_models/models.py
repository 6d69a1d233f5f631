"""Each model of `evaluate.models` as an artifact that is measured like a link of the chain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from storage.artifact import Artifact
from storage.errors import ConfigError
from tasks.base import base
from tasks.base.source import fingerprint
from tasks.evaluate.other_models.config import NamedModel, QuantizedConfig
from tasks.evaluate.other_models.gguf import gguf_in
from tasks.evaluate.other_models.hosted_model import hosted_model, is_hosted
from tasks.evaluate.other_models.quantized_model import quantized_model
from tasks.export.formats import FORMATS
from tasks.stage.output import Output

MODEL = "model"
SECTION = "evaluate.models"


def named_models(
    named: Sequence[NamedModel], links: Mapping[str, Artifact], text: Artifact, out: Output
) -> dict[str, Artifact]:
    """The models by name, in their order. `text` is held out. Raises ConfigError for an unknown link."""
    return {one.name: _obtained(one, links, text, out) for one in named}


def _obtained(one: NamedModel, links: Mapping[str, Artifact], text: Artifact, out: Output) -> Artifact:
    if one.base is not None:
        return _part(out.obtain(base, one.base, name=f"base.{one.name}"))
    if one.endpoint is not None:
        return out.obtain(hosted_model, one.endpoint, name=f"hosted_model.{one.name}")
    assert one.link is not None
    assert one.format is not None
    if one.link not in links:
        raise ConfigError(f"{SECTION} names the unknown link {one.link}.", f"Name one of {', '.join(links)}.")
    config, fitted = QuantizedConfig(format=one.format), text if FORMATS[one.format].calibrated else None
    return _part(out.obtain(quantized_model, config, links[one.link], fitted, name=f"quantized_model.{one.name}"))


def _part(whole: Artifact) -> Artifact:
    """The part `model`. In a plain call an artifact doesn't have parts, so it is the folder."""
    return whole.part(MODEL) if whole.manifest is not None else Artifact.at(whole.path / MODEL)


def sources(named: Sequence[NamedModel]) -> dict[str, str]:
    """Digests of the files of third-party models. Raises SourceError, ConfigError."""
    return {
        f"models.{one.name}: {name}": digest
        for one in named
        if one.base is not None
        for name, digest in fingerprint(one.base).items()
    }


def check_here(named: Sequence[NamedModel]) -> None:
    """Raises ConfigError for an endpoint without an address or a key."""
    from tasks.endpoint.client import address_of, api_key

    for one in named:
        if one.endpoint is not None:
            address_of(one.endpoint, f"{SECTION} {one.name}")
            api_key(one.endpoint, f"{SECTION} {one.name}")


def in_transformers(model: Artifact) -> bool:
    """Whether a model is a folder that transformers loads."""
    return not is_hosted(model) and gguf_in(model.path) is None
