// The questions of `mtl config`: a pure state machine over a table of questions. Whoever draws them
// (a terminal, numbered lists, a test) shows question(), hands the answer to answer() and reads
// config() at the end.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/yaml.h"
#include "launcher/settings/launch_config.h"

namespace mtl {

// The model of the train.yaml that lies where mtl config runs: what its degrees have to divide.
struct ModelFacts {
  std::string file;  // "train.yaml"; "" = there is none
  int64_t heads = 0, layers = 0;
};

// What the questions propose answers from.
struct MachineFacts {
  int gpus = 0;
  std::string gpu_name;                // of the first
  int cores = 1;                       // that this process may use
  std::vector<std::string> ssh_hosts;  // named in ~/.ssh/config
  int slurm_nodes = 0;                 // 0 = not in a SLURM job
  int slurm_rank = -1;
  std::string slurm_first;  // host name of the job's first node
  // Sizes of tensor parallel groups that the links here are fast enough for.
  std::vector<int> tp_wise;
  ModelFacts model;  // not from inspect_machine()
};
using Variables = std::function<const char*(const char*)>;  // nullptr = not set
MachineFacts inspect_machine(const Variables& environment);
// Host names in an ssh configuration, without patterns, in file order.
std::vector<std::string> hosts_of_ssh_config(const std::string& text);

struct Choice {
  std::string value;
  std::string label;
  std::string hint = {};  // what it means, shorter than a line
};

struct Question {
  std::string id;
  std::string text;
  std::string help;
  std::vector<Choice> choices;  // none = free text
  std::string preset;           // a value, or text; what Enter alone answers; "" = nothing
  std::string note;             // facts that help to answer
  // What is typed to choose: the value where values are numbers, else 1, 2, 3...
  std::string key_of(size_t choice) const;
  // The choice that a typed line means: its key, value or label, or the only one that begins so.
  std::optional<size_t> match(const std::string& typed) const;
  // How the answer is shown afterwards.
  std::string label_of(const std::string& answer) const;
};

// What a row of the table may look at.
class Answers {
 public:
  Answers(const MachineFacts& machine, const YamlValue& before) : facts(machine), old(before) {}
  std::string get(const std::string& id) const;  // of a question that applies: said, else preset
  bool is(const std::string& id, const std::string& value) const { return get(id) == value; }
  bool yes(const std::string& id) const { return get(id) == "true"; }
  int number(const std::string& id, int otherwise = 1) const;
  bool asked(const std::string& id) const;  // it applies
  int machines() const;
  int tp() const { return asked("tp") ? number("tp") : 1; }
  int pp() const { return asked("pp") ? number("pp") : 1; }
  const MachineFacts& facts;
  const YamlValue& old;  // the file that is there already
  std::map<std::string, std::string> said;
};

// A question looks at those before it only.
struct QuestionRow {
  std::string id;
  bool more = false;  // asked only after "more settings"
  std::string text;
  std::string help;
  std::string key = {};  // of the file; "" = decides something else
  std::function<bool(const Answers&)> applies;
  std::function<std::vector<Choice>(const Answers&)> choices = {};
  std::function<std::string(const Answers&)> preset = {};
  // What is wrong with a typed answer, as a sentence; nothing if it will do.
  std::function<std::optional<std::string>(const Answers&, const std::string&)> check = {};
  std::function<std::string(const Answers&)> note = {};
  // What follows from an answer, shown while it is typed.
  std::function<std::string(const Answers&, const std::string&)> comment = {};
  bool may_be_empty = false;
  // How the answer is written: "4" -> "4.0".
  std::function<std::string(const std::string&)> normal = {};
};
// In the order in which they are asked.
const std::vector<QuestionRow>& question_rows();

class ConfigWizard {
 public:
  // `before`: the file that is there already, whose answers are proposed; nullptr = none.
  ConfigWizard(MachineFacts facts, const LaunchConfig* before);
  ConfigWizard(const ConfigWizard&) = delete;

  bool at_review() const { return at_ == kReview; }
  Question question() const;  // not at the review
  // What follows from a text that is being typed: "data parallel 2".
  std::string comment(const std::string& typed) const;
  // A sentence if it cannot be; else goes on. Empty = the preset.
  std::optional<std::string> answer(const std::string& text);
  // To the previous question, its answer kept; false at the first one.
  bool back();
  bool has_more() const;  // more settings could be asked
  void open_more();       // from the review
  LaunchConfig config() const;
  // Questions asked and their answers, so far on this path.
  struct Said {
    std::string text, answer;
  };
  std::vector<Said> said() const;
  size_t asked() const { return path_.size(); }

 private:
  static constexpr size_t kReview = static_cast<size_t>(-1);
  size_t next_after(size_t row) const;
  Question build(const QuestionRow& row) const;

  MachineFacts facts_;
  LaunchConfig before_;
  YamlValue old_;
  Answers answers_;
  bool more_ = false;
  std::vector<size_t> path_;  // rows answered
  size_t at_ = 0;
};

}  // namespace mtl
