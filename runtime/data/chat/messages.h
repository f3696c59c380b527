// A line of JSON as a conversation, in the ways in which people keep them:
//   {"messages": [{"role": "user", "content": "..."}, ...]}            OpenAI, Hugging Face
//   {"conversations": [{"from": "human", "value": "..."}, ...]}        ShareGPT
//   {"prompt": ..., "completion": ...}                                 texts or lists of messages
//   {"instruction": "...", "input": "...", "output": "..."}            Alpaca
// A "system" beside them is what "system" says first.
#pragma once

#include <simdjson.h>
#include <string>
#include <vector>

#include "runtime/data/chat/encoder.h"

namespace mtl::chat {

// Throws Error (Exit::data) data.chat that says what is wrong with the line.
std::vector<Message> messages_of(const simdjson::dom::object& line);

}  // namespace mtl::chat
