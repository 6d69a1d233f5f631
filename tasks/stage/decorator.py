"""@stage: a plain function becomes a cached Prefect task. The one file that knows both sides.

    @stage(version=1, runtime=("data",))
    def dedup(config: DedupConfig, documents: Artifact, out: Output) -> None: ...

Called in a flow, a stage computes its key, asks the store, and on a hit ends in Prefect's *Cached* state; on a miss it
takes the key's lock, runs the function on a private folder, checks the laws and publishes. The store alone decides:
Prefect's own result cache is not used, its `refresh_cache` is honoured.

An input is an artifact, a mapping of named artifacts (as many models as there are), or None where an optional one is
not there. On a miss the function may ask for `out.earlier(…)`, what it made before of other inputs, to take over the
shards that are the same. That changes what a result costs, never what it is; a refresh takes nothing over.
"""

from __future__ import annotations

import functools
import inspect
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, cast

from storage.artifact import Artifact
from storage.digests import list_files, tree_digest
from storage.errors import ConfigError, EmptyOutput, GristmillError, SourceError, StoreError, TokenizerMismatch
from storage.files.disk import DiskFaults
from storage.files.remote import may_pass
from storage.keys import KeyPayload
from storage.manifest import InputRef, Manifest
from storage.store import CHECKPOINTS
from storage.units import duration
from tasks.stage import machine
from tasks.stage.config import StageConfig
from tasks.stage.environment import environment
from tasks.stage.history import attempt, attempted, explain_miss, find_earlier
from tasks.stage.output import Output
from tasks.stage.pages import KEY_SHOWN, call_within, in_state, in_task, publish_page
from tasks.stage.protocol import AdoptionCheck, Forecaster, Input, PartsOf, RuntimeCheck, Together
from tasks.stage.runtime import Runtime
from tasks.stage.session import Maker, Session, Step, current, resources
from tasks.stage.source import source_digest

Config = TypeVar("Config")

STAGES: dict[str, Stage] = {}
RETRY_SECONDS = (30, 120, 600)  # before a stage is tried again that a network or a server has failed
SEEN_SECONDS = 90.0  # NFS remembers for up to a minute that a file is not there


def _may_pass(task: Any, run: Any, state: Any) -> bool:
    """Whether a stage of a deployment's run is to be tried again: it met a network or a server that was away. At a
    terminal somebody sees the error, and decides."""
    from prefect.context import FlowRunContext

    context = FlowRunContext.get()
    deployed = context is not None and context.flow_run is not None and context.flow_run.deployment_id is not None
    return deployed and may_pass(state.data)


def _text(folder: Path, documents: Artifact | None) -> dict[str, int]:
    """How much text the documents have that a stage read, and those that it wrote, if there are any."""
    found = {}
    if documents is not None and documents.manifest is not None and "text_bytes" in documents.manifest.facts:
        found["bytes_in"] = documents.manifest.facts["text_bytes"]
    shards = sorted((folder / "documents").glob("*.parquet"))
    if shards:
        from storage.shards.documents import text_bytes

        found["text_bytes"] = sum(map(text_bytes, shards))
    return found


class Reached(Exception):
    """The stage that a run was to end with has its artifact. Control flow, not an error."""

    def __init__(self, artifact: Artifact) -> None:
        super().__init__(artifact)
        self.artifact = artifact


class _Work(NamedTuple):
    """An artifact that is being made."""

    payload: KeyPayload
    config: StageConfig
    inputs: Sequence[Input]
    out: Output
    folder: Path
    before: dict[str, Any]  # facts of attempts that were killed
    started: float
    spent: float  # CPU seconds before
    peak: machine.Peak
    compiled: float  # seconds before


