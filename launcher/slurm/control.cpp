#include "launcher/slurm/control.h"

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
  const std::string key = name + "=";
  for (size_t at = 0; (at = text.find(key, at)) != std::string::npos; at += key.size()) {
    if (at > 0 && text[at - 1] != ' ' && text[at - 1] != '\n') continue;
    const size_t start = at + key.size();
    return text.substr(start, text.find_first_of(" \n", start) - start);
  }
  return {};
}

}  // namespace mtl
