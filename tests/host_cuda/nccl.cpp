// An NCCL whose ranks are processes of this machine, for the CUDA of this folder: libnccl.so.2 with
// the functions that runtime/comm/nccl/api.h opens. A communicator is a piece of shared memory, in
// which each rank has a slot for what it gives to the others and each pair of ranks one for
// messages. As on GPUs, operations wait in their stream for the peers, a message is sent when it
// has been received, and communicators do not block while they are made. Ranks that call different
// operations are told so, which NCCL does not do.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <fcntl.h>
#include <functional>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <unistd.h>
#include <utility>
#include <vector>

#include <sys/mman.h>

#include "host_cuda/stream.h"
#include "runtime/comm/nccl/api.h"
#include "runtime/comm/reduce.h"

namespace {

using mtl::DType;
using mtl::Reduce;
using mtl::reduce_in_order;
namespace nccl = mtl::nccl;
using nccl::DataType;
using nccl::RedOp;
using nccl::Result;

constexpr size_t kChunk = size_t{1} << 16;  // of what is exchanged at once

// What a rank gives to the others: what it does, and of that a chunk.
struct alignas(64) Slot {
  char operation[64];
  char data[kChunk];
};
// From one rank to another, chunk by chunk; empty: written == read.
struct alignas(64) Mailbox {
  std::atomic<uint64_t> written, read;
  uint64_t message;  // bytes of the whole
  char data[kChunk];
};
// Zeros at first. Behind it: a slot per rank, a mailbox per pair.
struct alignas(64) Shared {
  std::atomic<uint64_t> joined, arrived;
};

struct Communicator {
  std::string name;
  size_t size = 0, rank = 0;
  Shared* shared = nullptr;
  std::atomic<bool> joined = false, aborted = false;
  std::thread joining;
  uint64_t meetings = 0;  // of the one stream at a time that it is in

  size_t bytes() const {
    return sizeof(Shared) + size * sizeof(Slot) + size * size * sizeof(Mailbox);
  }
  Slot& slot(size_t of) const { return reinterpret_cast<Slot*>(shared + 1)[of]; }
  Mailbox& mailbox(size_t from, size_t to) const {
    auto* const first = reinterpret_cast<Mailbox*>(reinterpret_cast<Slot*>(shared + 1) + size);
    return first[from * size + to];
  }

