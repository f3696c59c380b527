#!/usr/bin/env python3
"""Conversations as Hugging Face's `transformers` tokenizes them: chat.json, for the C++ suite.

  chat_reference.py -o tests/reference/chat.json

Each format of `mtl data tokenize --chat` is written here as a Jinja template, whose
{% generation %} marks give the mask of what an assistant says (return_assistant_tokens_mask). The
tokenizers are the small ones of tokenizers.json with the tokens of the format added.

Needs: pip install transformers==4.57.1 tokenizers jinja2.
"""
import argparse
import json
import os

from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

HERE = os.path.dirname(os.path.abspath(__file__))

# Name, tokenizer, tokens (a * behind one: it takes the white space behind it), begin, what stands
# around a role's words, whether their white space goes, how "system" is written.
IM = ["<|im_start|>", "<|im_end|>"]
CHATML = {role: (f"<|im_start|>{role}\n", "<|im_end|>", "\n")
          for role in ("system", "user", "assistant")}
LLAMA3 = {role: (f"<|start_header_id|>{role}<|end_header_id|>\n\n", "<|eot_id|>", "")
          for role in ("system", "user", "assistant")}
GEMMA = {"user": ("<start_of_turn>user\n", "<end_of_turn>", "\n"),
         "assistant": ("<start_of_turn>model\n", "<end_of_turn>", "\n")}
MISTRAL = {"system": ("[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", ""), "user": ("[INST]", "[/INST]", ""),
           "assistant": ("", "</s>", "")}
PHI3 = {role: (f"<|{role}|>\n", "<|end|>", "\n") for role in ("system", "user", "assistant")}
PHI4 = {role: (f"<|im_start|>{role}<|im_sep|>", "<|im_end|>", "")
        for role in ("system", "user", "assistant")}
DEEPSEEK = {"system": ("", "", ""), "user": ("<｜User｜>", "", ""),
            "assistant": ("<｜Assistant｜>", "<｜end▁of▁sentence｜>", "")}
GRANITE = {role: (f"<|start_of_role|>{role}<|end_of_role|>", "<|end_of_text|>", "\n")
           for role in ("system", "user", "assistant")}
COMMAND = {role: (f"<|START_OF_TURN_TOKEN|><|{name}_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "")
           for role, name in (("system", "SYSTEM"), ("user", "USER"), ("assistant", "CHATBOT"))}
TULU = {role: (f"<|{role}|>\n", "\n", "") for role in ("system", "user")} | {
    "assistant": ("<|assistant|>\n", "<|endoftext|>", "\n")}
PLAIN = {"system": ("", "\n\n", ""), "user": ("User:\n", "\n\n", ""),
         "assistant": ("Assistant:\n", "<|endoftext|>", "")}
# Formats of one's own, as `--chat FILE` has them.
ALPACA = {"user": ("### Instruction:\n", "\n\n", ""),
          "assistant": ("### Response:\n\n", "<|endoftext|>", "")}
LINES = {"user": ("Q: ", "\n", ""), "assistant": ("A:\n", "\n\n", "")}
FILES = {
    "alpaca": r'''user: "### Instruction:\n{content}\n\n"
assistant: "### Response:\n\n{content}{eod}"
''',
    "lines": r'''user: "Q: {content}\n"
assistant: "A:\n{content}\n\n"
strips: true
'''}
FORMATS = [
    ("chatml", "qwen2", IM, "", CHATML, "none"),
    ("chatml", "gpt2", IM, "", CHATML, "none"),
    ("llama3", "llama3", ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>",
                          "<|eot_id|>"], "<|begin_of_text|>", LLAMA3, "all"),
    ("gemma", "metaspace", ["<bos>", "<start_of_turn>", "<end_of_turn>"], "<bos>", GEMMA, "said"),
    ("mistral", "o200k", ["<s>", "</s>", "[INST]", "[/INST]", "[SYSTEM_PROMPT]",
                          "[/SYSTEM_PROMPT]"], "<s>", MISTRAL, "none"),
    ("phi3", "metaspace", ["<|system|>*", "<|user|>*", "<|assistant|>*", "<|end|>*"], "", PHI3,
     "none"),
    ("phi4", "qwen2", IM + ["<|im_sep|>"], "", PHI4, "none"),
    ("deepseek", "digits", ["<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜User｜>",
                            "<｜Assistant｜>"], "<｜begin▁of▁sentence｜>", DEEPSEEK, "none"),
    ("granite", "gpt2", ["<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>"], "", GRANITE,
     "none"),
    ("command-r", "gpt2", ["<BOS_TOKEN>", "<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>",
                           "<|SYSTEM_TOKEN|>", "<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>"],
     "<BOS_TOKEN>", COMMAND, "said"),
    ("tulu", "gpt2", ["<|endoftext|>"], "", TULU, "none"),
    ("olmo2", "gpt2", ["<|endoftext|>"], "<|endoftext|>", TULU, "none"),
    ("plain", "gpt2", ["<|endoftext|>"], "", PLAIN, "none"),
    ("plain", "llama3", ["<|endoftext|>"], "", PLAIN, "none"),
    ("plain", "metaspace", ["<|endoftext|>"], "", PLAIN, "none"),
    ("alpaca", "gpt2", ["<|endoftext|>"], "", ALPACA, "none"),
    ("alpaca", "qwen2", ["<|endoftext|>"], "", ALPACA, "none"),
    ("lines", "gpt2", ["<|endoftext|>"], "", LINES, "all"),
]

