// What the placeholders of usage lines stand for.
#include <algorithm>
#include <array>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/help/complete.h"
#include "cli/help/help.h"
#include "launcher/job/jobs.h"
#include "launcher/settings/launch_flags.h"
#include "runtime/metrics/run_state.h"
#include "runtime/plan/forecast/cluster.h"
#include "runtime/recipes.h"
#include "runtime/spec/spec_keys.h"

namespace mtl {

namespace {

namespace fs = std::filesystem;

// Somebody has pressed a key.
constexpr std::chrono::milliseconds kQueuePatience{1'500};
constexpr int kMostLooked = 16;  // newest entries of a folder that may be a run's name

// Names in `folder` ("" = here) that begin so, in order; hidden ones where they are asked for.
std::vector<std::string> names_in(const fs::path& folder, const std::string& typed_name) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(folder.empty() ? "." : folder, error), end; !error && it != end;
       it.increment(error)) {
    std::string name = it->path().filename().string();
    if (name.starts_with(typed_name) && (name[0] != '.' || typed_name.starts_with('.'))) {
      names.push_back(std::move(name));
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

// "runs/sh" -> "runs/", "sh".
std::pair<std::string, std::string> parts_of(const std::string& typed) {
  const size_t slash = typed.rfind('/');
  if (slash == std::string::npos) return {"", typed};
  return {typed.substr(0, slash + 1), typed.substr(slash + 1)};
}

void add_files(Completion& to, const std::vector<std::string>& suffixes = {}) {
  to.shell = Completion::Shell::files;
  to.suffixes.insert(to.suffixes.end(), suffixes.begin(), suffixes.end());
}

void offer_files(const std::string&, Completion& to) {
  add_files(to);
}

void offer_train_yaml(const std::string&, Completion& to) {
  add_files(to, {"yaml", "yml"});
}

void offer_scripts(const std::string&, Completion& to) {
  add_files(to, {"py"});
}

void offer_folders(const std::string&, Completion& to) {
  to.shell = Completion::Shell::folders;
}

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

// "running, step 1200 of 2000"
std::string words_of_run(const fs::path& run) {
  std::ifstream in(run / "status.json");
  const auto status = in ? nlohmann::json::parse(in, nullptr, false) : nlohmann::json();
  if (!status.is_object()) return "a run";
  std::string words = state_of_run(run, status);
  if (words.empty()) words = "a run";
  if (status.contains("step")) words += fmt::format(", step {}", status["step"].dump());
  if (status.contains("steps")) words += fmt::format(" of {}", status["steps"].dump());
  return words;
}

// Runs, and names of runs, in the folder that is typed; in runs/ before one is. The newest ids
// first.
void offer_runs(const std::string& typed, Completion& to) {
  std::string base = typed;
  for (const std::string_view runs : {"./runs/", "runs/"}) {
    if (runs.starts_with(typed)) base = runs;
  }
  const auto [folder, name] = parts_of(base);
  std::vector<std::string> names = names_in(folder, name);
  std::reverse(names.begin(), names.end());
  for (const std::string& one : names) {
    const fs::path path = folder + one;
    if (is_there(path / "resolved.yaml")) {
      to.add(typed, folder + one, words_of_run(path));
      continue;
    }
    std::vector<std::string> ids = names_in(path, "");
    if (ids.size() > kMostLooked) ids.erase(ids.begin(), ids.end() - kMostLooked);
    const auto newest = std::find_if(ids.rbegin(), ids.rend(), [&](const std::string& id) {
      return is_there(path / id / "resolved.yaml");
    });
    if (newest != ids.rend()) to.add(typed, folder + one, words_of_run(path / *newest));
  }
  if (to.candidates.empty()) to.shell = Completion::Shell::folders;
}

// Runs, and complete checkpoints in the folder that is typed.
void offer_checkpoints(const std::string& typed, Completion& to) {
  const auto [folder, name] = parts_of(typed);
  for (const char* below : {"", "checkpoints/"}) {
    if (folder.empty() && *below == '\0') continue;
    std::vector<std::string> names = names_in(folder + below, *below == '\0' ? name : "");
    std::reverse(names.begin(), names.end());
    for (const std::string& one : names) {
      const std::string path = folder + below + one;
      if (is_there(fs::path(path) / "COMMITTED")) to.add(typed, path, "a checkpoint");
    }
  }
  offer_runs(typed, to);
}

// Corpora: PREFIX of PREFIX.idx.
void offer_corpora(const std::string& typed, Completion& to) {
  const auto [folder, name] = parts_of(typed);
  for (const std::string& one : names_in(folder, name)) {
    if (one.ends_with(".idx")) to.add(typed, folder + one.substr(0, one.size() - 4), "a corpus");
  }
  to.shell = Completion::Shell::folders;
}

void offer_recipes(const std::string& typed, Completion& to) {
  for (const Recipe& recipe : recipes()) to.add(typed, recipe.name, recipe.about);
}

void offer_models(const std::string& typed, Completion& to) {
  offer_recipes(typed, to);
  offer_runs(typed, to);
  add_files(to);
}

void offer_gpus(const std::string& typed, Completion& to) {
  for (const std::string& type : cluster_types()) to.add(typed, type, find_cluster(type)->title);
  to.add(typed, "cpu", "this machine's");
}

// What goes on. Of a job of SLURM only its queue knows; while that does not answer, all are
// offered.
void offer_jobs(const std::string& typed, Completion& to) {
  const std::vector<JobRecord> records = recorded_jobs();
  const auto is_slurm = [](const JobRecord& record) { return record.kind == "slurm"; };
  std::optional<std::vector<SlurmJobState>> queue;
  if (std::any_of(records.begin(), records.end(), is_slurm)) {
    queue = my_slurm_jobs(false, nullptr, kQueuePatience);
  }
  const auto is_queued = [&](const JobRecord& record) {
    return !queue || std::any_of(queue->begin(), queue->end(), [&](const SlurmJobState& job) {
      return is_record_of(record, job);
    });
  };
  for (const JobRecord& record : records) {
    if (!(is_slurm(record) ? is_queued(record) : is_alive(record))) continue;
    to.add(typed, record.id, record.run.empty() ? record.name : record.run);
    if (record.run.empty() || typed.empty()) continue;
    // As it is typed: whole, or from here.
    std::error_code ignored;
    const std::string relative = fs::proximate(record.run, ignored).string();
    for (const std::string& path : {record.run, relative, fmt::format("./{}", relative)}) {
      if (!path.starts_with(typed)) continue;
      to.add(typed, path, record.id);
      break;
    }
  }
}

void offer_topics(const std::string& typed, Completion& to) {
  for (const HelpTopic& topic : help_topics()) to.add(typed, topic.name, topic.about);
  for (const Command& command : commands()) {
    if (command.summary != nullptr) to.add(typed, command.name, command.summary);
  }
}

// "a `b` c" -> "a b c"
std::string plain_text(std::string markdown) {
  std::erase(markdown, '`');
  return markdown;
}

// Sections, then the keys in them, then their values.
void offer_settings(const std::string& typed, Completion& to) {
  const size_t equals = typed.find('=');
  if (equals != std::string::npos) {
    const std::string key = typed.substr(0, equals);
    for (const SpecKey& one : described_keys()) {
      if (one.key != key) continue;
      for (const SpecKey::Value& value : one.values) {
        to.add(typed, fmt::format("{}={}", key, value.value), plain_text(value.doc));
      }
      if (one.is_path) add_files(to);
    }
    return;
  }
  const size_t dots = static_cast<size_t>(std::count(typed.begin(), typed.end(), '.'));
  const auto depth = [](const std::string& name) {
    return static_cast<size_t>(std::count(name.begin(), name.end(), '.'));
  };
  for (const SpecSection& section : described_sections()) {
    if (depth(section.name) == dots) to.add(typed, section.name + '.', plain_text(section.doc));
  }
  for (const SpecKey& one : described_keys()) {
    if (depth(one.key) == dots) to.add(typed, one.key + '=', plain_text(one.doc));
  }
}

// The keys of default_config.yaml.
void offer_config_keys(const std::string& typed, Completion& to) {
  for (const LaunchFlag& flag : launch_flags()) {
    if (flag.file_key == "-") continue;
    const std::string key = (flag.file_key.empty() ? flag.name : flag.file_key) + '=';
    if (!typed.starts_with(key)) {
      to.add(typed, key, flag.help);
      continue;
    }
    Completion values;
    const bool truth = flag.kind == FlagKind::truth;
    add_values("", truth ? "true|false" : flag.value, typed.substr(key.size()), values);
    for (const Candidate& value : values.candidates) to.add(typed, key + value.word, value.what);
    to.shell = values.shell;
  }
}

struct Source {
  std::string_view command;  // "" = of any
  std::string_view placeholder;
  void (*add)(const std::string& typed, Completion& to);  // nullptr: nothing that is known
};
// A command's own before everybody's.
constexpr std::array kSources = {
    Source{"config set", "key=value", offer_config_keys},
    Source{"recipes show", "NAME", offer_recipes},
    Source{"recipes cp", "NAME", offer_recipes},
    Source{"plan", "TYPE", offer_gpus},
    Source{"stop", "ID", offer_jobs},
    Source{"stop", "RUN", nullptr},
    Source{"", "key=value", offer_settings},
    Source{"", "TOPIC", offer_topics},
    Source{"", "train.yaml", offer_train_yaml},
    Source{"", "FILE.yaml", offer_train_yaml},
    Source{"", "PROGRAM", offer_scripts},
    Source{"", "RUN", offer_runs},
    Source{"", "CHECKPOINT", offer_checkpoints},
    Source{"", "A", offer_checkpoints},
    Source{"", "B", offer_checkpoints},
    Source{"", "MODEL", offer_models},
    Source{"", "PREFIX", offer_corpora},
    Source{"", "FILE", offer_files},
    Source{"", "FILES", offer_files},
    Source{"", "F", offer_files},
    Source{"", "INPUT", offer_files},
    Source{"", "PATH", offer_files},
    Source{"", "DIR", offer_folders},
    Source{"", "RUN_DIR", offer_folders},
};

// "bf16", "4", "dot.ted": lower-case words stand for themselves.
bool is_literal(std::string_view part) {
  return !part.empty() && std::all_of(part.begin(), part.end(), [](unsigned char c) {
    return std::islower(c) != 0 || std::isdigit(c) != 0 || c == '-' || c == '_';
  });
}

}  // namespace

void add_values(const std::string& command, const std::string& placeholder,
                const std::string& typed, Completion& to) {
  for (size_t begin = 0; begin <= placeholder.size();) {
    const size_t end = std::min(placeholder.find('|', begin), placeholder.size());
    std::string_view part = std::string_view(placeholder).substr(begin, end - begin);
    begin = end + 1;
    while (part.starts_with(' ')) part.remove_prefix(1);
    while (part.ends_with(' ')) part.remove_suffix(1);
    const auto source = std::find_if(kSources.begin(), kSources.end(), [&](const Source& one) {
      return one.placeholder == part && (one.command.empty() || one.command == command);
    });
    if (source != kSources.end()) {
      if (source->add != nullptr) source->add(typed, to);
    } else if (is_literal(part)) {
      to.add(typed, std::string(part));
    }
  }
}

}  // namespace mtl
