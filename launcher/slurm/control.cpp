#include "launcher/slurm/control.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <unistd.h>

#include <fmt/format.h>

namespace mtl {

CommandAnswer ask_slurm(const std::vector<std::string>& argv, std::chrono::milliseconds within) {
  const char* conf = std::getenv("SLURM_CONF");
  if (conf != nullptr && *conf != '\0' && access(conf, R_OK) != 0) {
    CommandAnswer answer;
    answer.code = 1;
    answer.err = fmt::format("SLURM_CONF={} cannot be read", conf);
    return answer;
  }
  // What SLURM has told this job is nothing that another one should be told.
  CommandAnswer answer = run_command(argv, within, [](std::string_view variable) {
    return !variable.starts_with("SLURM_") || variable.starts_with("SLURM_CONF=");
  });
  for (std::string* text : {&answer.out, &answer.err}) {
    while (text->ends_with('\n')) text->pop_back();
  }
  return answer;
}

std::string control_field(const std::string& text, const std::string& name) {
  const std::string mark = name + "=";
  size_t at = 0;
  while ((at = text.find(mark, at)) != std::string::npos && at > 0 && text[at - 1] != ' ' &&
         text[at - 1] != '\n') {
    at += mark.size();
  }
  if (at == std::string::npos) return {};
  at += mark.size();
  // Values may have spaces (names, comments), so the next key ends one.
  const size_t line = std::min(text.find('\n', at), text.size());
  size_t end = at;
  while ((end = text.find(' ', end)) < line) {
    size_t word = end + 1;
    while (word < line && (std::isalnum(static_cast<unsigned char>(text[word])) ||
                           text[word] == '/' || text[word] == ':' || text[word] == '_')) {
      ++word;
    }
    if (word < line && text[word] == '=' && word > end + 1) break;
    ++end;
  }
  std::string value = text.substr(at, std::min(end, line) - at);
  while (value.ends_with(' ')) value.pop_back();
  return value == "(null)" || value == "None" || value == "N/A" ? "" : value;
}

}  // namespace mtl
