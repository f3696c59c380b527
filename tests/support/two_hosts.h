// Stores through which a rank of one machine seems to be elsewhere: with TwoHosts they are on two
// machines, each with a kernel of its own.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

#include "rendezvous/store.h"
#include "runtime/comm/shm/host.h"

namespace mtl::test {

// Says `other` in place of `own`, wherever this rank says it.
class StoreOfAnother : public Store {
 public:
  StoreOfAnother(Store& store, std::string own, std::string other)
      : store_(store), own_(std::move(own)), other_(std::move(other)) {}
  void set(const std::string& key, const std::string& value) override {
    std::string changed = value;
    const size_t place = changed.find(own_);
    if (place != std::string::npos) changed.replace(place, own_.size(), other_);
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
  const std::string own_, other_;
};

class TwoHosts final : public StoreOfAnother {
 public:
  TwoHosts(Store& store, bool second)
      : StoreOfAnother(store, shm::Identity::own().boot,
                       second ? "another-boot" : shm::Identity::own().boot) {}
};

}  // namespace mtl::test
