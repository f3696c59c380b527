// Requests out of calls, values and errors out of replies.
#include "rendezvous/request_store.h"

#include <algorithm>
#include <stdexcept>

#include <fmt/format.h>

#include "common/error.h"
#include "common/text.h"
#include "rendezvous/longest_wait.h"
#include "rendezvous/table.h"

namespace mtl {

namespace {

using std::chrono::milliseconds;
using wire::Op;
using wire::Reply;
using wire::Request;
using wire::Status;

Request request_of(Op op, const std::string& key, milliseconds timeout = milliseconds(0)) {
  Request request;
  request.op = op;
  request.key = key;
  request.timeout_ms = std::clamp(timeout, milliseconds(0), kLongestWait).count();
  return request;
}

double seconds(milliseconds time) {
  return static_cast<double>(time.count()) / 1000;
}

[[noreturn]] void throw_timeout(const std::string& what) {
  throw Error(Exit::timeout,
              {.code = "rendezvous.timeout",
               .what = what,
               .help = "another rank did not start or is stuck before this point; see its log"});
}

[[noreturn]] void throw_disagree(const std::string& name, int64_t ours, int64_t theirs) {
  throw Error(Exit::run_failed,
              {.code = "rendezvous.disagree",
               .what = theirs > 0 ? fmt::format("the participants of '{}' disagree on how many "
                                                "they are: {} here, {} elsewhere",
                                                name, ours, theirs)
                                  : fmt::format("'{}' cannot have {} participants", name, ours),
               .help = "all of them must come from the same run, with the same world size"});
}

[[noreturn]] void throw_missing_ranks(const std::string& key, const std::vector<std::string>& ranks,
                                      int size, milliseconds timeout) {
  throw_timeout(fmt::format("{} {} of {} {} given '{}' within {} s",
                            ranks.size() == 1 ? "rank" : "ranks", some_of(ranks), size,
                            ranks.size() == 1 ? "has not" : "have not", key, seconds(timeout)));
}

}  // namespace

// Stores that only know the four basic operations (in tests, around another store).

std::optional<StoreValue> Store::watch(const std::string&, int64_t, milliseconds) {
  throw std::logic_error("this store has no watch");
}

void Store::barrier(const std::string&, int, milliseconds) {
  throw std::logic_error("this store has no barrier");
}

std::vector<std::string> Store::exchange(const std::string& key, int rank, int size,
                                         const std::string& value, milliseconds timeout) {
  const auto until = std::chrono::steady_clock::now() + std::min(timeout, kLongestWait);
  const auto key_of = [&](int r) { return key + "/" + std::to_string(r); };
  set(key_of(rank), value);
  std::vector<std::string> all, missing;
  for (int r = 0; r < size; ++r) {
    const auto left =
        std::chrono::duration_cast<milliseconds>(until - std::chrono::steady_clock::now());
    try {
      all.push_back(get(key_of(r), std::max(left, milliseconds(0))));
    } catch (const Error& error) {
      if (error.exit() != Exit::timeout) throw;
      missing.push_back(std::to_string(r));
    }
  }
  if (!missing.empty()) throw_missing_ranks(key, missing, size, timeout);
  return all;
}

void RequestStore::set(const std::string& key, const std::string& value) {
  wire::check_size(key, key.size() + value.size());
  Request request = request_of(Op::set, key);
  request.value = value;
  call(request);
}

std::string RequestStore::get(const std::string& key, milliseconds timeout) {
  wire::check_size(key, key.size());
  Request request = request_of(Op::get, key, timeout);
  Reply reply = call(request);
  if (reply.status == Status::timeout) throw_get_timeout(key, timeout.count());
  return std::move(reply.value);
}

int64_t RequestStore::add(const std::string& key, int64_t amount) {
  wire::check_size(key, key.size());
  Request request = request_of(Op::add, key);
  request.amount = amount;
  const Reply reply = call(request);
  if (reply.status == Status::not_a_number) throw_not_a_number(key);
  return reply.number;
}

std::string RequestStore::compare_set(const std::string& key, const std::string& expected,
                                      const std::string& desired) {
  wire::check_size(key, key.size() + expected.size() + desired.size());
  Request request = request_of(Op::compare_set, key);
  request.expected = expected;
  request.value = desired;
  return call(request).value;
}

std::optional<StoreValue> RequestStore::watch(const std::string& key, int64_t since,
                                              milliseconds timeout) {
  wire::check_size(key, key.size());
  Request request = request_of(Op::watch, key, timeout);
  request.amount = since;
  Reply reply = call(request);
  if (reply.status == Status::timeout) return std::nullopt;
  return StoreValue{.value = std::move(reply.value), .version = reply.number};
}

void RequestStore::barrier(const std::string& name, int participants, milliseconds timeout) {
  wire::check_size(name, name.size());
  Request request = request_of(Op::barrier, name, timeout);
  request.amount = participants;
  const Reply reply = call(request);
  if (reply.status == Status::disagree) throw_disagree(name, participants, reply.number);
  if (reply.status != Status::timeout) return;
  throw_timeout(fmt::format("only {} of {} have come to the barrier '{}' within {} s", reply.number,
                            participants, name, seconds(timeout)));
}

std::vector<std::string> RequestStore::exchange(const std::string& key, int rank, int size,
                                                const std::string& value, milliseconds timeout) {
  wire::check_size(key, key.size() + value.size());
  Request request = request_of(Op::exchange, key, timeout);
  request.amount = rank;
  request.size = size;
  request.value = value;
  Reply reply = call(request);
  switch (reply.status) {
    case Status::timeout:
      throw_missing_ranks(key, reply.values, size, timeout);
    case Status::disagree:
      throw_disagree(key, size, reply.number);
    case Status::too_large:
      wire::check_size(key, SIZE_MAX);
      break;
    default:
      break;
  }
  return std::move(reply.values);
}

}  // namespace mtl