class Stage:
    """A function with a name, a version and a config class; see the module's docstring and `stage` below."""

    def __init__(
        self,
        function: Callable[..., None],
        name: str,
        version: int,
        *,
        part_of: str | None = None,
        section: str | None = None,
        runtime: Sequence[str] = (),
        sources: Callable[[Any], Mapping[str, str]] | None = None,
        forecast: Forecaster | None = None,
        check: RuntimeCheck | None = None,
        check_here: RuntimeCheck | None = None,
        adopted: AdoptionCheck | None = None,
        together: Together | None = None,
        parts: PartsOf | None = None,
    ) -> None:
        functools.update_wrapper(self, function)
        self.function = resources()(function)  # workers serve a whole call, and none outlives it
        self.name = name
        self.version = version
        self.part_of = part_of
        self.section = section
        self.runtime = tuple(runtime)
        self.sources = sources
        self.forecast = forecast
        self.check = check
        self.here = check_here
        self.adopted = adopted
        self.together = together
        self.parts = parts
        parameters = list(inspect.signature(function).parameters)
        if parameters[0] != "config" or parameters[-1] != "out":
            raise ConfigError(f"Stage {name} takes ({', '.join(parameters)}).", "It must take (config, inputs…, out).")
        self.input_names = parameters[1:-1]

    @property
    def source(self) -> str:
        """Digest of the source code that makes this stage's results."""
        return source_digest(self.function.__module__)

    def named(self, inputs: Sequence[Input]) -> dict[str, Artifact]:
        """The input artifacts by name: `documents`, or `models.base` for one of a mapping `models`."""
        found: dict[str, Artifact] = {}
        for name, given in zip(self.input_names, inputs, strict=True):
            if isinstance(given, Mapping):
                found |= {f"{name}.{key}": artifact for key, artifact in sorted(given.items())}
            elif given is not None:
                found[name] = given
        return found

    def payload(self, config: StageConfig, inputs: Sequence[Input]) -> KeyPayload:
        """What bears the identity of this stage's artifact. `sources` outside the store are fingerprinted here."""
        digests = {name: artifact.digest for name, artifact in self.named(inputs).items()}
        digests |= {f"source:{name}": digest for name, digest in self.fingerprints(config).items()}
        return KeyPayload(stage=self.name, version=self.version, config=config.model_dump(mode="json"), inputs=digests)

    def fingerprints(self, config: StageConfig) -> Mapping[str, str]:
        """Digests of what lies outside the store: taken once a run, so that a plan and its run agree."""
        if self.sources is None:
            return {}
        session = current()
        if session is None:
            return self.sources(config)
        known = session.fingerprints.setdefault(f"{self.name} {config.model_dump_json()}", {})
        if not known:
            known |= self.sources(config)
        return known

    def __call__(self, config: StageConfig | None, *inputs: Input) -> Artifact:
        """Run as a task of the current flow, or as the session's `call` has it (a plan asks without running).

        A section of the profile that is null is no stage: what comes out is the artifact that came in first.
        """
        if config is None:
            first = inputs[0]
            assert isinstance(first, Artifact), f"{self.name} can't be left out"
            return first.whole()
        session = current()
        call = session.call if session else None
        # As a state, since a task that ends in a state of its own is answered with it instead of with its data
        artifact: Artifact = (
            call(self, config, inputs) if call else self.task(config, *inputs, return_state=True).result()
        )
        if session and session.until == self.name:
            raise Reached(artifact)
        return artifact

    def before(self, later: Mapping[str, Config], check: Callable[[Mapping[str, Config]], None]) -> None:
        """In this session, call `check` before the artifact of this stage is made: it raises a GristmillError for what
        `later` stages, given in their order with their configs, would refuse. It gets those that the run reaches. Not
        called where the artifact is in the store, nor where the run ends with it."""
        session = current()
        if session and session.until != self.name:
            names = list(later)
            last = names.index(session.until) + 1 if session.until in names else None
            reached = {name: later[name] for name in names[:last]}
            session.checks[self.name] = lambda: check(reached)

    @functools.cached_property
    def task(self) -> Any:
        """This stage as a Prefect task."""

        def run(config: StageConfig, *inputs: Input) -> Any:
            from prefect.context import TaskRunContext
            from prefect.states import Completed

            context = TaskRunContext.get()
            forced = bool(context and context.task.refresh_cache)
            artifact, cached = self.materialize(config, inputs, refresh=forced)
            step = self._publish_page()
            if cached:
                return Completed(name="Cached", message=_where(artifact), data=artifact)
            return Completed(message=f"Made in {duration(step.worked)}: {step.why}.", data=artifact)

        return self._as_task(run, lambda parameters: self._run_name(parameters["config"], parameters["inputs"]))

    @functools.cached_property
    def task_for_all(self) -> Any:
        """As `task`, of several artifacts that are made together."""

        def run(calls: Sequence[tuple[StageConfig, Sequence[Input]]]) -> Any:
            from prefect.states import Completed

            found = self.materialize_all(calls)
            self._publish_page()
            artifacts, made = [artifact for artifact, _ in found], sum(not cached for _, cached in found)
            message = f"{made} made, {len(found) - made} from the store."
            return Completed(name=None if made else "Cached", message=message, data=artifacts)

        return self._as_task(run, lambda parameters: self._run_name(None, (), f"({len(parameters['calls'])})"))

    def _as_task(self, run: Callable[..., Any], named: Callable[[dict[str, Any]], str]) -> Any:
        # Prefect gives the function of a name what it calls `parameters`, if it has such a one
        from prefect import task
        from prefect.cache_policies import NO_CACHE

        as_task = task(
            name=self.name,
            task_run_name=cast(Any, named),
            tags=[self.name],
            description=inspect.getdoc(self.function) or self.name,
            cache_policy=NO_CACHE,
            persist_result=False,
            retries=0 if self.part_of else len(RETRY_SECONDS),  # with the stage its parts are tried again
            retry_delay_seconds=list(RETRY_SECONDS),
            retry_condition_fn=_may_pass,
        )
        return as_task(in_state(run))

    def _run_name(self, config: StageConfig | None, inputs: Sequence[Input], number: str = "") -> str:
        """A task run's name: profile, stage, and the beginning of the artifact's key, where it can be known."""
        session = current()
        name = session.name_of(self.name) if session else self.name
        if config is not None:
            with suppress(GristmillError):  # which ends the task too, as soon as it runs
                number = self.payload(config, inputs).key()[:KEY_SHOWN]
        return " ".join(part for part in (session.profile if session else "", name, number) if part)

    def _publish_page(self) -> Step:
        """Show what the run has just taken or made of this stage."""
        session = current()
        assert session is not None
        name = session.name_of(self.name)
        session.pages[name] = publish_page(name, session)
        return session.steps[name]

    def obtained(self, config: StageConfig, inputs: Sequence[Input]) -> Artifact:
        """The artifact of this config and these inputs, for a stage that works: by a task of its own, if that is one.
        Needs a session."""
        if not in_task():
            return self.materialize(config, inputs)[0]
        artifact: Artifact = call_within(self.task, config, *inputs)
        return artifact

    def obtained_all(self, calls: Sequence[tuple[StageConfig, Sequence[Input]]]) -> list[Artifact]:
        """As `obtained` for each call, those that are missing made together."""
        if not in_task() or not calls:
            return [artifact for artifact, _ in self.materialize_all(calls)]
        artifacts: list[Artifact] = call_within(self.task_for_all, calls)
        return artifacts

    def check_runtime(self, config: StageConfig, runtime: Runtime) -> None:
        """Raises ConfigError for settings of the runtime that this stage can't honour."""
        if self.check:
            self.check(config, runtime)

    def check_here(self, config: StageConfig, runtime: Runtime) -> None:
        """Raises ConfigError for what the runtime asks for and this machine has not: a plan may be for another."""
        if self.here:
            self.here(config, runtime)

    def check_of_adopted(self) -> AdoptionCheck:
        """How this stage checks a folder that was made elsewhere. Raises ConfigError if it can't."""
        if self.adopted is None:
            able = ", ".join(sorted(name for name, stage in STAGES.items() if stage.adopted is not None))
            raise ConfigError(f"{self.name} can't check a folder that was made elsewhere.", f"Stages that can: {able}.")
        return self.adopted

    def check_adopted(self, config: StageConfig, folder: Artifact, inputs: Sequence[Input]) -> None:
        """Check that a folder made elsewhere can stand for this stage's artifact of this config and these inputs.

        Raises ConfigError for a stage that can't tell and for files that are not as the config says, StoreError for
        files that are not such as the stage writes.
        """
        check = self.check_of_adopted()
        try:
            check(config, folder, self.named(inputs))
        except (StoreError, TokenizerMismatch, EmptyOutput) as error:
            raise StoreError(
                f"{folder.path} can't be the artifact of {self.name}: {error.message}",
                f"Give a folder with files as {self.name} writes them for this profile.",
            ) from error

    def materialize(
        self, config: StageConfig, inputs: Sequence[Input], *, refresh: bool = False
    ) -> tuple[Artifact, bool]:
        """The artifact of this config and these inputs, and whether it was there. Needs a session, not Prefect."""
        session = current()
        if session is None:
            raise ConfigError(
                f"{self.name} was called outside a session.", "Call its .function on an Output, or use a flow."
            )
        with DiskFaults(session.store.local, self.name), session.working(self.name):
            return self._materialize(session, config, inputs, refresh or self.name in session.refresh)

    def _materialize(
        self, session: Session, config: StageConfig, inputs: Sequence[Input], refresh: bool
    ) -> tuple[Artifact, bool]:
        payload = self.payload(config, inputs)
        started, waits = time.monotonic(), len(session.waits)
        session.use(self.name, payload.key())
        artifact = None if refresh else session.store.find(self.name, payload.key(), session.checking(self.name))
        cached = artifact is not None
        if not cached and session.approve and self.name in session.runtime.approve:
            asked = time.monotonic()
            session.approve(self, config, inputs, payload)
            session.waits.append(time.monotonic() - asked)
        maker = session.elsewhere(self.name) if session.elsewhere and artifact is None else None
        if artifact is not None:
            session.store.clear_workspaces()
        elif maker is not None:
            artifact = self._have_made(session, maker, payload, config, inputs, refresh)
        else:
            artifact, cached = self._make_alone(session, payload, config, inputs, refresh)
        if cached:
            self._note_other_source(session, [artifact])
        session.tell_traffic(self.name)
        seconds, waited = time.monotonic() - started, sum(session.waits[waits:])
        session.finished(self.name, artifact, cached=cached, seconds=seconds, waited=waited)
        return artifact, cached

    def _note_other_source(self, session: Session, artifacts: Iterable[Artifact]) -> None:
        """Say so, once, where what the store has was made by other source code."""
        manifests = [artifact.manifest for artifact in artifacts]
        if any(found and not found.adopted and found.source_digest != self.source for found in manifests):
            session.observer.warned(self.name, "made by other source code; raise its version if results changed")

    def _have_made(
        self,
        session: Session,
        maker: Maker,
        payload: KeyPayload,
        config: StageConfig,
        inputs: Sequence[Input],
        refresh: bool,
    ) -> Artifact:
        """The artifact as another machine makes it: `maker` returns its location, which may take a while to be seen
        here. What this stage takes the other machine gets by its place in the store."""
        session.started(self.name, self._why(session, payload, refresh))
        self.check_runtime(config, session.runtime)
        if self.name in session.checks:
            session.checks[self.name]()
        asked = time.monotonic()
        location = maker(self, payload.key(), config, inputs, refresh)
        deadline = time.monotonic() + SEEN_SECONDS
        while session.store.manifest(location) is None and time.monotonic() < deadline:
            time.sleep(1)
        artifact = session.store.get(location, session.checking(self.name))
        facts = artifact.manifest.facts if artifact.manifest else {}
        made = facts.get("seconds", 0.0) - facts.get("earlier_seconds", 0.0)
        session.waits.append(max(0.0, time.monotonic() - asked - made))  # for the pool to begin
        return artifact

    def _why(self, session: Session, payload: KeyPayload, refresh: bool) -> str:
        """Why its artifact must be made. A part is compared with any of its stage, as no ref names it."""
        return explain_miss(session.store, payload, refresh, "" if self.part_of else session.profile)

    def _make_alone(
        self, session: Session, payload: KeyPayload, config: StageConfig, inputs: Sequence[Input], refresh: bool
    ) -> tuple[Artifact, bool]:
        key = payload.key()

        with session.waiting(session.store.lock(self.name, key, self._waiting(session))):
            found = None if refresh else session.store.find(self.name, key, session.checking(self.name))
            if found is not None:
                return found, True
            session.started(self.name, self._why(session, payload, refresh))
            return self._make(session, payload, config, inputs, refresh), False

    def materialize_all(self, calls: Sequence[tuple[StageConfig, Sequence[Input]]]) -> list[tuple[Artifact, bool]]:
        """As `materialize` for each call, those that are missing made `together`; each is published as soon as it is
        made. Needs a session."""
        session = current()
        if session is None or self.together is None:
            raise ConfigError(f"{self.name} can't make several artifacts at once.", "Call it for each of them.")
        started, waits = time.monotonic(), len(session.waits)
        refresh = self.name in session.refresh
        payloads = [self.payload(config, inputs) for config, inputs in calls]
        first: dict[str, int] = {}
        for number, payload in enumerate(payloads):
            first.setdefault(payload.key(), number)
        found: dict[str, tuple[Artifact, bool]] = {}
        with DiskFaults(session.store.local, self.name), session.working(self.name), ExitStack() as locks:
            work: dict[str, _Work] = {}
            for key in sorted(first):  # in one order: two runs that want the same can't wait for each other
                payload, (config, inputs) = payloads[first[key]], calls[first[key]]
                session.use(self.name, key)
                there = None if refresh else session.store.find(self.name, key, session.checking(self.name))
                if there is None:
                    locks.enter_context(session.waiting(session.store.lock(self.name, key, self._waiting(session))))
                    there = None if refresh else session.store.find(self.name, key, session.checking(self.name))
                if there is not None:
                    found[key] = there, True
                else:
                    work[key] = self._begin(session, payload, config, inputs, refresh)
            self._note_other_source(session, [artifact for artifact, _ in found.values()])
            asked = [key for key in first if key in work]
            if asked:
                session.started(self.name, f"{len(asked)} of {len(first)} to be made")
                makes = self.together([(one.config, one.inputs, one.out) for one in (work[key] for key in asked)])
                for place in makes:
                    found[asked[place]] = self._publish(session, work[asked[place]]), False
            session.tell_traffic(self.name)
            if first:
                seconds, waited = time.monotonic() - started, sum(session.waits[waits:])
                session.gathered(self.name, [found[key] for key in first], seconds=seconds, waited=waited)
        return [found[payload.key()] for payload in payloads]

    def _waiting(self, session: Session) -> Callable[[str], None]:
        return lambda holder: session.observer.waiting(self.name, f"{holder}, which makes the same artifact")

    def _make(
        self, session: Session, payload: KeyPayload, config: StageConfig, inputs: Sequence[Input], refresh: bool
    ) -> Artifact:
        with session.waiting(self._turn(session)):
            work = self._begin(session, payload, config, inputs, refresh)
            with attempted(work.folder):
                self.function(work.config, *work.inputs, work.out)
            return self._publish(session, work)

    def _turn(self, session: Session) -> AbstractContextManager[None]:
        """Within it no other run trains on the same devices, if this stage trains. A part has its stage's turn."""
        runtime = session.runtime
        if "training" not in self.runtime or self.part_of or runtime.training.side_by_side:
            return nullcontext()
        from tasks.training.device_lock import own_turn  # what trains imports this package

        told = functools.partial(session.observer.waiting, self.name)
        return own_turn(runtime.compute, lambda holder: told(f"{holder}, which trains on this machine"))

    def _begin(
        self, session: Session, payload: KeyPayload, config: StageConfig, inputs: Sequence[Input], refresh: bool
    ) -> _Work:
        """The folders to work in, after all checks."""
        self.check_runtime(config, session.runtime)
        self.check_here(config, session.runtime)
        if self.name in session.checks:
            session.checks[self.name]()
        if "training" in self.runtime:
            with resources() as held:  # workers of data stages have memory that a training needs
                held.close()
        work = session.store.workspace(self.name, payload.key())
        told = functools.partial(session.observer.warned, self.name)
        before = attempt(work, told, anew=refresh)
        aside = session.store.aside(self.name, payload.key())
        trains = "training" in self.runtime and not session.store.is_folder
        remote = f"{CHECKPOINTS}/{self.name}/{payload.key()}" if trains else ""
        if refresh:
            shutil.rmtree(work / "scratch", ignore_errors=True)
            shutil.rmtree(aside, ignore_errors=True)
            if remote:
                session.store.discard(remote)
        shutil.rmtree(work / "out", ignore_errors=True)
        out = Output(self.name, work / "out", work / "scratch", aside, session.runtime, session.observer)
        out.remote = remote
        if not refresh:
            out.find_earlier = functools.partial(find_earlier, session.store, payload, self.source, told)
        out.path.mkdir(parents=True)
        out.scratch.mkdir(parents=True, exist_ok=True)
        # By name: the order in which a mapping was given is not in the key, so it must not shape the result
        given = [dict(sorted(one.items())) if isinstance(one, Mapping) else one for one in inputs]
        begun = time.monotonic(), machine.cpu_seconds(), machine.Peak(), machine.compiled_seconds()
        return _Work(payload, config, given, out, work, before, *begun)

    def _publish(self, session: Session, done: _Work) -> Artifact:
        """Check the laws and publish what was made."""
        payload, config, inputs, out, work, before, started, spent, peak, compiled = done
        compiling = round(machine.compiled_seconds() - compiled, 3)
        out.check()
        self._check_sources(config, payload, work)
        files = list_files(out.path)
        manifest = Manifest(
            key=payload.key(),
            payload=payload,
            digest=tree_digest(files),
            files=files,
            origins=self.origins(inputs),
            uses=out.uses,
            counts=out.counts,
            facts={
                "cpu_seconds": round(machine.cpu_seconds() - spent, 3),
                "peak_memory_bytes": peak.bytes,
                **({"compiling_seconds": compiling} if compiling else {}),
                **_text(out.path, self.named(inputs).get("documents")),
                **out.facts,
                **before,
                "seconds": round(time.monotonic() - started + before.get("earlier_seconds", 0.0), 3),
            },
            source_digest=self.source,
            environment=environment(),
            created=datetime.now(UTC).isoformat(timespec="microseconds"),
        )
        artifact = session.store.publish(out.path, manifest)
        shutil.rmtree(work, ignore_errors=True)
        machine.give_back()
        if out.remote:
            session.store.discard(out.remote)
        return artifact

    def _check_sources(self, config: StageConfig, payload: KeyPayload, work: Path) -> None:
        """Raises SourceError if what lies outside the store is no longer what the key says: a part of the result may
        come from before the change and a part from after it."""
        now = {f"source:{name}": digest for name, digest in (self.sources(config) if self.sources else {}).items()}
        before = {name: digest for name, digest in payload.inputs.items() if name.startswith("source:")}
        changed = sorted(name for name in now.keys() | before if now.get(name) != before.get(name))
        if changed:
            shutil.rmtree(work, ignore_errors=True)
            named = ", ".join(name.removeprefix("source:") for name in changed[:3])
            raise SourceError(
                f"{named}{' and others' if len(changed) > 3 else ''} changed while {self.name} was made, so it was not "
                "published.",
                "Run again once nothing writes to it.",
            )

    def origins(self, inputs: Sequence[Input]) -> dict[str, InputRef]:
        """Where each input comes from, by name."""
        return {name: artifact.origin for name, artifact in self.named(inputs).items()}


