// Where the rules of a configuration note what does not hold; for rules*.cpp only.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "runtime/plan/rules/rules.h"

namespace mtl {

class RuleBook {
 public:
  explicit RuleBook(const ResolvedSpec& resolved) : resolved_(resolved) {}

  // Returns `holds`; otherwise says what is wrong with the value of `key`. The code comes first:
  // tests/scripts/run looks for it.
  bool rule(const char* code, const char* key, bool holds, std::string what, std::string help) {
    if (!holds) note({code, key, std::move(what), std::move(help), false});
    return holds;
  }
  // The same for a rule that another layout of the ranks might keep.
  bool layout_rule(const char* code, const char* key, bool holds, std::string what,
                   std::string help) {
    if (!holds) note({code, key, std::move(what), std::move(help), true});
    return holds;
  }

  // Said in the file of the launch, for whatever is launched: of a run it may ask what cannot be.
  bool of_launch_file(const char* key) const {
    return resolved_.origin_of(key) == Origin::default_config;
  }

  struct Problem {
    Diagnostic diagnostic;
    bool of_layout = false;
  };
  std::vector<Problem>& problems() { return problems_; }

 private:
  struct Broken {
    const char* code;
    const char* key;
    std::string what, help;
    bool of_layout;
  };
  void note(Broken broken) {
    problems_.push_back({{.code = broken.code,
                          .what = std::move(broken.what),
                          .place = resolved_.place_of(broken.key),
                          .help = std::move(broken.help)},
                         broken.of_layout});
  }

  const ResolvedSpec& resolved_;
  std::vector<Problem> problems_;
};

// What each file of rules sees. A mistake is reported once: rules that only mean something if
// others hold are passed over where those do not.
struct RuleInput {
  const TrainSpec& spec;
  const ModelShape& model;
  const DataFacts& data;
  int world = 1;
};

// rules_model.cpp: values that must go together on however many ranks.
void check_model(const RuleInput& input, RuleBook& book);
void check_loss_scale(const RuleInput& input, RuleBook& book);
void check_lr(const RuleInput& input, const Layout& layout, RuleBook& book);

// rules_mesh.cpp. check_mesh sets the degrees, sequence parallelism and the layers of the stages;
// false if there are no such ranks or stages, which leaves the layout as that of one rank.
bool check_mesh(const RuleInput& input, Layout& layout, RuleBook& book);
void check_recompute(const RuleInput& input, const Layout& layout, bool mesh, RuleBook& book);

// rules_batch.cpp: what a step consists of, and in which order. Without a mesh, a batch is judged
// as that of one rank: what cannot be divided there cannot be divided anywhere.
void check_batch(const RuleInput& input, Layout& layout, RuleBook& book);
void check_schedule(const RuleInput& input, Layout& layout, RuleBook& book);

}  // namespace mtl
