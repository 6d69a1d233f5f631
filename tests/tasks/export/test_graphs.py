"""Formats that are graphs compute what the checkpoint does: at any length, in a batch, and without our code."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig

from models.runtimes.kv_cache import GRAPH, Array, CachedRuntime, past_shape
from models.runtimes.onnx import OnnxRuntime
from models.runtimes.protocol import RuntimeFault
from models.runtimes.torch_export import ExportedRuntime, check_processor
from models.runtimes.transformers import TransformersRuntime, load_model
from storage.artifact import Artifact
from storage.errors import ConfigError, ParityError
from tasks.export import ExportConfig
from tasks.export.formats import FORMATS
from tasks.export.formats.graphs.onnx import BESIDE, Onnx
from tasks.export.formats.source import Source
from tasks.export.proof.judge import require
from tasks.export.proof.reference import Reference
from tasks.export.run import prove
from tests.tasks.export.test_export import PROMPTS, inputs, run
from tests.tasks.export.users import DOCS, OF_DOCS, ask, card_line, docs_program, site

pytestmark = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("onnx", "onnxscript", "onnxruntime")),
    reason="the extra is not installed: pip install 'gristmill[export]'",
)
GRAPHS = ["onnx", "onnx-int8", "pt2"]
# What a user has installed, and a piece of the block of docs/export.md that is run
USERS = {
    "onnx": (("onnxruntime", "numpy", "tokenizers"), "onnxruntime.InferenceSession"),
    "pt2": (("torch", "tokenizers"), "torch.export.load"),
}


@pytest.fixture(scope="module")
def given(tmp_path_factory: pytest.TempPathFactory) -> tuple[Artifact, Artifact, Artifact]:
    return inputs(tmp_path_factory.mktemp("mistral"), family="mistral", sliding_window=16, kv_heads=1)


@pytest.fixture(scope="module")
def release(given: tuple[Artifact, Artifact, Artifact], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a model whose window is narrower than the texts, which llama.cpp refuses."""
    return run(tmp_path_factory.mktemp("release"), given, formats=["safetensors", *GRAPHS]).path


def opened(release: Path, name: str) -> Any:
    return FORMATS[name].open(release, 1)


@pytest.mark.soak
def test_graphs_are_proved_by_the_stage(release: Path) -> None:
    proof = json.loads((release / "parity.json").read_text())["formats"]
    for name in ("onnx", "pt2"):
        assert proof[name]["same_greedy"] == proof[name]["prompts"]
        assert proof[name]["max_difference"] < 1e-4
    assert proof["onnx"]["bytes"] < 1.3 * proof["safetensors"]["bytes"], "tied weights stand once"
    assert proof["onnx-int8"]["bytes"] < 0.7 * proof["onnx"]["bytes"]
    assert "`torch.export.load(" in (release / "README.md").read_text()
    for name in GRAPHS:
        assert {"tokenizer.json", "chat_template.jinja", "config.json"} <= {f.name for f in (release / name).iterdir()}


@pytest.mark.soak
@pytest.mark.parametrize("name", ["onnx", "pt2"])
def test_answers_with_the_cache_are_those_of_transformers(
    given: tuple[Artifact, Artifact, Artifact], release: Path, name: str
) -> None:
    theirs, ours = TransformersRuntime(given[0].path), opened(release, name)
    chat = [{"role": "user", "content": "Where does the fox live?"}]
    for prompt in PROMPTS:
        ids = theirs.tokenize(prompt)
        assert ours.greedy(ids, 40) == theirs.greedy(ids, 40)
        assert np.abs(ours.all_log_probabilities(ids) - theirs.all_log_probabilities(ids)).max() < 1e-4
    assert ours.chat(chat, 12) == theirs.chat(chat, 12)
    with pytest.raises(RuntimeFault, match="the context is 128"):
        ours.log_probabilities([5] * 129)


class Counting(CachedRuntime):
    """Stands for a graph: says one more than the last id, and keeps what each step was asked."""

    def __init__(self) -> None:
        self.config = LlamaConfig(
            vocab_size=16, hidden_size=4, num_hidden_layers=1, num_attention_heads=1, max_position_embeddings=8
        )
        self.ends = {9}
        self.asked: list[list[Any]] = []

    def step(self, inputs: Sequence[Array]) -> list[Array]:
        ids, mask, positions, *past = inputs
        self.asked.append([ids[0].tolist(), mask.shape[1], positions[0].tolist()])
        logits = np.eye(16, dtype=np.float32)[ids + 1]
        new = np.zeros((1, 1, ids.shape[1], 4), np.float32)
        return [logits, *(np.concatenate([held, new], axis=2) for held in past)]

    def close(self) -> None:
        """There is nothing to close."""


def test_a_step_has_the_new_ids_at_the_places_after_those_before() -> None:
    runtime = Counting()
    assert runtime.greedy([3, 4, 5], 40) == [6, 7, 8, 9]
    assert runtime.asked == [[[3, 4, 5], 3, [0, 1, 2]], [[6], 4, [3]], [[7], 5, [4]], [[8], 6, [5]]]