def _where(artifact: Artifact) -> str:
    adopted = artifact.manifest.adopted if artifact.manifest else ""
    return f"{artifact.location} was in the store{f', {adopted}' if adopted else ''}."


def stage(
    version: int,
    *,
    name: str | None = None,
    part_of: str | None = None,
    section: str | None = None,
    runtime: Sequence[str] = (),
    sources: Callable[[Any], Mapping[str, str]] | None = None,
    forecast: Forecaster | None = None,
    check: RuntimeCheck | None = None,
    check_here: RuntimeCheck | None = None,
    adopted: AdoptionCheck | None = None,
    together: Together | None = None,
    parts: PartsOf | None = None,
) -> Callable[[Callable[..., None]], Stage]:
    """Make a stage of a function `(config, inputs…, out) -> None`.

    `version` is raised by hand when results change. `part_of` names the stage that obtains this one while it works,
    `section` the stage whose section of the profile it has, if none is its own. `runtime` names the groups of the
    runtime that it reads. `sources(config)` gives a digest for everything that the stage reads from outside the store;
    those digests enter the key. `forecast(config, documents, runtime)` says what the stage will need; a plan shows it.
    `check(config, runtime)` raises ConfigError for settings of the runtime that the stage can't honour; a run asks it
    of every stage before the first one starts. `check_here` does so for what this machine has not; a plan, which may be
    for another machine, leaves it out. `adopted(config, folder, inputs)` raises a GristmillError for a folder made
    elsewhere that can't stand for the stage's artifact; without it, none can. `together(calls)` makes several artifacts
    that share what is dear, such as an open model: it yields the number of each call that is done. `parts(config)`
    gives the config of each part that the stage will obtain, by its name: a plan looks which are there.
    """

    def wrap(function: Callable[..., None]) -> Stage:
        made = Stage(
            function,
            name or function.__name__,
            version,
            part_of=part_of,
            section=section,
            runtime=runtime,
            sources=sources,
            forecast=forecast,
            check=check,
            check_here=check_here,
            adopted=adopted,
            together=together,
            parts=parts,
        )
        STAGES[made.name] = made
        return made

    return wrap
