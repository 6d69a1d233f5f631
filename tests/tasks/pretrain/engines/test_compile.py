"""torch.compile within an engine: the same steps, recomputation inside, and no compilation of passes without
gradients."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import partial
from typing import Any, get_args

import pytest
import torch
import torch._dynamo
import torch._inductor
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile

from storage.errors import ConfigError
from tasks.pretrain import engines
from tasks.pretrain.engines import open_engine
from tasks.pretrain.engines.ddp import DdpEngine
from tasks.pretrain.engines.native import COMPILE_MODES
from tasks.pretrain.insight.probe import probe
from tasks.pretrain.loader.batch import shorten
from tasks.stage.runtime import PretrainRuntime
from tests.runtimes import runtime_of
from tests.tasks.pretrain.one_process import (
    ALONE,
    MODEL,
    micro_batches,
    one_process,
    open_ddp,
    rows,
    spec_of,
    train,
    weights_of,
)

__all__ = ["one_process"]  # the fixture
LONG = 10**9  # steps


@pytest.fixture(autouse=True)
def _graphs_without_code(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Graphs are captured and cut in forward and backward as for inductor, and run as they are: its C++ takes a minute
    to compile."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager_decomp_partition"))
    with torch._dynamo.config.patch(optimize_ddp=True):
        yield


def open_as(**runtime: Any) -> DdpEngine:
    """An engine of one process whose micro-batches hold two rows, which makes four of them a step."""
    spec = spec_of(micro_batch=2)
    return DdpEngine(spec.model_copy(update={"runtime": runtime_of(spec.runtime, **runtime)}), ALONE)


def products(engine: DdpEngine) -> int:
    """Matrix products of one step, compiled or not."""
    with profile(activities=[ProfilerActivity.CPU], acc_events=True) as seen:
        train(engine, range(9, 10), micro=2)
    return Counter(event.name for event in seen.events())["aten::mm"]


@pytest.mark.soak_but("none-default", "full-default")
@pytest.mark.parametrize("how", ["default", "max-autotune", "reduce-overhead"])
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_compiled_blocks_learn_what_others_learn(how: str, recompute: str) -> None:
    plain, compiled = open_as(), open_as(compile=how, recompute=recompute)
    assert train(compiled, range(1, 4), micro=2) == pytest.approx(train(plain, range(1, 4), micro=2), abs=1e-5)
    assert (weights_of(compiled) - weights_of(plain)).abs().max() < 1e-5
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1  # for all blocks


def test_every_choice_is_one_of_torchs_modes() -> None:
    assert set(COMPILE_MODES) == set(get_args(PretrainRuntime.model_fields["compile"].annotation)) - {"auto", "off"}
    assert {mode for mode in COMPILE_MODES.values() if mode} <= set(torch._inductor.list_mode_options())


@pytest.mark.soak
def test_selective_recomputation_repeats_no_product_in_a_compiled_block() -> None:
    counts = {}
    for recompute in ("none", "selective", "full"):
        engine = open_as(compile="default", recompute=recompute)
        train(engine, range(1, 2), micro=2)
        counts[recompute] = products(engine)
    assert counts["selective"] == counts["none"] > 0
    # Four micro-batches, two blocks, their products again but for the last, which nothing needs
    assert counts["full"] == counts["none"] + 4 * 2 * 3


def test_under_ddp_a_block_is_compiled_whole() -> None:
    wide = {**MODEL, "width": 512, "feed_forward": 1024}  # larger than DDP's first bucket
    spec = spec_of(micro_batch=2, model=wide)
    engine = DdpEngine(spec.model_copy(update={"runtime": runtime_of(spec.runtime, compile="default")}), ALONE)
    engine.module = DistributedDataParallel(engine.model)
    train(engine, range(1, 2), micro=2)
    assert torch._dynamo.utils.counters["aot_autograd"]["total"] == 1


@pytest.mark.soak
def test_warmups_through_all_lengths_and_batches_stay_below_torchs_limit_of_compilations() -> None:
    """Beyond it, blocks would run uncompiled for the rest of the run. torch makes sizes dynamic once they change: only
    the presence of a mask, and sizes of 1, compile again."""
    spec = spec_of(model={**MODEL, "depth": 1, "family": "mistral", "sliding_window": 4})
    engine = DdpEngine(spec.model_copy(update={"runtime": runtime_of(spec.runtime, compile="default")}), ALONE)
    shapes = [(size * parts, parts) for parts in (16, 8, 4, 2, 1) for size in (1, 2, 4, 8)]
    for size, parts in shapes:
        engine.step(micro_batches(shorten(rows(1), parts), size)[:1], 0.01)
    frames, limit = torch._dynamo.utils.counters["frames"], torch._dynamo.config.recompile_limit
    assert 1 < frames["ok"] == frames["total"] < limit < len(set(shapes))


def test_what_nothing_is_learned_from_is_not_compiled_and_shows_its_attention() -> None:
    engine, plain = open_as(compile="default"), open_as()
    ids_BT, targets_BT, _ = micro_batches(rows(1), 2)[0]
    assert torch.equal(engine.loss(ids_BT, targets_BT), plain.loss(ids_BT, targets_BT))
    entropies, _ = probe(engine.model, ids_BT, None)
    assert len(entropies) == len(engine.model.blocks)
    assert not torch._dynamo.utils.counters["stats"]


@pytest.mark.parametrize(
    ("steps", "failure", "chosen"), [(1, "", "off"), (LONG, "", "default"), (LONG, "no compiler", "off")]
)
@pytest.mark.parametrize("engine", ["ddp", "deepspeed"])
def test_auto_compiles_long_trainings(
    engine: str, steps: int, failure: str, chosen: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engines, "compiler_failure", lambda kind: failure)
    monkeypatch.setenv("LOCAL_RANK", "0")  # for DeepSpeed
    opened = open_engine(spec_of(engine=engine).model_copy(update={"steps": steps}), ALONE)
    assert train(opened, range(1, 3)) == pytest.approx(train(open_ddp(), range(1, 3)), abs=1e-5)
    assert opened.spec.runtime.pretrain.compile == chosen
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == (chosen == "default")


def test_cuda_graphs_find_each_gradient_where_it_was() -> None:
    engine = open_as(compile="reduce-overhead")
    places: dict[str, int] = {}
    for step in range(1, 4):
        train(engine, range(step, step + 1), micro=2)
        for name, parameter in engine.model.named_parameters():
            assert parameter.grad is not None
            assert not parameter.grad.any()
            assert places.setdefault(name, parameter.grad.data_ptr()) == parameter.grad.data_ptr()


def test_cuda_graphs_are_refused_where_weights_move() -> None:
    spec = spec_of(engine="fsdp")
    graphs = spec.model_copy(update={"runtime": runtime_of(spec.runtime, compile="reduce-overhead")})
    with pytest.raises(ConfigError, match=r"reduce-overhead, which the engine fsdp"):
        open_engine(graphs, ALONE)
