// The two threads of a rank that look after its communicators: one sees operations that do not end
// and communicators that break, the other hears what peers say of theirs. Together they find out
// whom a rank has waited for.
#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "runtime/comm/nccl/nccl_state.h"
#include "runtime/comm/operation.h"

namespace mtl::nccl {

namespace {

using namespace std::chrono_literals;

constexpr auto kWatchEvery = 20ms;
constexpr auto kListenFor = std::chrono::minutes(10);  // then the question is put again
constexpr auto kAnswerPatience = 5s;
constexpr size_t kEntriesTold = 256;

double seconds(std::chrono::milliseconds time) {
  return static_cast<double>(time.count()) / 1000;
}

}  // namespace

void State::watch() {
  try {
    streams_->enter_thread();
    for (;;) {
      {
        std::unique_lock lock(mutex_);
        // With nothing under way NCCL still tells of peers that are gone, but there is no hurry.
        const bool idle = std::all_of(flights_.begin(), flights_.end(),
                                      [](const auto& entry) { return entry.second.empty(); });
        changed_.wait_for(lock, idle ? 10 * kWatchEvery : kWatchEvery, [&] { return stopping_; });
        if (stopping_ || failed_) return;
      }
      look_at_flights();
      look_at_comms();
    }
  } catch (const Error& error) {
    fail(error);
  } catch (const std::exception& error) {
    fail(Error(Exit::run_failed,
               {.code = "comm.nccl",
                .what = fmt::format("communication cannot be watched: {}", error.what())}));
  }
}

void State::look_at_flights() {
  std::optional<Flight> late;
  {
    const std::scoped_lock lock(mutex_);
    for (auto& [stream, flights] : flights_) {
      while (!flights.empty()) {
        Flight& flight = flights.front();
        const uint64_t group = flight.comm->name.key;
        if (!flight.started && streams_->reached(flight.start)) {
          flight.started = Clock::now();
          recorder_.started(flight.slot, group, flight.sequence);
        }
        if (!flight.started) break;
        if (!streams_->reached(flight.end)) {
          if (Clock::now() - *flight.started > options_.timeout) late = flight;
          break;
        }
        recorder_.finished(flight.slot, group, flight.sequence);
        events_.push_back(flight.start);
        events_.push_back(flight.end);
        flights.pop_front();
      }
    }
  }
  if (late) timed_out(*late);
}

void State::look_at_comms() {
  std::vector<std::shared_ptr<Comm>> comms;
  {
    const std::scoped_lock lock(mutex_);
    comms = comms_;
  }
  for (const auto& comm : comms) {
    std::optional<Error> error;
    {
      const std::scoped_lock lock(comm->mutex);
      if (comm->handle == nullptr) continue;
      Result result = kSuccess;
      const Result asked = api_.comm_get_async_error(comm->handle, &result);
      if (asked != kSuccess) result = asked;
      if (result != kSuccess && result != kInProgress) error = broken(*comm, comm->handle, result);
    }
    if (error) return fail(*error);
  }
}

void State::timed_out(const Flight& flight) {
  asking_ = true;
  const GroupName& group = flight.comm->name;
  publish_flight();
  for (const int peer : group.ranks) {
    if (peer != rank()) alarm(peer, "timeout");
  }
  std::vector<FlightDump> dumps = {recorder_.dump("")};
  const auto until =
      Clock::now() + std::min<std::chrono::milliseconds>(kAnswerPatience, options_.timeout * 4);
  for (const int peer : group.ranks) {
    if (peer == rank()) continue;
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(until - Clock::now());
    try {
      const std::string text = store_.get(key(fmt::format("flight/{}", peer)), std::max(left, 1ms));
      if (auto dump = parse_flight(text)) dumps.push_back(std::move(*dump));
    } catch (const std::exception&) {  // silent
    }
  }
  const Stalled stalled = why_stalled(group, flight.sequence, dumps);
  const bool differ = !stalled.different.empty();
  Diagnostic diagnostic;
  diagnostic.code = differ ? "comm.mismatch" : "comm.timeout";
  diagnostic.what =
      fmt::format("operation {} of {}, {}, has not ended within {} s: {}", flight.sequence,
                  words_of(group), flight.what, seconds(options_.timeout),
                  stalled.words.empty() ? "all its ranks have come to it"
                                        : fmt::format("{}", fmt::join(stalled.words, ", ")));
  diagnostic.help =
      differ ? "all ranks must run the same program with the same configuration"
      : stalled.words.empty()
          ? "look at the network between these ranks (NCCL_DEBUG=INFO tells what NCCL uses)"
          : "the logs of the ranks that are named say what they were doing";
  fail(Error(differ ? Exit::run_failed : Exit::timeout, diagnostic));
}

void State::publish_flight() {
  try {
    store_.set(key(fmt::format("flight/{}", rank())),
               to_json_lines(recorder_.dump(""), kEntriesTold));
  } catch (const std::exception&) {  // nobody will ask, then
  }
}

void State::alarm(int peer, const char* why) {
  try {
    store_.set(key(fmt::format("alarm/{}", peer)),
               nlohmann::json({{"by", rank()}, {"why", why}}).dump());
  } catch (const std::exception&) {
  }
}

void State::listen() {
  int64_t version = 0;
  try {
    streams_->enter_thread();
    for (;;) {
      const auto value = store_.watch(key(fmt::format("alarm/{}", rank())), version, kListenFor);
      {
        const std::scoped_lock lock(mutex_);
        if (stopping_) return;
      }
      if (!value) continue;
      version = value->version;
      const nlohmann::json json = nlohmann::json::parse(value->value, nullptr, false);
      if (!json.is_object()) continue;
      const int by = json.value("by", -1);
      if (json.value("why", "") != "timeout") {
        return fail(peer_lost(fmt::format("rank {} has failed", by)));
      }
      publish_flight();
      // Two that wait for a third both say so.
      if (asking_) continue;
      return fail(peer_lost(fmt::format("rank {} has waited too long for others", by)));
    }
  } catch (const std::exception&) {  // without the store nobody can call us
  }
}

Error State::broken(const Comm& comm, CommHandle handle, Result result) const {
  const char* last = api_.get_last_error(handle);
  std::string what =
      fmt::format("NCCL reports for {}: {}", words_of(comm.name), api_.get_error_string(result));
  if (last != nullptr && *last != '\0') what += fmt::format(" ({})", last);
  if (result == kRemoteError) return peer_lost(std::move(what));
  // It has no result of its own for memory, only words: CUDA's, or of its allocator's last line.
  const std::string words = last != nullptr ? last : "";
  if (result == kUnhandledCudaError && (words.find("out of memory") != std::string::npos ||
                                        words.find("Failed to CUDA calloc") != std::string::npos)) {
    return Error(Exit::out_of_memory,
                 {.code = "device.out_of_memory",
                  .what = std::move(what),
                  .help = "NCCL needs memory of the GPU beside the plan's: use a smaller "
                          "micro-batch or sequence, or give NCCL less (NCCL_MAX_CTAS, "
                          "NCCL_BUFFSIZE); where nvidia-smi shows memory that is free, the GPU "
                          "itself has failed (dmesg)"});
  }
  return Error(Exit::run_failed,
               {.code = "comm.nccl",
                .what = std::move(what),
                .help = "NCCL_DEBUG=INFO tells more (start the run with it in the environment)"});
}

Error State::missing_at(const Comm& comm) {
  std::vector<int> missing;
  for (const int member : comm.name.ranks) {
    const std::string there = key(fmt::format("here/{:016x}/{}", comm.name.key, member));
    if (store_.compare_set(there, "", "").empty()) missing.push_back(member);
  }
  return Error(
      Exit::timeout,
      {.code = "comm.timeout",
       .what = fmt::format("rank {} has waited {} s for {} to connect: {}", rank(),
                           seconds(options_.timeout), words_of(comm.name),
                           missing.empty() ? "all are there, but NCCL has not connected them"
                                           : fmt::format("missing: {}", fmt::join(missing, ", "))),
       .help = missing.empty()
                   ? "look at the network between them (NCCL_DEBUG=INFO; NCCL_SOCKET_IFNAME names "
                     "the interface)"
                   : "the logs of the ranks that are missing say what they were doing"});
}

}  // namespace mtl::nccl
