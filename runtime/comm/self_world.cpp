// One rank without peers: nothing moves but between the two tensors of an operation, arguments are
// still checked so that a program that works alone does not fail among many for a reason that it
// could have learned at once.
#include "runtime/comm/self_world.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <vector>

#include <sys/mman.h>

#include <fmt/format.h>

#include "common/error.h"
#include "runtime/comm/check.h"

namespace mtl {

namespace {

class SelfCommunicator final : public Communicator {
 public:
  int size() const override { return 1; }
  int rank() const override { return 0; }
  void barrier() override {}
  void all_reduce(Tensor x, Reduce) override { comm::check_reducible("all_reduce", x); }
  void reduce_scatter(Tensor all, Tensor mine) override {
    comm::check_reducible("reduce_scatter", all);
    comm::check_part("reduce_scatter", mine, all, 0, 1);
    copy(mine, all);
  }
  void all_gather(Tensor mine, Tensor all) override {
    comm::check_part("all_gather", mine, all, 0, 1);
    copy(all, mine);
  }
  void broadcast(Tensor, int root) override { comm::check_member("broadcast", root, 1); }
  void all_to_all_v(Tensor from, std::span<const int64_t> send_counts, Tensor to,
                    std::span<const int64_t> recv_counts) override {
    comm::check_all_to_all(from, send_counts, to, recv_counts, 0, 1);
    copy(to, from);
  }
  void send(Tensor, int to) override { comm::check_peer("send", to, 0, 1); }
  void recv(Tensor, int from) override { comm::check_peer("recv", from, 0, 1); }
  const Traffic& traffic() const override { return nothing_; }

 private:
  static void copy(const Tensor& to, const Tensor& from) {
    if (to.data == from.data || to.numel() == 0) return;
    std::memcpy(to.data, from.data, static_cast<size_t>(to.bytes()));
  }

  const Traffic nothing_ = {};
};

class SelfWorld final : public CommWorld {
 public:
  ~SelfWorld() override {
    for (const Block& block : blocks_) ::munmap(block.data, block.bytes);
  }
  int rank() const override { return 0; }
  int size() const override { return 1; }
  std::unique_ptr<Communicator> group(std::span<const int> ranks) override {
    comm::check_group(ranks, 0, 1);
    return make_self_communicator();
  }
  void* allocate(size_t bytes) override {
    const size_t size = std::max<size_t>(bytes, 1);
    blocks_.reserve(blocks_.size() + 1);
    void* data = ::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) {
      throw Error(Exit::out_of_memory,
                  {.code = "comm.memory",
                   .what = fmt::format("cannot map {} bytes: {}", bytes, strerror(errno)),
                   .help = "use a smaller model or micro-batch (see: mtl plan)"});
    }
    blocks_.push_back({data, size});
    return data;
  }
  void leave() override {}

 private:
  struct Block {
    void* data;
    size_t bytes;
  };
  std::vector<Block> blocks_;
};

}  // namespace

std::unique_ptr<Communicator> make_self_communicator() {
  return std::make_unique<SelfCommunicator>();
}

std::unique_ptr<CommWorld> make_self_world() {
  return std::make_unique<SelfWorld>();
}

}  // namespace mtl
