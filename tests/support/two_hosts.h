// A store through which ranks of one machine seem to be on two, each with a kernel of its own.
#pragma once

#include <string>

#include "rendezvous/store.h"
#include "runtime/comm/shm/host.h"

namespace mtl::test {

class TwoHosts final : public Store {
 public:
  TwoHosts(Store& store, bool second) : store_(store), second_(second) {}
  void set(const std::string& key, const std::string& value) override {
    const std::string boot = shm::Identity::own().boot;
    std::string changed = value;
    const size_t place = changed.find(boot);
    if (second_ && place != std::string::npos) changed.replace(place, boot.size(), "another-boot");
    store_.set(key, changed);
  }
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override {
    return store_.get(key, timeout);
  }
  int64_t add(const std::string& key, int64_t n) override { return store_.add(key, n); }
  std::string compare_set(const std::string& key, const std::string& expected,
                          const std::string& desired) override {
    return store_.compare_set(key, expected, desired);
  }

 private:
  Store& store_;
  const bool second_;
};

}  // namespace mtl::test
