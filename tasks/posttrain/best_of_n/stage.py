"""The `best_of_n` stage: instructions and preferences from a model's own answers, or a teacher's, chosen by rewards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.kernels.virtual_tokens import virtual_tokens
from models.pretrained import load_config
from storage.artifact import Artifact
from storage.errors import ConfigError
from storage.shards.documents import Verdict, shard_name, write_ledger
from storage.shards.lines import read_json_lines
from tasks.base import base
from tasks.base.source import fingerprint as base_fingerprint
from tasks.children.devices import check_device_here
from tasks.children.supervise import run_module
from tasks.endpoint.paid import known_answers
from tasks.posttrain.best_of_n.choose import BELOW, REASONS, best_of
from tasks.posttrain.best_of_n.config import BestOfNConfig
from tasks.posttrain.rewards.config import measures_of
from tasks.posttrain.rewards.outside import check_here as check_rewards_here
from tasks.posttrain.rewards.outside import fingerprints, report_rewards
from tasks.posttrain.rollouts.config import check_engine_here
from tasks.posttrain.rows.row_sources import files_of
from tasks.stage import stage
from tasks.stage.decorator import STAGES
from tasks.stage.output import Output
from tasks.stage.runtime import Runtime
from tasks.training.model_folder import check_tokenizer

SHOWN, LONGEST = 3, 120  # prompts in the table, and characters of a text


def sources(config: BestOfNConfig) -> dict[str, str]:
    """Digests of what rewards and a teacher read outside the store. Raises SourceError for what is missing."""
    teacher = base_fingerprint(config.teacher, "best_of_n.teacher") if config.teacher else {}
    return {**fingerprints(config.rewards), **{f"teacher {name}": digest for name, digest in teacher.items()}}


def check_here(config: BestOfNConfig, runtime: Runtime) -> None:
    """Check this machine before the first stage of a run starts. Raises ConfigError for a missing GPU or key and for an
    invalid address, and what rewards lack."""
    from tasks.endpoint.client import address_of, api_key

    check_rewards_here(config.rewards, "best_of_n")
    if config.endpoint is None:
        check_device_here(runtime)
        check_engine_here("best_of_n", config.rollout)
    else:
        address_of(config.endpoint, "best_of_n.endpoint")
        api_key(config.endpoint, "best_of_n.endpoint")


@stage(version=1, runtime=("compute", "endpoint"), sources=sources, check_here=check_here)
def best_of_n(
    config: BestOfNConfig, model: Artifact | None, instructions: Artifact, judge: Artifact | None, out: Output
) -> None:
    """Rejection sampling (Touvron et al. 2023, §3.2.3; Yuan et al. 2023, RFT): `n` answers to each prompt are rewarded.
    The best becomes an instruction if it earns the threshold, and a pair with the worst if the gap between them is wide
    enough. With one answer of a teacher and no rewards it is sequence-level distillation (Kim and Rush 2016).

    Writes, in the formats of `download`'s parts:

    - instructions/best.jsonl and preferences/pairs.jsonl
    - transcripts.jsonl: all answers with their rewards
    - ledger/: prompts that gave nothing, under their ids
    - answers/: those of an endpoint, by the keys of their requests

    Killed at any instant, it resumes after its last whole batch. An answer of an endpoint is never paid for twice: it
    is kept as it comes, and taken from other artifacts of this stage, finished or not.
    """
    from tasks.posttrain.best_of_n.run import BestOfNSpec

    if config.teacher is not None:
        model = out.obtain(base, config.teacher, name="best_of_n.teacher").part("model")
    if model is not None:
        check_tokenizer(model.path)
        if config.rollout.engine != "transformers" and virtual_tokens(load_config(model.path)):
            raise ConfigError(
                f"best_of_n.rollout.engine is {config.rollout.engine}, which can't read virtual tokens, and the model "
                "has some before every text.",
                "Choose the engine transformers.",
            )
    known = known_answers(out.ever_made(), out.unfinished(), out.warn) if config.endpoint else ()
    spec = BestOfNSpec(
        config=config,
        runtime=out.runtime,
        model=model and model.path.resolve(),
        judge=judge and judge.path.resolve(),
        rows=files_of(instructions),
        known=[path.resolve() for path in known],
        digests=dict(STAGES["best_of_n"].fingerprints(config)),
        scratch=out.scratch.resolve(),
        out=out.path.resolve(),
    )

    def on_line(line: dict[str, Any]) -> None:
        if "note" in line:
            return out.note(line["note"])
        out.progress(line["done"], line["prompts"], "prompts")

    out.progress(0, 1, "prompts", "starting")
    result = run_module("tasks.posttrain.best_of_n.run", spec, out, on_line=on_line, ranks=False, keeps="answers")
    _report(config, result, out)


def _report(config: BestOfNConfig, result: Mapping[str, Any], out: Output) -> None:
    removed = {**result["left_out"], **result["dropped"]}
    total = result["asked"] + sum(result["left_out"].values())
    out.account(what="conversations", documents_in=total, kept=result["made"], removed=removed)
    transcripts = list(read_json_lines(out.path / "transcripts.jsonl"))
    write_ledger(out.path / "ledger" / shard_name(0), (_verdict(config, one) for one in transcripts if one["dropped"]))
    totals = {name: result[name] for name in ("asked", "instructions", "pairs")}
    answers = [answer for one in transcripts for answer in one["answers"]]
    rows: list[dict[str, Any]] = [{"measure": name, "number": number} for name, number in totals.items()]
    unfit = sum(bool(answer["fault"]) for answer in answers)
    rows += [{"measure": "answers", "number": len(answers)}, {"measure": "answers never chosen", "number": unfit}]
    rows += [{"measure": f"gave nothing: {_words(name)}", "number": result["dropped"].get(name, 0)} for name in REASONS]
    out.table("Best of n", rows)
    out.count(**totals, answers=len(answers), never_chosen=unfit, dropped=result["dropped"])
    summary = f"{result['instructions']:,} instructions and {result['pairs']:,} pairs from {result['asked']:,} prompts"
    if means := means_of_best(config.n, transcripts):
        out.table("Reward of the best", [{"answers": n, "mean reward": round(mean, 4)} for n, mean in means.items()])
        out.count(mean_reward=round(means[1], 6), best_reward=round(means[config.n], 6))
        of_fit = f" of the {len(answers) - unfit:,} answers that may be chosen" if unfit else ""
        summary += f", mean reward {means[1]:.3f}{of_fit}, of the best of {config.n} {means[config.n]:.3f}"
    out.table("Samples", [shown(one) for one in transcripts if not one["dropped"]][:SHOWN])
    out.fact(**result["facts"])
    names = measures_of(config.rewards)
    counts = [{names[name]: number for name, number in row.items() if name in names} for row in result["counts"]]
    report_rewards(names.values(), counts, result["facts"], out)
    out.count(summary=summary)


def means_of_best(n: int, transcripts: Sequence[Mapping[str, Any]]) -> dict[int, float]:
    """The mean over prompts of the expected best of 1, 2, 4, … and of all their answers that could be chosen: without a
    fault, and with a reward. A prompt with fewer counts with the best of these. Empty if there are none."""
    rewards = [
        [answer["reward"] for answer in one["answers"] if not answer["fault"] and answer["reward"] is not None]
        for one in transcripts
    ]
    groups = [group for group in rewards if group]
    sizes = dict.fromkeys([*(2**power for power in range(n.bit_length()) if 2**power < n), n])
    return {
        size: sum(best_of(group, min(size, len(group))) for group in groups) / len(groups) for size in sizes if groups
    }


def _verdict(config: BestOfNConfig, one: Mapping[str, Any]) -> Verdict:
    below = one["dropped"] == BELOW
    reward = one["answers"][one["best"]]["reward"] if below else None
    return Verdict(one["id"], "instructions", "removed", one["dropped"], reward, config.threshold if below else None)


def shown(one: Mapping[str, Any]) -> dict[str, Any]:
    """A prompt with its best answer, and the worst if that is another."""
    best, *others = (one["answers"][place] for place in dict.fromkeys((one["best"], one.get("worst", one["best"]))))
    texts = {"prompt": one["prompt"][-1]["content"], "best": best["text"], "worst": "".join(w["text"] for w in others)}
    rewards = [answer["reward"] for answer in (best, *others) if answer["reward"] is not None]
    return {**{name: _short(text) for name, text in texts.items()}, "rewards": " and ".join(map(str, rewards))}


def _words(name: str) -> str:
    return name.replace("_", " ")


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= LONGEST else f"{line[: LONGEST - 1]}…"
