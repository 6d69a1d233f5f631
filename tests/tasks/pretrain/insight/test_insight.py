"""Insight into pretraining: right figures, hooks that change nothing and are removed, files beside artifacts."""

from __future__ import annotations

import gzip
import importlib.util
import json
import math
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from models.config import ModelConfig
from models.kernels.attention import window_mask
from models.presets import Recompute, derive, flops_per_token
from models.transformer import Transformer
from storage.artifact import Artifact
from storage.digests import list_files, tree_digest
from storage.errors import ConfigError
from storage.maintain import collect, find_garbage
from storage.store import Store
from tasks.pretrain import pretrain
from tasks.pretrain.insight.layer_history import KEPT, LayerHistory
from tasks.pretrain.insight.layers import LayerStats, activation_stats, merge
from tasks.pretrain.insight.observe import KINDS, Clock, _cut, _finite, flattened, open_trackers
from tasks.pretrain.insight.page import Page
from tasks.pretrain.insight.probe import attention_entropy, probe
from tasks.pretrain.insight.profiler import StepProfiler
from tasks.pretrain.insight.settings import check_insight, check_trackers_here
from tasks.pretrain.insight.speed import mfu_text, speed_table, summarise
from tasks.pretrain.spec import TrainSpec
from tasks.stage.display.pages import MAX_PLOT_BYTES, report
from tasks.stage.display.progress import Observer
from tasks.stage.output import Output
from tasks.stage.runtime import Runtime
from tasks.stage.session import Session, Step
from tasks.training.device_peak import peak_flops
from tasks.training.logs import append_log, read_log
from tasks.training.tracking.trackers import by_step
from tests.runtimes import runtime_of
from tests.storage.conftest import Make, make  # noqa: F401
from tests.tasks.pretrain.tiny_training import CONFIG, output

SHAPE = derive(ModelConfig(family="llama", depth=2, width=32, heads=4, kv_heads=2, context=16), 50)
CPU = torch.device("cpu")
NEAR = window_mask(12, 3, CPU)
SEEN = {"rms", "max", "zeros", "outliers", "gradient_norm", "weight_norm", "update_ratio", "entropy", "lowest_entropy"}


class Watcher(Observer):
    """Reads every page."""

    def __init__(self) -> None:
        self.pages: list[tuple[str, str, bool]] = []

    def paged(self, stage: str, name: str, write: Callable[[], str], *, last: bool) -> None:
        self.pages.append((f"{stage}-{name}", write(), last))


def spec_of(folder: Path, **runtime: Any) -> TrainSpec:
    return TrainSpec(
        runtime=runtime_of(threads=1, device="cpu", **runtime),
        scratch=folder / "scratch",
        out=folder / "out",
        config=CONFIG,
        shape=SHAPE,
        steps=100,
        tokens_digest="",
        tokenizer_digest="",
        train=[],
        validation=[],
        tokenizer=folder,
        fim_tokens=None,
        aside=folder / "insight",
    )


# --- a whole run -------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def looked_into(data: tuple[Artifact, Artifact], tmp_path_factory: pytest.TempPathFactory) -> Output:
    out = output(tmp_path_factory.mktemp("looked"), insight_every=5, profile_steps=[4], micro_batch=4)
    out.observer = Watcher()
    pretrain.function(CONFIG, *data, out)
    return out


@pytest.mark.soak
def test_a_run_that_is_looked_into_learns_the_same_bit_for_bit(
    looked_into: Output, data: tuple[Artifact, Artifact], tmp_path: Path
) -> None:
    plain = output(tmp_path, micro_batch=4)
    pretrain.function(CONFIG, *data, plain)
    assert tree_digest(list_files(plain.path)) == tree_digest(list_files(looked_into.path))
    assert plain.counts == looked_into.counts
    assert sorted(path.name for path in plain.aside.iterdir()) == ["speed.jsonl"]