  void join();
  // False: it was aborted.
  bool wait(const std::function<bool()>& ready) const {
    for (int i = 0; !ready(); ++i) {
      if (aborted) return false;
      if (i < 100) {
        std::this_thread::yield();
      } else {
        std::this_thread::sleep_for(std::chrono::microseconds(100));
      }
    }
    return true;
  }
  // Until all ranks have come.
  bool meet() {
    if (aborted) return false;  // others may still be in it
    const uint64_t all = ++meetings * size;
    shared->arrived.fetch_add(1);
    return wait([&] { return shared->arrived >= all; });
  }
};

void Communicator::join() {
  const int file = shm_open(name.c_str(), O_CREAT | O_RDWR, 0600);
  if (file < 0 || ftruncate(file, static_cast<off_t>(bytes())) != 0) std::abort();
  void* const memory = mmap(nullptr, bytes(), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  close(file);
  if (memory == MAP_FAILED) std::abort();
  shared = static_cast<Shared*>(memory);
  shared->joined.fetch_add(1);
  const bool all = wait([&] { return shared->joined == size; });
  shm_unlink(name.c_str());
  joined = all;
}

int64_t bytes_of_type(DataType type) {
  switch (type) {
    case nccl::kUint8:
      return 1;
    case nccl::kFloat16:
    case nccl::kBfloat16:
      return 2;
    case nccl::kFloat64:
      return 8;
    default:
      return 4;
  }
}
DType dtype_of(DataType type) {
  switch (type) {
    case nccl::kUint8:
      return DType::u8;
    case nccl::kFloat16:
      return DType::f16;
    case nccl::kBfloat16:
      return DType::bf16;
    case nccl::kFloat64:
      return DType::f64;
    case nccl::kInt32:
      return DType::i32;
    default:
      return DType::f32;
  }
}

// All ranks bring `bytes` in chunks; `take` gets each of them: where it begins, how long it is, and
// what the ranks have there. `here` = false: this rank brings nothing.
using Take = std::function<void(size_t begin, size_t bytes, const std::vector<const void*>& all)>;
void exchange(Communicator& comm, const std::string& operation, const void* from, size_t bytes,
              bool here, const Take& take) {
  std::vector<const void*> all;
  for (size_t i = 0; i < comm.size; ++i) all.push_back(comm.slot(i).data);
  Slot& own = comm.slot(comm.rank);
  for (size_t begin = 0; begin < bytes && !comm.aborted; begin += kChunk) {
    const size_t length = std::min(kChunk, bytes - begin);
    std::strncpy(own.operation, operation.c_str(), sizeof own.operation - 1);
    if (here) std::memcpy(own.data, static_cast<const char*>(from) + begin, length);
    if (!comm.meet()) return;
    for (size_t i = 0; i < comm.size; ++i) {
      if (comm.slot(i).operation == operation) continue;
      throw std::runtime_error("rank " + std::to_string(comm.rank) + " of a group calls " +
                               operation + ", rank " + std::to_string(i) + " calls " +
                               comm.slot(i).operation);
    }
    take(begin, length, all);
    if (!comm.meet()) return;
  }
}

// One side of a message, of which a step at a time is done.
struct Message {
  Communicator* comm;
  size_t peer;
  char* data;
  size_t bytes;
  bool sends;
  size_t done = 0;
  uint64_t sent = 0;  // the mailbox's count when the last chunk was in it

  bool over() const {
    if (comm->aborted) return true;
    if (done < bytes) return false;
    return !sends || comm->mailbox(comm->rank, peer).read >= sent;
  }
  bool step() {
    if (done == bytes) return false;
    Mailbox& box = sends ? comm->mailbox(comm->rank, peer) : comm->mailbox(peer, comm->rank);
    const size_t length = std::min(kChunk, bytes - done);
    if (sends) {
      if (box.written != box.read) return false;
      box.message = bytes;
      std::memcpy(box.data, data + done, length);
      sent = box.written.fetch_add(1) + 1;
    } else {
      if (box.written == box.read) return false;
      if (box.message != bytes) {
        throw std::runtime_error("a message of " + std::to_string(box.message) + " bytes for " +
                                 std::to_string(bytes));
      }
      std::memcpy(data + done, box.data, length);
      box.read.fetch_add(1);
    }
    done += length;
    return true;
  }
};

void carry_out(std::vector<Message> messages) {
  const auto over = [](const Message& one) { return one.over(); };
  while (!std::all_of(messages.begin(), messages.end(), over)) {
    bool any = false;
    for (Message& one : messages) any = (!one.comm->aborted && one.step()) || any;
    if (!any) std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
}

// What a thread calls between ncclGroupStart and ncclGroupEnd.
struct Grouped {
  CUstream_st* stream;
  std::vector<Message> messages;
};
thread_local int depth = 0;
thread_local std::vector<Grouped> grouped;

CUstream_st* of(nccl::Stream stream) {
  return static_cast<CUstream_st*>(stream);
}
Communicator* of(nccl::CommHandle handle) {
  return reinterpret_cast<Communicator*>(handle);
}

Result collective(nccl::CommHandle handle, nccl::Stream stream,
                  const std::function<void(Communicator&)>& work) {
  if (depth > 0) return nccl::kInvalidUsage;  // none of ours is in a group
  of(stream)->enqueue([comm = of(handle), work] { work(*comm); });
  return nccl::kSuccess;
}

Result message(void* data, size_t count, DataType type, int peer, nccl::CommHandle handle,
               nccl::Stream stream, bool sends) {
  const Message one = {.comm = of(handle),
                       .peer = static_cast<size_t>(peer),
                       .data = static_cast<char*>(data),
                       .bytes = count * static_cast<size_t>(bytes_of_type(type)),
                       .sends = sends};
  if (depth == 0) {
    of(stream)->enqueue([one] { carry_out({one}); });
    return nccl::kSuccess;
  }
  const auto same = [&](const Grouped& all) { return all.stream == of(stream); };
  auto found = std::find_if(grouped.begin(), grouped.end(), same);
  if (found == grouped.end()) found = grouped.insert(found, {of(stream), {}});
  found->messages.push_back(one);
  return nccl::kSuccess;
}

std::string words(const char* operation, size_t count, DataType type) {
  return std::string(operation) + " of " + std::to_string(count) + " x type " +
         std::to_string(type);
}

}  // namespace

extern "C" {

Result ncclGetVersion(int* version) {
  *version = 22809;
  return nccl::kSuccess;
}
Result ncclGetUniqueId(nccl::UniqueId* id) {
  std::random_device random;
  const std::string name = "/mtl-host-nccl-" + std::to_string(getpid()) + "-" +
                           std::to_string(random()) + std::to_string(random());
  *id = {};
  std::copy(name.begin(), name.end(), id->bytes);
  return nccl::kSuccess;
}
const char* ncclGetErrorString(Result) {
  return "an error of the NCCL on the host";
}
const char* ncclGetLastError(nccl::CommHandle) {
  return "";
}

Result ncclCommInitRankConfig(nccl::CommHandle* handle, int size, nccl::UniqueId id, int rank,
                              nccl::Config* config) {
  if (config->blocking != 0) return nccl::kInvalidUsage;  // none of ours blocks
  auto* const comm = new Communicator;
  comm->name = id.bytes;
  comm->size = static_cast<size_t>(size);
  comm->rank = static_cast<size_t>(rank);
  comm->joining = std::thread([comm] { comm->join(); });
  *handle = reinterpret_cast<nccl::CommHandle>(comm);
  return nccl::kInProgress;
}
Result ncclCommGetAsyncError(nccl::CommHandle handle, Result* result) {
  *result = of(handle)->joined ? nccl::kSuccess : nccl::kInProgress;
  return nccl::kSuccess;
}
Result ncclCommFinalize(nccl::CommHandle) {
  return nccl::kSuccess;
}
// Its operations may still be on their way to see that they are aborted: it stays in memory.
Result ncclCommDestroy(nccl::CommHandle handle) {
  of(handle)->joining.join();
  return nccl::kSuccess;
}
Result ncclCommAbort(nccl::CommHandle handle) {
  of(handle)->aborted = true;
  of(handle)->joining.join();
  return nccl::kSuccess;
}

Result ncclAllReduce(const void* from, void* to, size_t count, DataType type, RedOp op,
                     nccl::CommHandle handle, nccl::Stream stream) {
  return collective(handle, stream, [=](Communicator& comm) {
    const auto element = static_cast<size_t>(bytes_of_type(type));
    exchange(comm, words(op == nccl::kSum ? "all-reduce (sum)" : "all-reduce (max)", count, type),
             from, count * element, true,
             [&](size_t begin, size_t bytes, const std::vector<const void*>& all) {
               void* const out = static_cast<char*>(to) + begin;
               reduce_in_order(dtype_of(type), op == nccl::kSum ? Reduce::sum : Reduce::max, all,
                               {&out, 1}, static_cast<int64_t>(bytes / element));
             });
  });
}
Result ncclReduceScatter(const void* from, void* to, size_t count, DataType type, RedOp op,
                         nccl::CommHandle handle, nccl::Stream stream) {
  return collective(handle, stream, [=](Communicator& comm) {
    const auto element = static_cast<size_t>(bytes_of_type(type));
    const size_t part = count * element;
    exchange(comm,
             words(op == nccl::kSum ? "reduce-scatter (sum)" : "reduce-scatter (max)", count, type),
             from, part * comm.size, true,
             [&](size_t begin, size_t bytes, std::vector<const void*> all) {
               // What of the chunk is this rank's.
               const size_t first = std::max(begin, comm.rank * part);
               const size_t last = std::min(begin + bytes, (comm.rank + 1) * part);
               if (first >= last) return;
               for (const void*& one : all) one = static_cast<const char*>(one) + (first - begin);
               void* const out = static_cast<char*>(to) + (first - comm.rank * part);
               reduce_in_order(dtype_of(type), op == nccl::kSum ? Reduce::sum : Reduce::max, all,
                               {&out, 1}, static_cast<int64_t>((last - first) / element));
             });
  });
}
Result ncclAllGather(const void* from, void* to, size_t count, DataType type,
                     nccl::CommHandle handle, nccl::Stream stream) {
  return collective(handle, stream, [=](Communicator& comm) {
    const size_t part = count * static_cast<size_t>(bytes_of_type(type));
    exchange(comm, words("all-gather", count, type), from, part, true,
             [&](size_t begin, size_t bytes, const std::vector<const void*>& all) {
               for (size_t i = 0; i < all.size(); ++i) {
                 std::memcpy(static_cast<char*>(to) + i * part + begin, all[i], bytes);
               }
             });
  });
}
Result ncclBroadcast(const void* from, void* to, size_t count, DataType type, int root,
                     nccl::CommHandle handle, nccl::Stream stream) {
  return collective(handle, stream, [=](Communicator& comm) {
    const auto sender = static_cast<size_t>(root);
    exchange(comm, words("broadcast", count, type) + " from " + std::to_string(root), from,
             count * static_cast<size_t>(bytes_of_type(type)), comm.rank == sender,
             [&](size_t begin, size_t bytes, const std::vector<const void*>& all) {
               std::memcpy(static_cast<char*>(to) + begin, all[sender], bytes);
             });
  });
}

Result ncclSend(const void* data, size_t count, DataType type, int peer, nccl::CommHandle handle,
                nccl::Stream stream) {
  return message(const_cast<void*>(data), count, type, peer, handle, stream, true);
}
Result ncclRecv(void* data, size_t count, DataType type, int peer, nccl::CommHandle handle,
                nccl::Stream stream) {
  return message(data, count, type, peer, handle, stream, false);
}
Result ncclGroupStart() {
  ++depth;
  return nccl::kSuccess;
}
Result ncclGroupEnd() {
  if (--depth > 0) return nccl::kSuccess;
  for (const Grouped& all : std::exchange(grouped, {})) {
    all.stream->enqueue([messages = all.messages] { carry_out(messages); });
  }
  return nccl::kSuccess;
}

}  // extern "C"
