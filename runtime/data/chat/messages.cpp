#include "runtime/data/chat/messages.h"

#include <optional>
#include <string_view>

#include <fmt/format.h>

namespace mtl::chat {

namespace {

using simdjson::dom::array;
using simdjson::dom::element;
using simdjson::dom::object;

[[noreturn]] void refuse(const std::string& what) {
  throw Error(Exit::data, {.code = "data.chat",
                           .what = what,
                           .help = "a line is {\"messages\": [{\"role\": \"user\", \"content\": "
                                   "\"...\"}, {\"role\": \"assistant\", ...}]}"});
}

// Nothing where the key is not there, or null. Of one that is there twice the last counts, as in
// Python.
std::optional<element> member(const object& from, std::string_view key) {
  std::optional<element> value;
  for (const auto field : from) {
    if (field.key == key) value = field.value;
  }
  if (value && value->is_null()) value.reset();
  return value;
}

// A call of a tool, which an empty list is not.
bool calls(const object& message, std::string_view key) {
  const std::optional<element> value = member(message, key);
  array list;
  return value && (value->get_array().get(list) || list.size() > 0);
}

std::string text_of(const element& value, const std::string& where) {
  if (value.is_string()) return std::string(value.get_string().value_unsafe());
  array parts;
  if (value.get_array().get(parts)) refuse(fmt::format("{} is no text", where));
  // OpenAI's parts of a message, of which a model of language reads the texts.
  std::string all;
  for (const element part : parts) {
    std::string_view type, text;
    if (part["type"].get(type) || type != "text" || part["text"].get(text)) {
      refuse(fmt::format("{} has a part that is no text", where));
    }
    all += text;
  }
  return all;
}

std::string role_of(std::string_view name) {
  if (name == "human") return "user";
  if (name == "gpt" || name == "model") return "assistant";
  return std::string(name);
}

bool learned(const object& message, const std::string& where) {
  const std::optional<element> weight = member(message, "weight");
  if (!weight) return true;
  double value = 0;
  if (weight->get_double().get(value) || (value != 0 && value != 1)) {
    refuse(fmt::format("the weight of {} is neither 0 nor 1", where));
  }
  return value != 0;
}

void add_messages(const element& list, std::string_view key, bool learn,
                  std::vector<Message>& messages) {
  array items;
  if (list.get_array().get(items)) refuse(fmt::format("'{}' is no list of messages", key));
  for (const element item : items) {
    const std::string where = fmt::format("message {} of '{}'", messages.size() + 1, key);
    object message;
    if (item.get_object().get(message)) refuse(where + " is no object");
    const bool sharegpt = !member(message, "role") && member(message, "from");
    const std::optional<element> who = member(message, sharegpt ? "from" : "role");
    const std::optional<element> said = member(message, sharegpt ? "value" : "content");
    if (!who || !who->is_string()) refuse(where + " has no 'role'");
    const std::string_view role = who->get_string().value_unsafe();
    if (calls(message, "tool_calls") || calls(message, "function_call")) {
      refuse(where +
             " calls tools, of which every family writes another form: write the call into "
             "its 'content' as the model is to write it");
    }
    if (!said) refuse(where + " has no 'content'");
    messages.push_back({role_of(role), text_of(*said, where), learn && learned(message, where)});
  }
}

}  // namespace

std::vector<Message> messages_of(const object& line) {
  std::vector<Message> messages;
  const std::optional<element> prompt = member(line, "prompt");
  const std::optional<element> completion = member(line, "completion");
  const std::optional<element> instruction = member(line, "instruction");
  const std::optional<element> output = member(line, "output");
  const std::optional<element> openai = member(line, "messages");
  const std::optional<element> sharegpt = member(line, "conversations");
  if (openai) {
    add_messages(*openai, "messages", true, messages);
  } else if (sharegpt) {
    add_messages(*sharegpt, "conversations", true, messages);
  } else if (prompt && completion) {
    for (const bool answer : {false, true}) {
      const element& part = answer ? *completion : *prompt;
      const char* key = answer ? "completion" : "prompt";
      if (part.is_string()) {
        messages.push_back({answer ? "assistant" : "user", text_of(part, key)});
      } else {
        add_messages(part, key, answer, messages);
      }
    }
  } else if (instruction && output) {
    std::string asked = text_of(*instruction, "'instruction'");
    if (const auto input = member(line, "input")) {
      const std::string more = text_of(*input, "'input'");
      if (!more.empty()) asked += "\n\n" + more;
    }
    messages.push_back({"user", std::move(asked)});
    messages.push_back({"assistant", text_of(*output, "'output'")});
  } else {
    refuse(
        "is no conversation: it has none of 'messages', 'conversations', 'prompt' with "
        "'completion', 'instruction' with 'output'");
  }
  if (messages.empty()) refuse("is a conversation without messages");
  const std::optional<element> system = member(line, "system");
  if (system && messages.front().role != "system") {
    messages.insert(messages.begin(), {"system", text_of(*system, "'system'")});
  }
  return messages;
}

}  // namespace mtl::chat
