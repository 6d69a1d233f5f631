"""The policy file."""

from __future__ import annotations

from pathlib import Path

import pytest

from profiles.load import read_settings
from storage.errors import ConfigError
from tasks.serve.guards import Guards, GuardsConfig

EXAMPLE = """
input:
  max_characters: 50000
  secrets: refuse             # a key pasted by mistake
  injection: allow
output:
  personal: mask
  passes: [help@corp-mail.com, "@our-town.org"]
  kinds: {CREDIT_CARD: refuse, IP_ADDRESS: mask}
  random: allow               # long random words are counted
lists:
  projects:
    words: [red fox, falcon]
    patterns: ['\\bOP-\\d{4}\\b']
    longest: 8
    action: mask
    applies_to: [output]
toxicity:
  action: allow
  max_score: 0.5
own:
  shouting:
    measure: {kind: python, file: shouts.py}
    max: {score: 3}
    action: mask
    applies_to: [output]
"""


def test_the_example_loads_and_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "policy.yaml").write_text(EXAMPLE)
    (tmp_path / "shouts.py").write_text(
        "def measure(texts):\n    return {'score': [text.count('!') for text in texts]}\n"
    )
    monkeypatch.chdir(tmp_path)
    config = read_settings(GuardsConfig, tmp_path / "policy.yaml")
    assert config.output.action_of("CREDIT_CARD") == "refuse"
    assert config.output.action_of("MAC_ADDRESS") == "allow"
    assert config.output.action_of("EMAIL_ADDRESS") == "mask"
    ready = Guards(config)
    said = "Ask Help@corp-mail.com, me@our-town.org or me@corp-mail.com."
    guard = ready.output()
    assert guard.feed(said) + guard.finish() == "Ask Help@corp-mail.com, me@our-town.org or <EMAIL_ADDRESS>."
    guard = ready.output()
    assert (
        guard.feed("The falcon and OP-1234. No!!!! Done. ") + guard.finish()
        == "The <PROJECTS> and <PROJECTS>. <SHOUTING> Done. "
    )


def test_an_empty_file_is_the_default(tmp_path: Path) -> None:
    (tmp_path / "policy.yaml").write_text("# nothing\n")
    assert read_settings(GuardsConfig, tmp_path / "policy.yaml") == GuardsConfig()


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("output: {personal: hide}", "output.personal"),
        ("outputs: {}", "outputs"),
        ("lists: {Mine: {words: [a]}}", "lower-case"),
        ("lists: {mine: {action: mask}}", "name words, files or patterns"),
        ("own: {mine: {measure: {kind: python, file: a.py}}}", "set a bound"),
        ("- a", "is not a mapping"),
        ("a: [", "is not YAML"),
    ],
)
def test_mistakes_name_the_key(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "policy.yaml").write_text(text)
    with pytest.raises(ConfigError, match=says):
        read_settings(GuardsConfig, tmp_path / "policy.yaml")
