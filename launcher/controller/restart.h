// When a job is started again.
#pragma once

#include <optional>
#include <string>

#include "launcher/controller/verdict.h"
#include "rendezvous/membership.h"

namespace mtl {

// Whether starting the same thing once more can help. Ours: wrong usage, configuration, data, a
// machine that lacks something, or too little memory fail again in the same way. Of other programs
// nothing is known, as with torchrun, but that one which cannot be executed will not be.
bool may_restart(int exit_code, bool is_ours);

// Whether there is another generation, and what it costs of --max_restarts: nothing where nodes may
// be missing and one is, or one has come, or a spare has waited for this.
class Restarts {
 public:
  struct Options {
    int most = 0;
    bool is_ours = false;
    bool waits = false;  // for nodes that may still join, if too few are left
    int min_nodes = 1;
    int max_nodes = 1;
  };
  explicit Restarts(const Options& options) : options_(options) {}

  // What to tell people who see the job go on; nothing = it ends.
  std::optional<std::string> after(const Verdict& verdict, const Membership& members);
  // While a generation is being stopped for this reason: whether there will be another.
  bool expected_after(StopReason reason) const;

 private:
  std::optional<std::string> after_loss(const std::string& host, const Membership& members);
  bool any_left() const { return used_ < options_.most; }

  const Options options_;
  int used_ = 0;
};

}  // namespace mtl
