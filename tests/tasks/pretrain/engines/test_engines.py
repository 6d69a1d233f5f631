"""Engines: other ways to compute the same steps, and states that any of them resumes from."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from models.transformer import Transformer
from storage.errors import ConfigError
from tasks.children.launchers import free_port
from tasks.pretrain.engines import open_engine
from tasks.pretrain.engines.owners import place_of
from tasks.pretrain.engines.shard_layout import ShardLayout, share_of
from tasks.pretrain.world import World
from tests.tasks.pretrain.engines.engine_child import SAVED, global_batch, make_spec

Results = dict[str, dict[str, Any]]
TOLERANCE = 2e-5  # sums in another order. A wrong step shows in the fourth decimal
ALONE = World(0, 1, torch.device("cpu"))
ISOLATED = {
    "llama": True,
    "mistral": True,
    "qwen3": True,
    "qwen3_moe": True,
    "gemma3": True,
    "gpt2": False,
}  # documents of uneven length, of uneven targets
DIVIDED = [shape for shape in ISOLATED if shape != "qwen3_moe"]


# Routers' losses that matter in a few steps
CONFIG: dict[str, dict[str, Any]] = {"qwen3_moe": {"balance_loss": 0.5, "router_z_loss": 0.1}}


def case(
    name: str, processes: int, shape: str = "llama", *, source: str | None = None, **runtime: Any
) -> dict[str, Any]:
    settings = {"engine": "ddp", "micro_batch": 2, **runtime}
    found = {
        "name": name,
        "processes": processes,
        "shape": shape,
        "isolated": ISOLATED.get(shape, True),
        "runtime": settings,
    }
    return found | ({"config": CONFIG[shape]} if shape in CONFIG else {}) | ({"from": source} if source else {})


ALONE_FIRST = [
    *(case(f"one {shape}", 1, shape) for shape in (*ISOLATED, "olmo3")),
    case("one zero 1", 1, engine="deepspeed", zero_stage=1),
]
SAME = [
    case("ddp", 2),
    case("ddp, no accumulation", 2, "gpt2", micro_batch=4),
    *(case(f"zero {stage}", 2, engine="deepspeed", zero_stage=stage) for stage in range(4)),
    case("zero 2, offload", 2, engine="deepspeed", zero_stage=2, offload="optimizer"),
    case("fsdp", 2, engine="fsdp"),
    case("fsdp 3", 2, engine="fsdp", zero_stage=3),
    case("fsdp 3, untied", 2, "mistral", engine="fsdp", zero_stage=3),
    *(
        case(f"{engine} 3, {shape}", 2, shape, engine=engine, zero_stage=3)
        for engine in ("fsdp", "deepspeed")
        for shape in ("qwen3", "qwen3_moe", "gemma3", "olmo3")
    ),
    case("ddp, qwen3_moe", 2, "qwen3_moe", micro_batch=4, recompute="full"),
    *(case(f"{way}, olmo3", 2, "olmo3", source=None, **{f"{way}_parallel": 2}) for way in ("pipeline", "context")),
    case("fsdp, offload", 2, "gpt2", engine="fsdp", offload="optimizer"),
    *(
        case(f"{how}, {shape}", 2, shape, source=None, **{f"{how}_parallel": 2})
        for how in ("tensor", "pipeline", "context")
        for shape in DIVIDED
    ),
    case("context, fsdp 3", 2, engine="fsdp", zero_stage=3, context_parallel=2),
]
SOAKED = {  # families by ways to divide them that others prove
    *(f"{way}, mistral" for way in ("tensor", "pipeline", "context")),
    *(f"{engine} 3, qwen3" for engine in ("fsdp", "deepspeed")),
    *("fsdp 3, olmo3", "deepspeed 3, gemma3", "context, olmo3"),
    *("tensor, gemma3", "pipeline, qwen3", "context, qwen3", "context, gpt2"),
}
Z_LOSS = [
    case(f"z-loss, {processes}", processes, tensor_parallel=processes) | {"config": {"z_loss": 0.1}}
    for processes in (1, 2)
]
BY_MUON = {"config": {"optimizer": "muon"}}
MUON = [
    found | BY_MUON
    for found in (
        case("muon of one", 1),
        case("muon, fsdp of one", 1, engine="fsdp"),
        case("muon, ddp", 2),
        case("muon, deepspeed", 2, engine="deepspeed"),
        case("muon, fsdp", 2, engine="fsdp"),
        case("muon, fsdp 3, offload", 2, engine="fsdp", zero_stage=3, offload="optimizer"),
        case("muon, tensor", 2, tensor_parallel=2),
        case("muon, pipeline", 2, pipeline_parallel=2),
    )
]
FEW = [  # matrices of a shape than processes
    case(f"muon of {processes}, one block", processes, engine=engine) | BY_MUON | {"changes": {"depth": 1}}
    for processes, engine in ((1, "ddp"), (2, "fsdp"))
]
MUON_GOES_ON = [
    found | BY_MUON
    for found in (
        case("muon, fsdp of two after one", 2, source="muon of one", engine="fsdp"),
        case("muon, tensor after fsdp", 2, source="muon, fsdp", tensor_parallel=2),
        case("muon, fsdp after tensor", 2, source="muon, tensor", engine="fsdp", zero_stage=3),
    )
]
MUON_GOES_ON_ALONE = [case("muon of one after fsdp", 1, source="muon, fsdp") | BY_MUON]
HALF = [
    case(f"zero {stage}, bfloat16", 2, engine="deepspeed", zero_stage=stage) | {"config": {"precision": "bfloat16"}}
    for stage in range(4)
]
HALF_GOES_ON = [
    case("zero 1 after zero 0, bfloat16", 2, source=HALF[0]["name"], engine="deepspeed", zero_stage=1),
    case("zero 0 after zero 1, bfloat16", 2, source=HALF[1]["name"], engine="deepspeed"),
    case("zero 3 after zero 1, bfloat16", 2, source=HALF[1]["name"], engine="deepspeed", zero_stage=3),
]
HALF_GOES_ON = [found | {"config": {"precision": "bfloat16"}} for found in HALF_GOES_ON]
GOES_ON = [
    case("zero 3 of 2 after zero 1 of 1", 2, source="one zero 1", engine="deepspeed", zero_stage=3),
    case("zero 2 of 2 after zero 3 of 2", 2, source="zero 3", engine="deepspeed", zero_stage=2),
    case("zero 0 of 2 after zero 1 of 1", 2, source="one zero 1", engine="deepspeed"),
    case("tensor after one process", 2, source="one llama", tensor_parallel=2),
    case("fsdp after tensor", 2, source="tensor, llama", engine="fsdp"),
    case("pipeline after fsdp", 2, source="fsdp", pipeline_parallel=2),
    case("context after tensor", 2, source="tensor, llama", context_parallel=2),
]
GOES_ON_ALONE = [
    case("zero 2 of 1 after zero 2 of 2", 1, source="zero 2", engine="deepspeed", zero_stage=2),
    case("zero 1 of 1 after zero 0 of 2", 1, source="zero 0", engine="deepspeed", zero_stage=1),
    case("one process after a pipeline", 1, source="pipeline, llama"),
    case("one process after a context", 1, source="context, llama"),
]
REFUSED = [
    case("heads", 2, tensor_parallel=2) | {"changes": {"kv_heads": 1}, "named": "1 kv_heads"},
    case("heads of a context", 2, context_parallel=2) | {"changes": {"kv_heads": 1}, "named": "1 kv_heads"},
    case("tokens", 2, context_parallel=2) | {"changes": {"context": 15}, "named": "15 context"},
    case("stages", 2, pipeline_parallel=2) | {"changes": {"depth": 1}, "named": "has 1 blocks"},
    case("bubbles", 2, pipeline_parallel=2, micro_batch=8) | {"named": "1 micro-batches, too few"},
    case("norms", 2, "olmo3", tensor_parallel=2) | {"named": "normalises all heads together"},
    case("ranks", 2, tensor_parallel=4) | {"named": "2 processes can't hold copies"},
    *(
        case(f"{how} of experts", 2, "qwen3_moe", source=None, **{f"{how}_parallel": 2})
        | {"named": f"{how}_parallel is 2, which a mixture of experts does not support"}
        for how in ("tensor", "pipeline", "context")
    ),
    case("graphs of experts", 2, "qwen3_moe", compile="reduce-overhead")
    | {"named": "compile is reduce-overhead, which a mixture of experts does not support"},
]
FOURFOLD = [
    case("ddp of four", 4),
    case("zero 2 of four", 4, engine="deepspeed", zero_stage=2),
    case("fsdp of four", 4, engine="fsdp"),
    case("fsdp × tensor, qwen3", 4, "qwen3", engine="fsdp", zero_stage=3, tensor_parallel=2),
    case("fsdp × tensor", 4, engine="fsdp", zero_stage=3, tensor_parallel=2),
    case("pipeline × data", 4, pipeline_parallel=2),
    case("ddp × tensor", 4, "gpt2", tensor_parallel=2),
    case("ddp × context", 4, context_parallel=2),
    case("context × tensor", 4, "gpt2", tensor_parallel=2, context_parallel=2),
    case("hybrid fsdp × context", 4, "mistral", engine="fsdp", zero_stage=3, replicate=2, context_parallel=2),
    case("pipeline × tensor after fsdp × tensor", 4, source="fsdp × tensor", tensor_parallel=2, pipeline_parallel=2),
]


def names(cases: list[dict[str, Any]]) -> list[str]:
    return [str(found["name"]) for found in cases]


def parameters(cases: list[dict[str, Any]]) -> list[Any]:
    """The names of cases, of which those in SOAKED are run only by `make soak`."""
    return [pytest.param(name, marks=pytest.mark.soak if name in SOAKED else ()) for name in names(cases)]


def launch(folder: Path, cases: list[dict[str, Any]], processes: int) -> Results:
    """Run cases in `processes` processes, as a launcher would start them."""
    port = free_port()
    (folder / "cases.json").write_text(json.dumps(cases))
    shared = {
        "WORLD_SIZE": str(processes),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
    }
    command = [
        sys.executable,
        "-m",
        "tests.tasks.pretrain.engines.engine_child",
        str(folder),
        str(folder / "cases.json"),
    ]
    logs = [folder / f"log-{rank}" for rank in range(processes)]
    children = []
    for rank, log in enumerate(logs):
        own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""}
        environment = os.environ | shared | own
        children.append(subprocess.Popen(command, env=environment, stdout=log.open("w"), stderr=subprocess.STDOUT))
    deadline = time.monotonic() + 540
    try:
        while any(child.poll() is None for child in children) and not any(child.poll() for child in children):
            assert time.monotonic() < deadline, "the engines hang"
            time.sleep(0.1)
        said = "\n".join(log.read_text()[-3000:] for log in logs)
        assert all(child.wait(30) == 0 for child in children), said
    finally:
        for child in children:
            child.kill()
    results: Results = json.loads((folder / "results.json").read_text())
    return results


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Results:
    alone, together = [*ALONE_FIRST, Z_LOSS[0], *MUON[:2], FEW[0]], [*SAME, Z_LOSS[1], *MUON[2:], FEW[1], *HALF]
    goes_on = [*HALF_GOES_ON, *GOES_ON, *MUON_GOES_ON]
    cases = [*alone, *together, *goes_on, *REFUSED, *GOES_ON_ALONE, *MUON_GOES_ON_ALONE]
    soaked = any(item.path == Path(__file__) and item.get_closest_marker("soak") for item in request.session.items)
    chosen = cases if soaked else [found for found in cases if found["name"] not in SOAKED]
    return launch(tmp_path_factory.mktemp("pair"), chosen, 2)


@pytest.fixture(scope="module")
def fourfold(tmp_path_factory: pytest.TempPathFactory) -> Results:
    return launch(tmp_path_factory.mktemp("four"), FOURFOLD, 4)


def like(results: Results, name: str) -> dict[str, Any]:
    """The results of one process with the shape of a case."""
    shape = next(found["shape"] for found in [*SAME, *FOURFOLD] if found["name"] == name)
    return results[f"one {shape}"]


@pytest.mark.parametrize("name", parameters(SAME))
def test_every_engine_learns_what_one_process_learns(name: str, results: Results) -> None:
    found, expected = results[name], like(results, name)
    assert found["losses"] == pytest.approx(expected["losses"], abs=TOLERANCE)
    assert found["norms"] == pytest.approx(expected["norms"], rel=1e-4, abs=5 * TOLERANCE)
    assert found["validation"] == pytest.approx(expected["validation"], abs=TOLERANCE)
    assert found["whole"] == pytest.approx(found["validation"], abs=TOLERANCE)
    if found.get("averages"):
        assert_averages(found, expected)


def assert_averages(found: dict[str, Any], expected: dict[str, Any]) -> None:
    """The averages of an engine are those of one process, in their shards and gathered."""
    measured, losses = found["averages"], expected["averages"]["losses"]
    assert measured["losses"] == pytest.approx(losses, abs=TOLERANCE)
    assert {name: measured[name][0] for name in ("ema", "mean")} == pytest.approx(losses, abs=TOLERANCE)
    assert min(abs(loss - expected["validation"]) for loss in losses.values()) > 10 * TOLERANCE


def test_words_shared_among_ranks_are_learned_with_the_z_loss(results: Results) -> None:
    alone, shared = (results[name]["losses"] for name in names(Z_LOSS))
    assert shared == pytest.approx(alone, abs=TOLERANCE)
    assert abs(alone[-1] - results["one llama"]["losses"][-1]) > 100 * TOLERANCE


@pytest.mark.parametrize("name", names([*MUON[1:], *MUON_GOES_ON, *MUON_GOES_ON_ALONE]))
def test_muon_learns_alike_whoever_holds_the_matrices(name: str, results: Results) -> None:
    found, alone = results[name], results["muon of one"]
    assert found["losses"] == pytest.approx(alone["losses"][-len(found["losses"]) :], abs=TOLERANCE)
    assert found["whole"] == pytest.approx(alone["validation"], abs=TOLERANCE)
    assert abs(alone["losses"][-1] - results["one llama"]["losses"][-1]) > 100 * TOLERANCE


def test_a_process_may_have_no_matrix_to_compute(results: Results) -> None:
    alone, shared = (results[name] for name in names(FEW))
    assert shared["losses"] == pytest.approx(alone["losses"], abs=TOLERANCE)
    assert shared["whole"] == pytest.approx(alone["validation"], abs=TOLERANCE)


@pytest.mark.soak
@pytest.mark.parametrize("name", names(FOURFOLD[:-1]))
def test_and_so_do_combinations(name: str, fourfold: Results, results: Results) -> None:
    test_every_engine_learns_what_one_process_learns(name, {**results, name: fourfold[name]})
    assert fourfold[name]["resumed_alike"]


def test_deepspeed_counts_the_steps_of_adam_alike_in_bfloat16(results: Results) -> None:
    without, *sharded = (results[name] for name in names(HALF))
    # Weights in float32 under autocast beside weights in bfloat16
    for stage in sharded:
        assert stage["losses"] == pytest.approx(sharded[0]["losses"], abs=TOLERANCE)
        assert stage["losses"] == pytest.approx(without["losses"], abs=2e-2)
    assert without["losses"] == pytest.approx(results["one llama"]["losses"], abs=2e-2)
    for other in HALF_GOES_ON:
        expected = results[f"zero {other['runtime'].get('zero_stage', 0)}, bfloat16"]["losses"][SAVED:]
        assert results[other["name"]]["losses"] == pytest.approx(expected, abs=2e-2)


@pytest.mark.parametrize("name", parameters([*ALONE_FIRST, *SAME, *MUON, *HALF]))
def test_a_fresh_engine_goes_on_from_saved_states_bit_for_bit(name: str, results: Results) -> None:
    assert results[name]["resumed_alike"]


@pytest.mark.parametrize("name", names([*GOES_ON, *GOES_ON_ALONE]))
def test_another_engine_or_number_of_processes_goes_on(name: str, results: Results) -> None:
    found, expected = results[name], results["one llama"]
    assert found["losses"] == pytest.approx(expected["losses"][SAVED:], abs=TOLERANCE)
    assert found["norms"] == pytest.approx(expected["norms"][SAVED:], abs=5 * TOLERANCE)
    assert found["whole"] == pytest.approx(expected["validation"], abs=TOLERANCE)
    assert_averages(found, expected)


@pytest.mark.soak
def test_three_dimensions_go_on_from_two(fourfold: Results, results: Results) -> None:
    name = names(FOURFOLD)[-1]
    test_another_engine_or_number_of_processes_goes_on(name, {**results, name: fourfold[name]})


@pytest.mark.parametrize("refused", REFUSED, ids=names(REFUSED))
def test_what_cant_be_shared_is_refused_by_name(refused: dict[str, Any], results: Results) -> None:
    assert results[refused["name"]]["error"] == "ConfigError"
    assert refused["named"] in results[refused["name"]]["message"]


@pytest.mark.parametrize(
    "runtime",
    [
        {"engine": "deepspeed", "tensor_parallel": 2},
        {"engine": "deepspeed", "compile": "default", "zero_stage": 1},
        {"engine": "deepspeed", "compile": "reduce-overhead"},
        {"engine": "deepspeed", "offload": "optimizer"},
        {"engine": "fsdp", "pipeline_parallel": 2},
        {"engine": "deepspeed", "context_parallel": 2},
        {"engine": "ddp", "context_parallel": 2, "pipeline_parallel": 2},
        {"engine": "ddp", "zero_stage": 2},
        {"engine": "ddp", "offload": "optimizer"},
    ],
    ids=str,
)
def test_what_would_have_no_effect_is_refused_by_name(runtime: dict[str, Any], tmp_path: Path) -> None:
    named = next(name for name in runtime if name != "engine")
    with pytest.raises(ConfigError, match=rf"runtime\.pretrain\.{named} is"):
        open_engine(make_spec(tmp_path, case("refused", 1, **runtime)), ALONE)


@pytest.mark.parametrize("engine", ["deepspeed", "fsdp"])
def test_float16_is_refused_on_a_cpu(engine: str, tmp_path: Path) -> None:
    asked = case("half", 1, engine=engine) | {"config": {"precision": "float16"}}
    with pytest.raises(ConfigError, match="float16 does not work with"):
        open_engine(make_spec(tmp_path, asked), ALONE)


def test_a_piece_of_a_piece_is_still_where_it_was() -> None:
    whole = torch.arange(60.0).view(10, 6)
    layout = ShardLayout(whole.shape, ((1, 3), (6, 9)), (2, 4))
    held = layout.of(whole)
    assert held.tolist() == whole[[1, 2, 6, 7, 8], 2:4].tolist()
    part = layout.cut(1, 4)
    assert part.rows == ((2, 3), (6, 8))
    back = torch.zeros_like(whole)
    part.fill(back, held[1:4])
    assert back.nonzero().tolist() == [[row, column] for row in (2, 6, 7) for column in (2, 3)]
    assert torch.equal(part.of(back), part.of(whole))


def test_the_shards_of_all_ranks_make_up_each_matrix() -> None:
    whole, parts = torch.arange(192.0).view(24, 8), (12, 6, 6)
    divided = [ShardLayout(whole.shape, share_of(parts, rank, 2)) for rank in range(2)]
    rows = [layout.cut(start, start + 5) for layout in divided for start in (0, 5, 10)]
    columns = [
        ShardLayout(whole.shape, ((0, 24),), span).cut(*cut) for span in ((0, 3), (3, 8)) for cut in ((0, 23), (23, 24))
    ]
    for layouts in (rows, columns):
        for start, stop in ((0, 12), (12, 18), (18, 24)):
            found = torch.zeros(stop - start, 8)
            for layout in layouts:
                place = place_of(layout, start, stop)
                found[place.rows, place.columns] = layout.of(whole)[place.held]
            assert torch.equal(found, whole[start:stop])


@pytest.mark.parametrize("shape", ["llama", "gpt2", "qwen3_moe"])
def test_torch_compile_sees_the_whole_model_and_loss_without_a_break(shape: str, tmp_path: Path) -> None:
    torch.manual_seed(1)
    model = Transformer(make_spec(tmp_path, case("compiled", 1, shape)).own_shape)
    batch = global_batch(1, isolated=ISOLATED[shape])
    plain = model(*batch)
    plain.backward()
    expected = {
        name: parameter.grad.clone() for name, parameter in model.named_parameters() if parameter.grad is not None
    }
    model.zero_grad()
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")(*batch)
    compiled.backward()
    assert compiled.item() == pytest.approx(plain.item(), abs=1e-6)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        assert torch.allclose(parameter.grad, expected[name], atol=1e-6), name
