"""Chat templates of well-known models, without tools, and what each makes of a conversation.

All say the same: QUESTIONS with ANSWERS. `learned` are the spans of the conversation that bear loss.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from models.tokenizer import roles_as_text
from tests.tasks.foreign import CHATML, make_foreign_tokenizer
from tests.tasks.foreign import SPECIAL as IM

QUESTIONS, ANSWERS = ("Where does the fox live?", "And the hen?"), ("In the wood.", "In the yard.")
CHAT = [
    {"role": role, "content": content}
    for question, answer in zip(QUESTIONS, ANSWERS, strict=True)
    for role, content in (("user", question), ("assistant", answer))
]
SYSTEM = {"role": "system", "content": "You know the animals."}
SAID = "' + message['content'] + '"
PROMPT = "{% if add_generation_prompt %}"
ALTERNATE = (
    "{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('roles must alternate') }}{% endif %}"
)


def by_role(before: str = "", prompt: str = "", **of_role: str) -> str:
    """A template that writes a text for each speaker, in which § is the content."""
    said = [
        f"{{% {'elif' if number else 'if'} message['role'] == '{role}' %}}{{{{ {text!r} }}}}".replace("§", SAID)
        for number, (role, text) in enumerate(of_role.items())
    ]
    turns = f"{{% for message in messages %}}{''.join(said)}{{% endif %}}{{% endfor %}}"
    return f"{before}{turns}{PROMPT}{{{{ {prompt!r} }}}}{{% endif %}}"


@dataclass(frozen=True)
class Family:
    """`special` are the control tokens in the order of their ids. Those in `unmarked` are not marked as special."""

    template: str
    special: list[str]
    eos: str
    learned: list[str]
    end: str
    by: str = "itself"
    bos: str | None = None
    unmarked: list[str] = field(default_factory=list)
    adds_bos: bool = False
    system: bool = True

    def tokenizer(self) -> Any:
        """A small byte-level tokenizer with this template."""
        from tokenizers import AddedToken
        from tokenizers.processors import TemplateProcessing

        named = {} if self.bos is None else {"bos_token": self.bos}
        made = make_foreign_tokenizer(template=self.template, special=self.special, eos=self.eos, **named)
        made.add_tokens([AddedToken(token, normalized=False, special=False) for token in self.unmarked])
        if self.adds_bos:
            made.backend_tokenizer.post_processor = TemplateProcessing(
                single=f"{self.bos} $A",
                pair=f"{self.bos} $A {self.bos} $B",
                special_tokens=[(self.bos, made.bos_token_id)],
            )
        return made


def answered(end: str, before: str = "", behind: str = "") -> list[str]:
    """The answers, each between these texts."""
    return [f"{before}{answer}{behind}{end}" for answer in ANSWERS]


DEFAULT = "{% if messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nBe helpful.<|im_end|>\n' }}{% endif %}"
QWEN3 = (
    "{%- set ns = namespace(last=messages|length - 1) %}{%- for message in messages[::-1] %}"
    "{%- set index = (messages|length - 1) - loop.index0 %}"
    "{%- if message.role == 'user' and ns.last == messages|length - 1 and not ns.found %}"
    "{%- set ns.last = index %}{%- set ns.found = true %}{%- endif %}{%- endfor %}"
    "{%- for message in messages %}{%- set content = message.content %}"
    "{%- if message.role != 'assistant' %}{{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>\n' }}"
    "{%- else %}{%- set thought = '' %}{%- if '</think>' in content %}"
    "{%- set thought = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}"
    "{%- set content = content.split('</think>')[-1].lstrip('\n') %}{%- endif %}"
    "{%- if loop.index0 > ns.last %}{{- '<|im_start|>assistant\n<think>\n' + thought.strip('\n') + '\n</think>\n\n' "
    "+ content.lstrip('\n') }}{%- else %}{{- '<|im_start|>assistant\n' + content }}{%- endif %}{{- '<|im_end|>\n' }}"
    "{%- endif %}{%- endfor %}{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
LLAMA2 = (
    "{% if messages[0]['role'] == 'system' %}{% set rest = messages[1:] %}{% set system = messages[0]['content'] %}"
    "{% else %}{% set rest = messages %}{% set system = false %}{% endif %}{% for message in rest %}"
    + ALTERNATE
    + "{% if loop.index0 == 0 and system %}{% set content = '<<SYS>>\n' + system + '\n<</SYS>>\n\n' + "
    "message['content'] %}"
    "{% else %}{% set content = message['content'] %}{% endif %}{% if message['role'] == 'user' %}"
    "{{ bos_token + '[INST] ' + content.strip() + ' [/INST]' }}{% else %}{{ ' ' + content.strip() + ' ' + eos_token }}"
    "{% endif %}{% endfor %}"
)
LLAMA3 = (
    "{% for message in messages %}{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ "
    "message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}"
    "{% endif %}{{ content }}{% endfor %}"
    + PROMPT
    + "{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}"
)
MISTRAL = (
    "{{ bos_token }}{% for message in messages %}"
    + ALTERNATE
    + "{% if message['role'] == 'user' %}{{ '[INST] ' + message['content'] + 'GAP[/INST]' }}{% else %}"
    "{{ 'LEAD' + message['content'] + eos_token }}{% endif %}{% endfor %}"
)
GEMMA = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') "
    "}}{% endif %}"
    "{% for message in messages %}"
    + ALTERNATE
    + "{% if message['role'] == 'assistant' %}{% set role = 'model' %}{% else %}{% set role = message['role'] "
    "%}{% endif %}"
    "{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}{% endfor %}"
    + PROMPT
    + "{{ '<start_of_turn>model\n' }}{% endif %}"
)
PHI3 = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>\n' + message['content'] + '<|end|>\n' }}{% endfor %}"
    + PROMPT
    + "{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}"
)
PHI3_OLD = by_role("{{ bos_token }}", "", user="<|user|>\n§<|end|>\n<|assistant|>\n", assistant="§<|end|>\n")
PHI4 = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '<|im_sep|>' + message['content'] + "
    "'<|im_end|>' "
    "}}{% endfor %}" + PROMPT + "{{ '<|im_start|>assistant<|im_sep|>' }}{% endif %}"
)
PHI4_MINI = PHI3.replace("\n", "")
ZEPHYR = (
    "{% for message in messages %}\n{% if message['role'] == 'user' %}\n{{ '<|user|>\n' + "
    "message['content'] + eos_token }}"
    "\n{% elif message['role'] == 'system' %}\n{{ '<|system|>\n' + message['content'] + eos_token }}\n"
    "{% elif message['role'] == 'assistant' %}\n{{ '<|assistant|>\n'  + message['content'] + eos_token }}\n"
    "{% endif %}\n"
    "{% if loop.last and add_generation_prompt %}\n{{ '<|assistant|>' }}\n{% endif %}\n{% endfor %}"
)
DEEPSEEK = by_role(
    "{{ bos_token }}",
    "<｜Assistant｜>",
    system="§",
    user="<｜User｜>§",
    assistant="<｜Assistant｜>§<｜end▁of▁sentence｜>",
)
DEEPSEEK_LLM = by_role(
    "{{ bos_token }}", "Assistant:", system="§\n\n", user="User: §\n\n", assistant="Assistant: §<｜end▁of▁sentence｜>"
)
TURN, TURNED = "<|START_OF_TURN_TOKEN|>", "§<|END_OF_TURN_TOKEN|>"
COMMAND = by_role(
    "{{ bos_token }}",
    f"{TURN}<|CHATBOT_TOKEN|>",
    system=f"{TURN}<|SYSTEM_TOKEN|>{TURNED}",
    user=f"{TURN}<|USER_TOKEN|>{TURNED}",
    assistant=f"{TURN}<|CHATBOT_TOKEN|>{TURNED}",
).replace("message['content']", "message['content'].strip()")
OLMO = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] != 'assistant' %}{{ '<|' + "
    "message['role'] + '|>\n' "
    "+ message['content'] + '\n' }}{% elif not loop.last %}{{ '<|assistant|>\n' + message['content'] + "
    "eos_token + '\n' }}"
    "{% else %}{{ '<|assistant|>\n' + message['content'] + eos_token }}{% endif %}{% if loop.last and "
    "add_generation_prompt"
    " %}{{ '<|assistant|>\n' }}{% endif %}{% endfor %}"
)
GRANITE = (
    "{%- if messages[0]['role'] != 'system' %}{{- '<|start_of_role|>system<|end_of_role|>You are "
    "Granite.<|end_of_text|>\n' "
    "}}{%- endif %}{%- for message in messages %}{{- '<|start_of_role|>' + message['role'] + '<|end_of_role|>' + "
    "message['content'] + '<|end_of_text|>\n' }}{%- endfor %}{%- if add_generation_prompt %}"
    "{{- '<|start_of_role|>assistant<|end_of_role|>' }}{%- endif %}"
)
FALCON = (
    "{% for message in messages %}{% if not loop.first %}{{ '\n' }}{% endif %}{% if message['role'] == 'system' %}"
    "{{ message['content'] }}{% elif message['role'] == 'user' %}{{ '\nUser: ' + message['content'] }}{% else %}"
    "{{ '\nAssistant: ' + message['content'] }}{% endif %}{% endfor %}" + PROMPT + "{{ '\n\nAssistant:' }}{% endif %}"
)
VICUNA = (
    "{% if messages[0]['role'] != 'system' %}A chat with an assistant. {% endif %}{% for message in messages %}"
    "{% if message['role'] == 'system' %}{{ message['content'] + ' ' }}{% elif message['role'] == 'user' %}"
    "{{ 'USER: ' + message['content'] + ' ' }}{% else %}{{ 'ASSISTANT: ' + message['content'] + eos_token }}{% endif %}"
    "{% endfor %}" + PROMPT + "{{ 'ASSISTANT:' }}{% endif %}"
)
GLM4 = "[gMASK]<sop>{% for message in messages %}<|{{ message['role'] }}|>\n{{ message['content'] }}{% endfor %}" + (
    PROMPT + "<|assistant|>\n{% endif %}"
)
GLM5 = "[gMASK]<sop>{% for m in messages %}<|{{ m.role }}|>{% if m.role == 'assistant' %}<think></think>{% endif %}" + (
    "{{ m.content }}{% endfor %}" + PROMPT + "<|assistant|><think>{% endif %}"
)
BAICHUAN = by_role("", "<reserved_107>", system="§", user="<reserved_106>§", assistant="<reserved_107>§")
ALPACA = by_role(
    "{{ bos_token }}", "### Response:\n", user="### Instruction:\n§\n\n", assistant="### Response:\n§\n\n"
).replace(PROMPT, "{% if not add_generation_prompt %}{{ eos_token }}{% else %}")
HUMAN = by_role("", "\n\nAssistant:", user="\n\nHuman: §", assistant="\n\nAssistant: §")
ROLE_ENDS = (
    "{% for m in messages %}{{ '<|' + m['role'] + '|>\n' }}{% if m['role'] == 'assistant' %}{{ '<think></think>\n' }}"
    "{% endif %}{{ m['content'] }}{% endfor %}" + PROMPT + "{{ '<|assistant|>\n' }}{% endif %}"
)
HEADER = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
ROLES = ["<|system|>", "<|user|>", "<|assistant|>"]
COHERE = ["<BOS_TOKEN>", TURN, "<|END_OF_TURN_TOKEN|>", "<|SYSTEM_TOKEN|>", "<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>"]
DEEP = ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>"]
S = ["<s>", "</s>"]
EMPTY = "<think>\n\n</think>\n\n"

FAMILIES = {
    "chatml": Family(CHATML, IM, IM[0], answered("<|im_end|>"), "<|im_end|>"),
    "chatml, tokens not marked": Family(CHATML, IM[:1], IM[0], answered(IM[2]), IM[2], unmarked=IM[1:]),
    "qwen 2": Family(DEFAULT + CHATML, IM, IM[2], answered("<|im_end|>"), "<|im_end|>"),
    "qwen 3": Family(
        QWEN3, IM, IM[2], [f"{EMPTY}In the yard.<|im_end|>"], IM[2], unmarked=["<think>", "</think>"]
    ),
    "llama 2": Family(LLAMA2, S, S[1], answered("</s>", " ", " "), "</s>", bos="<s>", adds_bos=True),
    "llama 3": Family(LLAMA3, HEADER, HEADER[3], answered(HEADER[3]), HEADER[3], bos=HEADER[0], adds_bos=True),
    "mistral 0.1": Family(
        MISTRAL.replace("GAP", " ").replace("LEAD", ""), S, S[1], answered("</s>"), "</s>", bos="<s>", adds_bos=True,
        system=False,
    ),
    "mistral 0.3": Family(
        MISTRAL.replace("GAP", "").replace("LEAD", " "), [*S, "[INST]", "[/INST]"], S[1], answered("</s>", " "), "</s>",
        bos="<s>", adds_bos=True, system=False,
    ),
    "gemma": Family(
        GEMMA, ["<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>"], "<eos>", answered("<end_of_turn>"),
        "<end_of_turn>", bos="<bos>", adds_bos=True, system=False,
    ),
    "phi 3": Family(PHI3, [IM[0], *ROLES, "<|end|>"], IM[0], answered("<|end|>"), "<|end|>"),
    "phi 3, first form": Family(
        PHI3_OLD, [*S, *ROLES, "<|end|>"], S[1], answered("<|end|>"), "<|end|>", bos="<s>", adds_bos=True,
        system=False,
    ),
    "phi 4": Family(PHI4, [*IM, "<|im_sep|>"], IM[0], answered(IM[2]), IM[2]),
    "phi 4 mini": Family(PHI4_MINI, [IM[0], "<|end|>"], IM[0], answered("<|end|>"), "<|end|>", unmarked=ROLES),
    "smollm 2": Family(DEFAULT + CHATML, IM, IM[2], answered(IM[2]), IM[2], bos=IM[1]),
    "zephyr": Family(ZEPHYR, S, S[1], answered("</s>"), "</s>", bos="<s>"),
    "deepseek 3": Family(DEEPSEEK, DEEP, DEEP[1], answered(DEEP[1]), DEEP[1], bos=DEEP[0], adds_bos=True),
    "deepseek llm": Family(DEEPSEEK_LLM, DEEP[:2], DEEP[1], answered(DEEP[1], " "), DEEP[1], bos=DEEP[0]),
    "command-r": Family(COMMAND, COHERE, COHERE[2], answered(COHERE[2]), COHERE[2], bos=COHERE[0], adds_bos=True),
    "olmo 2": Family(OLMO, IM[:1], IM[0], answered(IM[0]), IM[0], bos=IM[0]),
    "granite 3": Family(
        GRANITE, ["<|end_of_text|>", "<|start_of_role|>", "<|end_of_role|>"], "<|end_of_text|>",
        answered("<|end_of_text|>"), "<|end_of_text|>",
    ),
    "falcon": Family(FALCON, IM[:1], IM[0], [" In the wood.", " In the yard.<|endoftext|>"], IM[0], "nothing"),
    "vicuna": Family(VICUNA, S, S[1], answered("</s>", " "), "</s>", bos="<s>"),
    "stablelm 2": Family(
        PHI3.replace("'<|end|>\n'", "eos_token + '\n'").replace("{% else %}{{ eos_token }}", ""), IM[:1], IM[0],
        answered(IM[0]), IM[0],
    ),
    "glm 4": Family(
        GLM4, [IM[0], "[gMASK]", "<sop>", *ROLES], IM[0], answered("<|user|>"), "<|user|>", "next"
    ),
    "glm 5": Family(
        GLM5, [IM[0], "[gMASK]", "<sop>", *ROLES], IM[0], answered("<|user|>", "</think>"), "<|user|>", "next",
        unmarked=["<think>", "</think>"],
    ),
    "role ends": Family(
        ROLE_ENDS, [IM[0], *ROLES, "<think>", "</think>"], IM[0], answered("<|user|>", "<think></think>\n"), "<|user|>",
        "next",
    ),
    "baichuan": Family(
        BAICHUAN, [*S, "<reserved_106>", "<reserved_107>"], S[1], answered("<reserved_106>"), "<reserved_106>", "next"
    ),
    "alpaca": Family(
        ALPACA, S, S[1], ["In the wood.\n\n", "In the yard.\n\n</s>"], "</s>", "conversation", bos="<s>", system=False
    ),
    "upper case": Family(
        CHATML.replace("im_start", "IM_START").replace("im_end", "IM_END").replace("t'] +", "t'].upper() +"),
        [token.upper() for token in IM], IM[0].upper(), [f"{answer.upper()}<|IM_END|>" for answer in ANSWERS],
        IM[2].upper(),
    ),
    "no template": Family(roles_as_text("</s>"), S, S[1], answered("</s>"), "</s>"),
    "human, assistant": Family(
        HUMAN, IM[:1], IM[0], [" In the wood.", " In the yard.<|endoftext|>"], IM[0], "nothing", system=False
    ),
}  # fmt: skip
