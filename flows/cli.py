"""The `gristmill` command.

Every error that a user can mend prints two sentences, what and how, and exits with 1; Ctrl-C exits with 130 and the
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

gc.set_threshold(50_000)  # what is imported stays: looking through it for garbage is a fifth of a command's start


@contextmanager
def beginning() -> Iterator[None]:
    """While imports take their time, Ctrl-C ends the process with a sentence and no traceback."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end_at_once)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _end_at_once(number: int, frame: object) -> None:
    os.write(2, b"Interrupted before anything had begun.\n")
    os._exit(128 + number)


# Nothing leaves the machine unless a profile says so: set before any library reads its environment.
ENVIRONMENT = {
    "DO_NOT_TRACK": "1",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "180",
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
    "PREFECT_SERVER_UI_V2_ENABLED": "false",  # the V2 interface makes the browser call an analytics host
    "PREFECT_LOGGING_LEVEL": "WARNING",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
for _name, _value in ENVIRONMENT.items():
    os.environ.setdefault(_name, _value)

with beginning():
    import typer
    from rich.markup import escape

    from flows.commands.edges import check_edges, mind_streams
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
    from storage.errors import GristmillError, harmless
    from storage.files.disk import DiskFaults

app = typer.Typer(
    help="Raw text in; a quantized, aligned, benchmarked language model out.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)
console = Terminal()
GROUPS = {
    "filter": ("flows.commands.documents.filter", "Look at the filter's rules and at what they decide."),
    "runs": ("flows.commands.runs", "List runs, look into one, compare two."),
    "store": ("flows.commands.store", "Look into the store and keep it."),
    "release": ("flows.commands.release", "Hand a release on, signed, and check one."),
    "profile": ("flows.commands.profile", "Look at profiles and their schema."),
}


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        print(f"gristmill {version('gristmill')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_print_version, help="print the version and end")
    ] = False,
) -> None:
    """What stands before a command."""


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
    """Run the pipeline: what is in the store is taken from it, the rest is made.

    An interrupted run is resumed by running it again.
    """
    with beginning():
        from flows.commands.run import run_pipeline

    run_pipeline(console, profile, settings(overrides, store), to, refresh or [], paranoid, yes)


@app.command()
def stage(
    name: Annotated[str, typer.Argument(help="a stage of the pipeline, such as filter")],
    profile: ProfileName = "tiny",
    overrides: Overrides = None,
    refresh: Annotated[bool, typer.Option("--refresh", help="make it anew although it is in the store")] = False,
    store: StoreUrl = None,
    paranoid: Paranoid = False,
    yes: Yes = False,
) -> None:
    """Bring one stage up to date; what it needs comes from the store, or is made."""
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
        typer.Option(help="train on this, such as h100, a100, rtx4090 or cpu; by default what the profile asks for"),
    ] = None,
    price: Annotated[
        float | None, typer.Option(min=0, help="USD for one device and hour, in place of the assumed figure")
    ] = None,
    utilisation: Annotated[
        float | None,
        typer.Option(min=0.01, max=1, help="share of the device's peak that training reaches, in place of 0.4 or 0.45"),
    ] = None,
    scale: Annotated[
        list[str] | None,
        typer.Option(help="also what so much text would cost, such as 1TB, by the runs in the store; repeatable"),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="with --scale: on so many cores, in place of runtime.data.workers")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print the stages, and --scale, as JSON")] = False,
    store: StoreUrl = None,
) -> None:
    """Say what a run would do and what it takes, without doing anything.

    Each stage is a HIT or a MISS, with the reason, its size, how long it will take, and by what that is known: an
    earlier run, scaled by the work that there is now, or arithmetic. A training that would resume is priced from its
    checkpoint. --to and --refresh are those of a run.

    Then the model that the size dial gives, and the arithmetic of training it:
    do its tokens suit its parameters, how much memory does one device need for what,
    does that fit, how much disk do checkpoints take, how many hours, how much money?

    Try other choices before you pay for them:

        gristmill plan gpu-24gb --device rtx4090

        gristmill plan gpu --set pretrain.model.depth=24 --set runtime.pretrain.micro_batch=8

        gristmill plan cluster --device a100 --price 1.20 --utilisation 0.5

    What will a larger corpus cost?

        gristmill plan tiny --scale 1TB --scale 15TB --workers 1000

    Memory is right within some per cent: tests count what torch allocates.
    Utilisation and price are assumptions, which you replace by your own.
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
    """Name exactly the fields that differ from the stage's nearest earlier artifact."""
    from flows.commands.plan import show_why
    from flows.session import last_profile

    show_why(console, name, profile or last_profile(store_of(overrides, store)), settings(overrides, store))


