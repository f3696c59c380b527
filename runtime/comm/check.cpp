// Argument checks of the communicators.
#include "runtime/comm/check.h"

#include <algorithm>
#include <functional>

#include <fmt/format.h>

#include "common/error.h"
#include "runtime/comm/reduce.h"

namespace mtl::comm {

namespace {

[[noreturn]] void refuse(std::string what) {
  throw Error(Exit::run_failed, {.code = "comm.argument",
                                 .what = std::move(what),
                                 .help = "this is a defect of the program; please report it"});
}

}  // namespace

void check_reducible(const char* operation, const Tensor& x) {
  if (reducible(x.dtype)) return;
  refuse(fmt::format("{} cannot reduce {} elements, only F32, F64, BF16, F16 and I32", operation,
                     safetensors_name(x.dtype)));
}

void check_divisible(const char* operation, const Tensor& x, int size) {
  if (x.numel() % size == 0) return;
  refuse(
      fmt::format("{} of {} elements cannot be divided over {} ranks", operation, x.numel(), size));
}

void check_part(const char* operation, const Tensor& mine, const Tensor& all, int rank, int size) {
  check_divisible(operation, all, size);
  if (mine.dtype != all.dtype || mine.numel() * size != all.numel()) {
    refuse(fmt::format("{}: {} x {} is not the part of one of {} ranks in {} x {}", operation,
                       mine.numel(), safetensors_name(mine.dtype), size, all.numel(),
                       safetensors_name(all.dtype)));
  }
  const auto address = [](const Tensor& x) { return reinterpret_cast<uintptr_t>(x.data); };
  const uint64_t part = static_cast<uint64_t>(mine.bytes());
  const uint64_t first = address(all) + static_cast<uint64_t>(rank) * part;
  const bool apart = address(mine) + part <= address(all) ||
                     address(all) + static_cast<uint64_t>(all.bytes()) <= address(mine);
  if (part == 0 || address(mine) == first || apart) return;
  refuse(fmt::format("{}: the part of rank {} overlaps the whole, but is not in its place there",
                     operation, rank));
}

void check_all_to_all(const Tensor& from, std::span<const int64_t> send_counts, const Tensor& to,
                      std::span<const int64_t> recv_counts, int rank, int size, size_t rounds) {
  if (from.dtype != to.dtype) {
    refuse(fmt::format("all_to_all from {} to {}", safetensors_name(from.dtype),
                       safetensors_name(to.dtype)));
  }
  const auto ranks = static_cast<size_t>(size);
  const auto check = [&](const char* what, const Tensor& x, std::span<const int64_t> counts) {
    int64_t all = 0;
    bool negative = false;
    for (const int64_t count : counts) {
      all += count;
      negative |= count < 0;
    }
    if (counts.size() == rounds * ranks && !negative && all == x.numel()) return;
    refuse(
        fmt::format("all_to_all among {} ranks: the counts [{}] do not divide the {} elements {}",
                    size, fmt::join(counts, ", "), x.numel(), what));
  };
  check("to send", from, send_counts);
  check("to receive", to, recv_counts);
  for (size_t own = static_cast<size_t>(rank); own < rounds * ranks; own += ranks) {
    if (send_counts[own] == recv_counts[own]) continue;
    refuse(fmt::format("all_to_all: rank {} sends itself {} elements and expects {}", rank,
                       send_counts[own], recv_counts[own]));
  }
  const auto* first = static_cast<const char*>(from.data);
  const auto* second = static_cast<const char*>(to.data);
  const bool apart = first + from.bytes() <= second || second + to.bytes() <= first;
  if (!apart && from.bytes() > 0 && to.bytes() > 0) {
    refuse("all_to_all: what is sent and what is received overlap");
  }
}

void check_member(const char* operation, int rank, int size) {
  if (rank >= 0 && rank < size) return;
  refuse(fmt::format("{}: rank {} is not in a group of {}", operation, rank, size));
}

void check_room(const char* operation, int64_t bytes, int64_t most) {
  if (bytes <= most) return;
  refuse(
      fmt::format("{}: what the ranks of a host tell each other takes {} bytes, and there is room "
                  "for {}: the group has too many of them",
                  operation, bytes, most));
}

void check_peer(const char* operation, int peer, int rank, int size) {
  check_member(operation, peer, size);
  if (peer == rank) refuse(fmt::format("{} between rank {} and itself", operation, rank));
}

void check_group(std::span<const int> ranks, int rank, int size) {
  const bool ascending =
      std::adjacent_find(ranks.begin(), ranks.end(), std::greater_equal<>()) == ranks.end();
  if (ranks.empty() || !ascending || ranks.front() < 0 || ranks.back() >= size ||
      !std::binary_search(ranks.begin(), ranks.end(), rank)) {
    refuse(
        fmt::format("a group needs ascending ranks of 0..{} with our own rank {} among them, "
                    "not [{}]",
                    size - 1, rank, fmt::join(ranks, ", ")));
  }
}

}  // namespace mtl::comm
