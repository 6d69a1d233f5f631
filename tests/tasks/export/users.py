"""Users of a release: a Python with what pip brings for some names, and what each of them runs in it.

The packages are those of this environment, linked into a folder of their own: Python starts without any other, so that
neither this project nor what another format needs can be imported.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

DOCS = Path(__file__).parents[3] / "docs" / "export.md"
BEGIN = """
import importlib.util, json, sys
sys.path.append(sys.argv[1])
asked = json.loads(sys.argv[2])
def shown(said):
    ours = ("tasks", "models", "storage", "profiles", "flows", "gristmill")
    print(json.dumps([said, [name for name in ours if name in sys.modules or importlib.util.find_spec(name)]]))
"""
TRANSFORMERS = """
from transformers import AutoModelForCausalLM, AutoTokenizer
try:
    from peft import AutoPeftModelForCausalLM
except ImportError:
    pass
said = {}
for name, line in asked["lines"].items():
    model, tokenizer, said[name] = eval(line), AutoTokenizer.from_pretrained(name), []
    for prompt in asked["prompts"]:
        given = tokenizer(prompt, return_tensors="pt")
        made = model.generate(**given, do_sample=False, max_new_tokens=asked["tokens"])
        said[name].append(tokenizer.decode(made[0, given["input_ids"].shape[1]:], skip_special_tokens=True))
shown(said)
"""
LLAMA_CPP = """
import argparse, shlex, tempfile, xllamacpp
said, options = {}, argparse.ArgumentParser()
for option in ("-m", "--lora", "--chat-template-file"):
    options.add_argument(option)
options.add_argument("--jinja", action="store_true")
for name, line in asked["lines"].items():
    given, params = options.parse_args(shlex.split(line)[1:]), xllamacpp.CommonParams()
    params.model.path, params.hostnames = given.m, [f"{tempfile.mkdtemp()}/llama.sock"]
    params.lora_adapters = [xllamacpp.CommonAdapterLoraInfo(given.lora, 1.0)] if given.lora else []
    params.chat_template = open(given.chat_template_file).read() if given.chat_template_file else ""
    params.warmup, params.fit_params, params.n_gpu_layers, params.verbosity = False, False, 0, -1
    params.n_parallel = params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
    server = xllamacpp.Server(params)
    asks = [(server.handle_completions, {"prompt": one}) for one in asked["prompts"]]
    asks.append((server.handle_chat_completions, {"messages": asked["chat"]}))
    answers = [ask({**one, "temperature": 0, "max_tokens": asked["tokens"]})["choices"][0] for ask, one in asks]
    said[name] = [one["text"] if "text" in one else one["message"]["content"] for one in answers]
    del server
shown(said)
"""
OF_DOCS = """
config, said = json.load(open(asked["name"] + "/config.json")), []
size = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
names = {"layers": config["num_hidden_layers"], "heads": config["num_key_value_heads"], "size": size}
exec(asked["code"], names | {"print": said.append})
shown(said)
"""


def site(folder: Path, *names: str) -> Path:
    """A folder with these packages, what they require, and nothing else."""
    folder.mkdir()
    waiting, seen = list(names), set[str]()
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name in seen:
            continue
        seen.add(name)
        found = distribution(name)
        requires = [Requirement(text) for text in found.requires or ()]
        waiting += [one.name for one in requires if one.marker is None or one.marker.evaluate({"extra": ""})]
        for part in {file.parts[0] for file in found.files or ()} - {".."}:
            if not (folder / part).exists():
                (folder / part).symlink_to(str(found.locate_file(part)))
    return folder


def ask(program: str, packages: Path, release: Path, home: Path, **asked: Any) -> Any:
    """The output of a program run in the folder of a release with only these packages."""
    environment = {"PATH": os.environ["PATH"], "HOME": str(home), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", BEGIN + program, str(packages), json.dumps(asked)],
        cwd=release,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    said, ours = json.loads(done.stdout.splitlines()[-1])
    assert ours == []
    return said


def modelfile_prompt(modelfile: str, chat: list[dict[str, str]]) -> str:
    """The prompt that Ollama makes from a conversation by a Modelfile with our Go template."""
    (template,) = re.findall(r'TEMPLATE """(.*?)"""', modelfile, re.S)
    found = re.fullmatch(r"(.*?)\{\{- range \.Messages \}\}(.*)\{\{ end \}\}(.*)", template, re.S)
    assert found is not None
    begin, turn, after = found.groups()
    told = [turn.replace("{{ .Role }}", one["role"]).replace("{{ .Content }}", one["content"]) for one in chat]
    return "".join([begin, *told, after])


def card_line(release: Path, name: str) -> str:
    """The last piece of code in the line of a release's card on loading a format."""
    card = (release / "README.md").read_text()
    (row,) = re.findall(rf"^\| {re.escape(name)} \| (.*`.*) \|$", card, re.M)
    line: str = re.findall(r"`([^`]+)`", row)[-1]
    return line


def docs_program(holding: str) -> str:
    """The block of Python of docs/export.md that holds a text."""
    (found,) = (block for block in re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.S) if holding in block)
    return str(found)
