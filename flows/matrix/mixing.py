"""The flow of `gristmill mix`: a swarm of mixtures, the one that a law fitted to it proposes, and a check of that."""

from __future__ import annotations

from prefect import flow

from flows.deployed.parameters import (
    Checks,
    Epochs,
    Full,
    Jobs,
    Mixtures,
    ProfileName,
    Proxy,
    Settings,
    Sources,
    Targets,
)
from flows.deployed.run_lifecycle import told
from flows.matrix.earlier import both_documents, earlier_swarm
from flows.matrix.lanes import jobs_of
from flows.matrix.measured import measure_answers, measure_text, measured, with_likelihoods
from flows.matrix.mixtures import (
    AskedMix,
    check_matrix,
    check_target,
    grounds_of,
    mix_config,
    mixture_of,
    swarm_matrix,
    swarm_of,
    target_on,
)
from flows.matrix.run import NamedRun, Shared
from flows.pages.names import name_as
from flows.session import start
from profiles.schema import Profile
from storage.artifact import Artifact
from tasks.ablate import ablate
from tasks.ablate.mix import mix
from tasks.ablate.stage import place
from tasks.stage.session import Session, current


@flow(name="mix", flow_run_name=name_as("mix {profile}"))
@told
def mixing(
    profile: ProfileName = "tiny",
    overrides: Settings = (),
    proxy: Proxy = (),
    runs: Mixtures = None,
    seeds: Checks = 3,
    sources: Sources = (),
    target: Targets = (),
    max_epochs: Epochs = None,
    full: Full = False,
    jobs: Jobs = None,
) -> str:
    """The shares of the sources that train the best model for a `target`: by default held-out text of all sources, in
    natural proportions. `proxy` are the settings of the small runs, by default a quarter of the profile's steps. `runs`
    is their number. The proposal is compared with natural proportions by as many `seeds`, or not at all by 0, in `full`
    at the profile's own size. No source is read more than `max_epochs` times."""
    asked = AskedMix(profile, overrides, proxy, runs, seeds, sources, target, max_epochs, full)
    reference = asked.reference
    with start(profile, overrides, "pretrain", ()):
        session = current()
        assert session is not None
        return mixed(asked, reference, session, jobs_of(reference, jobs)).location


def mixed(asked: AskedMix, profile: Profile, session: Session, jobs: int = 1) -> Artifact:
    """Train and measure a swarm, propose a mixture, and compare it with others."""
    shared = Shared(session)
    made = shared.run(NamedRun(profile, "tokenize", "", ""))
    grounds = grounds_of(asked, profile, made["tokenize"].manifest)
    old = earlier_swarm(session.store, f"{profile.name}/mix", grounds.names, asked.small(), made["tokenize"])
    swarm = swarm_of(asked, grounds, old)
    target = target_on(asked, profile, grounds)
    check_target(profile, target, with_likelihoods(profile, made))
    if old:
        session.observer.noted("mix", f"{len(old.swarm)} runs of an earlier swarm are used again")
    runs = measured(swarm_matrix(asked, swarm.trained), shared, jobs)
    swarm = swarm._replace(trained=[mixture_of(arm) for arm in runs.matrix.arms])  # without those that diverged
    others = {place(len(swarm.trained) + number, 0): model for number, model in enumerate(old.models if old else [])}
    text = runs.text | measure_text(runs.matrix.reference, runs.made[place(0, 0)], others, shared)
    answers = measure_answers(runs, shared, others)
    config = mix_config(profile, grounds, swarm, old, target)
    proposal = mix(config, text, answers, *both_documents(made, old))
    if asked.seeds:
        assert proposal.manifest is not None
        check = measured(check_matrix(asked, grounds, proposal.manifest.counts["proposed"]), shared, jobs)
        compared, text, documents, ledgers = check.inputs({})
        ablate(compared.model_copy(update={"target": target}), text, measure_answers(check, shared), documents, ledgers)
    return proposal
