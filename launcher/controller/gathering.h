// The time in which a job waits for its nodes: whether it starts, waits on or gives up, and what is
// said meanwhile. Who is there, Membership knows; here is why others are not, and how long it has
// lasted.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/error.h"
#include "launcher/controller/verdict.h"
#include "rendezvous/membership.h"

namespace mtl {

class Gathering {
 public:
  using Time = std::chrono::steady_clock::time_point;

  Gathering(const MembershipOptions& options, std::chrono::milliseconds join_timeout, Time now);

  // Once more, after a generation.
  void begin(Time now);
  // Why one of those expected does not come, or has left: `why` names its host.
  void trouble(const Diagnostic& why);
  // The same of a machine without which there can be no job. It ends when machine_rank 0, where the
  // controller is, is in: before, that machine could not be told; and when the others are, or have
  // had some time to come, so that they are told too.
  void hopeless(const Diagnostic& why);
  // The same on several hosts is one error. `position`: in the list of hosts. `exit_code`: of the
  // job, if it fails of nothing else.
  void troubles_of(int position, const std::string& host, std::vector<Diagnostic> problems,
                   int exit_code);
  // All of it, and it is forgotten: the job goes on without those hosts.
  std::vector<Diagnostic> take_troubles();

  struct Step {
    enum Kind { wait, start, give_up };
    Kind kind = wait;
    std::string word;    // for people who wait; mostly empty
    JobOutcome outcome;  // of giving up
  };
  Step look(const Membership& members, Time now);
  // When to look again without anything else happening.
  Time next_look(const Membership& members, Time now) const;

 private:
  struct Trouble {
    // With their positions; empty: `error` names its host itself.
    std::vector<std::pair<int, std::string>> hosts;
    Diagnostic error;
    int exit_code = 0;
  };
  std::vector<Diagnostic> reports() const;
  int exit_code() const;
  std::chrono::milliseconds patience() const;  // with the others, once there can be no job
  Diagnostic not_enough(const Membership& members, bool late) const;

  const MembershipOptions options_;
  const std::chrono::milliseconds join_timeout_;
  Time since_;
  Time next_word_;
  std::vector<Trouble> troubles_;
  int hopeless_ = 0;                      // machines
  std::optional<Time> impossible_since_;  // too few hosts can come
};

}  // namespace mtl