@pytest.mark.soak
def test_it_leaves_its_layers_a_trace_and_a_page_beside_the_artifact(looked_into: Output) -> None:
    records = read_log(looked_into.aside / "insight.jsonl")
    assert [record["step"] for record in records] == [5, 10]
    for record in records:
        assert set(record["layers"]["blocks.1.attention"]) == SEEN
        assert 0 < record["logit_entropy"] <= math.log(600)
        # an untrained attention is nearly uniform over what is visible
        assert record["layers"]["blocks.0.attention"]["entropy"] == pytest.approx(mean_log(32), abs=0.1)
    assert max(record["layers"]["embedding"]["gradient_norm"] for record in records) <= CONFIG.gradient_clip
    trace = json.loads(gzip.decompress((looked_into.aside / "trace-000000004.json.gz").read_bytes()))
    assert any(event.get("name") == "aten::mm" for event in trace["traceEvents"])
    tables = looked_into.facts["tables"]
    assert {"Speed", "Layers at step 10", "Costliest operators, step 4"} == set(tables)
    assert "data:image/png" in (looked_into.aside / "page.md").read_text()


def test_where_the_time_went_is_among_the_facts(looked_into: Output) -> None:
    facts = looked_into.facts
    shares = {name: value for name, value in facts.items() if name.endswith("_share") and name != "overhead_share"}
    assert set(shares) == {f"{kind}_share" for kind in (*KINDS, "starting")}
    assert sum(shares.values()) == pytest.approx(1.0, abs=1e-3)
    assert facts["overhead_share"] == pytest.approx(
        sum(shares[f"{kind}_share"] for kind in ("starting", "checkpoints", "logging")), abs=1e-4
    )
    assert facts["mfu_data_sheet"] is None  # of a CPU
    assert 0 < facts["mfu_measured"] < 1.5  # the peak is measured on a machine that may be busy
    assert facts["tokens_per_second"] > 0
    assert facts["peak_memory_bytes"] > 50e6


@pytest.mark.soak
def test_who_watches_sees_the_curve_while_it_trains(looked_into: Output) -> None:
    assert isinstance(looked_into.observer, Watcher)
    pages = looked_into.observer.pages
    assert {key for key, _, _ in pages} == {"pretrain-live"}
    assert [last for _, _, last in pages] == [False] * 12 + [True]
    assert "Step 3 of 12" in pages[2][1]
    assert all(len(text) < 1.5 * MAX_PLOT_BYTES for _, text, _ in pages)
    assert "blocks.1.feed_forward" in pages[-1][1]
    assert "aten::mm" in pages[-1][1]


