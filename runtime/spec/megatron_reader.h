// Reads the flags of a command of Megatron-LM and makes settings of them; for the files of this
// room only. One flag at a time by the table, then what follows from several (megatron_rules.cpp).
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "common/error.h"
#include "runtime/spec/megatron_command.h"
#include "runtime/spec/megatron_flags.h"

namespace mtl::spec {

class MegatronReader {
 public:
  MegatronReader(const std::vector<std::string>& command, Diagnostics& diagnostics);
  MegatronSettings translate();

 private:
  bool has(const std::string& flag) const { return given_.contains(flag); }
  // Nothing where the flag is not there, or nothing stands behind it.
  std::optional<std::string> value(const std::string& flag) const;
  // All that stands behind it.
  std::string text(const std::string& flag) const;
  std::optional<int64_t> whole(const std::string& flag);
  std::optional<double> number(const std::string& flag);
  // Samples as steps of the whole batch.
  std::optional<int64_t> steps_of(const std::string& flag);

  void wrong(const std::string& flag, const std::string& wanted);
  void refuse(const std::string& flag, const std::string& why);
  void open(const std::string& sentence) { open_.push_back(sentence); }
  void set(const std::string& key, const std::string& yaml, const std::string& flag = {});
  std::string setting(const std::string& key) const;
  // A key, or a section with its dot.
  void drop(const std::string& prefix);

  // What is said of a flag that becomes nothing.
  void judge(const std::string& flag);
  void take(const MegatronFlag& row);
  void check(MegatronSettings& result);

  void model();
  void layer_pattern(const std::string& flag, const std::string& every_key,
                     const std::string& list_key, int64_t named);
  void experts();
  void positions();
  void yarn();
  void latents();
  void layout();
  void recomputes();
  void batch();
  void ramp();
  void muon();
  void schedules();
  void precision();
  void data();
  void checkpoints();

  Diagnostics& diagnostics_;
  std::map<std::string, std::vector<std::string>> given_;  // what stands behind each flag
  std::vector<std::string> order_;
  std::map<std::string, std::string> settings_;  // by key, as YAML
  std::map<std::string, std::string> origins_;   // by key: the flag
  std::vector<std::string> open_;
  std::set<std::string> named_;  // keys that are open for want of a value
};

// A text as a YAML scalar that is read as the same text.
std::string yaml_scalar(const std::string& text);

}  // namespace mtl::spec
