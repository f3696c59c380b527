// The store of one process: for tests and for ranks that are threads.
#include <condition_variable>
#include <mutex>

#include "rendezvous/request_store.h"
#include "rendezvous/table.h"

namespace mtl {

namespace {

class LocalStore final : public RequestStore {
 protected:
  wire::Reply call(wire::Request& request) override {
    std::unique_lock lock(mutex_);
    const uint64_t id = ++calls_;
    const auto deadline =
        std::chrono::steady_clock::now() + std::chrono::milliseconds(request.timeout_ms);
    KeyTable::Outcome outcome = table_.begin(request, id);
    for (;;) {
      if (!table_.take_changed().empty()) changed_.notify_all();
      if (outcome.reply) return std::move(*outcome.reply);
      changed_.wait_until(lock, deadline);
      outcome = table_.retry(request, id);
      if (!outcome.reply && std::chrono::steady_clock::now() >= deadline) {
        outcome.reply = table_.give_up(request, id);
      }
    }
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  KeyTable table_;
  uint64_t calls_ = 0;
};

}  // namespace

std::unique_ptr<Store> make_local_store() {
  return std::make_unique<LocalStore>();
}

}  // namespace mtl
