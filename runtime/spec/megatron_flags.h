// What the flags of Megatron-LM's pretrain_gpt.py are in a train.yaml: one table, from which the
// reference page is written and `mtl config import --train` translates a command. For the files of
// this room only. Names and defaults are those of megatron-core 0.20; older names are known too.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace mtl::spec {

enum class MegatronHow {
  same,      // its value is the key's
  truth,     // a flag without a value: the key gets `value`
  words,     // its words have others here
  computed,  // the key follows from it and others, as `note` says
  only,      // `value` is what always holds here: any other is refused
  by_hand,   // `note` says what to write
};

struct MegatronFlag {
  std::string flag;  // without its dashes
  MegatronHow how = MegatronHow::same;
  std::string key = {};  // of train.yaml; "" with `only`
  // Of truth and only; else "true" where nothing stands behind the flag.
  std::string value = {};
  std::vector<std::pair<std::string, std::string>> words = {};
  // What Megatron takes without the flag, as YAML of the key, where that is not mtl's own default.
  std::string without = {};
  std::string note = {};
};

struct MegatronGroup {
  std::string title;
  std::vector<MegatronFlag> flags;
};
const std::vector<MegatronGroup>& megatron_groups();
std::vector<MegatronGroup> megatron_training_groups();  // a part of them
const MegatronFlag* find_megatron_flag(std::string_view flag);

// Flags that have no key, with the reason that they share.
struct MegatronOthers {
  std::string why;  // a sentence without its full stop
  std::vector<std::string> flags;
};
// mtl does it anyway, or there is nothing that could be set.
const std::vector<MegatronOthers>& megatron_needless();
// What mtl does not have, and a run is the same run without it.
const std::vector<MegatronOthers>& megatron_left_out();
// Without it, it would be another model or another training: refused.
const std::vector<MegatronOthers>& megatron_refused();

}  // namespace mtl::spec
