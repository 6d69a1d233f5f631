"""The model card as a hub reads it, and the licences of a release: stated, never guessed."""

from __future__ import annotations

import re
from typing import Any

import pytest
import yaml
from huggingface_hub import ModelCard
from pydantic import ValidationError

from tasks.export import ExportConfig
from tasks.export.card.licences import bound, licence_text, notice, stated, warnings
from tasks.export.card.page import model_card
from tasks.export.card.provenance import DocumentLicence, Provenance, StatedSource, Training

PROOF = {
    "bytes": 10,
    "mean_divergence": 0.0,
    "max_difference": 0.0,
    "perplexity": 2.0,
    "perplexity_increase": 0.0,
    "increase_low": -0.01,
    "increase_high": 0.01,
    "same_top": 1.0,
    "same_greedy": 3,
    "prompts": 3,
}
RESULT: dict[str, Any] = {
    "perplexity": 2.0,
    "dtype": "bfloat16",
    "parameters": 1_340_000,
    "formats": {"safetensors": PROOF, "gguf-q8_0": PROOF},
}
MODEL = {"model_type": "llama", "max_position_embeddings": 512}
SCORE = {
    "metric": "acc",
    "value": 0.41,
    "stderr": 0.02,
    "chance": 0.25,
    "items": 200,
    "worth": "above chance",
    "metrics": {},
    "dirty_items": None,
    "unchecked_items": 0,
    "higher_is_better": True,
}
SCORES = {
    "models": {
        "base": {"bits_per_byte": 2.0, "tasks": {}},
        "dpo": {
            "bits_per_byte": 1.5,
            "tasks": {
                "arc_easy": SCORE,
                "piqa": {**SCORE, "value": 0.5, "chance": 0.5, "worth": "no better than chance"},
            },
        },
    }
}
TOLD = Provenance(
    link="dpo",
    sources=[
        StatedSource(name="web", used_as=["documents"], dataset="owner/web", revision="0123456", licence="ODC-By-1.0"),
        StatedSource(name="leads", used_as=["documents", "instructions"], licence="CC BY-SA 4.0"),
        StatedSource(name="talk", used_as=["instructions"], licence="CC-BY-NC-4.0"),
        StatedSource(name="mine", used_as=["preferences"]),
    ],
    languages=["en"],
    funnel={"download, documents": 1000, "dedup, documents": 900, "tokenize, tokens train": 123456},
    training=[Training(stage="pretrain", measures={"steps": 100, "train_loss": 2.5})],
    precision="bfloat16",
)


def card(scores: Any = SCORES, **settings: Any) -> str:
    config = ExportConfig.model_validate({"provenance": TOLD, **settings})
    return model_card(config, MODEL, scores, {**RESULT, **settings.pop("result", {})}, {"model": "0" * 64})


def test_a_hub_reads_the_head(tmp_path: Any) -> None:
    read: Any = ModelCard(card(name="Little", weights_licence="apache-2.0"))
    data = read.data.to_dict()
    assert data["license"] == "apache-2.0"
    assert data["language"] == ["en"]
    assert (data["library_name"], data["pipeline_tag"]) == ("transformers", "text-generation")
    assert data["datasets"] == ["owner/web"]
    assert read.data.model_name == "Little"
    found = {(one.dataset_name, one.metric_type): (one.metric_value, one.metric_args) for one in read.data.eval_results}
    assert found["held-out text", "bits_per_byte"][0] == 1.5
    assert found["arc_easy", "acc"] == (0.41, {"stderr": 0.02, "items": 200, "chance": 0.25})
    assert read.text.lstrip().startswith("# Little")


def test_what_is_not_known_is_not_in_the_head() -> None:
    text = card(scores=None, provenance=None)
    head = yaml.safe_load(text.split("---")[1])
    assert {"license", "language", "datasets", "base_model", "model-index"} & head.keys() == set()
    assert "has not named a licence" in text
    assert "Data and training were not recorded." in text
    assert "It was not evaluated" in text


def test_a_format_that_is_not_all_that_its_name_says_is_told() -> None:
    text = model_card(ExportConfig(), MODEL, SCORES, RESULT, {}, remarks={"safetensors": "in f16"})
    assert "as it is the release itself (in f16) |" in text


def test_the_card_tells_of_data_training_and_limits() -> None:
    text = card(weights_licence="MIT")
    for told in (
        "# llama of 1.34M parameters",
        "1,340,000 parameters",
        "| dedup, documents | 900 |",
        "| tokenize, tokens train | 123,456 |",
        "| pretrain |  | steps 100, train loss 2.5 |",
        "at most 512 tokens",
        "No better than chance in piqa.",
        "0.410 ± 0.020",
        "Energy: not recorded",
        "| web | documents | owner/web | ODC-By-1.0 |",
        "| mine | preferences | – | not stated |",
        "vllm serve",
        "mlx_lm",
        "text-generation-launcher",
        "llama-cli -m gguf/model-q8_0.gguf",
    ):
        assert told in text, told
    assert "Samples" not in text


