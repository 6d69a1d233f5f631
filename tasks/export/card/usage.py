"""How to use a release: a line for each format, as the format states it, then programs that read plain safetensors.

vLLM, TGI and MLX read the folder as transformers does, and Ollama reads the GGUF file through the Modelfile. A release
is proved only in the runtimes of its verification, and the card says so.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

from tasks.export.formats import FORMATS
from tasks.stage.display.pages import markdown_table

PLAIN = "safetensors"
_CHAT = """\
```python
from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

folder = "."  # of this card, or the model's name on a hub
model = AutoModelForCausalLM.from_pretrained(folder)
tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)  # tokenizer.json as it is
chat = [{"role": "user", "content": "What is a river?"}]
prompt = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
made = model.generate(**prompt, max_new_tokens=64, do_sample=False)
print(tokenizer.decode(made[0, prompt["input_ids"].shape[1]:], skip_special_tokens=True))
```"""
_OVER_BASE = (
    "model = AutoModelForCausalLM.from_pretrained(folder)\n",
    "from peft import PeftModel\n\n"
    'model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(folder), f"{folder}/adapter")\n',
)
_PLAIN_PROGRAMS = {
    "vLLM": "vllm serve .",
    "TGI": "text-generation-launcher --model-id .",
    "MLX": "mlx_lm.chat --model .",
}
_OLLAMA = {"Ollama": "ollama create my-model -f Modelfile && ollama run my-model"}


def usage(formats: Collection[str], *, modelfile: bool, remarks: Mapping[str, str], virtual: bool) -> list[str]:
    """The paragraphs of the section. `remarks` qualify formats that don't run everywhere. With `virtual` tokens beside
    the weights, only PEFT reads the whole model."""
    remarked = {name: f" ({remark})" for name, remark in remarks.items()}
    loading = [{"format": name, "how to load": FORMATS[name].loading + remarked.get(name, "")} for name in formats]
    parts = [
        markdown_table(loading),
        "Paths are relative to this folder. Prompts go through the chat template that each format carries.",
    ]
    programs = {**(_PLAIN_PROGRAMS if PLAIN in formats and not virtual else {}), **(_OLLAMA if modelfile else {})}
    parts += [_CHAT.replace(*_OVER_BASE) if virtual else _CHAT] if PLAIN in formats else []
    if programs:
        rows = [{"program": program, "command": f"`{command}`"} for program, command in programs.items()]
        parts += ["These programs read the same files. The release was not proved in them:", markdown_table(rows)]
    return parts