# --- layers ------------------------------------------------------------------------------------------------------


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(2, 2, bias=False), nn.Linear(2, 1, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.second(self.first(x))
        return y


def test_norms_and_the_update_ratio_are_those_of_a_known_sgd_step() -> None:
    model = Pair()
    model.first.weight.data = torch.tensor([[3.0, 0.0], [0.0, 4.0]])
    model.second.weight.data = torch.tensor([[1.0, 2.0]])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    stats = LayerStats(model)
    stats.start()
    model(torch.tensor([[1.0, 0.0]])).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    found = stats.stop()
    # d/dW₁ = wᵀ₂xᵀ = [[1, 0], [2, 0]]; d/dW₂ = (W₁x)ᵀ = [3, 0]
    assert found["first"]["gradient_norm"] == pytest.approx(math.sqrt(5))
    assert found["first"]["weight_norm"] == pytest.approx(5.0)
    assert found["first"]["update_ratio"] == pytest.approx(0.1 * math.sqrt(5) / 5)
    assert found["second"]["update_ratio"] == pytest.approx(0.1 * 3 / math.sqrt(5))
    assert found["first"] == found["first"] | {"max": 3.0, "zeros": 0.5}
    assert found["first"]["rms"] == pytest.approx(3 / math.sqrt(2))


def test_an_activation_far_above_the_rest_is_an_outlier() -> None:
    x = torch.ones(10, 10)
    x[0, 0], x[0, 1] = -100.0, 0.0
    mean_square, largest, zeros, outliers = activation_stats(x).tolist()
    assert mean_square == pytest.approx((98 + 100.0**2) / 100)
    assert (largest, zeros, outliers) == (100.0, pytest.approx(0.01), pytest.approx(0.01))


def train_steps(looked: bool, recompute: Recompute = "none") -> tuple[Transformer, LayerStats]:
    torch.manual_seed(3)
    model = Transformer(SHAPE)
    model.recompute = recompute
    stats, optimizer = LayerStats(model), torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    for _ in range(3):
        ids_BT = torch.randint(50, (4, 16))
        if looked:
            stats.start()
        for part in ids_BT.chunk(2):
            (model(part[:, :-1], part[:, 1:]) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()
        if looked:
            assert {"rms", "gradient_norm", "update_ratio"} <= set(stats.stop()["blocks.1.feed_forward"])
            probe(model, ids_BT, None)
    return model, stats


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_hooks_change_nothing_and_are_gone_afterwards(recompute: Recompute) -> None:
    from torch.optim import optimizer

    (plain, _), (looked, _) = train_steps(False, recompute), train_steps(True, recompute)
    for name, parameter in plain.named_parameters():
        assert torch.equal(parameter, looked.get_parameter(name)), name
    assert not any(module._forward_hooks for module in looked.modules())
    assert not optimizer._global_optimizer_pre_hooks


def test_of_several_ranks_maxima_are_the_largest_and_rms_a_mean_of_squares() -> None:
    ranks = [{"norm": {"rms": 3.0, "max": 1.0, "zeros": 0.2}}, {"norm": {"rms": 4.0, "max": 5.0, "zeros": 0.4}}]
    assert merge(ranks)["norm"] == pytest.approx({"rms": math.sqrt(12.5), "max": 5.0, "zeros": 0.3})


def test_a_layer_that_no_rank_holds_whole_has_no_weights_to_tell_of() -> None:
    model = Pair()
    stats = LayerStats(model)
    stats.start()
    stats.before["first.weight"] = torch.zeros(0)  # as ZeRO 3 leaves a parameter between steps
    found = stats.stop()
    assert "weight_norm" not in found["first"]
    assert "weight_norm" in found["second"]


# --- attention and logits ----------------------------------------------------------------------------------------


def mean_log(tokens: int) -> float:
    return sum(math.log(number) for number in range(1, tokens + 1)) / tokens


@pytest.mark.parametrize(
    ("mask", "causal", "expected"),
    [
        (None, False, math.log(12)),
        (None, True, mean_log(12)),
        (NEAR, False, (mean_log(3) * 3 + 9 * math.log(3)) / 12),
        (torch.zeros(12, 12).masked_fill(~NEAR, -torch.inf), False, (mean_log(3) * 3 + 9 * math.log(3)) / 12),
    ],
    ids=["all", "causal", "window", "added"],
)
def test_uniform_attention_has_the_entropy_of_the_visible(mask: Tensor | None, causal: bool, expected: float) -> None:
    q_BHTD, k_BHTD = torch.zeros(1, 4, 12, 8), torch.randn(1, 2, 12, 8, generator=torch.Generator().manual_seed(0))
    assert attention_entropy(q_BHTD, k_BHTD, mask, causal=causal).tolist() == pytest.approx([expected] * 4)


def test_attention_that_looks_at_one_key_has_no_entropy() -> None:
    x_BHTD = 100 * torch.eye(6)[None, None]
    assert attention_entropy(x_BHTD, x_BHTD, None, causal=True).item() == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("family", ["gpt2", "llama", "mistral", "qwen3", "qwen3_moe", "gemma3", "olmo3"])
def test_each_attention_is_seen_and_the_logits_are_the_models(family: Any) -> None:
    torch.manual_seed(0)
    model = Transformer(derive(ModelConfig(family=family, depth=3, width=32, heads=4, context=16), 50))
    ids_BT = torch.randint(50, (2, 16))
    entropies, logits = probe(model, ids_BT, None)
    assert [entropy.shape for entropy in entropies] == [(4,)] * 3
    assert logits["logit_max"] == pytest.approx(float(model(ids_BT[:1]).abs().max()), rel=1e-5)
    torch.nn.init.zeros_(model.head.weight)
    assert probe(model, ids_BT, None)[1] == {"logit_max": 0.0, "logit_entropy": pytest.approx(math.log(50))}


def test_documents_that_dont_see_each_other_are_probed_apart() -> None:
    torch.manual_seed(0)
    model = Transformer(SHAPE)
    model.get_parameter("blocks.0.attention.qkv.weight").data.zero_()  # attention is uniform over what is visible
    ids_BT, positions_BT = torch.randint(50, (1, 16)), torch.arange(8).repeat(2)[None]
    entropies, logits = probe(model, ids_BT, positions_BT)
    assert entropies[0].tolist() == pytest.approx([mean_log(8)] * 4, rel=1e-5)
    assert logits["logit_max"] == pytest.approx(float(model(ids_BT, None, positions_BT).abs().max()), rel=1e-5)


def test_the_entropy_is_that_of_the_attention_that_torch_computes() -> None:
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(1, 2, 5, 4, generator=generator) for _ in range(3))
    rows = torch.softmax((q @ k.mT / 2).masked_fill(~torch.ones(5, 5).tril().bool(), -torch.inf), -1)
    assert torch.allclose(rows @ v, F.scaled_dot_product_attention(q, k, v, is_causal=True), atol=1e-6)
    expected = -(rows * rows.clamp(min=1e-30).log()).sum(-1).mean((0, 2))
    assert torch.allclose(attention_entropy(q, k, None, causal=True), expected, atol=1e-6)


# --- speed -------------------------------------------------------------------------------------------------------


def reported(
    step: int, steps: int, training: float, mfu: float, checkpoints: float = 0.0, sheet: float | None = None
) -> dict[str, Any]:
    seconds = dict.fromkeys(KINDS, 0.0) | {"training": training, "checkpoints": checkpoints, "logging": 0.1}
    speed = {"tokens_per_second": 100 * mfu, "mfu_measured": mfu, "mfu_data_sheet": sheet}
    return {"step": step, "steps": steps, **speed, "memory_bytes": step, "seconds": seconds}


def test_a_killed_runs_speed_counts_what_the_kill_cost() -> None:
    start = {"starting_seconds": 5.0, "peak_flops": 1e11, "precision": "float32"}
    rows = [
        {**start, "begun": 0},
        reported(10, 10, 4.0, 0.5),
        reported(20, 10, 4.0, 0.4, checkpoints=0.7),
        {**start, "begun": 15},
        reported(25, 10, 4.0, 0.6),
    ]
    found = summarise(rows)
    assert (found["mfu_measured"], found["tokens_per_second"], found["training_seconds"]) == (0.5, 50.0, 12.0)
    assert found["redone_steps"] == 5
    total = 10 + 12 + 0.7 + 0.3
    assert found["starting_share"] == pytest.approx(10 / total, abs=1e-5)
    assert found["overhead_share"] == pytest.approx((10 + 0.7 + 0.3) / total, abs=1e-5)
    assert found["peak_memory_bytes"] == 25
    assert {"measure": "time in checkpoints", "value": "3.04%"} in speed_table(found, "float32")


def test_utilisation_is_told_of_the_measured_peak_and_of_the_data_sheet() -> None:
    start = {"begun": 0, "starting_seconds": 5.0, "peak_flops": 8e14, "precision": "bfloat16"}
    rows = [{**start, "data_sheet_flops": 1e15}, reported(10, 10, 4.0, 0.5, sheet=0.4)]
    found = summarise(rows)
    assert (found["mfu_measured"], found["mfu_data_sheet"]) == (0.5, 0.4)
    told = {row["measure"]: row["value"] for row in speed_table(found, "bfloat16")}
    assert told["mfu_data_sheet, median"] == "40.0% of the data sheet's 1,000,000 GFLOP/s"
    assert mfu_text(rows[1]) == "mfu_measured 50.0%, mfu_data_sheet 40.0%"
    unknown = summarise([{**start, "data_sheet_flops": None}, reported(10, 10, 4.0, 0.5)])
    assert unknown["mfu_data_sheet"] is None
    assert "no data sheet" in str(speed_table(unknown, "bfloat16"))


def test_laps_leave_no_second_out() -> None:
    clock = Clock(CPU)
    begun = clock.last
    for kind in ("data", "training", "data"):
        time.sleep(0.01)
        clock.lap(kind)
    taken = clock.take()
    assert sum(taken.values()) == pytest.approx(clock.last - begun)
    assert taken["data"] >= 0.02
    assert sum(clock.take().values()) == 0


def test_the_peak_is_measured_once_in_little_time_and_draws_nothing() -> None:
    before, begun = torch.get_rng_state(), time.perf_counter()
    peak = peak_flops(CPU, torch.float32, torch.get_num_threads())
    assert torch.equal(torch.get_rng_state(), before)
    assert 1e8 < peak < 1e14
    assert peak_flops(CPU, torch.float32, torch.get_num_threads()) == peak
    x = torch.ones(512, 512)
    started = time.perf_counter()
    assert float((x @ x)[0, 0]) == 512
    assert 2 * 512**3 / (time.perf_counter() - started) < 3 * peak
    assert time.perf_counter() - begun < 30


def test_utilisation_is_flops_a_second_over_the_peak() -> None:
    # 6 × (2 blocks × (attention 3,072 + feed-forward 12,288) + head 1,600) + 12 × 2 × 32 × 16, by hand
    shape = derive(
        ModelConfig(family="llama", depth=2, width=32, heads=4, kv_heads=2, feed_forward=128, context=16), 50
    )
    assert flops_per_token(shape) == 6 * (2 * (3_072 + 12_288) + 1_600) + 12_288
    assert 1_000 * flops_per_token(shape) / 1e9 == pytest.approx(0.206208)


# --- files, settings, sinks --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("runtime", "named"),
    [
        ({"insight_every": 101}, "insight_every names step 101"),
        ({"profile_steps": [7, 200]}, "profile_steps names step 200"),
    ],
)
def test_a_step_that_never_comes_is_refused(runtime: dict[str, Any], named: str) -> None:
    check_insight(runtime_of(insight_every=100, profile_steps=[100]), 100)
    with pytest.raises(ConfigError, match=named):
        check_insight(runtime_of(**runtime), 100)


