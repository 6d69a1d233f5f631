"""The n-gram model: equal to lmplz's, equal to the definition, fair to what it was trained on, unshaken by bad text."""

from __future__ import annotations

import json
import math
import random
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.artifact import Artifact
from storage.errors import SourceError
from storage.shards.documents import Document, shard_name, write_documents
from tasks.filter.perplexity.config import PerplexityConfig, PerplexityModelConfig
from tasks.filter.perplexity.estimate import CHUNK, estimate
from tasks.filter.perplexity.measure import percentile_of, perplexity_model, perplexity_signals
from tasks.filter.perplexity.model import NgramModel
from tasks.filter.perplexity.sentences import read_tokens
from tasks.stage.output import Output
from tests.runtimes import runtime_of

# Lincoln at Gettysburg, 1863
ADDRESS = """Four score and seven years ago our fathers brought forth on this continent a new nation conceived in
liberty and dedicated to the proposition that all men are created equal. Now we are engaged in a great civil war
testing whether that nation or any nation so conceived and so dedicated can long endure. We are met on a great
battle field of that war. We have come to dedicate a portion of that field as a final resting place for those
who here gave their lives that that nation might live. It is altogether fitting and proper that we should do
this. But in a larger sense we can not dedicate we can not consecrate we can not hallow this ground. The brave
men living and dead who struggled here have consecrated it far above our poor power to add or detract. The
world will little note nor long remember what we say here but it can never forget what they did here. It is
for us the living rather to be dedicated here to the unfinished work which they who fought here have thus far
so nobly advanced. It is rather for us to be here dedicated to the great task remaining before us. That from
these honored dead we take increased devotion to that cause for which they gave the last full measure of
devotion. That we here highly resolve that these dead shall not have died in vain. That this nation under God
shall have a new birth of freedom. And that government of the people by the people for the people shall not
perish from the earth."""
SENTENCES = [sentence.strip().replace("\n", " ") for sentence in ADDRESS.rstrip(".").split(".")]


def train(lines: list[str], order: int, min_count: int = 1) -> NgramModel:
    return estimate(read_tokens(pa.array(["\n".join(lines)])), order, min_count)[0]


def score(model: NgramModel, text: str) -> tuple[float, int]:
    scores, tokens = model.score(pa.array([text]))
    return float(scores[0]), int(tokens[0])


@pytest.mark.parametrize(
    ("text", "expected", "tokens"),
    [
        ("It is for the people", -6.512667655944824, 6),
        ("The nation can not endure", -10.091099739074707, 6),
        ("Freedom of speech", -8.026233673095703, 4),
        ("Government of the people, by the people, for the people!", -8.024874687194824, 11),
        ("Freedom of speech.\n\n ... \nIt is for the people", -8.026233673095703 - 6.512667655944824, 10),
    ],
)
def test_scores_are_those_of_kenlm_under_the_model_of_lmplz(text: str, expected: float, tokens: int) -> None:
    """`lmplz -o 3 --discount_fallback` on these sentences (closed form for orders 1 and 2, fallback for 3), queried
    with kenlm 0.3.0."""
    found, counted = score(train(SENTENCES, 3), text)
    assert found == pytest.approx(expected, abs=1e-5)
    assert counted == tokens


class Reference:
    """Interpolated modified Kneser-Ney by its definition, over tuples of words."""

    def __init__(self, lines: list[str], order: int, min_count: int) -> None:
        self.order = order
        padded = [("<s>", *line.split(), "</s>") for line in lines]
        frequency = Counter(word for sentence in padded for word in sentence)
        self.known = {w for w, n in frequency.items() if n >= min_count} | {"</s>"}
        self.counts: list[Counter[tuple[str, ...]]] = [Counter() for _ in range(order + 1)]
        for n in range(1, order + 1):
            grams = [sentence[i : i + n] for sentence in padded for i in range(len(sentence) - n + 1)]
            longer = {sentence[i : i + n + 1] for sentence in padded for i in range(len(sentence) - n)}
            continued = Counter(gram[1:] for gram in longer)
            for gram, count in Counter(grams).items():
                if gram[0] == "<s>" or n == order:
                    self.counts[n][gram] = count
                else:
                    self.counts[n][gram] = continued[gram]
        del self.counts[1]["<s>",]
        self.vocabulary = len({*self.known} - {"<s>"}) + 1
        self.discounts = [self.discount(Counter(counts.values())) for counts in self.counts]
        self.total: dict[tuple[str, ...], int] = defaultdict(int)
        self.freed: dict[tuple[str, ...], float] = defaultdict(float)
        for n in range(1, order + 1):
            for gram, count in self.counts[n].items():
                self.total[gram[:-1]] += count
                self.freed[gram[:-1]] += self.discounts[n][min(count, 3)] if self.kept(gram) else count

    def kept(self, gram: tuple[str, ...]) -> bool:
        return all(word in self.known or word == "<s>" for word in gram)

    def discount(self, n: Counter[int]) -> list[float]:
        fallback = [0, 0.5, 1, 1.5]
        if not (n[1] and n[2] and n[3]):
            return fallback
        y = n[1] / (n[1] + 2 * n[2])
        found = [0.0, *(j - (j + 1) * y * n[j + 1] / n[j] for j in (1, 2, 3))]
        return found if all(0 < found[j] <= j for j in (1, 2, 3)) else fallback

    def probability(self, gram: tuple[str, ...]) -> float:
        if not gram:
            return 1 / self.vocabulary
        shorter = self.probability(gram[1:])
        if gram[:-1] not in self.total or not self.kept(gram[:-1]):
            return shorter
        count = self.counts[len(gram)][gram] if self.kept(gram) else 0
        own = max(0.0, count - self.discounts[len(gram)][min(count, 3)]) if count else 0.0
        return (own + self.freed[gram[:-1]] * shorter) / self.total[gram[:-1]]

    def score(self, line: str) -> float:
        words = ("<s>", *line.split(), "</s>")
        ends = range(2, len(words) + 1)
        return sum(math.log10(self.probability(words[max(0, end - self.order) : end])) for end in ends)


