// Keys and values of a store.
#include "rendezvous/table.h"

#include <utility>

#include <fmt/format.h>

#include "common/error.h"
#include "common/text.h"

namespace mtl {

namespace {

using wire::Op;
using wire::Reply;
using wire::Request;
using wire::Status;

// More cannot meet in one frame of keys anyway.
constexpr int64_t kMaxParticipants = 1 << 20;

std::string barrier_channel(const std::string& name) {
  return "\x01" + name;
}
std::string exchange_channel(const std::string& name) {
  return "\x02" + name;
}
std::string key_of_rank(const std::string& name, size_t rank) {
  return name + "/" + std::to_string(rank);
}

Reply with_status(Status status) {
  Reply reply;
  reply.status = status;
  return reply;
}
Reply with_value(std::string value) {
  Reply reply;
  reply.value = std::move(value);
  return reply;
}
KeyTable::Outcome answer(Reply reply) {
  return {std::move(reply), {}};
}

}  // namespace

KeyTable::Outcome KeyTable::begin(Request& request, uint64_t call) {
  switch (request.op) {
    case Op::set:
      set(request.key, std::move(request.value));
      return answer({});
    case Op::add: {
      const auto sum = add(request.key, request.amount);
      Reply reply = with_status(sum ? Status::ok : Status::not_a_number);
      reply.number = sum.value_or(0);
      return answer(std::move(reply));
    }
    case Op::compare_set:
      return answer(with_value(compare_set(request.key, request.expected, request.value)));
    case Op::barrier: {
      Reply arrival = arrive(request, call);
      if (arrival.status != Status::ok) return answer(std::move(arrival));
      return retry(request, call);
    }
    case Op::exchange:
      if (request.size < 1 || request.size > kMaxParticipants || request.amount < 0 ||
          request.amount >= request.size) {
        return answer(with_status(Status::disagree));
      }
      set(key_of_rank(request.key, static_cast<size_t>(request.amount)), std::move(request.value));
      return retry(request, call);
    case Op::get:
    case Op::watch:
      return retry(request, call);
  }
  return answer(with_status(Status::disagree));
}

KeyTable::Outcome KeyTable::retry(const Request& request, uint64_t call) {
  switch (request.op) {
    case Op::get: {
      const std::string* value = find(request.key);
      return value != nullptr ? answer(with_value(*value)) : Outcome{std::nullopt, request.key};
    }
    case Op::watch: {
      const auto found = entries_.find(request.key);
      if (found == entries_.end() || found->second.version <= request.amount) {
        return {std::nullopt, request.key};
      }
      Reply reply = with_value(found->second.value);
      reply.number = found->second.version;
      return answer(std::move(reply));
    }
    case Op::barrier:
      if (released_.erase(call) > 0) return answer({});
      return {std::nullopt, barrier_channel(request.key)};
    case Op::exchange:
      return gather(request);
    default:
      return answer(with_status(Status::disagree));
  }
}

Reply KeyTable::give_up(const Request& request, uint64_t call) {
  Reply reply = with_status(Status::timeout);
  if (request.op == Op::barrier) {
    const auto found = barriers_.find(request.key);
    if (found != barriers_.end()) {
      reply.number = static_cast<int64_t>(found->second.arrived.size());
    }
  } else if (request.op == Op::exchange) {
    for (size_t rank = 0; rank < static_cast<size_t>(request.size); ++rank) {
      if (find(key_of_rank(request.key, rank)) == nullptr) {
        reply.values.push_back(std::to_string(rank));
      }
    }
  }
  forget(request, call);
  return reply;
}

void KeyTable::forget(const Request& request, uint64_t call) {
  if (request.op != Op::barrier) return;
  released_.erase(call);
  const auto found = barriers_.find(request.key);
  if (found == barriers_.end()) return;
  found->second.arrived.erase(call);
  if (found->second.arrived.empty()) barriers_.erase(found);
}

Reply KeyTable::arrive(const Request& request, uint64_t call) {
  if (request.amount < 1 || request.amount > kMaxParticipants) return with_status(Status::disagree);
  Barrier& barrier = barriers_[request.key];
  if (barrier.arrived.empty()) barrier.participants = request.amount;
  if (barrier.participants != request.amount) {
    Reply reply = with_status(Status::disagree);
    reply.number = barrier.participants;
    return reply;
  }
  barrier.arrived.insert(call);
  if (static_cast<int64_t>(barrier.arrived.size()) == barrier.participants) {
    released_.insert(barrier.arrived.begin(), barrier.arrived.end());
    barriers_.erase(request.key);
    changed_.push_back(barrier_channel(request.key));
  }
  return {};
}

// One look at all keys for the first who asks; from then on the gathering is told of each change.
KeyTable::Outcome KeyTable::gather(const Request& request) {
  const auto size = static_cast<size_t>(request.size);
  const auto [place, first] = gatherings_.try_emplace(request.key);
  Gathering& gathering = place->second;
  if (first) {
    gathering.here.resize(size);
    for (size_t rank = 0; rank < size; ++rank) {
      gathering.here[rank] = find(key_of_rank(request.key, rank)) != nullptr;
      gathering.lacking += gathering.here[rank] ? 0 : 1;
    }
  } else if (gathering.here.size() != size) {
    Reply reply = with_status(Status::disagree);
    reply.number = static_cast<int64_t>(gathering.here.size());
    return answer(std::move(reply));
  }
  if (gathering.lacking > 0) return {std::nullopt, exchange_channel(request.key)};
  Reply reply;
  size_t bytes = 0;
  for (size_t rank = 0; rank < size; ++rank) {
    reply.values.push_back(*find(key_of_rank(request.key, rank)));
    bytes += reply.values.back().size() + 4;
  }
  if (bytes > wire::kMaxFrame - 64) reply = with_status(Status::too_large);
  return answer(std::move(reply));
}

std::vector<std::string> KeyTable::take_changed() {
  return std::exchange(changed_, {});
}

// The key is there now.
void KeyTable::tell_gathering(const std::string& key) {
  if (gatherings_.empty()) return;
  const size_t slash = key.rfind('/');
  if (slash == key.npos) return;
  const auto found = gatherings_.find(key.substr(0, slash));
  if (found == gatherings_.end()) return;
  Gathering& gathering = found->second;
  const auto rank = to_number<uint64_t>(std::string_view(key).substr(slash + 1));
  if (!rank || *rank >= gathering.here.size() || key_of_rank(found->first, *rank) != key ||
      gathering.here[*rank]) {
    return;
  }
  gathering.here[*rank] = true;
  if (--gathering.lacking == 0) changed_.push_back(exchange_channel(found->first));
}

void KeyTable::set(const std::string& key, std::string value) {
  Entry& entry = entries_[key];
  entry.value = std::move(value);
  entry.version = ++version_;
  changed_.push_back(key);
  tell_gathering(key);
}

const std::string* KeyTable::find(const std::string& key) const {
  const auto found = entries_.find(key);
  return found == entries_.end() ? nullptr : &found->second.value;
}

std::optional<int64_t> KeyTable::add(const std::string& key, int64_t amount) {
  int64_t value = 0;
  if (const std::string* text = find(key)) {
    const auto before = to_number<int64_t>(*text);
    if (!before) return std::nullopt;
    value = *before;
  }
  if (__builtin_add_overflow(value, amount, &value)) return std::nullopt;
  set(key, std::to_string(value));
  return value;
}

std::string KeyTable::compare_set(const std::string& key, const std::string& expected,
                                  const std::string& desired) {
  const std::string* held = find(key);
  const std::string before = held != nullptr ? *held : std::string();
  if (before != expected) return before;
  set(key, desired);
  return desired;
}

void throw_get_timeout(const std::string& key, int64_t timeout_ms) {
  throw Error(Exit::timeout,
              {.code = "rendezvous.timeout",
               .what = fmt::format("nobody has set '{}' within {} s", key,
                                   static_cast<double>(timeout_ms) / 1000),
               .help = "another rank did not start or is stuck before this point; see its log"});
}

void throw_not_a_number(const std::string& key) {
  throw Error(Exit::run_failed,
              {.code = "rendezvous.not_a_number",
               .what = fmt::format("cannot add to '{}': it holds no integer, or the sum does not "
                                   "fit in 64 bits",
                                   key)});
}

}  // namespace mtl
