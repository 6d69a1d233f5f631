"""The load of experts: what share of the tokens each got in a step, on the page and in the files."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from models.config import ModelConfig
from models.kernels.experts import Router
from models.presets import Recompute, derive
from models.transformer import Transformer
from tasks.pretrain import pretrain
from tasks.pretrain.config import PretrainConfig
from tasks.pretrain.insight.heatmaps import plot_loads
from tasks.pretrain.insight.layers import LayerStats, load_stats
from tasks.pretrain.insight.observe import flattened
from tasks.pretrain.insight.page import router_rows
from tasks.training.logs import read_log
from tests.tasks.pretrain.tiny_training import CONFIG, make_data, output

SHAPE = derive(ModelConfig(family="qwen3_moe", depth=2, width=32, heads=4, context=16, experts=4), 50)


@pytest.mark.parametrize("recompute", ["none", "full"])
def test_each_experts_share_is_that_of_the_tokens_it_got(recompute: Recompute) -> None:
    torch.manual_seed(3)
    model = Transformer(SHAPE)
    model.recompute = recompute
    stats, optimizer = LayerStats(model), torch.optim.SGD(model.parameters(), lr=0.1)
    ids_BT, seen = torch.randint(50, (4, 16)), list[Tensor]()
    for router in (module for module in model.modules() if isinstance(module, Router)):
        router.register_forward_hook(lambda router, inputs, output: seen.append(output[1]))
    stats.start()
    for part in ids_BT.chunk(2):
        model(part, part).backward()
    optimizer.step()
    stats.stop()
    loads = stats.load()
    assert list(loads) == [f"blocks.{number}.feed_forward.router" for number in range(2)]
    for number, shares in enumerate(loads.values()):  # computed again, blocks come in another order
        expected = torch.bincount(torch.cat([experts.flatten() for experts in seen[number::2]]), minlength=4)
        assert recompute == "full" or shares == pytest.approx((expected / expected.sum()).tolist())
        assert sum(shares) == pytest.approx(1)
    assert stats.load() == {}


def record(step: int, load: list[float]) -> dict[str, Any]:
    return {"step": step, "layers": {}, "routers": load_stats([{"router": load}, {"router": load[::-1]}])}


def test_ranks_are_added_up_and_shown(tmp_path: Path) -> None:
    one = record(10, [0.1, 0.2, 0.3, 0.4])["routers"]["router"]
    assert one == {"load": pytest.approx([0.25] * 4), "largest": pytest.approx(1), "entropy": 1, "dropped": 0}
    rows = [record(10, [0.25] * 4), record(20, [0.5, 0.0, 0.0, 0.5])]
    lonely = rows[1]["routers"]["router"]
    assert lonely["entropy"] == pytest.approx(math.log(2) / math.log(4))
    assert flattened(rows[1]) == pytest.approx(
        {"step": 20, "routers/router/largest": 2, "routers/router/entropy": 0.5, "routers/router/dropped": 0}
    )
    assert router_rows(rows[1]) == [
        {
            "router": "router",
            "largest load / mean": "2",
            "smallest load / mean": "0",
            "entropy, share of the most": "0.5",
            "dropped tokens": "0",
        }
    ]
    plot_loads(rows, tmp_path / "loads.png")
    assert (tmp_path / "loads.png").stat().st_size > 1000


@pytest.mark.soak
def test_a_run_shows_its_loads_on_the_page(tmp_path: Path) -> None:
    model = {"family": "qwen3_moe", "depth": 2, "width": 64, "heads": 4, "context": 32}
    config = PretrainConfig.model_validate({**CONFIG.model_dump(exclude={"model"}), "model": model})
    out = output(tmp_path / "out", insight_every=5)
    pretrain.function(config, *make_data(tmp_path), out)
    for record in read_log(out.aside / "insight.jsonl"):
        assert [len(found["load"]) for found in record["routers"].values()] == [8, 8]
    assert [row["dropped tokens"] for row in out.facts["tables"]["Experts at step 10"]] == ["0", "0"]
    page = (out.aside / "page.md").read_text()
    assert "Experts at step 10" in page
    assert page.count("data:image/png") == 3
