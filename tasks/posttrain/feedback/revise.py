"""Answers that are criticised by a principle and written again (Bai et al. 2022, §3): the revision is preferred."""

from __future__ import annotations

from collections.abc import Sequence

from tasks.posttrain.feedback import ask
from tasks.posttrain.feedback.prompts import Transcript
from tasks.posttrain.feedback.speaker import Speaker


def revised(rows: Sequence[Transcript], answerer: Speaker, critic: Speaker) -> list[Transcript]:
    """The transcripts of prompts: `turns` with all that was asked and said, and `chosen` and `rejected`, or why there
    is no pair in `dropped`."""
    told = [{**row, "turns": [], "dropped": ""} for row in rows]
    for speaker, asked in ((answerer, None), (critic, ask.critique), (critic, ask.revision)):
        going = [one for one in told if not one["dropped"]]
        for one in going:
            if asked is not None:
                one["turns"].append(asked(one["principle"]))
        replies = speaker.say([[*one["prompt"], *one["turns"]] for one in going])
        for one, reply in zip(going, replies, strict=True):
            if reply.text:
                one["turns"].append({"role": "assistant", "content": reply.text})
            # Nobody learns from a critique, so half of one will do
            one["dropped"] = "" if asked is ask.critique and reply.fault == "unfinished" else reply.fault
    for one in told:
        one["answered"] = bool(one["turns"]) and one["turns"][0]["role"] == "assistant"
        if not one["dropped"]:
            one["chosen"], one["rejected"] = one["turns"][-1]["content"], one["turns"][0]["content"]
            one["dropped"] = "equal_answers" if one["chosen"] == one["rejected"] else ""
    return told
