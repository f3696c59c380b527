// The keys of a store and what the operations do to them; the local store and the server share it,
// so that they cannot differ. No sockets, no clock of its own, not thread-safe.
//
// An operation that cannot be answered yet waits for a channel (a key, a barrier, an exchange).
// When a channel has changed (take_changed()), those who wait for it are tried again.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "rendezvous/protocol.h"

namespace mtl {

class KeyTable {
 public:
  struct Outcome {
    std::optional<wire::Reply> reply;
    std::string channel;  // to wait for, without a reply
  };
  // `call` tells one operation from all others.
  Outcome begin(wire::Request& request, uint64_t call);
  // After a change of its channel.
  Outcome retry(const wire::Request& request, uint64_t call);
  // Its time is over.
  wire::Reply give_up(const wire::Request& request, uint64_t call);
  // The caller is gone and wants no answer.
  void forget(const wire::Request& request, uint64_t call);

  std::vector<std::string> take_changed();

  void set(const std::string& key, std::string value);
  // Null if absent; valid until the next change.
  const std::string* find(const std::string& key) const;
  // Nothing if the key holds no integer, or the sum leaves 64 bits (the key is unchanged).
  std::optional<int64_t> add(const std::string& key, int64_t amount);
  std::string compare_set(const std::string& key, const std::string& expected,
                          const std::string& desired);

 private:
  struct Entry {
    std::string value;
    int64_t version = 0;  // of the last change, in the order of all changes
  };
  struct Barrier {
    int64_t participants = 0;
    std::set<uint64_t> arrived;  // calls
  };
  // An exchange under way: which of the keys NAME/0 ... are there.
  struct Gathering {
    std::vector<bool> here;
    size_t lacking = 0;
  };
  wire::Reply arrive(const wire::Request& request, uint64_t call);
  Outcome gather(const wire::Request& request);
  void tell_gathering(const std::string& key);

  std::unordered_map<std::string, Entry> entries_;
  int64_t version_ = 0;
  std::unordered_map<std::string, Barrier> barriers_;
  std::unordered_set<uint64_t> released_;  // calls whose barrier is complete
  std::unordered_map<std::string, Gathering> gatherings_;
  std::vector<std::string> changed_;
};

// The errors that both kinds of store report alike.
[[noreturn]] void throw_get_timeout(const std::string& key, int64_t timeout_ms);
[[noreturn]] void throw_not_a_number(const std::string& key);

}  // namespace mtl
