"""The child of `safety`: `python -m tasks.evaluate.safety.generate SPEC` continues beginnings, and computes likelihoods
of answers.

Each finished batch is kept in the scratch folder, so that a killed run continues after the last one.
"""

from __future__ import annotations

import functools
import hashlib
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from models.tokenizer import beginning, text_ids
from storage.errors import ConfigError, TrainingError
from storage.shards.lines import read_json_lines, write_json_lines
from storage.shards.saved_batches import kept_rows
from tasks.children.child import emit, run_as_child
from tasks.children.devices import device_of
from tasks.evaluate.safety.stage import ASKED, SAID, SafetySpec

if TYPE_CHECKING:
    from torch import Tensor

Row = dict[str, Any]


def run(path: Path) -> None:
    """Write said.jsonl, with a row for each row of asked.jsonl and sample."""
    import torch

    from models.pretrained import open_pretrained
    from models.tokenizer import load_tokenizer
    from tasks.training.device_peak import peak_memory

    spec = SafetySpec.model_validate_json(path.read_text())
    torch.set_num_threads(spec.runtime.compute.cpu_threads())
    device = device_of(spec.runtime.compute)
    model = open_pretrained(spec.model, device, dtype=getattr(torch, spec.config.dtype))
    work = _Work(spec, model, load_tokenizer(spec.model))
    asked = [*read_json_lines(spec.scratch / ASKED)]
    rows: list[Row] = []
    started = time.perf_counter()
    kinds = sorted({row["part"] for row in asked})
    for kind in kinds:
        rows += work.do(kind, [row for row in asked if row["part"] == kind], len(rows), len(asked))
    write_json_lines(spec.scratch / SAID, rows)
    facts = {
        "seconds_asking": round(time.perf_counter() - started, 2),
        "peak_memory_bytes": peak_memory(device),
        "device": str(device),
    }
    spec.finish({"facts": facts})