@pytest.mark.soak
@pytest.mark.parametrize("name", ["onnx", "pt2"])
def test_rows_of_a_batch_and_lengths_are_what_the_caller_says(
    given: tuple[Artifact, Artifact, Artifact], release: Path, name: str
) -> None:
    """Padding on the left, a past of 20 tokens, one new token and several."""
    model = load_model(given[0].path)
    layers, heads, size = past_shape(model.config)
    ids = torch.randint(10, 600, (3, 30), generator=torch.Generator().manual_seed(0)).numpy()
    mask = np.ones_like(ids)
    mask[1, :7] = 0
    places = np.clip(mask.cumsum(1) - 1, 0, None)
    with torch.no_grad():
        expected = model(
            torch.from_numpy(ids), attention_mask=torch.from_numpy(mask), position_ids=torch.from_numpy(places)
        ).logits.numpy()
    runtime = opened(release, name)
    past = [np.zeros((3, heads, 0, size), np.float32) for _ in range(2 * layers)]
    for start, end in ((0, 20), (20, 21), (21, 30)):
        new = slice(start, end)
        logits, *past = runtime.step([ids[:, new], mask[:, :end], places[:, new], *past])
        seen = mask[:, new] == 1
        assert np.abs(logits - expected[:, new])[seen].max() < 1e-4


@pytest.mark.soak
@pytest.mark.parametrize("name", USERS)
def test_the_program_of_the_documentation_prints_what_the_checkpoint_says(
    name: str, given: tuple[Artifact, Artifact, Artifact], release: Path, tmp_path: Path
) -> None:
    """The user has the release and the packages that the documentation names."""
    packages, piece = USERS[name]
    code = docs_program(piece)
    assert card_line(release, name) in code
    (printed,) = ask(OF_DOCS, site(tmp_path / "site", *packages), release, tmp_path, name=name, code=code)
    assert printed == continued(given[0].path)


def continued(model: Path) -> str:
    """The documentation's prompt, as the checkpoint goes on greedily."""
    theirs = TransformersRuntime(model)
    ids = theirs.tokenize("The history of")
    return str(theirs.tokenizer.decode([*ids, *theirs.greedy(ids, 32)], skip_special_tokens=True))


@pytest.mark.soak
@pytest.mark.parametrize("name", GRAPHS)
def test_weights_come_back_under_the_names_of_the_checkpoint(
    given: tuple[Artifact, Artifact, Artifact], release: Path, name: str
) -> None:
    expected = {key: value.numpy() for key, value in load_model(given[0].path).state_dict().items() if value.ndim == 2}
    found = dict(FORMATS[name].weights(given[0].path, release))
    assert set(found) >= set(expected) - {"lm_head.weight"}
    for key, value in found.items():
        limit = np.abs(expected[key]).max() / 64 if name == "onnx-int8" else 0
        assert np.abs(value - expected[key]).max() <= limit


@pytest.mark.soak
@pytest.mark.parametrize("name", GRAPHS)
def test_a_graph_tells_nothing_of_the_machine(release: Path, name: str) -> None:
    for file in FORMATS[name].files(release):
        assert str(Path(__file__).parents[3]).encode() not in file.read_bytes()
        assert b"site-packages" not in file.read_bytes()


@pytest.mark.soak
def test_a_graph_is_the_same_bytes_again(given: tuple[Artifact, Artifact, Artifact], release: Path) -> None:
    again = release.parent / "again"
    again.mkdir()
    for name in GRAPHS:
        FORMATS[name].write(Source(given[0].path), again)
        for file in FORMATS[name].files(release):
            assert file.read_bytes() == (again / file.relative_to(release)).read_bytes()


