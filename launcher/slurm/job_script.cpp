#include "launcher/slurm/job_script.h"

#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/shell_word.h"
#include "launcher/settings/launch_flags.h"

namespace mtl {

namespace {

constexpr size_t kColumns = 98;

// For a comment: what could end its line is shown and not obeyed.
std::string on_one_line(const std::string& text) {
  std::string line;
  for (const char c : text) {
    line += static_cast<unsigned char>(c) < 0x20 || c == 0x7f ? '?' : c;
  }
  return line.size() > 2000 ? line.substr(0, 1997) + "..." : line;
}

}  // namespace

std::string shell_lines(const std::vector<std::string>& words, const std::string& indent) {
  std::string text;
  size_t column = 0;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string word = shell_word(words[i]);
    // An option's value stays with it.
    const bool value = i > 0 && words[i - 1].starts_with("--") && !words[i].starts_with("--");
    if (i > 0 && column + word.size() + 1 > kColumns && !value) {
      text += " \\\n" + indent;
      column = indent.size();
    } else if (i > 0) {
      text += ' ';
      ++column;
    }
    text += word;
    column += word.size();
  }
  return text;
}

nlohmann::ordered_json slurm_values(const SlurmJob& job, const LaunchRequest& request) {
  nlohmann::ordered_json values;
  for (const LaunchFlag& flag : launch_flags()) {
    if (flag.group != FlagGroup::slurm) continue;
    const std::string name = flag.name.substr(std::string_view("slurm_").size());
    const auto given = request.slurm.find(name);
    if (given == request.slurm.end() || given->second.empty()) {
      values[name] = nullptr;
    } else if (flag.kind == FlagKind::list) {
      values[name] = given->second;
    } else {
      values[name] = given->second.back();
    }
  }
  values["job_name"] = job.options.job_name;
  values["options"] = job.options.sbatch;
  values["modules"] = nlohmann::ordered_json::array();
  for (const std::string& name : job.options.modules) values["modules"].push_back(shell_word(name));
  values["setup"] = job.options.setup;
  values["nodes"] = job.options.nodes;
  if (job.options.gpus_per_node > 0) values["gpus_per_node"] = job.options.gpus_per_node;
  values["version"] = job.version;
  values["when"] = job.when;
  std::string command;
  for (const std::string& word : job.command)
    command += fmt::format("{}{}", command.empty() ? "" : " ", shell_word(word));
  values["command"] = on_one_line(command);
  values["script"] = shell_word(job.script);
  values["folder"] = shell_word(job.working_directory);
  // What a shell would take for its own stands there on purpose.
  bool literal = false;
  for (const std::string& word : job.launch) {
    literal |= word.find_first_of("$`\\") != std::string::npos;
  }
  values["literal"] = literal;
  values["launch"] = shell_lines(job.launch, "  ");
  values["launch_words"] = nlohmann::ordered_json::array();
  for (const std::string& word : job.launch) values["launch_words"].push_back(shell_word(word));
  return values;
}

std::string slurm_script(const SlurmJob& job, const LaunchRequest& request,
                         const JobTemplate& job_template) {
  return render_job_template(job_template, slurm_values(job, request));
}

}  // namespace mtl
