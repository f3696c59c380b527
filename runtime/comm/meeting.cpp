#include "runtime/comm/meeting.h"

#include <algorithm>

#include <fmt/format.h>

#include "common/error.h"
#include "rendezvous/exchange.h"

namespace mtl::comm {

void claim_rank(Store& store, const std::string& prefix, int rank) {
  if (store.add(fmt::format("{}claim/{}", prefix, rank), 1) == 1) return;
  throw Error(Exit::run_failed,
              {.code = "comm.rank",
               .what = fmt::format("rank {} has started twice", rank),
               .help = "every rank needs its own RANK; a restarted job needs a new generation"});
}

std::vector<std::string> meet(Store& store, const std::string& key, int rank, int size,
                              const std::string& value, std::chrono::milliseconds timeout) {
  const auto bounded = std::min<std::chrono::milliseconds>(timeout, std::chrono::hours(24 * 365));
  try {
    return exchange(store, key, rank, size, value, bounded);
  } catch (const Error& error) {
    if (error.exit() != Exit::timeout) throw;
    throw Error(Exit::timeout,
                {.code = "comm.timeout",
                 .what = fmt::format("rank {} of {} has waited {} s for the others to join: {}",
                                     rank, size, static_cast<double>(bounded.count()) / 1000,
                                     error.diagnostics().front().what),
                 .help = "the logs of the ranks that are missing say why they did not start"});
  }
}

void refuse_card(int rank) {
  throw Error(Exit::run_failed,
              {.code = "comm.host",
               .what = fmt::format("what rank {} says about itself cannot be read", rank),
               .help = "install the same version of mtl on all nodes (see: mtl --version)"});
}

}  // namespace mtl::comm