SENTENCE = st.lists(st.sampled_from(list("abcdefg")), min_size=1, max_size=9).map(" ".join)


@pytest.mark.shadow(
    "tasks.filter.perplexity.kernels.count_words",
    "tasks.filter.perplexity.kernels.rare_words",
    "tasks.filter.perplexity.kernels.count_ngrams",
    "tasks.filter.perplexity.kernels.counts_of_counts",
    "tasks.filter.perplexity.kernels.sum_contexts",
    "tasks.filter.perplexity.kernels.smooth",
    "tasks.filter.perplexity.kernels.enter",
    "tasks.filter.perplexity.kernels.count_tokens",
    "tasks.filter.perplexity.kernels.sentences",
    "tasks.filter.perplexity.kernels.score",
)
@settings(max_examples=60)
@given(
    st.lists(SENTENCE, min_size=1, max_size=25), st.integers(2, 4), st.integers(1, 3), st.lists(SENTENCE, min_size=1)
)
def test_probabilities_are_those_of_the_definition(
    lines: list[str], order: int, min_count: int, asked: list[str]
) -> None:
    model, reference = train(lines, order, min_count), Reference(lines, order, min_count)
    for line in [*asked, "a z b", "z z"]:
        assert score(model, line)[0] == pytest.approx(reference.score(line), abs=1e-5)
    history = ("<s>", *lines[0].split())[1 - order :]
    words = [*(reference.known - {"<s>"}), "z"]
    assert sum(reference.probability((*history, word)) for word in words) == pytest.approx(1), "it is a definition"