def test_a_tracker_that_is_not_installed_is_refused_with_its_extra() -> None:
    missing = [name for name in ("tensorboard", "wandb", "mlflow") if importlib.util.find_spec(name) is None]
    if not missing:
        pytest.skip("needs a tracker that is not installed")
    with pytest.raises(ConfigError, match=rf"pip install 'gristmill\[{missing[0]}\]'"):
        check_trackers_here(runtime_of(trackers=(missing[0],)))


def test_a_row_that_json_cant_hold_is_null_and_a_resume_cuts_back(tmp_path: Path) -> None:
    row = _finite({"step": 3, "layers": {"norm": {"rms": math.nan, "max": 1.23456789}}})
    assert row == {"step": 3, "layers": {"norm": {"rms": None, "max": 1.23457}}}
    assert flattened(row) == {"step": 3, "layers/norm/max": 1.23457}
    append_log(tmp_path / "a.jsonl", [{"step": step} for step in (2, 4, 6)])
    _cut(tmp_path / "a.jsonl", 4)
    assert [row["step"] for row in read_log(tmp_path / "a.jsonl")] == [2, 4]


def test_many_looks_are_thinned_evenly_and_the_newest_is_there(tmp_path: Path) -> None:
    path = tmp_path / "insight.jsonl"
    records = LayerHistory(path)
    assert records.read() == []
    for step in range(1, 3 * KEPT):
        with path.open("a") as file:
            file.write(json.dumps({"step": step}) + "\n")
        steps = [row["step"] for row in records.read()]
        assert steps[-1] == step
    assert len(steps) <= KEPT
    assert {later - earlier for earlier, later in pairwise(steps[:-1])} == {4}


