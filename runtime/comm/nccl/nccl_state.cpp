#include "runtime/comm/nccl/nccl_state.h"

#include <algorithm>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "common/files.h"
#include "common/threads.h"
#include "runtime/plan/nccl_channels.h"

namespace mtl::nccl {

namespace {

using namespace std::chrono_literals;

constexpr auto kSoon = 2ms;  // most operations of NCCL's threads take less

std::string to_hex(const UniqueId& id) {
  std::string text;
  for (const char c : id.bytes) text += fmt::format("{:02x}", static_cast<unsigned char>(c));
  return text;
}

UniqueId from_hex(const std::string& text) {
  UniqueId id = {};
  for (size_t i = 0; i < sizeof(id.bytes) && 2 * i + 1 < text.size(); ++i) {
    id.bytes[i] = static_cast<char>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
  }
  return id;
}

}  // namespace

State::State(Store& store, const WorldOptions& options, std::unique_ptr<Streams> streams,
             const Api& api, std::filesystem::path crash_dir, int64_t buffered_bytes)
    : store_(store),
      options_(options),
      prefix_(fmt::format("nccl/{}/", options.generation)),
      streams_(std::move(streams)),
      api_(api),
      crash_dir_(std::move(crash_dir)),
      buffered_bytes_(buffered_bytes),
      recorder_(options.rank) {
  try {
    watchdog_ = std::thread([this] { watch(); });
    listener_ = std::thread([this] { listen(); });
  } catch (const std::system_error&) {
    stop_watching();
    throw no_thread();
  }
}

void State::stop_watching() {
  {
    const std::scoped_lock lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  if (watchdog_.joinable()) watchdog_.join();
}

State::~State() {
  stop_watching();
  try {
    store_.set(key(fmt::format("alarm/{}", rank())), "end");  // wakes the listener
  } catch (const std::exception&) {                           // then it has woken by itself
  }
  listener_.join();
  if (failed_) abort_all();  // what was being made when the others were aborted
  // All begin to close before any is waited for: peers may close theirs in another order.
  for (const auto& comm : comms_) {
    if (comm->handle != nullptr) api_.comm_finalize(comm->handle);
  }
  const auto until = Clock::now() + std::min<std::chrono::milliseconds>(options_.timeout, 10s);
  std::vector<CommHandle> closed, stuck;
  for (const auto& comm : comms_) {
    if (comm->handle == nullptr) continue;
    Result result = kInProgress;
    while (api_.comm_get_async_error(comm->handle, &result) == kSuccess && result == kInProgress &&
           Clock::now() < until) {
      std::this_thread::sleep_for(1ms);
    }
    (result == kSuccess ? closed : stuck).push_back(comm->handle);
  }
  abort(stuck);  // first: memory of the others is freed, which waits for the device
  for (const CommHandle handle : closed) api_.comm_destroy(handle);
  for (auto& [stream, flights] : flights_) {
    for (const Flight& flight : flights) {
      events_.push_back(flight.start);
      events_.push_back(flight.end);
    }
  }
  for (const Event event : events_) streams_->destroy_event(event);
  for (void* memory : memory_) streams_->free(memory);
}

std::shared_ptr<Comm> State::begin_connect(const GroupName& name) {
  check();
  const auto comm = std::make_shared<Comm>();
  comm->name = name;
  const std::string own_key = fmt::format("{:016x}", name.key);
  const int leader = *std::min_element(name.ranks.begin(), name.ranks.end());
  store_.set(key(fmt::format("here/{}/{}", own_key, rank())), "here");
  UniqueId id = {};
  if (leader == rank()) {
    const Result result = api_.get_unique_id(&id);
    if (result != kSuccess) throw broken(*comm, nullptr, result);
    store_.set(key("id/" + own_key), to_hex(id));
  } else {
    const auto until = Clock::now() + options_.timeout;
    auto next = Clock::now() + 1s;
    std::optional<StoreValue> value;
    while (!(value = store_.watch(key("id/" + own_key), 0, 100ms))) {
      check();
      streams_->host_waits();
      if (Clock::now() >= next) {
        look_for_leavers();
        next = Clock::now() + 1s;
      }
      if (Clock::now() < until) continue;
      fail(missing_at(*comm));
      check();
    }
    id = from_hex(value->value);
  }
  const auto place = std::find(name.ranks.begin(), name.ranks.end(), rank());
  Config config;
  config.blocking = 0;
  if (name.messages) config.max_ctas = kNcclMessageChannels;
  if (name.numbers) config.max_ctas = kNcclNumbersChannels;
  Result result = kSuccess;
  {
    const std::scoped_lock lock(comm->mutex);
    result = api_.comm_init_rank_config(&comm->handle, static_cast<int>(name.ranks.size()), id,
                                        static_cast<int>(place - name.ranks.begin()), &config);
  }
  if (result != kSuccess && result != kInProgress) {
    fail(broken(*comm, comm->handle, result));
    check();
  }
  recorder_.add_group(name);
  const std::scoped_lock lock(mutex_);
  comms_.push_back(comm);
  return comm;
}

void State::finish_connect(Comm& comm) {
  const auto until = Clock::now() + options_.timeout;
  settle(comm, [&] {
    if (Clock::now() >= until) fail(missing_at(comm));
    look_for_leavers();
  });
}

Error State::peer_lost(std::string what) {
  return Error(Exit::run_failed, {.code = "comm.peer_lost",
                                  .what = std::move(what),
                                  .help = "look at the first failure; this one follows from it"});
}

// Those who never connected to us cannot tell us otherwise.
void State::look_for_leavers() {
  const std::string left = store_.compare_set(key("left"), "", "");
  if (!left.empty()) fail(peer_lost(fmt::format("rank {} has failed", left)));
}

// Until NCCL has done what it does in the background: of a communicator that does not block, all
// that an operation does on the host.
void State::settle(Comm& comm, const std::function<void()>& each_second) {
  const auto begun = Clock::now();
  auto next = Clock::now() + std::min<std::chrono::milliseconds>(1s, options_.timeout);
  for (;;) {
    check();
    Result result = kSuccess;
    CommHandle handle = nullptr;
    {
      const std::scoped_lock lock(comm.mutex);
      handle = comm.handle;
      if (handle != nullptr) {
        const Result asked = api_.comm_get_async_error(handle, &result);
        if (asked != kSuccess) result = asked;
      }
    }
    // Without a handle it is being aborted: the failure is there, or about to be.
    if (handle != nullptr && result == kSuccess) return;
    if (handle != nullptr && result != kInProgress) fail(broken(comm, handle, result));
    if (Clock::now() >= next) {
      each_second();
      next = Clock::now() + 1s;
    }
    streams_->host_waits();
    if (Clock::now() - begun < kSoon) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(100us);
    }
  }
}

void State::enqueue(Comm& comm, Stream stream, std::string what, int64_t bytes,
                    const std::function<Result(CommHandle)>& call) {
  check();
  Flight flight;
  {
    const std::scoped_lock lock(mutex_);
    flight.comm = *std::find_if(comms_.begin(), comms_.end(),
                                [&](const auto& other) { return other.get() == &comm; });
  }
  flight.start = take_event();
  flight.end = take_event();
  flight.sequence = ++comm.sequence;
  flight.slot = recorder_.enqueued(comm.name.key, flight.sequence, what, bytes);
  flight.what = std::move(what);
  streams_->record(flight.start, stream);
  Result result = kSuccess;
  CommHandle handle = nullptr;
  {
    const std::scoped_lock lock(comm.mutex);
    handle = comm.handle;
    if (handle != nullptr) result = call(handle);
  }
  if (handle == nullptr || result == kInProgress) {
    // The first operation makes connections; or the communicator was aborted, and this throws.
    const auto until = Clock::now() + options_.timeout;
    settle(comm, [&] {
      if (Clock::now() >= until) timed_out(flight);
    });
  } else if (result != kSuccess) {
    fail(broken(comm, handle, result));
    check();
  }
  streams_->record(flight.end, stream);
  {
    const std::scoped_lock lock(mutex_);
    flights_[stream].push_back(std::move(flight));
  }
  changed_.notify_all();
}

void State::wait(Event event) {
  for (int i = 0; !streams_->reached(event); ++i) {
    check();
    if (i < 1000) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(50us);
    }
  }
  check();  // an aborted operation ends too
}

