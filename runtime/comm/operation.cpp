// The words of operations and of what goes wrong between ranks, the same for every transport.
#include "runtime/comm/operation.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace mtl::comm {

namespace {

constexpr const char* kMismatchHelp =
    "all ranks must run the same program with the same configuration; if they do, this is a "
    "defect: please report it";

}  // namespace

const char* name_of(Op op) {
  switch (op) {
    case Op::none:
      return "nothing yet";
    case Op::join:
      return "joining";
    case Op::allocate:
      return "allocate";
    case Op::barrier:
      return "barrier";
    case Op::all_reduce:
      return "all_reduce";
    case Op::reduce_scatter:
      return "reduce_scatter";
    case Op::all_gather:
      return "all_gather";
    case Op::broadcast:
      return "broadcast";
    case Op::all_to_all:
      return "all_to_all";
  }
  return "";
}

std::string describe(const Operation& what) {
  switch (what.op) {
    case Op::none:
    case Op::join:
    case Op::allocate:
    case Op::barrier:
      return name_of(what.op);
    case Op::all_reduce:
      return fmt::format("all_reduce({} x {}, {})", what.numel, safetensors_name(what.dtype),
                         what.reduce == Reduce::sum ? "sum" : "max");
    case Op::broadcast:
      return fmt::format("broadcast({} x {}, root {})", what.numel, safetensors_name(what.dtype),
                         what.root);
    case Op::all_to_all:  // how many, may differ
      return fmt::format("all_to_all({})", safetensors_name(what.dtype));
    case Op::reduce_scatter:
    case Op::all_gather:
      return fmt::format("{}({} x {})", name_of(what.op), what.numel, safetensors_name(what.dtype));
  }
  return "";
}

std::string group_name(std::span<const int> ranks) {
  return fmt::format("the group of ranks {}", fmt::join(ranks, ", "));
}

std::optional<Error> disagreement(uint64_t number, std::span<const int> ranks, int own,
                                  std::span<const Operation> all) {
  const auto other = std::find_if(all.begin(), all.end(),
                                  [&](const Operation& what) { return !(what == all.front()); });
  if (other == all.end()) return std::nullopt;
  const size_t rank = static_cast<size_t>(other - all.begin());
  const size_t self = static_cast<size_t>(own);
  return Error(Exit::run_failed,
               {.code = "comm.mismatch",
                .what = fmt::format("the ranks do not do the same: as operation {} of {}, rank {} "
                                    "calls {} and rank {} calls {}",
                                    number, group_name(ranks), ranks[0], describe(all.front()),
                                    ranks[rank], describe(*other)),
                .notes = {fmt::format("rank {} itself calls {}", ranks[self], describe(all[self]))},
                .help = kMismatchHelp});
}

Error message_mismatch(int from, DType sent, int64_t sent_numel, int to, const Tensor& received) {
  return Error(Exit::run_failed,
               {.code = "comm.mismatch",
                .what = fmt::format("rank {} sends {} x {} and rank {} receives {} x {}", from,
                                    sent_numel, safetensors_name(sent), to, received.numel(),
                                    safetensors_name(received.dtype)),
                .help = kMismatchHelp});
}

uint64_t group_key(std::span<const int> ranks, uint64_t occurrence) {
  uint64_t hash = 0xcbf29ce484222325U;
  const auto mix = [&hash](uint64_t value) {
    for (int i = 0; i < 8; ++i) {
      hash = (hash ^ (value & 0xff)) * 0x100000001b3U;
      value >>= 8;
    }
  };
  for (const int rank : ranks) mix(static_cast<uint64_t>(rank));
  mix(~occurrence);
  return std::max<uint64_t>(hash, 1);
}

}  // namespace mtl::comm
