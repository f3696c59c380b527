// A format as the chat template of a Hugging Face folder, so that transformers and those who serve
// models write conversations as the model has learned them.
#pragma once

#include <string>

#include "runtime/data/chat/format.h"

namespace mtl::chat {

// For `chat_template` of tokenizer_config.json, with the text of the token that {eod} is. Roles
// that the format has not end in an exception.
std::string jinja_template(const Format& format, const std::string& eod);

}  // namespace mtl::chat
