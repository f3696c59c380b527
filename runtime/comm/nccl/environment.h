// What the ranks of a job tell each other of their GPUs before NCCL begins, and what NCCL must be
// told for it.
#pragma once

#include <optional>
#include <span>
#include <string>

namespace mtl::nccl {

struct Card {
  std::string host;  // the kernel's boot id: one per running machine
  std::string gpu;   // Streams::device_id()
  int nccl = 0;      // version
  std::string encode() const;
  static std::optional<Card> decode(const std::string& text);
};

// Throws "comm.nccl_version" (Exit::environment) when the ranks have different NCCLs, which do not
// speak to each other, and "comm.gpu_shared" (Exit::environment) when two ranks have one GPU,
// unless `share`. Whether this rank's GPU is another's too.
bool check_cards(std::span<const Card> cards, int rank, bool share);

// NCCL_COMM_BLOCKING goes over Config::blocking, and a communicator that blocks cannot be given up
// while it is made. To be called before NCCL's first call.
void never_block();

// MTL_SHARE_GPU=1: several ranks on one GPU, for tests on a machine that has only one.
bool wants_shared_gpus();
// NCCL refuses two ranks of one host on one GPU; under host names of their own they are strangers
// that speak through sockets. To be called before NCCL's first call.
void pretend_own_host(int rank);

}  // namespace mtl::nccl