void State::check() {
  if (!failed_) return;
  const std::scoped_lock lock(mutex_);
  throw Error(*failure_);
}

void State::fail(const Error& error) {
  if (failing_.exchange(true)) {
    while (!failed_) std::this_thread::sleep_for(100us);
    return;
  }
  Diagnostic diagnostic = error.diagnostics().front();
  const std::string file = write_dump(diagnostic.code + ": " + diagnostic.what);
  if (!file.empty()) diagnostic.notes.push_back("the last operations of this rank: " + file);
  {
    const std::scoped_lock lock(mutex_);
    failure_.emplace(error.exit(), diagnostic);
  }
  failed_ = true;
  abort_all();
}

void State::leave() {
  std::vector<int> peers;
  {
    const std::scoped_lock lock(mutex_);
    for (const auto& comm : comms_) {
      peers.insert(peers.end(), comm->name.ranks.begin(), comm->name.ranks.end());
    }
  }
  std::sort(peers.begin(), peers.end());
  peers.erase(std::unique(peers.begin(), peers.end()), peers.end());
  // Peers first: those of a node abort together.
  try {
    store_.set(key("left"), std::to_string(rank()));
    for (const int peer : peers) {
      if (peer != rank()) alarm(peer, "left");
    }
  } catch (const std::exception&) {  // the job's end has come first
  }
  fail(peer_lost(fmt::format("rank {} has left the job", rank())));
}

