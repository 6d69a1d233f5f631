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
from tests.flows.commands.test_cli import publish
from tests.test_house import FILES, ROOT

PAGE = (ROOT / "SECURITY.md").read_text(encoding="utf-8")
FORBIDDEN = {"eval", "exec", "compile", "os.system", "os.popen", "pickle.load", "pickle.loads", "yaml.unsafe_load"}
ALLOWED = {  # by module
    ROOT / "tasks" / "sandbox" / "inside" / "program.py": {"compile", "exec"},  # programs of a model are run there
    ROOT / "tasks" / "text" / "kernel_cache.py": {"pickle.loads"},  # of the user's own cache, as numba does
    ROOT / "tasks" / "shards" / "broadcast.py": {"pickle.loads"},  # of bytes whose digest came with the call
}

NEVER = {"shell": "False", "allow_pickle": "False"}  # by keyword, where it is given
ALWAYS = {
    r"torch\.load": {"weights_only": "True"},
    r"Auto\w+\.from_pretrained": {"trust_remote_code": "False", "local_files_only": "True"},
    r"AutoModel\w*\.from_pretrained": {"use_safetensors": "True"},
}


def calls(path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Each call of a module: what is called, and its keyword arguments as source."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            keywords = {word.arg: ast.unparse(word.value) for word in node.keywords if word.arg}
            yield ast.unparse(node.func), keywords


def test_no_module_runs_what_it_reads() -> None:
    assert [f"{path.relative_to(ROOT)}: {wrong}" for path in FILES for wrong in wrong_with(path)] == []


def wrong_with(path: Path) -> Iterator[str]:
    for name, keywords in calls(path):
        if name in FORBIDDEN - ALLOWED.get(path, set()):
            yield name
        wanted = {keyword: value for keyword, value in NEVER.items() if keyword in keywords}
        for pattern, always in ALWAYS.items():
            wanted |= always if re.fullmatch(pattern, name) else {}
        for keyword, value in wanted.items():
            if keywords.get(keyword) != value:
                yield f"{name}({keyword}={keywords.get(keyword)})"


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
