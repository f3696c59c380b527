// What every transport checks of its arguments, with the same words.
#pragma once

#include <span>

#include "runtime/comm/communicator.h"

namespace mtl::comm {

// All throw Error "comm.argument" (Exit::run_failed): a mistake of the caller, not of the machines.
void check_reducible(const char* operation, const Tensor& x);
void check_divisible(const char* operation, const Tensor& x, int size);
// `all` is divisible, and `mine` is rank's part of it by size and type, and is exactly that part in
// memory too, or does not overlap `all`.
void check_part(const char* operation, const Tensor& mine, const Tensor& all, int rank, int size);
// The counts are `rounds` times those of a group of `size`, not negative and add up to the tensors;
// what the rank keeps is as long here as there; one type; no overlap.
void check_all_to_all(const Tensor& from, std::span<const int64_t> send_counts, const Tensor& to,
                      std::span<const int64_t> recv_counts, int rank, int size, size_t rounds = 1);
void check_member(const char* operation, int rank, int size);
// Of what ranks tell each other beforehand.
void check_room(const char* operation, int64_t bytes, int64_t most);
void check_peer(const char* operation, int peer, int rank, int size);
void check_group(std::span<const int> ranks, int rank, int size);

}  // namespace mtl::comm
