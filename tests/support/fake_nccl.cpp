// An NCCL whose ranks are threads of this process, over the streams of fake_gpu.h.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <set>
#include <stdexcept>
#include <utility>

#include "runtime/comm/reduce.h"
#include "support/fake_gpu.h"

namespace mtl::test {

namespace {

using Kind = FakeGpu::Kind;

// A rank that waits so long for another waits for ever.
// Looks, a millisecond apart: a clock would go on while this process, or its machine, stands still.
constexpr int kHopeless = 20'000;

// The ranks of a communicator, and what they have brought to it.
struct Group {
  struct Round {
    std::map<int, std::vector<char>> inputs;
    size_t left = 0;
  };
  std::mutex mutex;
  std::condition_variable changed;
  int size = 0, joined = 0;
  std::map<uint64_t, Round> rounds;
  std::set<int> exchanged;  // ranks that have called their first send or receive
  std::deque<std::vector<char>> messages;
  uint64_t received = 0;
  // Of grouped sends: by sender and receiver.
  std::map<std::pair<int, int>, std::deque<std::vector<char>>> mail;
};

struct FakeComm {
  std::shared_ptr<Group> group;
  int rank = 0;
  uint64_t enqueued = 0, run = 0;
  std::atomic<bool> aborted{false};
  std::atomic<FakeGpu*> gpu{nullptr};  // on which it has operations
};

std::mutex registry_mutex;
std::map<std::string, std::shared_ptr<Group>> registry;
uint64_t next_id = 0;
std::vector<std::shared_ptr<FakeComm>> all_comms;  // they outlive those who abort them

FakeComm* of(nccl::CommHandle handle) {
  return reinterpret_cast<FakeComm*>(handle);
}

void wait_in(FakeGpu* gpu, FakeComm* comm, std::unique_lock<std::mutex>& lock,
             const std::function<bool()>& ready) {
  int looks = 0;
  while (!comm->group->changed.wait_for(lock, std::chrono::milliseconds(1),
                                        [&] { return comm->aborted || ready(); })) {
    if (++looks > kHopeless) {
      throw std::runtime_error("a rank has waited for its peers for ever; its streams: " +
                               gpu->describe());
    }
    lock.unlock();
    gpu->idle();
    lock.lock();
  }
}

void begin(FakeComm* comm, uint64_t number) {
  if (++comm->run != number) {
    throw std::runtime_error("operations of a communicator have overtaken each other");
  }
}

using Finish = std::function<void(const std::vector<const void*>&)>;

// Everybody's input to everybody.
nccl::Result collective(nccl::CommHandle handle, nccl::Stream stream, const void* input,
                        size_t bytes, Finish finish) {
  FakeComm* comm = of(handle);
  const auto [gpu, where] = *static_cast<FakeGpu::Handle*>(stream);
  const uint64_t number = ++comm->enqueued;
  comm->gpu = gpu;
  gpu->enqueue(where, Kind::meets_peers, [=, gpu = gpu, finish = std::move(finish)] {
    begin(comm, number);
    Group& group = *comm->group;
    std::vector<std::vector<char>> inputs;
    {
      std::unique_lock lock(group.mutex);
      const char* from = static_cast<const char*>(input);
      group.rounds[number].inputs[comm->rank].assign(from, from + bytes);
      group.changed.notify_all();
      Group::Round& round = group.rounds[number];
      wait_in(gpu, comm, lock,
              [&] { return round.inputs.size() == static_cast<size_t>(group.size); });
      // Where the ranks call different things NCCL hangs, if they are lucky.
      for (const auto& [rank, data] : round.inputs) {
        if (data.size() != bytes) wait_in(gpu, comm, lock, [] { return false; });
      }
      if (comm->aborted) return;
      for (const auto& [rank, data] : round.inputs) inputs.push_back(data);
      if (++round.left == inputs.size()) group.rounds.erase(number);
    }
    std::vector<const void*> addresses;
    for (const auto& data : inputs) addresses.push_back(data.data());
    finish(addresses);
  });
  return nccl::kSuccess;
}

// Sends and receives between ncclGroupStart and ncclGroupEnd: one operation, in which all go on at
// once. Of the thread that calls them.
struct GroupedCalls {
  struct Part {
    int peer;
    const char* from;  // null: a receive
    char* to;
    size_t bytes;
  };
  bool open = false;
  nccl::CommHandle handle = nullptr;
  nccl::Stream stream = nullptr;
  std::vector<Part> parts;
  std::vector<FakeComm*> aborts;
};
thread_local GroupedCalls grouped;

std::atomic<int> hopeless = 0;

// Frees memory when the flags are set, and that waits for the device.
void abort_together(const std::vector<FakeComm*>& comms) {
  for (FakeComm* comm : comms) {
    const std::scoped_lock lock(comm->group->mutex);
    comm->aborted = true;
    comm->group->changed.notify_all();
  }
  int looks = 0;
  for (FakeComm* comm : comms) {
    while (comm->gpu != nullptr && comm->gpu.load()->communicates()) {
      if (++looks > kHopeless) {
        ++hopeless;
        return;
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
}

// Two ranks connect when both have called something: until then the host's part is not done.
nccl::Result exchange(FakeComm* comm, FakeGpu* gpu) {
  comm->gpu = gpu;
  Group& group = *comm->group;
  const std::scoped_lock lock(group.mutex);
  group.exchanged.insert(comm->rank);
  return group.exchanged.size() == 2 ? nccl::kSuccess : nccl::kInProgress;
}

void run_grouped(FakeGpu* gpu, FakeComm* comm, const std::vector<GroupedCalls::Part>& parts) {
  Group& group = *comm->group;
  std::unique_lock lock(group.mutex);
  for (const auto& part : parts) {
    if (part.from == nullptr) continue;
    group.mail[{comm->rank, part.peer}].emplace_back(part.from, part.from + part.bytes);
  }
  group.changed.notify_all();
  for (const auto& part : parts) {
    if (part.from != nullptr) continue;
    auto& mail = group.mail[{part.peer, comm->rank}];
    wait_in(gpu, comm, lock, [&] { return !mail.empty(); });
    // Another size: NCCL waits for the rest, if it is lucky.
    if (!comm->aborted && mail.front().size() != part.bytes) {
      wait_in(gpu, comm, lock, [] { return false; });
    }
    if (comm->aborted) return;
    std::memcpy(part.to, mail.front().data(), part.bytes);
    mail.pop_front();
  }
}

DType dtype_of(nccl::DataType type) {
  switch (type) {
    case nccl::kInt32:
      return DType::i32;
    case nccl::kFloat16:
      return DType::f16;
    case nccl::kFloat32:
      return DType::f32;
    case nccl::kFloat64:
      return DType::f64;
    case nccl::kBfloat16:
      return DType::bf16;
    case nccl::kUint8:
      return DType::u8;
  }
  return DType::u8;
}

// Elements [first, first + count) of the inputs.
void reduce(nccl::DataType type, nccl::RedOp op, const std::vector<const void*>& all, size_t first,
            size_t count, void* output) {
  const DType dtype = dtype_of(type);
  std::vector<const void*> inputs;
  for (const void* input : all) {
    inputs.push_back(static_cast<const char*>(input) +
                     first * static_cast<size_t>(bytes_of(dtype)));
  }
  reduce_in_order(dtype, op == nccl::kSum ? Reduce::sum : Reduce::max, inputs, {&output, 1},
                  static_cast<int64_t>(count));
}

size_t size_of(nccl::DataType type) {
  return static_cast<size_t>(bytes_of(dtype_of(type)));
}

nccl::Api make_api() {
  using namespace nccl;
  Api api;
  api.get_version = [](int* version) {
    *version = 22809;
    return kSuccess;
  };
  api.get_unique_id = [](UniqueId* id) {
    const std::scoped_lock lock(registry_mutex);
    *id = {};
    std::snprintf(id->bytes, sizeof(id->bytes), "%llu", static_cast<unsigned long long>(++next_id));
    return kSuccess;
  };
  api.comm_init_rank_config = [](CommHandle* handle, int size, UniqueId id, int rank, Config*) {
    const std::scoped_lock lock(registry_mutex);
    std::shared_ptr<Group>& group = registry[id.bytes];
    if (!group) group = std::make_shared<Group>();
    auto comm = std::make_shared<FakeComm>();
    comm->group = group;
    comm->rank = rank;
    const std::scoped_lock inner(group->mutex);
    group->size = size;
    ++group->joined;
    all_comms.push_back(comm);
    *handle = reinterpret_cast<CommHandle>(comm.get());
    return kInProgress;
  };
  api.comm_get_async_error = [](CommHandle handle, Result* result) {
    const std::scoped_lock lock(of(handle)->group->mutex);
    const Group& group = *of(handle)->group;
    const bool alone = group.exchanged.size() == 1 && group.exchanged.count(of(handle)->rank) == 1;
    *result = group.joined == group.size && !alone ? kSuccess : kInProgress;
    return kSuccess;
  };
  api.comm_finalize = [](CommHandle) { return kSuccess; };
  api.comm_destroy = [](CommHandle) { return kSuccess; };
  api.comm_abort = [](CommHandle handle) {
    if (grouped.open) {
      grouped.aborts.push_back(of(handle));
    } else {
      abort_together({of(handle)});
    }
    return kSuccess;
  };
  api.get_error_string = [](Result) { return "an error"; };
  api.get_last_error = [](CommHandle) { return ""; };
  api.all_reduce = [](const void* from, void* to, size_t count, DataType type, RedOp op,
                      CommHandle handle, Stream stream) {
    return collective(
        handle, stream, from, count * size_of(type),
        [=](const std::vector<const void*>& all) { reduce(type, op, all, 0, count, to); });
  };
  api.reduce_scatter = [](const void* from, void* to, size_t count, DataType type, RedOp op,
                          CommHandle handle, Stream stream) {
    const size_t size = static_cast<size_t>(of(handle)->group->size);
    const size_t rank = static_cast<size_t>(of(handle)->rank);
    return collective(handle, stream, from, size * count * size_of(type),
                      [=](const std::vector<const void*>& all) {
                        reduce(type, op, all, rank * count, count, to);
                      });
  };
  api.all_gather = [](const void* from, void* to, size_t count, DataType type, CommHandle handle,
                      Stream stream) {
    const size_t bytes = count * size_of(type);
    return collective(handle, stream, from, bytes, [=](const std::vector<const void*>& all) {
      for (size_t i = 0; i < all.size() && bytes > 0; ++i) {
        std::memcpy(static_cast<char*>(to) + i * bytes, all[i], bytes);
      }
    });
  };
  api.broadcast = [](const void* from, void* to, size_t count, DataType type, int root,
                     CommHandle handle, Stream stream) {
    const size_t bytes = count * size_of(type);
    return collective(handle, stream, from, bytes, [=](const std::vector<const void*>& all) {
      if (bytes > 0) std::memcpy(to, all[static_cast<size_t>(root)], bytes);
    });
  };
  api.group_start = [] {
    grouped = {};
    grouped.open = true;
    return kSuccess;
  };
  api.group_end = [] {
    GroupedCalls calls = std::exchange(grouped, {});
    if (!calls.aborts.empty()) abort_together(calls.aborts);
    if (calls.parts.empty()) return kSuccess;
    FakeComm* comm = of(calls.handle);
    const auto [gpu, where] = *static_cast<FakeGpu::Handle*>(calls.stream);
    const uint64_t number = ++comm->enqueued;
    comm->gpu = gpu;
    gpu->enqueue(where, Kind::meets_peers, [=, gpu = gpu, parts = std::move(calls.parts)] {
      begin(comm, number);
      run_grouped(gpu, comm, parts);
    });
    return kSuccess;
  };
  api.send = [](const void* from, size_t count, DataType type, int peer, CommHandle handle,
                Stream stream) {
    if (grouped.open) {
      grouped.handle = handle;
      grouped.stream = stream;
      grouped.parts.push_back(
          {peer, static_cast<const char*>(from), nullptr, count * size_of(type)});
      return kSuccess;
    }
    FakeComm* comm = of(handle);
    const auto [gpu, where] = *static_cast<FakeGpu::Handle*>(stream);
    const uint64_t number = ++comm->enqueued;
    const size_t bytes = count * size_of(type);
    const bool until_received = gpu->when() == When::threads;
    gpu->enqueue(where, Kind::send, [=, gpu = gpu] {
      begin(comm, number);
      Group& group = *comm->group;
      std::unique_lock lock(group.mutex);
      const char* data = static_cast<const char*>(from);
      group.messages.emplace_back(data, data + bytes);
      group.changed.notify_all();
      if (until_received) {
        wait_in(gpu, comm, lock, [&] { return group.received >= number; });
      }
    });
    return exchange(comm, gpu);
  };
  api.recv = [](void* to, size_t count, DataType type, int peer, CommHandle handle, Stream stream) {
    if (grouped.open) {
      grouped.handle = handle;
      grouped.stream = stream;
      grouped.parts.push_back({peer, nullptr, static_cast<char*>(to), count * size_of(type)});
      return kSuccess;
    }
    FakeComm* comm = of(handle);
    const auto [gpu, where] = *static_cast<FakeGpu::Handle*>(stream);
    const uint64_t number = ++comm->enqueued;
    const size_t bytes = count * size_of(type);
    gpu->enqueue(where, Kind::meets_peers, [=, gpu = gpu] {
      begin(comm, number);
      Group& group = *comm->group;
      std::unique_lock lock(group.mutex);
      wait_in(gpu, comm, lock, [&] { return !group.messages.empty(); });
      if (comm->aborted) return;
      if (group.messages.front().size() != bytes) throw std::runtime_error("another message");
      if (bytes > 0) std::memcpy(to, group.messages.front().data(), bytes);
      group.messages.pop_front();
      ++group.received;
      group.changed.notify_all();
    });
    return exchange(comm, gpu);
  };
  return api;
}

}  // namespace

int hopeless_aborts() {
  return hopeless;
}

const nccl::Api& fake_nccl() {
  static const nccl::Api api = make_api();
  return api;
}

}  // namespace mtl::test
