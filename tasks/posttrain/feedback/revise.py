"""Answers that are criticised by a principle and written again (Bai et al. 2022, §3): the revision is preferred."""

from __future__ import annotations

from collections.abc import Sequence

from tasks.posttrain.feedback import ask
from tasks.posttrain.feedback.prompts import Transcript
from tasks.posttrain.feedback.speaker import Speaker


def revise_answers(rows: Sequence[Transcript], answerer: Speaker, critic: Speaker) -> list[Transcript]:
    """The transcripts of prompts: `turns` with all requests and replies, and `chosen` and `rejected`, or in `dropped`
    the reason why they gave no pair."""
    transcripts = [{**row, "turns": [], "dropped": ""} for row in rows]
    for speaker, request in ((answerer, None), (critic, ask.critique), (critic, ask.revision)):
        remaining = [one for one in transcripts if not one["dropped"]]
        for one in remaining:
            if request is not None:
                one["turns"].append(request(one["principle"]))
        replies = speaker.say([[*one["prompt"], *one["turns"]] for one in remaining])
        for one, reply in zip(remaining, replies, strict=True):
            if reply.text:
                one["turns"].append({"role": "assistant", "content": reply.text})
            # An unfinished critique is good enough, as nothing is trained on it
            one["dropped"] = "" if request is ask.critique and reply.fault == "unfinished" else reply.fault
    for one in transcripts:
        one["answered"] = bool(one["turns"]) and one["turns"][0]["role"] == "assistant"
        if not one["dropped"]:
            one["chosen"], one["rejected"] = one["turns"][-1]["content"], one["turns"][0]["content"]
            one["dropped"] = "equal_answers" if one["chosen"] == one["rejected"] else ""
    return transcripts
