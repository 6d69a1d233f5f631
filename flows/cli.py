"""The `gristmill` command.

An error that a user can fix prints what is wrong and what to do, and exits with 1. Ctrl-C exits with 130, and the
next run resumes. Prefect is imported only by the commands that run something.
"""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Annotated

from tasks.checks.quiet import keep_quiet

gc.set_threshold(50_000)  # imported modules stay: searching them for garbage takes a fifth of a command's start


@contextmanager
def beginning() -> Iterator[None]:
    """During imports, Ctrl-C ends the process with a sentence instead of a traceback."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end_at_once)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _end_at_once(number: int, frame: object) -> None:
    os.write(2, b"Interrupted before anything began.\n")
    os._exit(128 + number)


keep_quiet()

with beginning():
    import typer
    from rich.markup import escape

    from flows.commands.documents.sample import sample
    from flows.commands.documents.takedown import forget, trace
    from flows.commands.matrix import ablate, mix, scaling
    from flows.commands.process_setup import ask_this_machine_directly, check_edges, mind_streams, quiet_libraries
    from flows.commands.report import report
    from flows.options import (
        DEFAULT_STORE,
        LastProfile,
        LastStage,
        Overrides,
        Paranoid,
        ProfileName,
        Refreshed,
        Scheduler,
        StoreUrl,
        Yes,
        as_given,
        settings,
        store_of,
    )
    from flows.stop import end_undisturbed
    from flows.tables import Terminal
    from storage.credentials import guard
    from storage.errors import ConfigError, GristmillError, harmless
    from storage.files.disk import DiskFaults

app = typer.Typer(
    help="Turns raw text into a quantized, aligned, benchmarked language model.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
console = Terminal()
GROUPS = {
    "serve": ("flows.commands.serve", "Serve a release: OpenAI's API, keys, limits, guards, metrics."),
    "filter": ("flows.commands.documents.filter", "Inspect the filter's rules and their decisions."),
    "runs": ("flows.commands.runs", "List runs, show one, compare two."),
    "store": ("flows.commands.store", "Inspect and maintain the store."),
    "release": ("flows.commands.release", "Save, sign, verify and publish a release."),
    "profile": ("flows.commands.profile", "Show profiles and their schema."),
}


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        print(f"gristmill {version('gristmill')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="print the version and exit")
    ] = False,
) -> None:
    """Global options."""


@app.command()
def run(
    profile: ProfileName = "tiny",
    overrides: Overrides = None,
    to: LastStage = None,
    refresh: Refreshed = None,
    store: StoreUrl = None,
    paranoid: Paranoid = False,
    yes: Yes = False,
) -> None:
    """Run the pipeline: take stored artifacts from the store, and make the rest.

    To resume an interrupted run, run it again.
    """
    with beginning():
        from flows.commands.run import run_pipeline

    run_pipeline(console, profile, settings(overrides, store), to, refresh or [], paranoid, yes)


@app.command()
def stage(
    name: Annotated[str, typer.Argument(help="a stage of the pipeline, such as filter")],
    profile: ProfileName = "tiny",
    overrides: Overrides = None,
    refresh: Annotated[bool, typer.Option("--refresh", help="rebuild it even if it is stored")] = False,
    store: StoreUrl = None,
    paranoid: Paranoid = False,
    yes: Yes = False,
) -> None:
    """Bring one stage up to date. Its inputs come from the store, or are made."""
    with beginning():
        from flows.commands.run import run_pipeline

    run_pipeline(console, profile, settings(overrides, store), name, [name] if refresh else [], paranoid, yes)


@app.command()
def plan(
    profile: ProfileName = "tiny",
    overrides: Overrides = None,
    to: LastStage = None,
    refresh: Refreshed = None,
    device: Annotated[
        str | None,
        typer.Option(help="device to train on, such as h100, a100, rtx4090 or cpu, by default the profile's"),
    ] = None,
    price: Annotated[
        float | None, typer.Option(min=0, help="USD per device and hour, in place of the assumed price")
    ] = None,
    utilisation: Annotated[
        float | None,
        typer.Option(
            min=0.01,
            max=1,
            help="share of the device's peak that training reaches, in place of the assumed 0.4 or 0.45",
        ),
    ] = None,
    scale: Annotated[
        list[str] | None,
        typer.Option(help="also estimate this much text, such as 1TB, from the runs in the store (repeatable)"),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="with --scale: number of cores, in place of runtime.data.workers")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print the stages and --scale as JSON")] = False,
    store: StoreUrl = None,
) -> None:
    """Show what a run would do and what it would cost, without running anything.

    Each stage is a HIT or a MISS, with the reason, its size, its time, and the
    source of that time: an earlier run, scaled by the present amount of work,
    or arithmetic. A training that would resume is priced from its checkpoint.
    --to and --refresh are those of a run.

    Then the model that the size dial gives, and the arithmetic of training it:
    tokens per parameter, memory of one device by purpose, whether that fits,
    disk for checkpoints, hours and money.

    Try other choices before you pay for them:

        gristmill plan gpu-24gb --device rtx4090

        gristmill plan gpu --set pretrain.model.depth=24 --set runtime.pretrain.micro_batch=8

        gristmill plan cluster --device a100 --price 1.20 --utilisation 0.5

    Estimate a larger corpus:

        gristmill plan tiny --scale 1TB --scale 15TB --workers 1000

    Memory is right to within a few per cent: tests count what torch allocates.
    Utilisation and price are assumptions: replace them with your own.
    """
    from flows.commands.plan import show_plan
    from flows.records.recorder import Asked

    asked = Asked(profile, settings(overrides, store), to, refresh or [])
    show_plan(console, asked, device, price, utilisation, scale or [], workers, as_json)


@app.command()
def new(
    file: Annotated[
        Path | None, typer.Argument(help="the profile to write, such as my.yaml; without it, the recipes are listed")
    ] = None,
    template: Annotated[
        str, typer.Option("--from", metavar="NAME", help="a recipe to copy, or a profile to extend")
    ] = "tiny",
) -> None:
    """Write a profile of your own: a copy of a recipe, or the beginning of one that extends another profile.

    A recipe answers one question in some ten lines. An existing file is never overwritten.
    """
    from flows.commands.profile import list_recipes, write_new

    if file is None:
        list_recipes(console)
    else:
        write_new(console, file, template)


@app.command()
def why(
    name: Annotated[str, typer.Argument(metavar="STAGE", help="a stage of the pipeline")],
    profile: LastProfile = None,
    overrides: Overrides = None,
    store: StoreUrl = None,
) -> None:
    """Name the fields that differ from the stage's nearest earlier artifact."""
    from flows.commands.plan import show_why
    from flows.session import last_profile

    show_why(console, name, profile or last_profile(store_of(overrides, store)), settings(overrides, store))


