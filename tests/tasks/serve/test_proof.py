"""Served = released: an engine that computes anything else is not served."""

from __future__ import annotations

import asyncio
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gguf import GGUFReader

from models.tokenizer import load_tokenizer
from storage.digests import file_digest
from storage.errors import ParityError
from tasks.export.release_folder import verify_unsigned
from tasks.serve.proof import SIXTEEN_BITS, SMALLEST, ServedProof, _divergence, _limit, check_served
from tests.tasks.serve.engines.servers import engine_of, llama_server, saying


def proof(proved_release: Path, file: Path, format: str = "gguf-f16", **parity: Any) -> ServedProof:
    """The outcome for a GGUF file that is served as a format of the release."""

    async def check(url: str) -> ServedProof:
        engine = engine_of(url, load_tokenizer(proved_release))
        await engine.start()
        recorded = json.loads((proved_release / "parity.json").read_text())
        try:
            return await check_served(engine, {**recorded, **parity}, format)
        finally:
            await engine.stop()

    with llama_server(file) as url:
        return asyncio.run(check(url))


def file_of(proved_release: Path, kind: str = "f16") -> Path:
    return proved_release / "gguf" / f"model-{kind}.gguf"


def test_what_is_served_is_what_was_released(proved_release: Path) -> None:
    found = proof(proved_release, file_of(proved_release))
    assert found.state == "proved"
    assert found.probes == len(json.loads((proved_release / "parity.json").read_text())["probes"]) > 3
    assert found.mean <= found.worst < found.limit == SMALLEST
    assert str(found).startswith("proved as gguf-f16: ")
    rounded = proof(proved_release, file_of(proved_release, "q8_0"), "gguf-q8_0")
    assert rounded.state == "proved"
    recorded = json.loads((proved_release / "parity.json").read_text())["formats"]["gguf-q8_0"]
    assert rounded.limit == max(4 * recorded["runtime_divergence"], SMALLEST)


def test_another_byte_of_the_weights_is_not_served_though_the_list_agrees(proved_release: Path, tmp_path: Path) -> None:
    copy = tmp_path / "release"
    shutil.copytree(proved_release, copy)
    file = file_of(copy)
    tensor = next(one for one in GGUFReader(file).tensors if one.name == "blk.0.ffn_down.weight")
    data = bytearray(file.read_bytes())
    data[tensor.data_offset + 2 * 64 + 1] = 0x5C  # of a weight in float16: now about 256
    file.write_bytes(bytes(data))
    names = sorted(path.relative_to(copy).as_posix() for path in copy.rglob("*") if path.is_file())
    (copy / "SHA256SUMS").write_text("".join(f"{file_digest(copy / name)}  {name}\n" for name in names))
    verify_unsigned(copy)
    with pytest.raises(ParityError, match=r"doesn't serve the released gguf-f16.*after probe \d of \d") as caught:
        proof(copy, file)
    assert "release verify" in caught.value.remedy


def test_another_model_is_not_served(proved_release: Path, tmp_path: Path) -> None:
    from tasks.export.formats.gguf.file import write_gguf
    from tests.tasks.tiny_model import make_model

    write_gguf(make_model(tmp_path / "model"), tmp_path / "other.gguf", "f16")
    with pytest.raises(ParityError, match="doesn't serve the released gguf-f16"):
        proof(proved_release, tmp_path / "other.gguf")


def test_weights_that_are_no_numbers_are_not_served(proved_release: Path, tmp_path: Path) -> None:
    data = bytearray(file_of(proved_release).read_bytes())
    tensor = next(one for one in GGUFReader(file_of(proved_release)).tensors if one.name == "output_norm.weight")
    data[tensor.data_offset : tensor.data_offset + 4] = np.float32("nan").tobytes()
    (tmp_path / "model.gguf").write_bytes(bytes(data))
    with pytest.raises(ParityError, match="differ by inf nats"):
        proof(proved_release, tmp_path / "model.gguf")


def test_a_smaller_model_refuses_the_prompts(proved_release: Path) -> None:
    recorded = json.loads((proved_release / "parity.json").read_text())
    recorded["formats"]["gguf-f16"]["probes"][1]["ids"] = [5, 60_000]
    with pytest.raises(ParityError, match="refuses probe 2 of gguf-f16"):
        proof(proved_release, file_of(proved_release), formats=recorded["formats"])


def test_a_release_without_probes_is_served_and_says_so(proved_release: Path) -> None:
    formats = json.loads((proved_release / "parity.json").read_text())["formats"]
    del formats["gguf-f16"]["probes"]
    found = proof(proved_release, file_of(proved_release), formats=formats)
    assert found.state == "not recorded"
    assert "made before probes" in str(found)
    with pytest.raises(ParityError, match="doesn't hold gguf-q2_k"):
        proof(proved_release, file_of(proved_release), "gguf-q2_k")


def test_a_server_that_names_no_ids_proves_nothing(proved_release: Path) -> None:
    models = b'{"data": [{"id": "any", "owned_by": "someone"}]}'
    tops = {"tokens": ["a"], "token_logprobs": [-0.5], "top_logprobs": [{"a": -0.5, "b": -1.5}]}
    answer = json.dumps({**json.loads(models), "choices": [{"text": "a", "logprobs": tops}]}).encode()

    async def check() -> ServedProof:
        async with saying(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(answer), answer)) as (url, _):
            engine = engine_of(url, load_tokenizer(proved_release))
            await engine.start()
            return await check_served(engine, json.loads((proved_release / "parity.json").read_text()), "gguf-f16")

    assert asyncio.run(check()).state == "not reported"


def test_the_limit_is_a_few_times_what_was_measured_at_the_release() -> None:
    def limit(format: str, measured: float | None, engine: str = "") -> float:
        return _limit({"runtime_divergence": measured, "tolerance": {"max_runtime_divergence": 0.01}}, format, engine)

    assert limit("gguf-q8_0", 0.0026) == pytest.approx(0.0104)
    assert limit("gguf-f16", 2e-7) == SMALLEST
    assert limit("gguf-q2_k", None) == 0.01
    assert limit("gptq", 0.0) == SMALLEST + SIXTEEN_BITS
    assert limit("safetensors", 0.0, "transformers") == SMALLEST


def test_the_divergence_is_at_most_that_of_all_tokens() -> None:
    random = np.random.default_rng(0)
    for _ in range(200):
        p, q = (np.log(random.dirichlet(np.full(50, 0.3)) + 1e-12) for _ in range(2))
        whole = float((np.exp(p) * (p - q)).sum())
        ours, theirs = ([(int(id), float(log[id])) for id in np.argsort(-log)[:10]] for log in (p, q))
        assert 0 <= _divergence(ours, theirs) <= whole + 1e-6
        assert _divergence(ours, ours) == 0
    assert _divergence([(1, -0.5)], []) == float("inf")
    assert _divergence([(1, -0.5)], [(1, float("nan"))]) == float("inf")
