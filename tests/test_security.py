"""What SECURITY.md says of the code: nothing loads code, pickles or another's Python, and nothing begins a shell."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from storage.digests import tree_digest
from storage.errors import DamagedArtifact
from storage.manifest import MANIFEST, SUMS
from storage.store import Store
from tests.flows.test_cli import publish
from tests.test_house import FILES, ROOT

PAGE = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
FORBIDDEN = {"eval", "exec", "compile", "os.system", "os.popen", "pickle.load", "pickle.loads", "yaml.unsafe_load"}
ALLOWED = {  # by module
    ROOT / "tasks" / "sandbox" / "inside" / "program.py": {"compile", "exec"},  # programs of a model are run there
    ROOT / "tasks" / "shards" / "broadcast.py": {"pickle.loads"},  # of bytes whose digest came with the call
}


def calls(path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Each call of a module: what is called, and its keyword arguments as source."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            keywords = {word.arg: ast.unparse(word.value) for word in node.keywords if word.arg}
            yield ast.unparse(node.func), keywords


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_module_runs_what_it_reads(path: Path) -> None:
    for name, keywords in calls(path):
        assert name not in FORBIDDEN - ALLOWED.get(path, set())
        assert keywords.get("shell", "False") == "False"
        assert keywords.get("allow_pickle", "False") == "False"
        if name == "torch.load":
            assert keywords.get("weights_only") == "True"
        if re.fullmatch(r"Auto\w+\.from_pretrained", name):
            assert keywords.get("trust_remote_code") == "False"
            assert keywords.get("local_files_only") == "True"
        if re.fullmatch(r"AutoModel\w*\.from_pretrained", name):
            assert keywords.get("use_safetensors") == "True"


def test_a_store_does_not_notice_an_artifact_that_is_replaced_together_with_its_manifest(tmp_path: Path) -> None:
    store = Store(str(tmp_path / "store"))
    location = publish(store, "dedup", {"file": b"right"})
    forged = Store(str(tmp_path / "forged"))
    assert publish(forged, "dedup", {"file": b"wrong"}) == location
    ours, theirs = (one.local / "artifacts" / location for one in (store, forged))
    (ours / "file").write_bytes(b"wrong")
    with pytest.raises(DamagedArtifact):
        store.get(location)
    for name in (MANIFEST, SUMS):
        (ours / name).write_bytes((theirs / name).read_bytes())
    found = store.get(location)
    assert (found.path / "file").read_bytes() == b"wrong"
    assert found.digest == tree_digest(found.manifest.files if found.manifest else {})


def test_the_page_names_tests_that_exist() -> None:
    named = re.findall(r"`(tests/[\w/]+\.py)(?:::(\w+))?`", PAGE)
    assert named
    for file, test in named:
        assert (ROOT / file).is_file(), file
        assert not test or f"def {test}(" in (ROOT / file).read_text(), test
