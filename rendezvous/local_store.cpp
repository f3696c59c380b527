// The store of one process: for tests and for ranks that are threads.
#include <algorithm>
#include <condition_variable>
#include <mutex>

#include "rendezvous/request_store.h"
#include "rendezvous/table.h"

namespace mtl {

namespace {

// The table, with those who wait for it.
class SharedTable {
 public:
  uint64_t new_holder() {
    const std::lock_guard lock(mutex_);
    return ++holders_;
  }

  wire::Reply call(wire::Request& request, uint64_t holder) {
    std::unique_lock lock(mutex_);
    const auto now = std::chrono::steady_clock::now();
    const KeyTable::Caller caller = {.call = ++calls_, .holder = holder};
    const auto deadline = now + std::chrono::milliseconds(request.timeout_ms);
    KeyTable::Outcome outcome = table_.begin(request, caller, now);
    for (;;) {
      if (!table_.take_changed().empty()) changed_.notify_all();
      if (outcome.reply) return std::move(*outcome.reply);
      // A lease that ends is a change without a caller.
      const auto until = std::min(deadline, table_.next_expiry().value_or(deadline));
      changed_.wait_until(lock, until);
      table_.expire(std::chrono::steady_clock::now());
      outcome = table_.retry(request, caller);
      if (!outcome.reply && std::chrono::steady_clock::now() >= deadline) {
        outcome.reply = table_.give_up(request, caller);
      }
    }
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  KeyTable table_;
  uint64_t calls_ = 0, holders_ = 0;
};

class LocalLease final : public StoreLease {
 public:
  LocalLease(std::shared_ptr<SharedTable> table, uint64_t holder, wire::Request request)
      : table_(std::move(table)), holder_(holder), request_(std::move(request)) {}
  ~LocalLease() override { call(wire::Op::release); }
  bool renew() override { return call(wire::Op::renew).status == wire::Status::ok; }

 private:
  wire::Reply call(wire::Op op) {
    wire::Request request = request_;
    request.op = op;
    return table_->call(request, holder_);
  }
  const std::shared_ptr<SharedTable> table_;
  const uint64_t holder_;
  const wire::Request request_;
};

class LocalStore final : public RequestStore {
 public:
  std::unique_ptr<StoreLease> lease(const std::string& key, const std::string& value,
                                    std::chrono::milliseconds duration) override {
    wire::Request request = lease_request(key, value, duration);
    const uint64_t holder = table_->new_holder();
    if (table_->call(request, holder).status != wire::Status::ok) return nullptr;
    return std::make_unique<LocalLease>(table_, holder, std::move(request));
  }

 protected:
  wire::Reply call(wire::Request& request) override { return table_->call(request, 0); }

 private:
  const std::shared_ptr<SharedTable> table_ = std::make_shared<SharedTable>();
};

}  // namespace

std::unique_ptr<Store> make_local_store() {
  return std::make_unique<LocalStore>();
}

}  // namespace mtl
