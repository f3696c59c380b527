#include "launcher/controller/verdict.h"

#include <algorithm>
#include <csignal>

#include <fmt/format.h>

#include "launcher/system/oom.h"

namespace mtl {

namespace {

// Survivors of a machine that is lost, or leaves, fail in the same instant that its connection is
// reset. A loss that is noticed this much after the first failure is still its reason.
constexpr std::chrono::milliseconds kSameMoment{300};

constexpr int kRequeueCode = static_cast<int>(Exit::requeue);

bool is_fine(const WorkerEnd& end) {
  return end.exit_code == 0 || end.exit_code == kRequeueCode;
}

bool obeyed(const WorkerEnd& end) {
  return end.stopped_by_us && (is_fine(end) || end.exit_code == 128 + SIGTERM ||
                               end.exit_code == 128 + SIGINT || end.exit_code == 128 + SIGKILL);
}

std::optional<WorkerEnd> first_failure(const GenerationEnd& generation) {
  const bool for_others = generation.stop == StopReason::growth ||
                          generation.stop == StopReason::loss ||
                          generation.stop == StopReason::leave;
  const WorkerEnd* first = nullptr;
  for (const WorkerEnd& end : generation.ends) {
    // Asked to stop because of others: however they say so (a handler that exits with 1, a
    // collective that lost its peer), that is no failure of theirs.
    if (for_others && end.stopped_by_us) continue;
    if (has_failed(end) && (first == nullptr || end.when < first->when)) first = &end;
  }
  return first != nullptr ? std::optional(*first) : std::nullopt;
}

std::optional<NodeLoss> first_loss(const GenerationEnd& generation) {
  const auto first =
      std::min_element(generation.losses.begin(), generation.losses.end(),
                       [](const NodeLoss& a, const NodeLoss& b) { return a.when < b.when; });
  return first != generation.losses.end() ? std::optional(*first) : std::nullopt;
}

Diagnostic loss_report(const NodeLoss& loss, int nodes) {
  if (loss.unheard) {
    return {.code = "launch.node_lost",
            .what = fmt::format("node {} ({}) did not hear from this launcher in time, and killed "
                                "its ranks",
                                loss.node_rank, loss.host),
            .notes = {fmt::format("{} other nodes were stopped because of it", nodes - 1)},
            .help =
                "this launcher or its machine stood still (SIGSTOP, sleep, out of memory), or the "
                "network did; --dead_after S allows longer gaps"};
  }
  return {.code = "launch.node_lost",
          .what = fmt::format("node {} ({}) was lost: {}", loss.node_rank, loss.host,
                              loss_text(loss.loss, loss.reason)),
          .notes = {fmt::format("{} other nodes were stopped because of it", nodes - 1)},
          .help =
              "look at that machine: is it up, reachable, out of memory? Jobs that go on "
              "without a lost node: --nnodes MIN:MAX"};
}

// What failure_report() writes about.
AgentResult as_result(const GenerationEnd& generation, const std::optional<WorkerEnd>& failure) {
  AgentResult result;
  result.first_failure = failure;
  result.ends = generation.ends;
  result.interrupted = generation.interrupt != 0;
  result.started = generation.started;
  result.warnings = generation.warnings;
  return result;
}

}  // namespace

bool ran_out_of_memory(const JobOutcome& outcome) {
  if (!outcome.first_failure) return false;
  const WorkerEnd& end = *outcome.first_failure;
  const bool killed = end.signal == SIGKILL &&
                      std::any_of(end.notes.begin(), end.notes.end(), [](const std::string& note) {
                        return note.starts_with(kOomKiller);
                      });
  return killed || end.exit_code == static_cast<int>(Exit::out_of_memory);
}

bool has_failed(const WorkerEnd& end) {
  return !is_fine(end) && !obeyed(end);
}

std::string loss_text(LinkEvent::Loss loss, const std::string& reason) {
  return loss == LinkEvent::silent ? reason : "its agent is gone (" + reason + ")";
}

Verdict judge(const GenerationEnd& end) {
  Verdict verdict;
  JobOutcome& outcome = verdict.outcome;
  outcome.interrupted = end.interrupt != 0;
  outcome.signal = end.interrupt;
  outcome.warnings = end.warnings;
  if (!end.errors.empty()) {
    verdict.reason = Verdict::Reason::problem;
    outcome.exit_code = end.error_exit;
    outcome.report = end.errors;
    return verdict;
  }

  std::optional<WorkerEnd> failure = first_failure(end);
  std::optional<NodeLoss> loss = first_loss(end);
  const auto before = [&](std::chrono::system_clock::time_point when) {
    return failure && failure->when + kSameMoment < when;
  };
  if (loss && before(loss->when)) loss.reset();
  if (loss) {
    verdict.reason = Verdict::Reason::loss;
    outcome.exit_code = end.interrupt != 0 ? 128 + end.interrupt
                        : loss->loss == LinkEvent::silent || loss->unheard
                            ? static_cast<int>(Exit::timeout)
                            : static_cast<int>(Exit::run_failed);
    outcome.report = {loss_report(*loss, end.nodes)};
    verdict.loss = std::move(loss);
    return verdict;
  }

  // Ranks whose peers have stopped for it fail of that, asked or not.
  const bool disturbed = end.disturbed && !before(*end.disturbed);
  if (disturbed) failure.reset();
  // Every rank by itself, whatever came in the meantime.
  const bool done = std::all_of(end.ends.begin(), end.ends.end(), [](const WorkerEnd& one) {
    return one.exit_code == 0 && !one.stopped_by_us;
  });
  if (!done && disturbed && end.left) {
    verdict.reason = Verdict::Reason::leave;
  } else if (!done && !failure && end.stop == StopReason::growth) {
    verdict.reason = Verdict::Reason::growth;
  }
  if (std::all_of(end.ends.begin(), end.ends.end(), is_fine)) {
    const bool requeue = std::any_of(end.ends.begin(), end.ends.end(), [](const WorkerEnd& one) {
      return one.exit_code == kRequeueCode;
    });
    outcome.exit_code = requeue ? kRequeueCode : 0;
    return verdict;
  }
  outcome.report = {failure_report(as_result(end, failure), end.is_ours)};
  if (failure) {
    verdict.reason = Verdict::Reason::failure;
    outcome.exit_code = failure->exit_code;
    outcome.first_failure = failure;
    verdict.failure = std::move(failure);
  } else {
    outcome.exit_code = 128 + (end.interrupt != 0 ? end.interrupt : SIGTERM);
  }
  return verdict;
}

}  // namespace mtl