def test_the_live_page_forgets_the_steps_that_are_taken_again(tmp_path: Path) -> None:
    out = Output.at(tmp_path, stage="pretrain")
    page = Page(spec_of(tmp_path), out)
    line = {
        "loss": 3.0,
        "tokens_per_second": 1000.0,
        "mfu_measured": 0.42,
        "mfu_data_sheet": None,
        "memory_bytes": 10**8,
    }
    for step in (10, 20, 30, 20):
        told = page.add({"step": step, **line})
    assert told == "loss 3.00, 1,000 tokens/s, mfu_measured 42.0%"
    assert [row["step"] for row in page.rows] == [10, 20]
    text = page.write()
    assert "Step 20 of 100" in text
    assert "mfu_measured 42.0%" in text
    assert "time left" in text


def test_a_profile_names_the_costliest_operators(tmp_path: Path) -> None:
    profiler = StepProfiler(tmp_path, CPU)
    x = torch.rand(256, 256)
    profiler.start()
    for _ in range(10):
        x @ x
    profiler.stop(7)
    (rows,) = [json.loads(path.read_text()) for path in tmp_path.glob("operators-*.json")]
    assert (rows[0]["operator"], rows[0]["calls"]) == ("aten::mm", 10)
    assert float(rows[0]["share"].rstrip("%")) > 50


