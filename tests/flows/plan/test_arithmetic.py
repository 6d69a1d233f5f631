"""The arithmetic of a profile: its settings reach the formulas, and `plan` prints their results."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from rich.console import Console

from flows.commands.plan import show_plan, show_posttraining
from flows.commands.training import show_training
from flows.estimates.arithmetic import TrainingPlan, pretraining_of, training_plan
from flows.estimates.posttraining import TRL, Need, needs
from flows.records.recorder import Asked
from models.memory import LIBRARIES, Setup
from models.presets import derive
from profiles.load import load
from storage.errors import ConfigError
from storage.units import duration, size_of
from tasks.stage import machine
from tasks.training.device_peak import cpu_peak_flops


def planned(name: str, *overrides: str, device: str = "h100") -> TrainingPlan:
    return training_plan(load(name, list(overrides)), device)


def printed(plan: TrainingPlan) -> str:
    console = Console(width=160)
    with console.capture() as captured:
        show_training(console, plan)
    return captured.get()


def test_the_words_of_a_profile_reach_the_formulas(tmp_path: Path) -> None:
    usual = Setup(engine="ddp", precision="mixed", micro_batch=128, micro_steps=4, copies_states=True, compiled=True)
    assert planned("gpu").setup == usual
    hosts = tmp_path / "hostfile"
    hosts.write_text("# eight hosts\n" + "".join(f"host{number} slots=8\n" for number in range(8)))
    cluster = planned("cluster", f"runtime.training.hostfile={hosts}").setup
    assert (cluster.devices, cluster.zero_stage, cluster.recompute, cluster.micro_batch) == (64, 3, "full", 2)
    assert planned("cluster").setup.devices == 8  # a hostfile that is elsewhere: one host
    isolated = planned("gpu", "pretrain.isolate_documents=true", "pretrain.precision=float32")
    assert (isolated.setup.isolate, isolated.setup.precision) == (True, "float32")
    assert isolated.memory.activations > planned("gpu").memory.activations


def test_a_micro_batch_that_is_not_given_is_the_engines() -> None:
    tiny = training_plan(load("tiny"))
    assert (tiny.device.name, tiny.setup.precision, tiny.setup.cuda) == ("cpu", "float32", False)
    assert tiny.setup.micro_batch == 8  # all of a small global batch
    assert training_plan(load("tiny", ["pretrain.global_batch=64"])).setup.micro_batch == 16  # 4,096 tokens of 256
    assert tiny.bill.hours is not None
    assert tiny.bill.money is None


def test_time_and_money_follow_the_device_and_what_replaces_its_assumptions() -> None:
    profile = load("gpu")
    usual, own = training_plan(profile), training_plan(profile, "h100", price=1.5, utilisation=0.225)
    assert usual.device.name == "h100"
    assert usual.bill.hours is not None
    assert usual.bill.money is not None
    assert own.bill.hours == pytest.approx(2 * usual.bill.hours)
    assert own.bill.money == pytest.approx(usual.bill.money)
    assert planned("cluster").executed_flops == pytest.approx(4 / 3 * planned("cluster").flops, rel=0.1)


def test_what_somebody_gives_is_no_assumption() -> None:
    profile = load("gpu")
    assert "assum" in printed(training_plan(profile, "h100"))
    assert "assum" not in printed(training_plan(profile, "h100", price=1.2, utilisation=0.5))


def test_processes_on_a_cpu_share_its_cores() -> None:
    cores = machine.cores()
    peak = cpu_peak_flops(1)  # measured once: every plan divides by the same

    def hours(processes: int, threads: int = 1) -> float:
        settings = ["pretrain.global_batch=1024", f"runtime.training.processes={processes}"]
        plan = planned("tiny", *settings, f"runtime.compute.threads={threads}", device="cpu")
        assert plan.device.single == peak or threads > 1
        assert ("whose cores they share" in printed(plan)) == (processes * threads > cores)
        assert plan.bill.hours is not None
        return plan.bill.hours

    alone, full = hours(1), hours(1 << (cores.bit_length() - 1))
    assert full == pytest.approx(alone / (1 << (cores.bit_length() - 1)))
    assert hours(1024) == pytest.approx(alone / cores)
    assert hours(8, threads=cores) >= 0.9 * hours(1, threads=cores)


def test_a_device_that_nobody_knows_and_devices_that_cant_be_shared_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"Device h101 is unknown. Choose one of cpu, h200"):
        planned("gpu", device="h101")


def test_what_does_not_fit_says_so_with_the_way_out() -> None:
    fits, large = planned("gpu"), planned("gpu", "pretrain.model.depth=24", device="rtx4090")
    assert fits.fits
    assert "fits: 58%" in printed(fits)
    assert not large.fits
    text = printed(large)
    assert "does not fit" in text
    remedy = large.remedy()
    assert remedy
    assert f"It would fit with {', '.join(f'{name} {value}' for name, value in remedy.items())}." in text
    changed = [f"runtime.pretrain.micro_batch={remedy.get('micro_batch', 32)}", "runtime.pretrain.recompute=full"]
    if remedy.get("recompute") == "full":
        assert planned("gpu", "pretrain.model.depth=24", *changed, device="rtx4090").fits


LOADED_WHOLE = ["runtime.posttrain.engine=ddp", "runtime.posttrain.zero_stage=0"]


def test_the_memory_of_starting_and_ending_is_told(tmp_path: Path) -> None:
    console = Console(width=160)
    with console.capture() as captured:
        show_plan(console, Asked("cluster", [f"runtime.store={tmp_path / 'store'}"]), device="h100")
    lines = captured.get().splitlines()
    plan = planned("cluster")
    whole = 4 * plan.parameters
    (end,) = (line for line in lines if line.startswith("end "))
    assert size_of(plan.ranks * plan.ends.end.host + 2 * whole) in end  # ours and that of transformers
    (divided,) = (line for line in lines if "sft" in line and "the first process gathers the whole model" in line)
    assert f"in float32, {size_of(whole)}." in divided
    with console.capture() as captured:
        show_posttraining(console, load("cluster", LOADED_WHOLE), ["sft"], plan.shape, plan.parameters, plan.device)
    assert f"loads the whole model in float32, {size_of(whole)}, {size_of(8 * whole)} on a host" in captured.get()


def test_what_trains_but_cant_start_does_not_fit() -> None:
    settings = ["runtime.training.processes=64", "runtime.training.hostfile=null", "runtime.pretrain.zero_stage=2"]
    plan = planned("cluster", *settings, "pretrain.model.depth=60", device="a100-40")
    assert plan.memory.total <= plan.device.memory < plan.most
    assert not plan.fits
    assert "does not fit when it starts or ends" in printed(plan)


def test_plan_prints_every_table(tmp_path: Path) -> None:
    console = Console(width=160)
    with console.capture() as captured:
        show_plan(console, Asked("gpu", [f"runtime.store={tmp_path / 'store'}"]), device="a100")
    text = captured.get()
    for line in ("The model", "The run", "tokens per parameter", "compute-optimal", "Memory: mixed, DDP", "optimizer"):
        assert line in text
    for line in ("NVIDIA A100 80GB", "one checkpoint", "assumed 40% of 312 TFLOP/s", "USD", "mid-2025"):
        assert line in text


def test_the_peak_of_this_machine_is_measured_in_no_time() -> None:
    import time

    started = time.perf_counter()
    peak = cpu_peak_flops(threads=1)
    assert 1e9 < peak < 1e13
    assert time.perf_counter() - started < 10  # a second on a quiet machine


def test_a_batch_that_warms_up_has_seen_fewer_tokens() -> None:
    warm = ["pretrain.tokens=null", "pretrain.steps=1000", "pretrain.batch_warmup_steps=300"]
    steady, growing = planned("gpu", *warm[:2]), planned("gpu", *warm)
    assert steady.tokens == 1000 * 512 * 1024
    # The first 300 steps have an eighth, a quarter and half of the batch, 100 each
    assert growing.tokens == (700 + 100 / 8 + 100 / 4 + 100 / 2) * 512 * 1024
    assert "1,000 steps of 524,288 tokens" in printed(steady)
    assert "1,000 steps of up to 524,288 tokens" in printed(growing)


def test_the_peak_is_that_of_what_multiplies() -> None:
    hours = {}
    for precision, peak in (("bfloat16", "989"), ("tf32", "495"), ("float32", "67")):
        plan = planned("gpu", f"pretrain.precision={precision}")
        assert f"45% of {peak} TFLOP/s" in printed(plan)
        assert plan.bill.hours is not None
        hours[precision] = plan.bill.hours
    assert hours["bfloat16"] < hours["tf32"] < hours["float32"]


def test_what_is_held_and_counted_is_named() -> None:
    muon = printed(planned("gpu", "pretrain.optimizer=muon", "runtime.pretrain.engine=ddp"))
    assert "Muon's moment of the blocks' matrices" in muon
    assert "FSDP, zero_stage 3" in printed(
        planned("gpu", "runtime.pretrain.engine=fsdp", "runtime.pretrain.zero_stage=3")
    )
    assert "names hostfile, which does not exist" in printed(planned("cluster"))


def test_a_plan_for_a_device_says_what_it_knows_and_what_it_does_not(tmp_path: Path) -> None:
    console = Console(width=160)
    with console.capture() as captured:
        show_plan(console, Asked("gpu", [f"runtime.store={tmp_path / 'store'}"]), device="a100")
    text = captured.get()
    assert re.search(r"11 to make: about \d+ h \d+ min, unknown for pairs, sft, dpo\.", text)
    assert "2.19 EFLOP, usual rates" in text
    assert "14.4 GB of text" in text
    assert "about 0.0 s" not in text
    assert duration(3600 * 47.5) == "47 h 30 min"
    assert duration(86_400 * 29.8) == "29.8 days"


def test_each_engine_and_stage_stands_beside_the_others() -> None:
    plan = planned("cluster", "runtime.pretrain.micro_batch=1")
    sizes = {(setup.engine, setup.zero_stage): total for setup, total in plan.by_engine()}
    assert sizes["deepspeed", 3] == plan.memory.total
    zero = [sizes["deepspeed", stage] for stage in range(4)]
    assert zero == sorted(zero, reverse=True)
    assert sizes["fsdp", 3] < sizes["fsdp", 0] < sizes["ddp", 0]
    lines = {line.split("  ")[0]: line for line in printed(plan).splitlines()}
    assert "does not fit" in lines["DDP"]
    assert "← this profile" in lines["ZeRO 3"]
    assert "does not fit" not in lines["FSDP, zero_stage 3"]
    assert [
        setup.engine
        for setup, _ in planned("gpu", "pretrain.optimizer=muon", "runtime.pretrain.engine=ddp").by_engine()
    ] == ["ddp", "deepspeed", "fsdp", "fsdp"]


def test_a_device_without_8_bit_products_is_not_planned_for_them() -> None:
    assert planned("gpu", "pretrain.precision=float8", device="H100").device.name == "h100"
    for device in ("a100", "cpu"):
        with pytest.raises(ConfigError, match="float8") as caught:
            planned("gpu", "pretrain.precision=float8", device=device)
        assert "h100" in caught.value.remedy


def test_a_size_beyond_everything_is_refused() -> None:
    with pytest.raises(ConfigError, match="depth"):
        load("gpu", ["pretrain.model.depth=10000000000000000000000"])


def test_what_a_window_hides_is_named_as_work_only_where_it_is_computed() -> None:
    mistral = ("pretrain.model.family=mistral", "runtime.pretrain.recompute=full")
    for precision, computed in (("bfloat16", False), ("float32", True)):
        text = printed(planned("gpu", *mistral, f"pretrain.precision={precision}"))
        assert "hardware FLOPs: with recomputation" in text
        assert ("masked by the sliding window" in text) == computed


def test_the_least_memory_of_post_training_is_that_of_its_states_and_frozen_models() -> None:
    """Of a link whose steps have no estimate."""
    count = 1_000_000

    def least(*overrides: str, processes: int = 1, cuda: bool) -> int:
        profile = load("tiny", ["kto={}", *overrides])
        profile = profile.model_copy(update={"runtime": profile.runtime.with_changes("training", processes=processes)})
        (found,) = needs(profile, ["kto", "prune"], None, count, cuda=cuda).values()  # `prune` trains nothing
        assert not found.most
        return found.bytes - (0 if cuda else LIBRARIES + TRL)

    sharded = ["runtime.posttrain.engine=fsdp", "runtime.posttrain.zero_stage=3"]
    assert least(cuda=True) == least(cuda=False) == 16 * count
    assert least(*sharded, processes=2, cuda=True) == 8 * count
    assert least(*sharded, processes=2, cuda=False) == 12 * count, "the first gathers the whole model"
    assert least("kto.adapter.rank=4", cuda=True) == 4 * count
    for settings, bytes_ in (("", 20), ("beta: 0, max_kl: null", 16), ("adapter: {rank: 4}", 4)):
        found = needs(load("tiny", [f"grpo={{{settings}}}"]), ["grpo"], None, count, cuda=True)
        assert found["grpo"].bytes == bytes_ * count


def test_a_plan_has_the_memory_of_a_merge() -> None:
    def most(models: int, method: str, *, cuda: bool = False) -> dict[str, Need]:
        links = ["sft", "dpo", "base"][:models]
        merged = ", ".join(f"{{link: {link}}}" for link in links)
        profile = load("tiny", [f"merge={{method: {method}, models: [{merged}]}}"])
        return needs(profile, ["merge"], derive(pretraining_of(profile).new_model, 6144), 0, cuda=cuda)

    two, three = (most(models, "linear")["merge"].bytes - LIBRARIES for models in (2, 3))
    assert three - two == two // 3, "a model more beside the merged one and two"
    assert most(2, "ties")["merge"].bytes - LIBRARIES > two
    assert most(2, "linear", cuda=True) == {}, "it is computed on the CPU"


def test_a_plan_has_the_copy_and_the_cache_of_an_engine_that_samples() -> None:
    def most(name: str, engine: str, *, cuda: bool) -> int:
        profile = load("tiny", ["reward={}", f"{name}={{rollout: {{engine: {engine}}}}}"])
        shape = derive(pretraining_of(profile).new_model, 6144)
        return needs(profile, [name], shape, 0, cuda=cuda)[name].bytes

    for name in ("grpo", "ppo"):
        assert most(name, "llama.cpp", cuda=False) > most(name, "transformers", cuda=False)
        assert most(name, "llama.cpp", cuda=True) == most(name, "transformers", cuda=True), "the copy is on the CPU"


def test_a_plan_has_the_memory_of_a_step_of_post_training(tmp_path: Path) -> None:
    def shown(*overrides: str) -> tuple[list[str], str]:
        profile, console = load("tiny", ["sft.max_length=64", *overrides]), Console(width=160)
        shape = derive(pretraining_of(profile).new_model, 6144)
        with console.capture() as captured:
            show_posttraining(console, profile, ["sft", "dpo"], shape, 1_574_272, None)
        text = captured.get()
        return [line for line in text.splitlines() if line.startswith(("sft ", "dpo "))], text

    (sft, dpo), text = shown()
    assert "at most: a step on 16 rows of 64 tokens" in sft
    assert "at most: a step on 32 rows of 245 tokens, about the longest in the sources" in dpo
    assert "Does not fit" not in text
    (sft, dpo), text = shown("dpo.global_batch=4096", "runtime.posttrain.micro_batch=4096", "sft.global_batch=4096")
    assert "at most: a step on 8,192 rows of 245 tokens, about the longest in the sources. Does not fit" in dpo
    assert "To make it smaller: lower runtime.posttrain.micro_batch; set" in text
    (sft, dpo), _ = shown("sft.adapter.rank=4", "sft.adapter.quantize=nf4")
    assert "at least: the states of its model" in sft