@pytest.mark.soak
@pytest.mark.parametrize("name", GRAPHS)
def test_a_damaged_graph_is_refused_or_found_by_the_proof(
    given: tuple[Artifact, Artifact, Artifact], release: Path, name: str, tmp_path: Path
) -> None:
    (graph,) = (file for file in FORMATS[name].files(release) if file.name.startswith("model."))
    drawn = np.random.default_rng(0).integers(10, 600, (2, 60)).tolist()
    config = ExportConfig(prompts=PROMPTS, greedy_tokens=8)
    reference = Reference(given[0].path, tuple(map(tuple, drawn)), config, tmp_path)
    whole = graph.read_bytes()
    try:
        graph.write_bytes(whole[: len(whole) // 2])
        with pytest.raises(ParityError, match=r"model\.(onnx|pt2)"):
            prove(reference, name, release, 1)
        place, length = len(whole) // 2, len(whole) // 5 if name == "onnx-int8" else 256
        graph.write_bytes(whole[:place] + bytes([0x7F]) * length + whole[place + length :])
        assert _is_found(reference, name, release)
        graph.unlink()
        with pytest.raises(ParityError, match=r"model\.(onnx|pt2)"):
            prove(reference, name, release, 1)
    finally:
        graph.write_bytes(whole)


def _is_found(reference: Reference, name: str, release: Path) -> bool:
    """Whether a format is refused, or is outside its tolerance."""
    try:
        weights, parity, _ = prove(reference, name, release, 1)
        require(name, parity, weights, FORMATS[name].tolerance)
    except ParityError:
        return True
    return False


@pytest.mark.soak
def test_a_folder_without_its_tokenizer_or_of_another_model_is_refused(release: Path, tmp_path: Path) -> None:
    with pytest.raises(RuntimeFault, match=r"has no config\.json"):
        OnnxRuntime(tmp_path)
    for file in (release / "onnx").iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    with pytest.raises(RuntimeFault, match=r"doesn't fit this model: past_key_values\.2\.key"):
        OnnxRuntime(tmp_path)


@pytest.mark.soak
@pytest.mark.parametrize("kind", ["float32", "int8"])
def test_weights_that_protobuf_has_no_room_for_lie_beside_the_graph(
    kind: Any, given: tuple[Artifact, Artifact, Artifact], release: Path, tmp_path: Path
) -> None:
    """The limit is lowered: a model of 2 GiB takes too long."""
    large = Onnx(kind, largest=100_000)
    large.write(Source(given[0].path), tmp_path)
    one, two = (chosen.path(folder) for chosen, folder in ((Onnx(kind), release), (large, tmp_path)))
    assert not (one / BESIDE).exists()
    assert two / BESIDE in large.files(tmp_path)
    assert (two / GRAPH).stat().st_size < (two / BESIDE).stat().st_size < (one / GRAPH).stat().st_size
    ids = list(range(10, 60))
    whole, cut = (chosen.open(folder, 1) for chosen, folder in ((Onnx(kind), release), (large, tmp_path)))
    assert np.array_equal(whole.all_log_probabilities(ids), cut.all_log_probabilities(ids))
    found, expected = (dict(large.weights(given[0].path, folder)) for folder in (tmp_path, release))
    assert found.keys() == expected.keys()
    assert all(np.array_equal(found[name], expected[name]) for name in expected)
    cut.close()
    (two / BESIDE).write_bytes((two / BESIDE).read_bytes()[:1000])
    with pytest.raises(RuntimeFault, match=r"can't load .*model\.onnx"):
        large.open(tmp_path, 1)
    (two / BESIDE).unlink()
    with pytest.raises(RuntimeFault, match=r"can't load .*model\.onnx"):
        large.open(tmp_path, 1)


def test_a_model_without_such_a_step_is_refused_by_name(
    given: tuple[Artifact, Artifact, Artifact], tmp_path: Path
) -> None:
    config = json.loads((given[0].path / "config.json").read_text())
    rotary = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    refused = {
        "falcon is none of": {"model_type": "falcon"},
        "embedding is dynamic": {**config, "rope_parameters": rotary},
    }
    for reason, changed in refused.items():
        (tmp_path / "config.json").write_text(json.dumps(changed))
        for name in GRAPHS:
            with pytest.raises(ConfigError, match=reason):
                FORMATS[name].check(tmp_path)


@pytest.mark.skipif(FORMATS["aoti"].needs() is not None, reason="there is no C++ compiler")
@pytest.mark.soak
def test_a_compiled_program_is_the_checkpoint_too(given: tuple[Artifact, Artifact, Artifact], tmp_path: Path) -> None:
    """Compiling takes a minute or more."""
    release = run(tmp_path, given, formats=["aoti"], greedy_tokens=40).path
    proof = json.loads((release / "parity.json").read_text())["formats"]["aoti"]
    assert proof["same_greedy"] == proof["prompts"]
    assert proof["max_difference"] < 1e-4
    assert [file.name for file in (release / "aoti").iterdir() if file.is_dir()] == []
    (line,) = re.findall(r"`(step = torch\._inductor.*?)`", DOCS.read_text())
    assert card_line(release, "aoti") in line
    code = re.sub(r"step = torch\.export.*", line, docs_program("torch.export.load")).replace("pt2/", "aoti/")
    packages = site(tmp_path / "site", *USERS["pt2"][0])
    assert ask(OF_DOCS, packages, release, tmp_path, name="aoti", code=code) == [continued(given[0].path)]
    check_processor(release / "aoti" / "model.pt2")
    data = bytearray((release / "aoti" / "model.pt2").read_bytes())
    data[len(data) // 2] ^= 1
    (release / "aoti" / "model.pt2").write_bytes(bytes(data))
    with pytest.raises(RuntimeFault, match="damaged in"):
        ExportedRuntime(release / "aoti", compiled=True)


def test_what_a_format_lacks_is_said_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert [FORMATS[name].needs() for name in GRAPHS] == [None, None, None]
    monkeypatch.setenv("PATH", "")
    assert "g++" in str(FORMATS["aoti"].needs())
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert FORMATS["onnx"].needs() == "onnx, onnxscript, onnxruntime not installed: pip install 'gristmill[export]'."
