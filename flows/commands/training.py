"""The tables of `gristmill plan` about training: tokens, compute, memory, disk, time and cost."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from flows.estimates.arithmetic import TrainingPlan
from flows.tables import new_table
from models.compute import compute_optimal, judge_ratio
from models.devices import PRICED
from models.memory import LIBRARIES, Moment, Setup, resident_in_step
from models.presets import count_parameters
from storage.units import duration, size_of

TIGHT = 0.9  # of the device's memory: fragmentation may take the rest
BAR = 24  # characters of the longest bar
MOMENTS = {"adamw": "AdamW's two moments", "muon": "Muon's moment of the blocks' matrices, AdamW's two of the rest"}


def show_training(console: Console, plan: TrainingPlan) -> None:
    """Print a table each for the run, the memory per device, the memory of each engine, and time and cost."""
    _show_run(console, plan)
    _show_memory(console, plan)
    _show_engines(console, plan)
    _show_bill(console, plan)


def _show_run(console: Console, plan: TrainingPlan) -> None:
    table = new_table("what", "value", "meaning", right=["value"], show_header=False, title="The run")
    active = count_parameters(plan.shape, active=True)
    ratio, kind = plan.tokens / active, "parameter" if active == plan.parameters else "active parameter"
    parameters, tokens = compute_optimal(plan.flops)
    table.add_row("parameters", _short(plan.parameters), f"{plan.parameters:,}")
    table.add_row("tokens", _short(plan.tokens), _steps_of(plan))
    if plan.is_new:
        table.add_row(f"tokens per {kind}", f"{ratio:,.1f}", judge_ratio(plan.shape, plan.tokens))
    table.add_row("compute", f"{plan.flops:.3g} FLOPs", "model FLOPs: forward and backward")
    if plan.executed_flops != plan.flops:
        recomputed = ["recomputation"] if plan.setup.recompute == "full" else []
        masked = ["attention masked by the sliding window but not skipped"] if plan.computes_hidden else []
        why = " and ".join(recomputed + masked)
        table.add_row("", f"{plan.executed_flops:.3g} FLOPs", f"hardware FLOPs: with {why}")
    if plan.compiling:
        table.add_row("compile", "default" if plan.setup.compiled else "off", f"auto: {plan.compiling}")
    if plan.is_new:
        optimal = f"parameters, {_short(tokens)} tokens (Chinchilla's 20 to 1)"
        table.add_row("compute-optimal", _short(parameters), optimal)
    _show(console, table)


def _show_memory(console: Console, plan: TrainingPlan) -> None:
    memory, setup = plan.memory, plan.setup
    how = f"{setup.precision}, {_named(setup)}, micro-batch {setup.micro_batch}, recompute {setup.recompute}"
    if setup.devices > 1:
        how += f", one of {setup.devices} devices"
    table = new_table("", "size", "", "description", right=["size"], title=f"Memory: {how}")
    passes = memory.peak > memory.after  # the peak is while activations exist
    parts = [
        ("weights", memory.weights, "in 16 bits" if setup.weight_bytes == 2 else "in float32"),
        ("gradients", 0 if memory.fresh and passes else memory.gradients, "summed in float32"),
        ("optimizer", memory.optimizer, MOMENTS[setup.optimizer] + (", float32 masters" if setup.master_bytes else "")),
        ("gathered weights", memory.gathered, "gathered for matrix products"),
        ("buffers", memory.buffers, "communication of gradients"),
    ]
    passing = [
        ("loss", memory.loss, "a chunk of logits, and the head's gradient"),
        ("backward pass", memory.backward, "of one block"),
        ("reduction", memory.reduce, "a block's gradients, beyond its freed activations"),
    ]
    if passes:
        parts.append(("activations", memory.activations, "of all blocks, saved for the backward pass"))
        parts.append(max(passing, key=lambda part: part[1]))
    elif memory.step >= memory.tied:
        parts.append(("optimizer step", memory.step, "float32 gradients, larger than the activations"))
    else:
        parts.append(("tied matrix", memory.tied, "its gradients from both uses and their sum, after the activations"))
    total = memory.total
    if not setup.cuda:
        tensors = memory.total + memory.host
        total = resident_in_step(plan.shape, setup, memory)
        parts += [("host", memory.host, "copies of states that are being written, and offloaded ones")]
        parts += [
            ("heap", total - LIBRARIES - tensors, "room between tensors"),
            ("libraries", LIBRARIES, "Python, torch and transformers"),
        ]
    for name, size, what in parts:
        if size:
            bar = "█" * max(1, round(BAR * size / total))
            table.add_row(name, size_of(size), f"[cyan]{bar}[/]", what)
    table.add_row("[bold]total[/]", f"[bold]{size_of(total)}[/]", "", _verdict(plan))
    _show(console, table)
    _show_ends(console, plan)
    if not plan.fits:
        remedy = plan.remedy()
        if remedy is None:
            console.print("No runtime settings make it fit. Choose a smaller model or another --device.")
        else:
            settings = ", ".join(f"{name} {value}" for name, value in remedy.items())
            console.print(f"It would fit with {settings}.", soft_wrap=True)


def _show_ends(console: Console, plan: TrainingPlan) -> None:
    """Print the peak memory of a device and a host at each phase of the run. On a CPU they are the same memory."""
    ends, cuda = plan.ends, plan.setup.cuda
    title = "Memory by phase" if cuda else "Tensors of a process by phase"
    table = new_table("", "device", "host", "description", right=["device", "host"], title=title)
    times = [
        ("start", ends.start, "the engine is built: weights are drawn a parameter at a time"),
        ("resume", ends.resume, "a checkpoint is read"),
        (
            "training",
            Moment(plan.memory.total, plan.memory.host),
            "a step (on the host: offloaded states and copies being written)",
        ),
        ("end", ends.end, "the first rank gathers the model in float32 and writes it, as for snapshots"),
    ]
    for name, moment, what in times:
        host = plan.ranks * moment.host + moment.first
        size = size_of(moment.device) if moment.device <= plan.device.memory else f"[red]{size_of(moment.device)}[/]"
        table.add_row(name, size, size_of(host) if host else "", what)
    _show(console, table)
    if cuda and plan.ranks > 1:
        console.print(f"A host has {plan.ranks} processes. Libraries take a few gigabytes for each.", soft_wrap=True)


def _show_engines(console: Console, plan: TrainingPlan) -> None:
    engines = plan.by_engine()
    if len(engines) == 1:
        return
    table = new_table(
        "what",
        "value",
        "meaning",
        right=["value"],
        show_header=False,
        title="Memory by engine and stage: runtime.pretrain.engine and zero_stage",
    )
    most = max(total for _, total in engines)
    for setup, total in engines:
        fits = "" if total <= plan.device.memory else "[red]does not fit[/]"
        bar = f"[cyan]{'█' * max(1, round(BAR * total / most)):<{BAR}}[/]"
        here = (setup.engine, _stage(setup)) == (plan.setup.engine, _stage(plan.setup))
        name = f"[bold]{_named(setup)}[/]" if here else _named(setup)
        table.add_row(name, size_of(total), f"{bar} {'← this profile ' if here else ''}{fits}".rstrip())
    _show(console, table)


def _named(setup: Setup) -> str:
    if setup.engine == "deepspeed":
        return f"ZeRO {setup.zero_stage}"
    return "DDP" if setup.engine == "ddp" else f"FSDP, zero_stage {_stage(setup)}"


def _stage(setup: Setup) -> int:
    """The effective ZeRO stage: FSDP only distinguishes 3."""
    if setup.engine == "fsdp":
        return 3 if setup.zero_stage == 3 else 0
    return setup.zero_stage


def _verdict(plan: TrainingPlan) -> str:
    share = plan.most / plan.device.memory
    used = f"{share:.0%} of the {size_of(plan.device.memory)} of {plan.device.title}"
    if not plan.fits:
        ends = plan.setup.cuda and plan.most > plan.memory.total
        when = f" when it starts or ends ({size_of(plan.most)})" if ends else ""
        return f"[bold red]does not fit[/]{when}: {used}"
    if share > TIGHT:
        return f"[bold yellow]tight[/]: {used}; fragmentation may take the rest"
    return f"[bold green]fits[/]: {used}"


def _show_bill(console: Console, plan: TrainingPlan) -> None:
    table, device, bill = (
        new_table("what", "value", "meaning", right=["value"], show_header=False, title="Disk, time and cost"),
        plan.device,
        plan.bill,
    )
    table.add_row("one checkpoint", size_of(plan.checkpoint), "weights and optimizer states")
    table.add_row("checkpoints", size_of(plan.disk), "peak: those kept, and the one being written")
    many = f"{plan.setup.devices} × " if plan.setup.devices > 1 else ""
    if bill.hours is None or bill.device_hours is None:
        table.add_row("time", "unknown", f"the peak of {device.title} in this precision is unknown")
    else:
        peak = device.peak(plan.products) or 0.0
        source = "measured now" if device.name == "cpu" else "data sheet"
        speed = f"{peak / 1e12:,.0f} TFLOP/s" if peak >= 1e12 else f"{peak / 1e9:,.0f} GFLOP/s"
        share = f"{device.utilisation:{'.0%' if device.utilisation >= 0.01 else '.2%'}}"
        reach = f"{share} of {speed} ({source})"
        if plan.measured and device.utilisation > 1:  # an earlier run was faster than the peak under the present load
            reach += ". The machine is busy now, and was not then"
        how = f"which is {reach}" if plan.measured else f"at {'' if plan.given_share else 'an assumed '}{reach}"
        shared = ", whose cores they share" if plan.busy < plan.setup.devices else ""
        table.add_row("time", duration(bill.hours * 3600), f"on {many}{device.title}{shared}, {how}")
        name = "mfu_measured" if device.name == "cpu" else "mfu_data_sheet"
        assumed = "" if plan.measured or plan.given_share else "; assumed, override with --utilisation"
        table.add_row(name, f"{plan.mfu:.1%}", f"model FLOPs, of that peak{assumed}")
        if bill.money is not None:
            price = f"{bill.device_hours:,.1f} device hours at {device.price:,.2f} USD"
            dated = "" if plan.given_price else f", an assumption of {PRICED}; override with --price"
            sum_of = f"{bill.money:,.0f} USD" if bill.money >= 100 else f"{bill.money:,.2f} USD"
            table.add_row("cost", sum_of, f"{price}{dated}")
    _show(console, table)
    if plan.hostfile is not None:
        console.print(
            f"runtime.training.hostfile names {plan.hostfile}, which does not exist on this machine. These figures are "
            "for one host, and a run here would be refused.",
            soft_wrap=True,
        )


def _steps_of(plan: TrainingPlan) -> str:
    """The steps, and the tokens of each, which are fewer during batch warmup."""
    most = plan.batch * plan.shape.context
    return f"{plan.steps:,} steps of {'' if plan.tokens == plan.steps * most else 'up to '}{most:,} tokens"


def _show(console: Console, table: Table) -> None:
    console.print()
    console.print(table)


def _short(number: float) -> str:
    """A count in short form: `124M`, `1.34M`, `2.7B`."""
    for unit in ("", "k", "M", "B"):
        if number < 999.5:
            return f"{number:.3g}{unit}"
        number /= 1000
    return f"{number:.3g}T"
