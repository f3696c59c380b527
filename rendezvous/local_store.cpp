// The store of one process: for tests and for ranks that are threads.
#include <algorithm>
#include <condition_variable>
#include <mutex>

#include "rendezvous/protocol.h"
#include "rendezvous/store.h"
#include "rendezvous/table.h"

namespace mtl {

namespace {

// A clock plus a day-long timeout never overflows, a clock plus milliseconds::max() does.
constexpr std::chrono::milliseconds kLongest = std::chrono::hours(24 * 365);

class LocalStore final : public Store {
 public:
  void set(const std::string& key, const std::string& value) override {
    wire::check_size(key, key.size() + value.size());
    {
      const std::lock_guard lock(mutex_);
      table_.set(key, value);
    }
    changed_.notify_all();
  }

  std::string get(const std::string& key, std::chrono::milliseconds timeout) override {
    std::unique_lock lock(mutex_);
    const std::string* value = nullptr;
    const auto deadline = std::chrono::steady_clock::now() + std::min(timeout, kLongest);
    changed_.wait_until(lock, deadline, [&] { return (value = table_.find(key)) != nullptr; });
    if (value == nullptr) throw_get_timeout(key, timeout.count());
    return *value;
  }

  int64_t add(const std::string& key, int64_t amount) override {
    std::optional<int64_t> sum;
    {
      const std::lock_guard lock(mutex_);
      sum = table_.add(key, amount);
    }
    if (!sum) throw_not_a_number(key);
    changed_.notify_all();
    return *sum;
  }

  std::string compare_set(const std::string& key, const std::string& expected,
                          const std::string& desired) override {
    wire::check_size(key, key.size() + expected.size() + desired.size());
    std::string value;
    {
      const std::lock_guard lock(mutex_);
      value = table_.compare_set(key, expected, desired);
    }
    changed_.notify_all();
    return value;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  KeyTable table_;
};

}  // namespace

std::unique_ptr<Store> make_local_store() {
  return std::make_unique<LocalStore>();
}

}  // namespace mtl