def test_insight_goes_when_its_artifact_does(folder: Store, make: Make) -> None:  # noqa: F811
    gone = make(folder, "pretrain", {"a": b"a"}, {"seed": 1})
    key = gone.location.split("/")[1]
    assert folder.aside("pretrain", key) == folder.local / "insight" / gone.location
    for of in (key, "never-published"):
        (folder.aside("pretrain", of)).mkdir(parents=True)
        (folder.aside("pretrain", of) / "speed.jsonl").write_text("{}\n")
    garbage = find_garbage(folder, 3)
    assert set(garbage.workspaces) >= {folder.aside("pretrain", key), folder.aside("pretrain", "never-published")}
    collect(folder, garbage)
    assert not list((folder.local / "insight").glob("*/*"))


def test_insight_stays_while_its_artifact_is_needed(folder: Store, make: Make) -> None:  # noqa: F811
    from storage import refs

    kept = make(folder, "pretrain", {"a": b"a"}, {"seed": 1})
    refs.move(folder, "tiny/pretrain", kept.location, kept.digest)
    aside = folder.aside(*kept.location.split("/"))
    aside.mkdir(parents=True)
    collect(folder, find_garbage(folder, 1))
    assert aside.is_dir()


def test_a_stages_page_shows_how_it_went_beside_what_it_made(folder: Store, make: Make) -> None:  # noqa: F811
    made = make(folder, "pretrain", {"a": b"a"})
    assert made.manifest is not None
    out = Output.at(folder.local / "plain")
    out.table("Shape", [{"name": "depth"}])
    out.fact_table("Speed", [{"measure": "peak memory"}])
    update = {"counts": out.counts, "facts": {**out.facts, "seconds": 1.0}}
    session = Session(folder, Runtime())
    session.steps["pretrain"] = Step(replace(made, manifest=made.manifest.model_copy(update=update)), True, "", 0.1)
    text = report("pretrain", session)
    assert text.index("### Shape") < text.index("| depth |") < text.index("### Speed") < text.index("| peak memory |")


@pytest.fixture
def folder(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "store"))


def test_trackers_are_told_of_each_step_once_and_in_order() -> None:
    rows = [
        {"step": 1, "loss": 3.0},
        {"step": 2, "loss": 2.0},
        {"step": 1, "logit_max": 9.0},
        {"step": 2, "mfu_measured": 0.5},
    ]
    assert by_step(rows) == [(1, {"loss": 3.0, "logit_max": 9.0}), (2, {"loss": 2.0, "mfu_measured": 0.5})]


def test_tensorboard_gets_the_curves(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="needs the extra tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (tracker,) = open_trackers(spec_of(tmp_path, trackers=["tensorboard"]), 0)
    for step in (1, 2, 3):
        tracker.scalars(step, {"loss": 4.0 - step})
    tracker.close()
    (again,) = open_trackers(spec_of(tmp_path, trackers=["tensorboard"]), 2)  # step 3 is taken again
    again.scalars(3, {"loss": 0.5})
    again.close()
    events = EventAccumulator(str(tmp_path / "insight" / "tensorboard")).Reload()
    assert [(event.step, event.value) for event in events.Scalars("loss")] == [(1, 3.0), (2, 2.0), (3, 0.5)]


def test_wandb_stays_offline_and_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb", reason="needs the extra wandb")
    monkeypatch.setenv("WANDB_MODE", "disabled")  # as training children have it
    for step in (1, 2):
        (tracker,) = open_trackers(spec_of(tmp_path, trackers=["wandb"]), step - 1)
        tracker.scalars(step, {"loss": 4.0 - step})
        tracker.close()
    files = list((tmp_path / "insight" / "wandb").rglob("*.wandb"))
    assert len(files) == 2
    assert len({file.name for file in files}) == 1
    assert all("offline-run" in str(file) for file in files)
    assert all(b"loss" in file.read_bytes() for file in files)


def test_mlflow_goes_on_with_its_run(tmp_path: Path) -> None:
    pytest.importorskip("mlflow", reason="needs the extra mlflow")
    from mlflow.tracking import MlflowClient

    for step in (1, 2):
        (tracker,) = open_trackers(spec_of(tmp_path, trackers=["mlflow"]), step - 1)
        tracker.scalars(step, {"layers/norm/rms": 4.0 - step})
        tracker.close()
    folder = tmp_path / "insight" / "mlflow"
    client = MlflowClient(tracking_uri=f"sqlite:///{folder / 'mlflow.db'}")
    history = client.get_metric_history((folder / "run-id").read_text(), "layers/norm/rms")
    assert [(metric.step, metric.value) for metric in history] == [(1, 3.0), (2, 2.0)]
