#include "launcher/config/config_wizard.h"

#include <algorithm>
#include <numeric>
#include <sstream>

#include <fmt/format.h>

#include "common/files.h"
#include "common/text.h"
#include "launcher/config/config_edit.h"
#include "launcher/doctor/topology.h"
#include "launcher/hosts.h"
#include "launcher/ranks/placement.h"

namespace mtl {

namespace {

std::string trimmed(const std::string& text) {
  const size_t from = text.find_first_not_of(" \t\r\n");
  if (from == std::string::npos) return {};
  return text.substr(from, text.find_last_not_of(" \t\r\n") - from + 1);
}

bool all_digits(const std::string& text) {
  return !text.empty() &&
         std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

const QuestionRow* find_row(const std::string& id) {
  for (const QuestionRow& row : question_rows()) {
    if (row.id == id) return &row;
  }
  return nullptr;
}

// The file's own value, where it is one that the question could have given.
std::string old_answer(const QuestionRow& row, const Answers& answers) {
  if (row.key.empty()) return {};
  const std::string value = config_value(answers.old, row.key);
  if (value.empty()) return {};
  if (!row.choices) return row.check && row.check(answers, value) ? std::string() : value;
  for (const Choice& choice : row.choices(answers)) {
    if (lower(choice.value) == lower(value)) return choice.value;
  }
  return {};
}

std::string preset_of(const QuestionRow& row, const Answers& answers) {
  const std::string old = old_answer(row, answers);
  if (!old.empty()) return old;
  return row.preset ? row.preset(answers) : std::string();
}

}  // namespace

std::vector<std::string> hosts_of_ssh_config(const std::string& text) {
  std::vector<std::string> hosts;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::replace(line.begin(), line.end(), '=', ' ');
    std::istringstream words(line);
    std::string word;
    if (!(words >> word) || lower(word) != "host") continue;
    while (words >> word) {
      if (word.find_first_of("*?!") != std::string::npos) continue;
      if (std::find(hosts.begin(), hosts.end(), word) == hosts.end()) hosts.push_back(word);
    }
  }
  return hosts;
}

MachineFacts inspect_machine(const Variables& environment) {
  MachineFacts facts;
  const NodeHardware hardware = inspect_hardware(false);
  facts.cores = hardware.cores;
  facts.gpus = static_cast<int>(hardware.gpus.size());
  if (facts.gpus > 0) facts.gpu_name = hardware.gpus.front().name;
  if (facts.gpus > 1) facts.tp_wise = judge_topology(inspect_topology(hardware)).tp_wise;
  if (const char* home = environment("HOME")) {
    try {
      facts.ssh_hosts =
          hosts_of_ssh_config(read_file(std::string(home) + "/.ssh/config", size_t{1} << 20));
    } catch (const Error&) {  // none
    }
  }
  const char* nodes = environment("SLURM_JOB_NUM_NODES");
  if (nodes == nullptr) nodes = environment("SLURM_NNODES");
  const char* rank = environment("SLURM_NODEID");
  facts.slurm_nodes = to_number<int>(nodes != nullptr ? nodes : "").value_or(0);
  facts.slurm_rank = to_number<int>(rank != nullptr ? rank : "").value_or(-1);
  if (const char* list = environment("SLURM_JOB_NODELIST"); list != nullptr) {
    Diagnostics ignored;
    const std::vector<Host> hosts = parse_hosts(list, ignored);
    if (!hosts.empty()) facts.slurm_first = hosts.front().name;
  }
  return facts;
}

std::string Question::key_of(size_t choice) const {
  const bool numbers = std::all_of(choices.begin(), choices.end(),
                                   [](const Choice& c) { return all_digits(c.value); });
  return numbers ? choices[choice].value : std::to_string(choice + 1);
}

std::optional<size_t> Question::match(const std::string& typed) const {
  const std::string word = lower(trimmed(typed));
  if (word.empty()) return std::nullopt;
  for (size_t i = 0; i < choices.size(); ++i) {
    if (word == key_of(i) || word == lower(choices[i].value) || word == lower(choices[i].label)) {
      return i;
    }
  }
  // y and n, and what else has one meaning only.
  std::optional<size_t> found;
  for (size_t i = 0; i < choices.size(); ++i) {
    if (!lower(choices[i].label).starts_with(word) && !lower(choices[i].value).starts_with(word)) {
      continue;
    }
    if (found) return std::nullopt;
    found = i;
  }
  return found;
}

std::string Question::label_of(const std::string& answer) const {
  for (const Choice& choice : choices) {
    if (choice.value == answer) return choice.label;
  }
  return answer.empty() ? std::string("none") : answer;
}

bool Answers::asked(const std::string& id) const {
  const QuestionRow* row = find_row(id);
  return row != nullptr && row->applies(*this);
}

std::string Answers::get(const std::string& id) const {
  const QuestionRow* row = find_row(id);
  if (row == nullptr || !row->applies(*this)) return {};
  const auto found = said.find(id);
  return found != said.end() ? found->second : preset_of(*row, *this);
}

int Answers::number(const std::string& id, int otherwise) const {
  return to_number<int>(get(id)).value_or(otherwise);
}

int Answers::machines() const {
  if (asked("hosts")) {
    Diagnostics ignored;
    return std::max<int>(1, static_cast<int>(parse_hosts(get("hosts"), ignored).size()));
  }
  if (asked("nodes")) return number("nodes");
  return asked("machines") ? number("machines") : 1;
}

ConfigWizard::ConfigWizard(MachineFacts facts, const LaunchConfig* before)
    : facts_(std::move(facts)),
      before_(before != nullptr ? *before : LaunchConfig{}),
      old_(before != nullptr ? config_tree(*before) : YamlValue{}),
      answers_(facts_, old_) {
  at_ = next_after(kReview);
}

size_t ConfigWizard::next_after(size_t row) const {
  const auto& rows = question_rows();
  for (size_t i = row == kReview ? 0 : row + 1; i < rows.size(); ++i) {
    if (rows[i].more && !more_) continue;
    if (rows[i].applies(answers_)) return i;
  }
  return kReview;
}

Question ConfigWizard::build(const QuestionRow& row) const {
  Question question;
  question.id = row.id;
  question.text = row.text;
  question.help = row.help;
  if (row.choices) question.choices = row.choices(answers_);
  const auto found = answers_.said.find(row.id);
  // What was answered before may no longer do after a change further up.
  const bool kept = found != answers_.said.end() &&
                    (!row.check || found->second.empty() || !row.check(answers_, found->second));
  question.preset = kept ? found->second : preset_of(row, answers_);
  if (!question.choices.empty()) {
    const bool there =
        std::any_of(question.choices.begin(), question.choices.end(),
                    [&](const Choice& choice) { return choice.value == question.preset; });
    if (!there) question.preset = row.preset ? row.preset(answers_) : question.choices[0].value;
  }
  if (row.note) question.note = row.note(answers_);
  return question;
}

Question ConfigWizard::question() const {
  return build(question_rows()[at_]);
}

std::string ConfigWizard::comment(const std::string& typed) const {
  const QuestionRow& row = question_rows()[at_];
  const std::string text = typed.empty() ? question().preset : typed;
  if (!row.comment || (row.check && row.check(answers_, text))) return {};
  return row.comment(answers_, text);
}

std::optional<std::string> ConfigWizard::answer(const std::string& given) {
  const QuestionRow& row = question_rows()[at_];
  const Question asked = question();
  std::string text = trimmed(given);
  if (text.empty()) text = asked.preset;
  if (!asked.choices.empty()) {
    const auto choice = asked.match(text);
    if (!choice) {
      std::string keys;
      for (size_t i = 0; i < asked.choices.size(); ++i) {
        keys += fmt::format("{}{}", i == 0 ? "" : ", ", asked.choices[i].label);
      }
      return fmt::format("'{}' is none of the choices: {}.", text, keys);
    }
    text = asked.choices[*choice].value;
  } else if (lower(text) == "none" && row.may_be_empty) {
    text.clear();
  }
  if (text.empty() && !row.may_be_empty && asked.choices.empty()) {
    return "An answer is needed here; there is nothing to propose.";
  }
  if (row.check && !text.empty()) {
    if (auto wrong = row.check(answers_, text)) return wrong;
  }
  if (row.normal && !text.empty()) text = row.normal(text);
  answers_.said[row.id] = text;
  path_.push_back(at_);
  at_ = next_after(at_);
  return std::nullopt;
}

bool ConfigWizard::back() {
  if (path_.empty()) return false;
  at_ = path_.back();
  path_.pop_back();
  return true;
}

bool ConfigWizard::has_more() const {
  return !more_ &&
         std::any_of(question_rows().begin(), question_rows().end(),
                     [&](const QuestionRow& row) { return row.more && row.applies(answers_); });
}

void ConfigWizard::open_more() {
  more_ = true;
  at_ = next_after(path_.empty() ? kReview : path_.back());
}

std::vector<ConfigWizard::Said> ConfigWizard::said() const {
  std::vector<Said> all;
  for (size_t row : path_) {
    const Question asked = build(question_rows()[row]);
    const auto found = answers_.said.find(asked.id);
    all.push_back({asked.text, asked.label_of(found == answers_.said.end() ? "" : found->second)});
  }
  return all;
}

LaunchConfig ConfigWizard::config() const {
  YamlValue root;
  const auto set = [&](const std::string& key, const std::string& value) {
    set_config_value(root, key, value);
  };
  set("compute_environment", "LOCAL_MACHINE");
  set("downcast_bf16", "no");
  YamlValue::Entry list;
  list.key = "tpu_env";
  list.value.kind = YamlValue::Kind::list;
  root.entries.push_back(std::move(list));
  // What only we know and nobody was asked about stays as it was.
  for (const auto& [key, value] : before_.own) set("megatron_lm_config.mtl_" + key, value);
  for (const char* asked :
       {"hosts", "max_restarts", "slurm_partition", "slurm_account", "slurm_time"}) {
    set(fmt::format("megatron_lm_config.mtl_{}", asked), "");
  }
  // An answer that no question stands for any more does not count.
  for (const QuestionRow& row : question_rows()) {
    if (!row.key.empty() && row.applies(answers_)) set(row.key, answers_.get(row.id));
  }
  // Another way that somebody wrote there by hand stays.
  if (answers_.is("place", "slurm")) {
    set("megatron_lm_config.mtl_via", "slurm");
  } else if (config_value(old_, "megatron_lm_config.mtl_via") == "slurm") {
    set("megatron_lm_config.mtl_via", "");
  }
  const std::string type = answers_.get("type");
  const std::string engine = answers_.get("engine");
  set("distributed_type", engine.empty() || engine == "NONE" ? type : engine);
  if (type != "NO") set("use_cpu", type == "MULTI_CPU" ? "true" : "false");
  if (!answers_.asked("processes")) set("num_processes", "1");
  set("num_machines", std::to_string(answers_.machines()));
  if (!answers_.asked("rank")) set("machine_rank", "0");
  if (answers_.asked("hosts")) {
    Diagnostics ignored;
    const std::vector<Host> hosts = parse_hosts(answers_.get("hosts"), ignored);
    const int slots = std::accumulate(hosts.begin(), hosts.end(), 0,
                                      [](int sum, const Host& host) { return sum + host.slots; });
    if (!answers_.asked("processes") && slots > 0) set("num_processes", std::to_string(slots));
    if (!hosts.empty()) set("main_process_ip", hosts.front().name);
  }
  // accelerate's wizard has one bit for it; full recomputing is said with the launcher's own keys.
  if (answers_.asked("recompute")) {
    const std::string mode = answers_.get("recompute");
    set("megatron_lm_config.megatron_lm_recompute_activations",
        mode == "selective" ? "true" : "false");
    if (mode == "full") {
      set("megatron_lm_config.megatron_lm_recompute_granularity", "full");
      set("megatron_lm_config.megatron_lm_recompute_method", "uniform");
      set("megatron_lm_config.megatron_lm_recompute_num_layers", "1");
    }
  }
  if (answers_.is("fsdp_version", "1") && answers_.yes("fsdp_ram")) {
    set("fsdp_config.fsdp_sync_module_states", "true");
  }
  set("same_network", answers_.get("rdzv") == "c10d" ? "false" : "true");
  Diagnostics ignored;  // every answer has been checked
  return interpret_launch_config(root, before_.path, ignored);
}

}  // namespace mtl