CONVERSATIONS = [
    [("user", "Who wrote Hamlet?"), ("assistant", "Shakespeare.")],
    [("system", "Answer in verse."), ("user", " Good  morrow,\nfriend! "),
     ("assistant", "\n\nGood morrow.\n"), ("user", "And now?"), ("assistant", " It's 12:30, 日本語. ")],
    [("user", "x"), ("assistant", "")],
    [("system", " sys\n"), ("user", "def f(x):\n\treturn x**2\n"), ("assistant", "return\n\n"),
     ("user", "\n"), ("assistant", "a")],
    [("user", "I'm the King's man"), ("assistant", "You're   not 😀\u200d!\r\n"),
     ("user", "why?"), ("assistant", "don't")],
    [("user", "\u3000\u4f60\u597d\u00a0"), ("assistant", "\u2003\u597d\u3000\x1f")],
]


def template(begin, roles, strips):
    def quoted(text):
        return json.dumps(text, ensure_ascii=False)

    def said(role):
        strip = strips == "all" or (strips == "said" and role != "system")
        return "m['content'] | trim" if strip else "m['content']"

    text = "{{ " + quoted(begin) + " }}{% set ns = namespace(before='') %}{% for m in messages %}"
    if "system" not in roles:
        text += ("{% if m['role'] == 'system' %}{% set ns.before = m['content'] + '\\n\\n' %}"
                 "{% endif %}")
    for role, (before, end, behind) in roles.items():
        text += "{% if m['role'] == '" + role + "' %}{{ " + quoted(before) + " }}"
        if role == "user":
            text += "{{ ns.before }}{% set ns.before = '' %}"
        if role == "assistant":
            text += "{% generation %}"
        text += "{{ " + said(role) + " }}{{ " + quoted(end) + " }}"
        if role == "assistant":
            text += "{% endgeneration %}"
        text += "{{ " + quoted(behind) + " }}{% endif %}"
    text += "{% endfor %}{% if add_generation_prompt %}{{ " + quoted(roles["assistant"][0])
    return text + " }}{% endif %}"


def said_whole(roles, messages):
    """transformers gives no mask for answers of nothing where no token ends them."""
    return "system" in roles or messages[0]["role"] != "system" or roles is GEMMA


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", required=True)
    args = parser.parse_args()
    with open(os.path.join(HERE, "tokenizers.json"), encoding="utf-8") as f:
        files = json.load(f)["tokenizers"]
    cases = []
    for name, base, tokens, begin, roles, strips in FORMATS:
        file = json.loads(json.dumps(files[base]["file"] if "file" in files[base] else files[base]))
        known = {token["content"] for token in file["added_tokens"]}
        taken = [token["id"] for token in file["added_tokens"]]
        first = max(list(file["model"]["vocab"].values()) + taken) + 1
        for token in tokens:
            content = token.rstrip("*")
            if content in known or content in file["model"]["vocab"]:
                continue
            file["added_tokens"].append(
                {"id": first, "content": content, "single_word": False, "lstrip": False,
                 "rstrip": token.endswith("*"), "normalized": False, "special": True})
            first += 1
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=Tokenizer.from_str(json.dumps(file)),
            chat_template=template(begin, roles, strips), clean_up_tokenization_spaces=False)
        rows = []
        for conversation in CONVERSATIONS:
            messages = [{"role": role, "content": text} for role, text in conversation]
            if not said_whole(roles, messages):
                continue
            if any(token.endswith("*") for token in tokens):
                # Where a token takes the white space that an answer begins with, transformers
                # counts the token as said.
                for message in messages:
                    message["content"] = message["content"].lstrip()
            made = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=True,
                                                 return_assistant_tokens_mask=True)
            rows.append({"messages": messages, "ids": made["input_ids"],
                         "learn": made["assistant_masks"],
                         "prompt": tokenizer.apply_chat_template(
                             messages[:-1], tokenize=True, add_generation_prompt=True)})
        cases.append({"format": name, "file": FILES.get(name, ""), "base": base, "added": file["added_tokens"], "rows": rows})
    with open(args.o, "w", encoding="utf-8") as f:
        json.dump({"cases": cases}, f, ensure_ascii=True, separators=(",", ":"))
        f.write("\n")


if __name__ == "__main__":
    main()
