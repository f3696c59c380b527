"""What the chat template of a folder of mtl's makes of conversations.

  transformers_chat.py FOLDER LINES
      of each line of LINES, {"messages": [...]}: its ids, and those of the prompt that its last
      message answers
"""
import json
import sys

import transformers

tokenizer = transformers.AutoTokenizer.from_pretrained(sys.argv[1])
generation = transformers.GenerationConfig.from_pretrained(sys.argv[1])
with open(sys.argv[2], encoding="utf-8") as lines:
    for line in lines:
        messages = json.loads(line)["messages"]
        print(json.dumps({
            "ids": tokenizer.apply_chat_template(messages, tokenize=True),
            "prompt": tokenizer.apply_chat_template(messages[:-1], tokenize=True,
                                                    add_generation_prompt=True),
            "ends": generation.eos_token_id}))