@app.command()
def explain(
    document: Annotated[
        str, typer.Argument(metavar="DOC", help="a document's id or its first digits (without --removed-by)")
    ] = "",
    profile: LastProfile = None,
    removed_by: Annotated[
        str | None, typer.Option(metavar="RULE", help="list the documents that this rule removed")
    ] = None,
    stage: Annotated[str | None, typer.Option(help="with --removed-by: only this stage")] = None,
    limit: Annotated[int, typer.Option(min=1, help="with --removed-by: rows shown for each stage")] = 20,
    overrides: Overrides = None,
    store: StoreUrl = None,
) -> None:
    """Trace a document: where it came from, what each stage decided, and by which measure."""
    from flows.commands.documents.explain import explain_document, list_removed
    from flows.session import last_profile

    asked = profile or (document if removed_by else None) or last_profile(store_of(overrides, store))
    if removed_by is None:
        explain_document(console, document, asked, settings(overrides, store))
    else:
        list_removed(console, removed_by, asked, settings(overrides, store), stage, limit)


app.command()(trace)
app.command()(forget)
app.command()(sample)
app.command()(ablate)
app.command()(mix)
app.command()(report)
app.command()(scaling)


@app.command()
def compare(
    first: Annotated[
        str,
        typer.Argument(
            metavar="A", help="an evaluation, such as tiny/evaluate@1, or one of its models: tiny/evaluate@1:dpo"
        ),
    ],
    second: Annotated[
        str | None, typer.Argument(metavar="B", help="another, by default compare the models of A")
    ] = None,
    task: Annotated[list[str] | None, typer.Option(metavar="TASK", help="only this task (repeatable)")] = None,
    metric: Annotated[str | None, typer.Option(help="compare by this metric, in place of each task's own")] = None,
    store: StoreUrl = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Show which differences between two evaluations are real.

    Compare models of the same name, two models, the post-training steps of one run, or all models with one:

        gristmill compare tiny/evaluate@1 tiny/evaluate@2

        gristmill compare tiny/evaluate@1:dpo tiny/evaluate@2:sft

        gristmill compare tiny/evaluate

        gristmill compare tiny/evaluate:base

    Only questions that both answered count. B - A has a 95 % interval.

    p is the chance of a difference this large if the models are equal: by McNemar's exact test for right and wrong,
    otherwise by flipping signs, of whole clusters where questions share a text. It is corrected for the number of rows
    (Holm).

    Below 0.02 the difference is real, and one model is better. Otherwise neither is shown to be better, and
    "would be seen" is the difference that would be found four times in five.
    """
    from flows.commands.compare import show_comparison

    show_comparison(store or DEFAULT_STORE, first, second, task or [], metric, as_json)


@app.command()
def chat(
    ref: Annotated[
        str | None,
        typer.Argument(
            help="a release: a ref such as tiny/export, stage/key, or a folder that `release save` wrote, by default "
            "the last run's"
        ),
    ] = None,
    store: StoreUrl = None,
    prompt: Annotated[str | None, typer.Option(help="answer this message and exit")] = None,
    system: Annotated[str | None, typer.Option(help="a system prompt, if the chat template supports one")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="maximum tokens of an answer")] = 128,
    temperature: Annotated[
        float, typer.Option(min=0, max=10, help="sampling temperature (0: the likeliest token)")
    ] = 0.0,
    format: Annotated[
        str | None,
        typer.Option(help="the format to load, such as gguf-q8_0 or safetensors, by default the best for a CPU"),
    ] = None,
    url: Annotated[
        str | None,
        typer.Option(help="talk to a running server with OpenAI's API instead, such as http://127.0.0.1:8000"),
    ] = None,
    key_env: Annotated[
        str | None, typer.Option(metavar="NAME", help="environment variable with the key of that server")
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="name of the model there, by default its first")
    ] = None,
) -> None:
    """Chat with a release in llama.cpp, or else transformers, through the chat template it was trained with.

    With --url, the server applies the template. /help lists the commands of a conversation.
    """
    from flows.commands.chat.start import At, Of, talk
    from tasks.serve.chat.answerer import Manner

    if url is None and (key_env or model):
        raise ConfigError("--key-env and --model are about a server.", "Give its address too: --url.")
    if url is not None and (ref or store or format):
        raise ConfigError("--url talks to a server, not to a release.", "Leave out the release, --store and --format.")
    where = Of(store or DEFAULT_STORE, ref, format) if url is None else At(url, key_env, model)
    talk(console, where, prompt, Manner(max_tokens, temperature, system))


@app.command()
def vote(
    ref: Annotated[str, typer.Argument(help="an evaluation with evaluate.side_by_side: a ref such as tiny/evaluate")],
    models: Annotated[
        list[str] | None, typer.Option("--model", metavar="NAME", help="compare these models, by default all")
    ] = None,
    votes: Annotated[
        Path | None, typer.Option(help="the file of votes, new or to continue, by default named after the ref")
    ] = None,
    voter: Annotated[
        str, typer.Option(help="your name: recorded in the file, and the seed of the order and the sides")
    ] = "me",
    port: Annotated[int, typer.Option(min=0, max=65535, help="port of the page on 127.0.0.1 (0: any free one)")] = 0,
    store: StoreUrl = None,
) -> None:
    """Vote blind for the better of two models' answers, on a local page.

    Each vote is saved before the next question is shown. Ctrl-C sums up and turns the votes into preferences.
    """
    from flows.commands.vote import collect_votes

    file = votes or Path(f"votes-{ref.replace('/', '-').replace('@', '-')}.jsonl")
    collect_votes(console, store, ref, models, file, voter, port)


@app.command()
def label(
    ref: Annotated[str, typer.Argument(help="an artifact with documents: a ref such as tiny/dedup")],
    question: Annotated[str, typer.Option(help="the question about each text")] = "Is this toxic?",
    size: Annotated[int, typer.Option(min=1, help="number of texts to label, each from a different document")] = 500,
    excerpt: Annotated[
        int, typer.Option(min=50, metavar="BYTES", help="show whole sentences of a document up to this length")
    ] = 300,
    by: Annotated[
        str | None,
        typer.Option(
            metavar="REF:COLUMN", help="equally many texts from each range of a score: tiny/toxicity:toxicity_score"
        ),
    ] = None,
    labels: Annotated[
        Path | None, typer.Option(help="the file of labels, new or to continue, by default named after the ref")
    ] = None,
    labeller: Annotated[str | None, typer.Option(help="your name, recorded in the file")] = None,
    endpoint: Annotated[
        str | None,
        typer.Option(metavar="URL", help="let this OpenAI-compatible endpoint label, which receives the texts"),
    ] = None,
    model: Annotated[str | None, typer.Option(help="the endpoint's model")] = None,
    prompt: Annotated[
        Path | None,
        typer.Option(
            help="a file with the endpoint's prompt: {text} is the text, and the answer must end with yes or no"
        ),
    ] = None,
    api_key_env: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="environment variable that holds the endpoint's key, by default none is sent"
        ),
    ] = None,
    against: Annotated[
        Path | None, typer.Option(help="someone else's labels of the same texts: print how far both agree")
    ] = None,
    store: StoreUrl = None,
) -> None:
    """Label texts of your own corpus to train a classifier, by hand at the terminal or by an endpoint.

    Texts come from every source, and with --by from every range of a score. Each label is saved before the next text
    is shown. To continue, run it again.
    """
    from flows.commands.documents.label import Server, Source, label_texts

    if (model is None or prompt is None) if endpoint else (model or prompt or api_key_env):
        raise typer.BadParameter("--endpoint, --model and --prompt go together")
    server = Server(endpoint, model, prompt, api_key_env) if endpoint and model and prompt else None
    who = labeller or model or "me"
    file = labels or Path(f"labels-{'-'.join(re.split('[/@:]', f'{ref}/{who}'))}.jsonl")
    label_texts(console, store, Source(ref, size, excerpt, by), question, file, who, server, against)


@app.command()
def doctor(
    profile: Annotated[
        str | None, typer.Argument(help="try this profile's pretraining, by default check the installation")
    ] = None,
    overrides: Overrides = None,
    store: StoreUrl = None,
) -> None:
    """Check for problems before a run, one line a check: ✓, ! (costs time), or ✗ with the remedy.

    [bold]gristmill doctor[/] checks the installation: libraries and versions, the store, disk, cores or GPU.

    [bold]gristmill doctor tiny[/] tries the profile's pretraining for some seconds, as a run would do it:

    - an untrained model predicts no better than chance, and gradients reach every parameter
    - no token sees a later one, and one batch can be overfitted
    - shards are intact, and batches and checkpoints come out the same twice
    - all processes start with equal weights and see different samples
    - a step fits in memory, and the run on the disk

    [bold]gristmill doctor gpu-24gb --set runtime.pretrain.micro_batch=64[/] says whether a larger micro-batch fits.

    Exits with 1 if a check failed. A run of 500 steps or more does the same by itself: runtime.pretrain.preflight.
    """
    from flows.commands.doctor import examine

    if not examine(console, profile, settings(overrides, store)):
        raise typer.Exit(1)


@app.command()
def hosts(
    profile: ProfileName,
    scheduler: Annotated[Scheduler, typer.Option("--for", help="the scheduler or launcher of the hosts")],
    hosts: Annotated[str, typer.Option(metavar="N|NAMES", help="number of hosts, or their names: node1,node2")],
    time: Annotated[str | None, typer.Option(help="slurm: the time limit, such as 24:00:00")] = None,
    partition: Annotated[str | None, typer.Option(help="slurm: the partition")] = None,
    image: Annotated[str | None, typer.Option(help="kubernetes: a container image with gristmill")] = None,
    claim: Annotated[
        str | None, typer.Option(metavar="NAME", help="kubernetes: a PersistentVolumeClaim that all pods can write")
    ] = None,
    overrides: Overrides = None,
    store: StoreUrl = None,
) -> None:
    """Print the job file or commands that start a run on many hosts. Submits nothing.

    For slurm an sbatch file, for kubernetes a JobSet, for ray a job, for torchrun and deepspeed the commands of each
    host:

        gristmill hosts gpu-8x --for slurm --hosts 4 --time 24:00:00 > job.sh

        gristmill hosts gpu-8x --for torchrun --hosts node1,node2

    runtime.training.processes sets the processes and GPUs of a host. Refuses a model or batch that can't be divided.
    """
    from flows.commands.hosts import Cluster, show_hosts

    show_hosts(profile, settings(overrides, store), scheduler, Cluster(hosts, time, partition, image, claim))


@app.command()
def join(store: StoreUrl = None) -> None:
    """Join every training of the runs in a store as a further host, until Ctrl-C.

    Start the run itself on another host, with runtime.training.rendezvous and hosts. `gristmill hosts` prints both.
    """
    from flows.commands.hosts import join as take_part

    take_part(console, store or DEFAULT_STORE)


@app.command()
def dependencies(as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False) -> None:
    """List every package that Gristmill requires: version, licence, and the package that requires it."""
    from flows.commands.dependencies import show_dependencies

    show_dependencies(console, as_json)


@app.command()
def ui(
    port: Annotated[int, typer.Option(min=1, max=65535, help="the server's port on 127.0.0.1")] = 4200,
    pools: Annotated[
        list[str] | None,
        typer.Option("--pool", metavar="NAME", help="add a work pool with a worker, for runtime.pools (repeatable)"),
    ] = None,
    notify: Annotated[
        str | None,
        typer.Option(metavar="TYPE/NAME", help="a notification block for runs that fail, such as slack-webhook/team"),
    ] = None,
) -> None:
    """Start a Prefect server with the deployments and a worker, and print its address.

    Ctrl-C ends the runs, then all three.
    """
    from flows.commands.ui.serve import serve

    serve(console, port, pools or [], notify)


def _no_command() -> None:
    pass


def _add_groups(words: Collection[str]) -> None:
    """Add every group of commands. Import only those among the command's `words`: help shows just the purpose of the
    rest."""
    app.registered_groups.clear()  # of an earlier call in this process
    for name, (module, purpose) in GROUPS.items():
        group = import_module(module).app if name in words else typer.Typer(callback=_no_command, help=purpose)
        if group.registered_callback:  # it is a command itself, with a longer help
            app.add_typer(group, name=name)
        else:
            app.add_typer(group, name=name, help=purpose)


def main() -> None:
    """The entry point: an error that a user can fix is two sentences, not a traceback."""
    guard()
    mind_streams()
    ask_this_machine_directly()
    quiet_libraries()
    errors = Terminal(stderr=True)
    try:
        check_edges(sys.argv[1:])
        with beginning():
            # A shell that completes a command passes its words in the environment
            _add_groups(GROUPS if "_GRISTMILL_COMPLETE" in os.environ else sys.argv[1:])
        with DiskFaults():
            app(standalone_mode=True)
    except KeyboardInterrupt:  # before typer runs the command: it handles later ones
        sys.exit(130)
    except GristmillError as error:
        errors.print(f"[bold red]Error:[/] {escape(error.message)}", highlight=False, soft_wrap=True)
        if error.remedy:
            remedy = harmless(as_given(error.remedy, sys.argv[1:]))  # with the command's own words
            errors.print(f"[bold]What to do:[/] {escape(remedy)}", highlight=False, soft_wrap=True)
        sys.exit(1)
    finally:
        guard()  # again: typer has set its own hook for uncaught exceptions
        end_undisturbed()


if __name__ == "__main__":
    main()
