#include "launcher/controller/gathering.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "launcher/node/voice.h"

namespace mtl {

namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

// When the job cannot be any more, how long to wait for what the other hosts have to say: a person
// mends all that is wrong at once.
constexpr milliseconds kOtherReasons{1'500};
// The same where the command is typed on every node: who comes later is told by nobody, and waits
// until his time to join is over.
constexpr milliseconds kOtherNodes{15'000};
constexpr int kUnfit = static_cast<int>(Exit::environment);
// Of those with the same trouble.
constexpr size_t kNamedHosts = 8;

std::string who_is_there(int present, int needed) {
  if (needed == 1) return "the node that the job needs is not there";
  if (present == 0) return fmt::format("none of the {} nodes that the job needs is there", needed);
  return fmt::format("{} of the {} nodes that the job needs {} there", present, needed,
                     present == 1 ? "is" : "are");
}

}  // namespace

Gathering::Gathering(const MembershipOptions& options, milliseconds join_timeout, Time now)
    : options_(options), join_timeout_(join_timeout) {
  begin(now);
}

void Gathering::begin(Time now) {
  since_ = now;
  next_word_ = now + kFirstWord;
}

void Gathering::trouble(const Diagnostic& why) {
  troubles_.push_back({.hosts = {}, .error = why, .exit_code = kUnfit});
}

void Gathering::hopeless(const Diagnostic& why) {
  trouble(why);
  ++hopeless_;
}

void Gathering::troubles_of(int position, const std::string& host, std::vector<Diagnostic> problems,
                            int exit_code) {
  for (Diagnostic& problem : problems) {
    const auto same = [&](const Trouble& one) {
      return !one.hosts.empty() && one.error.code == problem.code &&
             one.error.what == problem.what && one.error.notes == problem.notes;
    };
    const auto known = std::find_if(troubles_.begin(), troubles_.end(), same);
    if (known != troubles_.end()) {
      known->hosts.emplace_back(position, host);
    } else {
      troubles_.push_back(
          {.hosts = {{position, host}}, .error = std::move(problem), .exit_code = exit_code});
    }
  }
}

std::vector<Diagnostic> Gathering::take_troubles() {
  std::vector<Diagnostic> all = reports();
  troubles_.clear();
  hopeless_ = 0;
  impossible_since_.reset();
  return all;
}

std::vector<Diagnostic> Gathering::reports() const {
  std::vector<Diagnostic> reports;
  for (const Trouble& one : troubles_) {
    std::vector<std::pair<int, std::string>> names = one.hosts;
    std::sort(names.begin(), names.end());
    std::string hosts;
    for (size_t i = 0; i < names.size() && i < kNamedHosts; ++i) {
      hosts += (i > 0 ? ", " : "") + names[i].second;
    }
    if (names.size() > kNamedHosts) {
      hosts += fmt::format(" and {} more", names.size() - kNamedHosts);
    }
    reports.push_back(one.error);
    if (!hosts.empty()) reports.back().what = hosts + ": " + one.error.what;
  }
  return reports;
}

// One for several reasons is none of theirs.
int Gathering::exit_code() const {
  const auto differs = [&](const Trouble& one) {
    return one.exit_code != troubles_.front().exit_code;
  };
  const bool one = !troubles_.empty() && std::none_of(troubles_.begin(), troubles_.end(), differs);
  return one ? troubles_.front().exit_code : kUnfit;
}

Diagnostic Gathering::not_enough(const Membership& members, bool late) const {
  // Of the hosts that are not waited for any more, because others cannot come, nothing is known.
  const std::string bad = members.known_bad();
  std::vector<std::string> notes = {"missing: " + (bad.empty() ? members.missing() : bad)};
  if (!bad.empty() && members.awaited() > 0) notes.push_back("no answer yet: " + members.missing());
  return {.code = "launch.nodes",
          .what = who_is_there(members.present(), options_.min_nodes) +
                  (late ? fmt::format(" after {} s", join_timeout_.count() / 1000) : ""),
          .notes = std::move(notes),
          .help =
              "mend what is said above, leave the host out, or allow fewer nodes: "
              "--nnodes MIN:MAX"};
}

Gathering::Step Gathering::look(const Membership& members, Time now) {
  Step step;
  if (members.ready(now)) {
    step.kind = Step::start;
    return step;
  }
  const bool late = now >= since_ + join_timeout_;
  const bool possible = members.possible() && !(hopeless_ > 0 && members.has_rank(0));
  if (!possible && !impossible_since_) impossible_since_ = now;
  const bool heard_all = options_.by_rank ? members.present() + hopeless_ >= options_.max_nodes
                                          : members.awaited() == 0;
  if (late || (impossible_since_ && (heard_all || now >= *impossible_since_ + patience()))) {
    step.kind = Step::give_up;
    step.outcome.exit_code = late ? static_cast<int>(Exit::timeout) : exit_code();
    step.outcome.report = reports();
    step.outcome.report.push_back(not_enough(members, late));
  } else if (now >= next_word_) {
    next_word_ = now + kNextWord;
    step.word =
        fmt::format("waiting for {}: {} node{} of {} here after {} s", members.missing(),
                    members.present(), members.present() == 1 ? "" : "s", options_.max_nodes,
                    std::chrono::duration_cast<seconds>(now - since_).count());
  }
  return step;
}

Gathering::Time Gathering::next_look(const Membership& members, Time now) const {
  Time next = std::min(next_word_, since_ + join_timeout_);
  if (const auto change = members.next_change(now)) next = std::min(next, *change);
  if (impossible_since_) next = std::min(next, *impossible_since_ + patience());
  return next;
}

milliseconds Gathering::patience() const {
  return options_.by_rank ? kOtherNodes : kOtherReasons;
}

}  // namespace mtl
