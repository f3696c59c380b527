#include "runtime/comm/nccl/nccl_communicator.h"

#include <algorithm>
#include <chrono>

#include <fmt/format.h>

#include "runtime/comm/check.h"
#include "runtime/comm/operation.h"
#include "runtime/plan/nccl_channels.h"

namespace mtl::nccl {

namespace {

DataType type_of(DType dtype) {
  switch (dtype) {
    case DType::f32:
      return kFloat32;
    case DType::bf16:
    case DType::u16:  // NCCL has none; it is never summed (reducible())
      return kBfloat16;
    case DType::f16:
      return kFloat16;
    case DType::f64:
      return kFloat64;
    case DType::i32:
      return kInt32;
    case DType::u8:
    case DType::f8_e4m3:
    case DType::f8_e5m2:
      return kUint8;
  }
  return kUint8;
}

size_t count_of(const Tensor& x) {
  return static_cast<size_t>(x.numel());
}

char* part_of(void* all, int64_t bytes, int rank) {
  return static_cast<char*>(all) + rank * bytes;
}

constexpr int64_t kGreetingBytes = 256;

std::string words(const char* op, const Tensor& x) {
  return fmt::format("{}({} x {})", op, x.numel(), safetensors_name(x.dtype));
}

}  // namespace

NcclCommunicator::NcclCommunicator(std::shared_ptr<State> state, GroupName name)
    : state_(std::move(state)), name_(std::move(name)) {
  const auto own = std::find(name_.ranks.begin(), name_.ranks.end(), state_->rank());
  rank_ = static_cast<int>(own - name_.ranks.begin());
}

NcclCommunicator::~NcclCommunicator() {
  for (const Mark& mark : marks_) state_->give_event(mark.event);
  for (const auto& [peer, pair] : pairs_) {
    pair->connector.join();
    for (const Slot& slot : pair->slots) state_->give_event(slot.sent);
    state_->give_event(pair->greeted);
    state_->streams().destroy_stream(pair->stream);
    state_->streams().destroy_stream(pair->greeted_stream);
  }
  if (lane_ != nullptr) state_->streams().destroy_stream(lane_);
}

// --- the lane

void NcclCommunicator::share_lane(Communicator& other) {
  auto& owner = dynamic_cast<NcclCommunicator&>(other);
  if (owner.size() > 1) owner_ = &owner;
}

Stream NcclCommunicator::stream() {
  return owner().beside_ ? owner().lane_ : state_->streams().compute();
}

uint64_t NcclCommunicator::run(const std::function<void()>& work) {
  state_->check();
  Streams& streams = state_->streams();
  if (lane_ == nullptr) lane_ = streams.make_stream();
  const Event gate = state_->take_event();
  streams.record(gate, streams.compute());
  streams.wait(lane_, gate);
  state_->give_event(gate);
  ++begun_;
  beside_ = true;
  try {
    work();
  } catch (...) {
    beside_ = false;
    throw;
  }
  beside_ = false;
  const Event end = state_->take_event();
  streams.record(end, lane_);
  marks_.push_back({begun_, end});
  return begun_;
}

void NcclCommunicator::join(uint64_t number) {
  if (number <= joined_) return;
  const auto next = std::find_if(marks_.begin(), marks_.end(),
                                 [&](const Mark& mark) { return mark.number > number; });
  if (next != marks_.begin()) {
    state_->streams().wait(state_->streams().compute(), std::prev(next)->event);
  }
  // An event may be recorded again: who waits for it already, waits for the record there was.
  for (auto mark = marks_.begin(); mark != next; ++mark) state_->give_event(mark->event);
  marks_.erase(marks_.begin(), next);
  joined_ = number;
}

// --- how operations reach NCCL

Comm& NcclCommunicator::everybody() {
  if (!everybody_) {
    everybody_ = state_->begin_connect(name_);
    state_->finish_connect(*everybody_);
  }
  return *everybody_;
}

NcclCommunicator::Pair& NcclCommunicator::pair(int peer) {
  const auto there = pairs_.find(peer);
  if (there != pairs_.end()) return *there->second;
  state_->check();
  auto pair = std::make_unique<Pair>();
  pair->stream = state_->streams().make_stream();
  pair->greeted_stream = state_->streams().make_stream();
  pair->greeted = state_->take_event();
  pair->greeting = static_cast<char*>(state_->allocate(2 * kGreetingBytes));
  pair->connector = std::thread([this, made = pair.get(), own = state_->rank(),
                                 other = name_.ranks[static_cast<size_t>(peer)]] {
    try {
      state_->streams().enter_thread();
      connect(*made, own, other);
    } catch (const Error& error) {
      state_->fail(error);  // of the world: whoever waits for the pair finds it there
    } catch (const std::exception& error) {
      state_->fail(Error(Exit::run_failed,
                         Diagnostic{.code = "comm.nccl", .what = error.what(), .help = ""}));
    }
  });
  return *pairs_.emplace(peer, std::move(pair)).first->second;
}

void NcclCommunicator::connect(Pair& pair, int own, int other) {
  const auto begin = [&](int from, int to) {
    const int ranks[] = {from, to};
    return state_->begin_connect(
        {.key = comm::group_key(ranks, name_.key), .ranks = {from, to}, .messages = true});
  };
  // Both at once, lower rank's first.
  const auto up = begin(std::min(own, other), std::max(own, other));
  const auto down = begin(std::max(own, other), std::min(own, other));
  state_->finish_connect(*up);
  state_->finish_connect(*down);
  greet(pair, *up, own < other);
  greet(pair, *down, own > other);
  const std::scoped_lock lock(pair.mutex);
  pair.to = own < other ? up : down;
  pair.from = own < other ? down : up;
  for (const auto& send : pair.waiting) send();
  pair.waiting.clear();
  pair.connected = true;
  pair.changed.notify_all();
}

void NcclCommunicator::greet(Pair& pair, Comm& comm, bool sends) {
  char* const memory = pair.greeting + (sends ? 0 : kGreetingBytes);
  const Stream where = sends ? pair.stream : pair.greeted_stream;
  state_->enqueue(comm, where, "greeting", kGreetingBytes, [&](CommHandle handle) {
    return sends ? state_->api().send(memory, kGreetingBytes, kUint8, 1, handle, where)
                 : state_->api().recv(memory, kGreetingBytes, kUint8, 0, handle, where);
  });
  if (!sends) state_->streams().record(pair.greeted, where);
}

void NcclCommunicator::wait_connected(Pair& pair) {
  const auto connected = [&] {
    std::unique_lock lock(pair.mutex);
    return pair.changed.wait_for(lock, std::chrono::milliseconds(10),
                                 [&] { return pair.connected; });
  };
  while (!connected()) {
    state_->check();
    state_->streams().host_waits();
  }
}

void NcclCommunicator::collective(const std::string& what, int64_t bytes,
                                  const std::function<Result(CommHandle, Stream)>& call) {
  Comm& comm = everybody();
  // All ranks enqueue a group's collectives in one order; the device must keep to it too.
  if (owner().beside_) {
    collectives_until_ = owner().begun_;
  } else {
    owner().join(collectives_until_);
  }
  const Stream where = stream();
  state_->enqueue(comm, where, what, bytes, [&](CommHandle handle) { return call(handle, where); });
}

// --- tensors of the host

// The old memory stays until the world ends: freeing waits for the device, which may be waiting for
// a peer.
char* NcclCommunicator::staging(int64_t bytes) {
  if (bytes > staging_bytes_) {
    staging_bytes_ = std::max(bytes, 2 * staging_bytes_);
    staging_ = static_cast<char*>(state_->allocate(static_cast<size_t>(staging_bytes_)));
  }
  return staging_;
}

void NcclCommunicator::copy(void* to, const void* from, int64_t bytes) {
  if (bytes > 0 && to != from) {
    state_->streams().copy(to, from, static_cast<size_t>(bytes), stream());
  }
}

void NcclCommunicator::finish(void* host, const void* staged, int64_t bytes) {
  copy(host, staged, bytes);
  const Event end = state_->take_event();
  state_->streams().record(end, stream());
  state_->wait(end);
  state_->give_event(end);
}

// --- operations

void NcclCommunicator::barrier() {
  state_->check();
  if (size() == 1) return;
  char* word = staging(sizeof(float));
  collective("barrier", sizeof(float), [&](CommHandle handle, Stream where) {
    return state_->api().all_reduce(word, word, 1, kFloat32, kSum, handle, where);
  });
  finish(nullptr, nullptr, 0);
}

void NcclCommunicator::all_reduce(Tensor x, Reduce op) {
  comm::check_reducible("all_reduce", x);
  if (size() == 1 || x.numel() == 0) return;
  traffic_.all_reduce += x.bytes();
  const bool staged = !on_device(x);
  void* data = staged ? staging(x.bytes()) : x.data;
  if (staged) copy(data, x.data, x.bytes());
  collective(comm::describe(
                 {.op = comm::Op::all_reduce, .dtype = x.dtype, .reduce = op, .numel = x.numel()}),
             x.bytes(), [&](CommHandle handle, Stream where) {
               return state_->api().all_reduce(data, data, count_of(x), type_of(x.dtype),
                                               op == Reduce::sum ? kSum : kMax, handle, where);
             });
  if (staged) finish(x.data, data, x.bytes());
}

void NcclCommunicator::reduce_scatter(Tensor all, Tensor mine) {
  comm::check_reducible("reduce_scatter", all);
  comm::check_part("reduce_scatter", mine, all, rank_, size());
  if (all.numel() == 0) return;
  if (size() == 1) return copy(mine.data, all.data, mine.bytes());
  traffic_.reduce_scatter += all.bytes();
  const bool staged = !on_device(all);
  void* from = staged ? staging(all.bytes()) : all.data;
  void* to = staged ? part_of(from, mine.bytes(), rank_) : mine.data;
  if (staged) copy(from, all.data, all.bytes());
  collective(words("reduce_scatter", all), all.bytes(), [&](CommHandle handle, Stream where) {
    return state_->api().reduce_scatter(from, to, count_of(mine), type_of(mine.dtype), kSum, handle,
                                        where);
  });
  if (staged) finish(mine.data, to, mine.bytes());
}

void NcclCommunicator::all_gather(Tensor mine, Tensor all) {
  comm::check_part("all_gather", mine, all, rank_, size());
  if (all.numel() == 0) return;
  if (size() == 1) return copy(all.data, mine.data, mine.bytes());
  traffic_.all_gather += all.bytes();
  const bool staged = !on_device(all);
  void* to = staged ? staging(all.bytes()) : all.data;
  void* from = staged ? part_of(to, mine.bytes(), rank_) : mine.data;
  if (staged) copy(from, mine.data, mine.bytes());
  collective(words("all_gather", all), all.bytes(), [&](CommHandle handle, Stream where) {
    return state_->api().all_gather(from, to, count_of(mine), type_of(mine.dtype), handle, where);
  });
  if (staged) finish(all.data, to, all.bytes());
}

void NcclCommunicator::broadcast(Tensor x, int root) {
  comm::check_member("broadcast", root, size());
  if (size() == 1 || x.numel() == 0) return;
  traffic_.broadcast += x.bytes();
  const bool staged = !on_device(x);
  void* data = staged ? staging(x.bytes()) : x.data;
  if (staged) copy(data, x.data, x.bytes());
  collective(comm::describe(
                 {.op = comm::Op::broadcast, .dtype = x.dtype, .root = root, .numel = x.numel()}),
             x.bytes(), [&](CommHandle handle, Stream where) {
               return state_->api().broadcast(data, data, count_of(x), type_of(x.dtype), root,
                                              handle, where);
             });
  if (staged) finish(x.data, data, x.bytes());
}

void NcclCommunicator::all_to_all_v(Tensor from, std::span<const int64_t> send_counts, Tensor to,
                                    std::span<const int64_t> recv_counts) {
  comm::check_all_to_all(from, send_counts, to, recv_counts, rank_, size());
  all_to_all_rounds(from, send_counts, to, recv_counts);
}

void NcclCommunicator::all_to_all_rounds(Tensor from, std::span<const int64_t> send_counts,
                                         Tensor to, std::span<const int64_t> recv_counts) {
  const auto ranks = static_cast<size_t>(size());
  comm::check_all_to_all(from, send_counts, to, recv_counts, rank_, size(),
                         send_counts.size() / ranks);
  if (size() == 1) return copy(to.data, from.data, to.bytes());
  const int64_t element = bytes_of(from.dtype);
  // A rank that neither sends nor receives takes part: the others count its operations.
  const Tensor& any = from.numel() > 0 ? from : to;
  const bool staged = any.numel() > 0 && !on_device(any);
  const int64_t room = (from.bytes() + 255) / 256 * 256;
  char* const memory = staged ? staging(room + to.bytes()) : nullptr;
  const char* const sent = staged ? memory : from.as<const char>();
  char* const received = staged ? memory + room : to.as<char>();
  if (staged) copy(memory, from.data, from.bytes());
  const Api& api = state_->api();
  const DataType type = type_of(from.dtype);
  // What goes to other ranks; what stays is copied.
  struct Message {
    int64_t first, count;
    int peer;
  };
  std::vector<Message> sends, recvs;
  int64_t sending = 0, receiving = 0;
  for (size_t i = 0; i < send_counts.size(); ++i) {
    const int peer = static_cast<int>(i % ranks);
    if (peer == rank_) {
      copy(received + receiving, sent + sending, send_counts[i] * element);
    } else {
      if (send_counts[i] > 0) sends.push_back({sending, send_counts[i], peer});
      if (recv_counts[i] > 0) recvs.push_back({receiving, recv_counts[i], peer});
      traffic_.all_to_all += send_counts[i] * element;
    }
    sending += send_counts[i] * element;
    receiving += recv_counts[i] * element;
  }
  collective(
      comm::describe({.op = comm::Op::all_to_all, .dtype = from.dtype}), from.bytes(),
      [&](CommHandle handle, Stream where) {
        Result result = api.group_start();
        const auto call = [&](Result next) {
          if (result == kSuccess || result == kInProgress) result = next;
        };
        for (const auto& [first, count, peer] : sends) {
          call(api.send(sent + first, static_cast<size_t>(count), type, peer, handle, where));
        }
        for (const auto& [first, count, peer] : recvs) {
          call(api.recv(received + first, static_cast<size_t>(count), type, peer, handle, where));
        }
        call(api.group_end());
        return result;
      });
  if (staged) finish(to.data, received, to.bytes());
}

// All of it at once, as CUDA may make memory wait for what is under way.
void NcclCommunicator::make_room(Pair& pair, int64_t bytes) {
  const int64_t count = nccl_message_slots(bytes, state_->buffered_bytes());
  const int64_t apart = nccl_message_stride(bytes);
  char* memory = static_cast<char*>(state_->allocate(static_cast<size_t>(count * apart)));
  if (!pair.slots.empty()) wait_connected(pair);  // what waits to leave knows its event
  for (const Slot& slot : pair.slots) state_->give_event(slot.sent);
  pair.slots.clear();
  for (int64_t i = 0; i < count; ++i) {
    pair.slots.push_back({.memory = memory + i * apart, .sent = state_->take_event()});
  }
  pair.slot_bytes = bytes;
  pair.next = 0;
}

NcclCommunicator::Slot& NcclCommunicator::slot_of(Pair& pair, int64_t bytes) {
  if (bytes > pair.slot_bytes) make_room(pair, bytes);
  Slot& slot = pair.slots[pair.next];
  pair.next = (pair.next + 1) % pair.slots.size();
  if (slot.used) {
    wait_connected(pair);  // else what is there has not even begun to leave
    state_->streams().wait(stream(), slot.sent);
  }
  slot.used = true;
  return slot;
}

void NcclCommunicator::send(Tensor x, int to) {
  comm::check_peer("send", to, rank_, size());
  traffic_.send += x.bytes();
  if (x.numel() == 0) return;
  Pair& pair = this->pair(to);
  Slot& slot = slot_of(pair, x.bytes());
  copy(slot.memory, x.data, x.bytes());
  if (!on_device(x)) finish(nullptr, nullptr, 0);  // the host may write it again
  state_->streams().record(slot.sent, stream());
  const auto leave = [this, x, &pair, memory = slot.memory, sent = slot.sent] {
    state_->streams().wait(pair.stream, sent);  // until it is copied
    state_->enqueue(*pair.to, pair.stream, words("send", x), x.bytes(), [&](CommHandle handle) {
      return state_->api().send(memory, count_of(x), type_of(x.dtype), 1, handle, pair.stream);
    });
    state_->streams().record(sent, pair.stream);
  };
  const std::scoped_lock lock(pair.mutex);
  if (pair.connected) {
    leave();
  } else {
    pair.waiting.push_back(leave);
  }
}

void NcclCommunicator::recv(Tensor x, int from) {
  comm::check_peer("recv", from, rank_, size());
  if (x.numel() == 0) return;
  Pair& pair = this->pair(from);
  wait_connected(pair);
  const bool staged = !on_device(x);
  void* data = staged ? staging(x.bytes()) : x.data;
  const Stream where = stream();
  state_->streams().wait(where, pair.greeted);
  state_->enqueue(*pair.from, where, words("recv", x), x.bytes(), [&](CommHandle handle) {
    return state_->api().recv(data, count_of(x), type_of(x.dtype), 0, handle, where);
  });
  if (staged) finish(x.data, data, x.bytes());
}

}  // namespace mtl::nccl