@app.command()
def explain(
    document: Annotated[
        str, typer.Argument(metavar="DOC", help="a document's id, or the first digits of it; not with --removed-by")
    ] = "",
    profile: LastProfile = None,
    removed_by: Annotated[str | None, typer.Option(metavar="RULE", help="list what this rule removed")] = None,
    stage: Annotated[str | None, typer.Option(help="with --removed-by: of this stage only")] = None,
    limit: Annotated[int, typer.Option(min=1, help="with --removed-by: rows shown of each stage")] = 20,
    overrides: Overrides = None,
    store: StoreUrl = None,
) -> None:
    """Tell a document's whole story: where it came from, what each stage decided, by which measure."""
    from flows.commands.documents.explain import explain_document, list_removed
    from flows.session import last_profile

    asked = profile or (document if removed_by else None) or last_profile(store_of(overrides, store))
    if removed_by is None:
        explain_document(console, document, asked, settings(overrides, store))
    else:
        list_removed(console, removed_by, asked, settings(overrides, store), stage, limit)


@app.command()
def compare(
    first: Annotated[
        str, typer.Argument(metavar="A", help="an evaluation: tiny/evaluate@1, or with one of its models")
    ],
    second: Annotated[str | None, typer.Argument(metavar="B", help="another; without it, the models of A")] = None,
    task: Annotated[list[str] | None, typer.Option(metavar="TASK", help="only this one; may be repeated")] = None,
    metric: Annotated[str | None, typer.Option(help="compare by this, in place of each task's own")] = None,
    store: StoreUrl = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """Say which differences between two evaluations are real.

    Each model with the one of its name, two models, the links of post-training in one run, all models with one:

        gristmill compare tiny/evaluate@1 tiny/evaluate@2

        gristmill compare tiny/evaluate@1:dpo tiny/evaluate@2:sft

        gristmill compare tiny/evaluate

        gristmill compare tiny/evaluate:base

    Only questions that both were asked count. B - A has a 95 % interval.

    p is the chance of a difference as large where there is none: by McNemar's exact test for right and wrong,
    by flipped signs otherwise, of whole clusters where questions share a text. It is corrected for the number of rows
    (Holm).

    Below 0.02 the difference is real, and one model is better. Otherwise none could be told, and "would be seen"
    says how large a difference would have been found four times in five.
    """
    from flows.commands.compare import show_comparison

    show_comparison(store or DEFAULT_STORE, first, second, task or [], metric, as_json)


@app.command()
def chat(
    ref: Annotated[
        str | None,
        typer.Argument(help="a release: a ref such as tiny/export, or stage/key; by default that of the last run"),
    ] = None,
    store: StoreUrl = None,
    prompt: Annotated[str | None, typer.Option(help="answer this one message and end")] = None,
    system: Annotated[str | None, typer.Option(help="a system prompt, which the chat template must know")] = None,
    max_tokens: Annotated[int, typer.Option(min=1, help="length of an answer, at most")] = 128,
    temperature: Annotated[
        float,
        typer.Option(min=0, max=10, help="draw answers, the more freely the higher; 0: the likeliest tokens"),
    ] = 0.0,
    format: Annotated[
        str | None, typer.Option(help="such as gguf-q8_0 or safetensors; by default the best for a CPU")
    ] = None,
) -> None:
    """Talk to a release, in llama.cpp or else transformers, through the chat template it was trained with."""
    from flows.commands.chat import Manner, talk

    talk(console, store or DEFAULT_STORE, ref, prompt, Manner(max_tokens, temperature, system), format)


@app.command()
def vote(
    ref: Annotated[str, typer.Argument(help="an evaluation with evaluate.side_by_side: a ref such as tiny/evaluate")],
    models: Annotated[
        list[str] | None, typer.Option("--model", metavar="NAME", help="compare these; by default all of them")
    ] = None,
    votes: Annotated[
        Path | None, typer.Option(help="the file of votes, which is gone on with; by default named after the ref")
    ] = None,
    voter: Annotated[str, typer.Option(help="who votes: draws the order and the sides, and stands in the file")] = "me",
    port: Annotated[int, typer.Option(min=0, max=65535, help="where the page is, on 127.0.0.1; 0: any")] = 0,
    store: StoreUrl = None,
) -> None:
    """Vote, blind, on which of two models' answers is better, on a page of this machine.

    Each vote is in the file before the next question is shown. Ctrl-C sums up, and makes preferences of the votes.
    """
    from flows.commands.vote import collect_votes

    file = votes or Path(f"votes-{ref.replace('/', '-').replace('@', '-')}.jsonl")
    collect_votes(console, store, ref, models, file, voter, port)


@app.command()
def label(
    ref: Annotated[str, typer.Argument(help="an artifact with documents: a ref such as tiny/dedup")],
    question: Annotated[str, typer.Option(help="what is asked of each text")] = "Is this toxic?",
    size: Annotated[int, typer.Option(min=1, help="texts to label, of as many documents")] = 500,
    excerpt: Annotated[
        int, typer.Option(min=50, metavar="BYTES", help="of a document, whole sentences up to this length are shown")
    ] = 300,
    by: Annotated[
        str | None,
        typer.Option(metavar="REF:COLUMN", help="as many of each range of a score: tiny/toxicity:toxicity_score"),
    ] = None,
    labels: Annotated[
        Path | None, typer.Option(help="the file of labels, which is gone on with; by default named after the ref")
    ] = None,
    labeller: Annotated[str | None, typer.Option(help="who labels; stands in the file")] = None,
    endpoint: Annotated[
        str | None, typer.Option(metavar="URL", help="let this OpenAI-compatible endpoint label: it gets the texts")
    ] = None,
    model: Annotated[str | None, typer.Option(help="the model there")] = None,
    prompt: Annotated[
        Path | None, typer.Option(help="file with the prompt there: {text} is the text, the answer ends with yes or no")
    ] = None,
    api_key_env: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="environment variable with the key; by default none is sent"),
    ] = None,
    against: Annotated[
        Path | None, typer.Option(help="labels of the same texts by somebody else: print how far both agree")
    ] = None,
    store: StoreUrl = None,
) -> None:
    """Label texts of your own corpus, by hand at the terminal or by an endpoint, to train a classifier on.

    Texts come from every source, and with --by from every range of a score. Each label is on the disk before the next
    text is shown; run it again to go on.
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
        str | None, typer.Argument(help="a profile, whose pretraining is tried; without one, the installation")
    ] = None,
    overrides: Overrides = None,
    store: StoreUrl = None,
) -> None:
    """Check for problems before a run, one line per check: ✓, ! (costs time), or ✗ with the remedy.

    [bold]gristmill doctor[/] looks at the installation: libraries and versions, the store, disk, cores or GPU.

    [bold]gristmill doctor tiny[/] tries the profile's pretraining for seconds, as a run would do it:

    - a fresh model knows nothing, gradients reach every parameter
    - no token sees a later one, one batch can be overfitted
    - shards are whole, batches and checkpoints come out the same twice
    - all processes begin with equal weights and see samples of their own
    - a step fits into memory, the run on the disk

    [bold]gristmill doctor gpu-24gb --set runtime.pretrain.micro_batch=64[/] says whether a larger micro-batch fits.

    Ends with 1 if a check failed. A run of 500 steps or more does the same by itself: runtime.pretrain.preflight.
    """
    from flows.commands.doctor import examine

    if not examine(console, profile, settings(overrides, store)):
        raise typer.Exit(1)


@app.command()
def hosts(
    profile: ProfileName,
    scheduler: Annotated[Scheduler, typer.Option("--for", help="what starts processes on the hosts")],
    hosts: Annotated[str, typer.Option(metavar="N|NAMES", help="how many, or their names: node1,node2")],
    time: Annotated[str | None, typer.Option(help="slurm: the limit, such as 24:00:00")] = None,
    partition: Annotated[str | None, typer.Option(help="slurm: where to run")] = None,
    image: Annotated[str | None, typer.Option(help="kubernetes: a container image with gristmill")] = None,
    claim: Annotated[
        str | None, typer.Option(metavar="NAME", help="kubernetes: a PersistentVolumeClaim that all pods can write")
    ] = None,
    overrides: Overrides = None,
    store: StoreUrl = None,
) -> None:
    """Print what starts a run on many hosts; nothing is submitted.

    For slurm an sbatch file, for kubernetes a JobSet, for ray a job, for torchrun and deepspeed the commands for each
    host:

        gristmill hosts gpu-8x --for slurm --hosts 4 --time 24:00:00 > job.sh

        gristmill hosts gpu-8x --for torchrun --hosts node1,node2

    Processes and GPUs of a host are those of runtime.training.processes. Refuses what could not be divided.
    """
    from flows.commands.hosts import Cluster, show_hosts

    show_hosts(profile, settings(overrides, store), scheduler, Cluster(hosts, time, partition, image, claim))


@app.command()
def join(store: StoreUrl = None) -> None:
    """Take part, as a further host, in every training of the runs in a store, until Ctrl-C.

    The run is started on another host, with runtime.training.rendezvous and hosts. `gristmill hosts` prints both.
    """
    from flows.commands.hosts import join as take_part

    take_part(console, store or DEFAULT_STORE)


@app.command()
def dependencies(
    advisories: Annotated[
        bool, typer.Option("--advisories", help="ask the index for known vulnerabilities: it learns what is installed")
    ] = False,
    index: Annotated[
        str | None, typer.Option(metavar="URL", help="ask this one, which must have PyPI's JSON API, in place of PyPI")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="print JSON")] = False,
) -> None:
    """List every package that Gristmill requires: version, licence, and who requires it.

    With --advisories ends with 1 if one has a known vulnerability.
    """
    from flows.commands.dependencies import show_dependencies
    from tasks.checks.advisories import default_index

    if not show_dependencies(console, (index or default_index()) if advisories or index else None, as_json):
        raise typer.Exit(1)


@app.command()
def ui(
    port: Annotated[int, typer.Option(min=1, max=65535, help="where the server listens, on 127.0.0.1")] = 4200,
    pools: Annotated[
        list[str] | None,
        typer.Option("--pool", metavar="NAME", help="one more work pool with a worker, for runtime.pools; repeatable"),
    ] = None,
    notify: Annotated[
        str | None,
        typer.Option(
            metavar="TYPE/NAME",
            help="a notification block that is told of runs that fail, such as slack-webhook/team",
        ),
    ] = None,
) -> None:
    """Start a Prefect server with the deployments and a worker, and print its address. Ctrl-C ends runs, then all
    three."""
    from flows.commands.ui.serve import serve

    serve(console, port, pools or [], notify)


def _no_command() -> None:
    pass


def _add_groups(asked: Collection[str]) -> None:
    """Add every group of commands. Only those that are `asked` for are imported: of the others help tells the purpose
    alone."""
    app.registered_groups.clear()  # of an earlier call in this process
    for name, (module, purpose) in GROUPS.items():
        group = import_module(module).app if name in asked else typer.Typer(callback=_no_command, help=purpose)
        if group.registered_callback:  # it is a command itself, whose help teaches more
            app.add_typer(group, name=name)
        else:
            app.add_typer(group, name=name, help=purpose)


def main() -> None:
    """The entry point: errors that a user can mend are two sentences, not a traceback."""
    guard()
    mind_streams()
    errors = Terminal(stderr=True)
    try:
        check_edges(sys.argv[1:])
        with beginning():
            # A shell that completes a command gives its words in the environment
            _add_groups(GROUPS if "_GRISTMILL_COMPLETE" in os.environ else sys.argv[1:])
        with DiskFaults():
            app(standalone_mode=True)
    except KeyboardInterrupt:  # before typer runs the command; it minds the rest itself
        sys.exit(130)
    except GristmillError as error:
        errors.print(f"[bold red]Error:[/] {escape(error.message)}", highlight=False, soft_wrap=True)
        if error.remedy:
            remedy = harmless(as_given(error.remedy, sys.argv[1:]))  # it has the command's own words
            errors.print(f"[bold]What to do:[/] {escape(remedy)}", highlight=False, soft_wrap=True)
        sys.exit(1)
    finally:
        guard()  # once more: typer has set a hook of its own for uncaught exceptions
        end_undisturbed()


if __name__ == "__main__":
    main()