Event State::take_event() {
  {
    const std::scoped_lock lock(mutex_);
    if (!events_.empty()) {
      const Event event = events_.back();
      events_.pop_back();
      return event;
    }
  }
  return streams_->make_event();
}

void State::give_event(Event event) {
  const std::scoped_lock lock(mutex_);
  events_.push_back(event);
}

void* State::allocate(size_t bytes) {
  void* memory = streams_->allocate(std::max<size_t>(bytes, 1));
  const std::scoped_lock lock(mutex_);
  memory_.push_back(memory);
  return memory;
}

void State::abort_all() {
  std::vector<std::shared_ptr<Comm>> comms;
  {
    const std::scoped_lock lock(mutex_);
    comms = comms_;
  }
  std::vector<CommHandle> handles;
  for (const auto& comm : comms) {
    const std::scoped_lock lock(comm->mutex);
    if (comm->handle != nullptr) handles.push_back(std::exchange(comm->handle, nullptr));
  }
  abort(handles);
}

void State::abort(const std::vector<CommHandle>& handles) {
  if (handles.empty()) return;
  // Before, NCCL does it one by one, and may wait for ever.
  constexpr int kTogether = 22200;
  int version = 0;
  const bool together = api_.get_version(&version) == kSuccess && version >= kTogether;
  if (together) api_.group_start();
  for (const CommHandle handle : handles) api_.comm_abort(handle);
  if (together) api_.group_end();
}

std::string State::write_dump(const std::string& reason) {
  if (crash_dir_.empty()) return "";
  const auto file = crash_dir_ / fmt::format("nccl-rank-{}.jsonl", rank());
  try {
    make_directories(crash_dir_);
    write_file_atomic(file, to_json_lines(recorder_.dump(reason)));
    return file.string();
  } catch (const std::exception&) {  // the failure itself matters more
    return "";
  }
}

}  // namespace mtl::nccl