@pytest.mark.shadow("tasks.filter.perplexity.kernels.rehash")
def test_large_tables_grow_without_losing_a_count() -> None:
    draw = random.Random(1)
    lines = [" ".join(str(draw.randrange(3000)) for _ in range(20)) for _ in range(2 * CHUNK // 20)]
    model = train([*lines, "alpha beta gamma"], 2)
    distinct = {pair for line in lines for pair in zip(["<s>", *line.split()], [*line.split(), "</s>"], strict=True)}
    assert np.count_nonzero(model.table[model.starts[1] :, 0]) == len(distinct) + 4


def documents(folder: Path, texts: list[str], shards: int, source: str = "test") -> Artifact:
    made = [Document.new(text, source) for text in texts]
    for number in range(shards):
        write_documents(folder / shard_name(number), made[number::shards])
    return Artifact.at(folder)


def sentences(seed: int, count: int) -> list[str]:
    """Text with some order in it: half the words follow from the one before."""
    draw = random.Random(seed)
    words = [f"word{n}" for n in range(400)]
    texts = []
    for _ in range(count):
        text = [draw.randrange(400)]
        while len(text) < 60:
            text.append((text[-1] * 7 + 3) % 400 if draw.random() < 0.5 else draw.randrange(400))
        texts.append(" ".join(words[n] for n in text))
    return texts


def run(folder: Path, corpus: Artifact, workers: int = 1, **config: object) -> tuple[Output, list[dict[str, object]]]:
    model_config = PerplexityModelConfig.model_validate(config)
    model = Output.at(folder / "model", runtime=runtime_of(workers=workers))
    perplexity_model.function(model_config, corpus, model)
    out = Output.at(folder / "signals", runtime=runtime_of(workers=workers))
    perplexity_signals.function(PerplexityConfig(model=model_config), corpus, Artifact.at(model.path), out)
    return model, [row for path in sorted(out.path.glob("*.parquet")) for row in pq.read_table(path).to_pylist()]


def test_ordered_text_is_in_the_head_and_random_words_in_the_tail(tmp_path: Path) -> None:
    draw = random.Random(2)
    ordered = sentences(1, 300)
    shuffled = [" ".join(draw.sample(text.split(), 60)) for text in sentences(2, 150)]
    corpus = documents(tmp_path / "in", [*ordered, *shuffled], 1)
    model, rows = run(tmp_path, corpus)
    assert {row["perplexity_bucket"] for row in rows[300:]} == {"tail"}
    assert Counter(row["perplexity_bucket"] for row in rows) == {"head": 150, "middle": 150, "tail": 150}
    percentiles = [float(str(row["perplexity_percentile"])) for row in rows]
    assert np.quantile(percentiles, [0, 0.5, 1]) == pytest.approx([0, 50, 100], abs=1)
    assert 20 < model.counts["held_out_perplexity"] < 400


def test_a_text_is_not_favoured_for_having_been_trained_on(tmp_path: Path) -> None:
    draw = random.Random(3)
    words = [f"word{n}" for n in range(300)]
    noise = [" ".join(draw.choices(words, k=80)) for _ in range(400)]
    corpus = documents(tmp_path / "in", noise, 1)
    model, rows = run(tmp_path, corpus, sample_bytes=sum(map(len, noise)) // 2)
    assert 150 < model.counts["training_documents"] < 250
    values = np.array([row["perplexity"] for row in rows], float)
    assert values.max() < 1.8 * values.min(), "all are equally random, half of them were trained on"


def test_the_same_documents_give_the_same_bytes_whatever_the_workers_and_the_shards(tmp_path: Path) -> None:
    texts = sentences(4, 200)
    found = []
    for number, (workers, shards) in enumerate([(1, 2), (2, 2), (2, 5)]):
        corpus = documents(tmp_path / f"in{number}", texts, shards)
        model, rows = run(tmp_path / str(number), corpus, workers)
        files = {path.name: path.read_bytes() for path in model.path.iterdir()}
        found.append((files, sorted(rows, key=json.dumps)))
    assert found[0] == found[1] == found[2]


BAD = {
    "empty": "",
    "no word": "... --- !!!\n\n\t***",
    "emoji": "😀😀 🎉" * 50,
    "one word": "x" * 1_000_000,
    "chinese": "河流发源于山中，流入大海。" * 200,
    "arabic": "يبدأ النهر في التلال ويجري إلى البحر. " * 20,
    "identical lines": "the same line again\n" * 100_000,
    "mojibake": "caf\u00c3\u00a9 \u00e2\u20ac\u0153quoted\u00e2\u20ac\u009d \ufffd\ufffd",
    "decomposed": "cafe\u0301 re\u0301sume\u0301",
    "control characters": "\x00\x01\x02 word \x1b[0m",
}


def test_bad_text_has_a_perplexity_or_none_but_never_a_default(tmp_path: Path) -> None:
    corpus = documents(tmp_path / "in", [*sentences(5, 50), *BAD.values()], 1)
    _, rows = run(tmp_path, corpus)
    measured = dict(zip(BAD, rows[50:], strict=True))
    for name, row in measured.items():
        if name in ("empty", "no word", "emoji"):
            assert set(row.values()) == {None}, name
        else:
            assert 1 < float(str(row["perplexity"])) < 1e9, name
            assert row["perplexity_bucket"] in ("head", "middle", "tail"), name


def test_case_composition_and_punctuation_do_not_matter() -> None:
    model = train([*SENTENCES, "the cafe\u0301 is open"], 3)
    assert score(model, "THE CAF\u00c9, is open!") == score(model, "the cafe\u0301 is open")
    assert score(model, "the caf\u00e9 is open")[0] > score(model, "the cafe is open")[0] + 1


def test_a_text_is_read_alike_wherever_it_stands_in_a_column() -> None:
    texts = pa.array([f"{sentence}\n\n{number}" for number, sentence in enumerate(SENTENCES * 90)])
    model = estimate(read_tokens(texts), 3)[0]
    assert model.score(texts.slice(5, 3))[0].tolist() == [score(model, text)[0] for text in texts[5:8].to_pylist()]
    one_by_one = [read_tokens(texts.slice(number, 1)) for number in range(len(texts))]
    assert np.array_equal(read_tokens(texts), np.concatenate(one_by_one))


def test_only_the_named_sources_are_trained_on(tmp_path: Path) -> None:
    good, other = sentences(6, 40), [" ".join(reversed(text.split())) for text in sentences(7, 40)]
    write_documents(tmp_path / "in" / shard_name(0), [Document.new(text, "good") for text in good])
    write_documents(tmp_path / "in" / shard_name(1), [Document.new(text, "other") for text in other])
    corpus = Artifact.at(tmp_path / "in")
    model, rows = run(tmp_path / "named", corpus, sources=["good"])
    assert model.counts["training_documents"] == 40
    assert Counter(row["perplexity_bucket"] for row in rows[:40])["tail"] == 0
    with pytest.raises(SourceError, match="nowhere"):
        run(tmp_path / "missing", corpus, sources=["nowhere"])
    with pytest.raises(SourceError, match="too few"):
        run(tmp_path / "few", corpus, sample_bytes=1)


def test_equal_percentiles_are_met_in_their_middle() -> None:
    percentiles = np.concatenate((np.zeros(21), np.linspace(1, 80, 80)))
    assert percentile_of(np.array([-5.0, 0.0, 40.0, 99.0]), percentiles).tolist() == pytest.approx([0, 10, 60, 100])
