// mtl ckpt: checkpoints as files; one file per member.
#include "cli/ckpt.h"

#include "cli/group.h"

namespace mtl {

int command_ckpt(const Arguments& args) {
  static const std::vector<Command> kMembers = {
      {"export", "a Hugging Face folder, or Megatron's split", command_ckpt_export},
      {"import", "a run from a Hugging Face folder or a Megatron checkpoint", command_ckpt_import},
  };
  return run_group("ckpt",
                   "Looks into checkpoints, checks them, thins them out, and brings models into "
                   "and out of the formats of others. Nothing here needs the run to be stopped, "
                   "or a GPU.",
                   kMembers, args);
}

}  // namespace mtl