class _Work:
    """All requests to one model."""

    def __init__(self, spec: SafetySpec, model: Any, tokenizer: Any) -> None:
        self.spec, self.model, self.tokenizer = spec, model, tokenizer
        self.begin = beginning(tokenizer)

    def do(self, kind: str, asked: Sequence[Row], before: int, total: int) -> list[Row]:
        """The rows of one part, in their order."""
        batches, answer = self._likelihoods(asked) if "choices" in asked[0] else self._continuations(asked)
        answered: dict[int, Row] = {}
        for number, places in enumerate(batches):
            kept = self.spec.scratch / "batches" / f"{kind}-{number:06d}.jsonl"
            rows = kept_rows(kept, len(places), functools.partial(answer, places))
            answered |= dict(zip(places, rows, strict=True))
            emit(done=before + len(answered), total=total, note=kind)
        return [answered[place] for place in range(len(answered))]

    def _continuations(self, asked: Sequence[Row]) -> tuple[list[list[int]], Callable[[list[int]], list[Row]]]:
        from models.pretrained import context_of
        from models.runtimes.batches import NoRoomError, Prompt, answer_batch, batches_of

        ids = [[*self.begin, *row["ids"]] if "ids" in row else text_ids(self.tokenizer, row["text"]) for row in asked]
        prompts = [Prompt(one, _seed_of(row, self.spec.config.seed)) for row, one in zip(asked, ids, strict=True)]
        most, temperature = asked[0]["tokens"], asked[0]["temperature"]
        empty = [row["id"] for row, one in zip(asked, ids, strict=True) if not one]
        if empty:
            raise ConfigError(
                f"The prompt {empty[0]} of evaluate.safety is encoded to no tokens.", "Leave the prompt out."
            )
        context = context_of(self.model.config)
        try:
            batches = batches_of(prompts, context, most, self.spec.config.batch_size)
        except NoRoomError as error:
            raise ConfigError(
                f"The prompt {asked[error.place]['id']} of evaluate.safety leaves no room for a continuation: {error}.",
                "Shorten it, or lower prompt_tokens or held_out_tokens.",
            ) from error
        if asked[0]["whole"] and max(map(len, ids)) + most > context:
            raise ConfigError(
                f"evaluate.safety.memorisation needs {max(map(len, ids))} and {most} tokens, and the model's context "
                f"is {context}.",
                "Lower evaluate.safety.memorisation.prompt_tokens and continuation_tokens.",
            )

        def answer(places: list[int]) -> list[Row]:
            batch = [prompts[place] for place in places]
            texts = answer_batch(self.model, self.tokenizer, batch, most, temperature)
            return [self._row(asked[place], ids[place], one) for place, one in zip(places, texts, strict=True)]

        return batches, answer

    def _row(self, row: Row, prompt: list[int], generated: list[int]) -> Row:
        """The continuation's tokens without the one that ends it, and two texts: the prompt as the model saw it, and
        both together. The latter begins with the prompt unless the continuation completed its last character."""
        from models.runtimes.greedy import ends_of

        ends = ends_of(self.model, self.tokenizer)
        ended = bool(generated) and generated[-1] in ends
        plain = generated[:-1] if ended else generated

        def text(ids: list[int]) -> str:
            return str(self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False))

        return {
            "part": row["part"],
            "id": row["id"],
            "sample": row["sample"],
            "source": row["source"],
            "prompt": text(prompt),
            "whole": text([*prompt, *plain]),
            "ids": plain,
            "ended": ended,
        }

    def _likelihoods(self, asked: Sequence[Row]) -> tuple[list[list[int]], Callable[[list[int]], list[Row]]]:
        """The summed log-probability of each choice's tokens after the text."""
        import torch

        from models.pretrained import context_of

        context = context_of(self.model.config)
        pad = int(self.tokenizer.eos_token_id)
        size = max(1, self.spec.config.batch_size // 3)

        def encoded(row: Row, choice: str) -> tuple[list[int], int]:
            head = text_ids(self.tokenizer, row["text"])
            ids = text_ids(self.tokenizer, row["text"] + choice)
            first = next((n for n, (a, b) in enumerate(zip(head, ids, strict=False)) if a != b), len(head))
            first = max(1, min(first, len(ids) - 1))
            if len(ids) > context:
                raise ConfigError(
                    f"The question {row['id']} of evaluate.safety.bias has {len(ids)} tokens, and the model's context "
                    f"is {context}.",
                    "Leave the question out.",
                )
            return ids, first

        @torch.no_grad()
        def answer(places: list[int]) -> list[Row]:
            rows = [encoded(asked[place], choice) for place in places for choice in asked[place]["choices"]]
            longest = max(len(ids) for ids, _ in rows)
            ids_BT = torch.tensor([[*ids, *[pad] * (longest - len(ids))] for ids, _ in rows], device=self.model.device)
            mask_BT = torch.tensor([[1] * len(ids) + [0] * (longest - len(ids)) for ids, _ in rows]).to(ids_BT.device)
            logits_BTV: Tensor = self.model(input_ids=ids_BT, attention_mask=mask_BT).logits
            chosen_BT = logits_BTV[:, :-1].float().log_softmax(-1).gather(2, ids_BT[:, 1:, None])[..., 0].cpu()
            sums = [
                float(chosen_BT[row, first - 1 : len(ids) - 1].double().sum()) for row, (ids, first) in enumerate(rows)
            ]
            if not all(total == total and abs(total) < float("inf") for total in sums):
                raise TrainingError(
                    "The likelihood of an answer of evaluate.safety.bias is NaN or infinite.",
                    "The model's weights are damaged or its dtype overflows: set evaluate.safety.dtype to float32.",
                )
            per = [sums[start : start + 3] for start in range(0, len(sums), 3)]
            return [
                {
                    "part": asked[place]["part"],
                    "id": asked[place]["id"],
                    "likelihoods": [round(one, 6) for one in three],
                }
                for place, three in zip(places, per, strict=True)
            ]

        order = [*range(len(asked))]
        return [order[start : start + size] for start in range(0, len(order), size)], answer


def _seed_of(row: Row, seed: int) -> int:
    """A 31-bit seed from a prompt, its sample's number and the profile's seed, the same for all models."""
    text = f"safety {seed} {row['part']} {row['id']} {row['sample']}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4]) >> 1


if __name__ == "__main__":
    run_as_child(run)
