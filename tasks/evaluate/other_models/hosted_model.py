"""The stage `hosted_model`: an endpoint as an artifact, which holds its address and model.

Its key is the address and the name of the model. The model served under that name may change without a trace, so its
scores are those of the day on which they were taken (`--refresh` takes them again).
"""

from __future__ import annotations

from pathlib import Path

from pydantic import ValidationError

from storage.artifact import Artifact
from storage.errors import DamagedArtifact, make_again
from tasks.endpoint.config import EndpointConfig
from tasks.stage import stage
from tasks.stage.output import Output

ENDPOINT = "endpoint.json"


@stage(version=1, part_of="evaluate")
def hosted_model(config: EndpointConfig, out: Output) -> None:
    """Write endpoint.json: address, model and further fields of requests, but never the API key."""
    (out.path / ENDPOINT).write_text(config.model_dump_json(indent=2) + "\n", encoding="utf-8")
    out.count(summary=f"{config.model} at {config.url}")


def is_hosted(model: Artifact) -> bool:
    """Whether a model is an endpoint."""
    return (model.path / ENDPOINT).is_file()


def endpoint_in(folder: Path) -> EndpointConfig | None:
    """The endpoint that a model folder stands for, if any. Raises DamagedArtifact for a file that can't be read."""
    path = folder / ENDPOINT
    if not path.is_file():
        return None
    try:
        return EndpointConfig.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise DamagedArtifact(f"{path} is damaged: {error}.", make_again("evaluate")) from error