def test_samples_are_shown_as_they_were_measured() -> None:
    samples = [{"prompt": "A *river* <b>", "text": "is\n```\n# water"}]
    config = ExportConfig(provenance=TOLD)
    text = model_card(config, MODEL, SCORES, {**RESULT, "samples": samples}, {})
    assert "Answers" not in text
    assert "**A \\*river\\* &lt;b&gt;**\n\n````text\nis\n```\n# water\n````" in text


def test_a_model_that_answers_is_shown_to_do_so_and_no_empty_block_stands_beside_it() -> None:
    said = {"samples": [{"prompt": "A river", "text": "\n"}, {"prompt": "A sea", "text": " is wide"}]}
    answers = [{"prompt": "A river", "text": "It flows."}]
    beside = [{"prompt": "A river", "text": "It flows.", "base": "Rivers | are\nmany."}]
    tuned = model_card(ExportConfig(provenance=TOLD), MODEL, SCORES, {**RESULT, "answers": beside}, {})
    assert "| A river | Rivers · are many. | It flows. |" in tuned
    text = model_card(ExportConfig(provenance=TOLD), MODEL, SCORES, {**RESULT, **said, "answers": answers}, {})
    assert text.index("### Answers") < text.index("It flows.") < text.index("### Samples") < text.index(" is wide")
    assert text.count("**A river**") == 1


def test_licences_that_bind_are_named_first() -> None:
    text = card(weights_licence="Apache-2.0")
    assert text.index("share-alike licence") < text.index("non-commercial licence") < text.index("## Usage")
    listed = notice(TOLD, "Apache-2.0", "Ours.")
    assert listed.startswith("Warning: ")
    assert "leads (CC BY-SA 4.0)" in listed.split("\n\n")[0]
    assert "talk (CC-BY-NC-4.0)" in listed.split("\n\n")[1]
    assert "- web: ODC-By-1.0, https://huggingface.co/datasets/owner/web at 0123456" in listed
    assert "- mine: not stated" in listed
    assert "Ours." in listed


@pytest.mark.parametrize(
    ("licence", "kinds"),
    [
        ("CC-BY-4.0", []),
        ("CC-BY-SA-4.0", ["share-alike"]),
        ("CC BY-NC-SA 4.0", ["share-alike", "non-commercial"]),
        ("GPL-3.0-or-later", ["share-alike"]),
        ("AGPL-3.0", ["share-alike"]),
        ("LGPL-2.1", ["share-alike"]),
        ("ODbL-1.0", ["share-alike"]),
        ("ODC-By-1.0", []),
        ("MIT", []),
        ("research only", ["non-commercial"]),
        ("for noncommercial use", ["non-commercial"]),
        ("public domain", []),
        ("not stated", []),
    ],
)
def test_kinds_of_licences(licence: str, kinds: list[str]) -> None:
    found = warnings([("source", licence)])
    assert len(found) == len(kinds)
    assert all(kind in one for kind, one in zip(kinds, found, strict=True))


def test_licences_that_documents_state_are_summed_and_warned_of_and_no_markup() -> None:
    rows = [("web", "CC-BY-SA-4.0", 7), ("web", "not stated", 9), ("code", "CC-BY-SA-4.0", 5), ("web", "GPL<b>|x", 2)]
    found = [DocumentLicence(source=name, licence=licence, documents=number) for name, licence, number in rows]
    told = Provenance(link="sft", document_licences=found)
    text = card(provenance=told)
    shown = [line for line in text.splitlines() if re.match(r"\| (CC-BY-SA|not stated|GPL)", line)]
    assert [tuple(line.strip("| ").split(" | ")) for line in shown] == [
        ("CC-BY-SA-4.0", "12"),
        ("GPL&lt;b&gt;·x", "2"),
        ("not stated", "9"),
    ]
    (warning,) = warnings(bound(told))
    assert "12 documents (CC-BY-SA-4.0), 2 documents (GPL?b??x)" in warning
    assert f"> **Warning:** {warning}" in text
    assert f"Warning: {warning}" in notice(told, None, "")


def test_the_licence_of_the_base_is_stated_with_the_sources() -> None:
    told = Provenance(link="sft", base="owner/model@0123", base_repository="owner/model", base_licence="GPL-3.0-only")
    assert stated(told) == {"owner/model@0123 (the base model)": "GPL-3.0-only"}
    text = card(provenance=told)
    assert yaml.safe_load(text.split("---")[1])["base_model"] == "owner/model"
    assert "> **Warning:** some of the data is under a share-alike licence" in text


def test_the_text_of_a_licence_is_ours_or_where_it_is_to_be_found() -> None:
    assert "Version 2.0, January 2004" in licence_text("Apache-2.0")
    assert "https://spdx.org/licenses/CC-BY-4.0.html" in licence_text("CC-BY-4.0")
    assert "spdx.org" not in licence_text("LicenseRef-mine")


def test_a_licence_of_weights_is_an_spdx_expression() -> None:
    assert ExportConfig(weights_licence="apache-2.0").weights_licence == "Apache-2.0"
    assert "license: other\nlicense_name: mit-or-apache-2.0" in card(weights_licence="MIT OR Apache-2.0")
    with pytest.raises(ValidationError, match="isn't an SPDX licence expression"):
        ExportConfig(weights_licence="free for all")
