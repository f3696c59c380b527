// The store: a small key-value service for the start of a job (who is where, unique ids; barriers,
// everybody's value to everybody). A key that was set stays. Every client proves the run's token
// first (HMAC-SHA256 challenge, both ways); keys of another generation are never seen. A Store may
// be used by several threads at once.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace mtl {

// What a key holds. The version grows with every change of it and is never 0.
struct StoreValue {
  std::string value;
  int64_t version = 0;
};

class Store {
 public:
  virtual ~Store() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  // Waits until the key exists. Throws Error "rendezvous.timeout" (Exit::timeout) naming the key.
  // (Any call on a TCP store throws "rendezvous.lost", Exit::run_failed, if the server goes away.)
  virtual std::string get(const std::string& key, std::chrono::milliseconds timeout) = 0;
  // Adds to an integer key (missing = 0), returns the new value; get() reads it as decimal text.
  // Throws "rendezvous.not_a_number" if the key holds something else.
  virtual int64_t add(const std::string& key, int64_t amount) = 0;
  // Sets `key` to `desired` if it holds `expected` ("" = absent); returns the value afterwards
  // ("" = still absent).
  virtual std::string compare_set(const std::string& key, const std::string& expected,
                                  const std::string& desired) = 0;

  // Waits until the key has a later version than `since`; nothing if that does not happen in time.
  virtual std::optional<StoreValue> watch(const std::string& key, int64_t since,
                                          std::chrono::milliseconds timeout);
  // Waits until `participants` callers have come; then the barrier may be used again. Throws
  // "rendezvous.timeout" (who gave up does not count as having come), "rendezvous.disagree"
  // (Exit::run_failed) if another caller named another number.
  virtual void barrier(const std::string& name, int participants,
                       std::chrono::milliseconds timeout);
  // Gives `value` as the one of `rank` (the key KEY/RANK) and returns the values of all `size`
  // ranks, in one round trip. A key serves one exchange. Throws "rendezvous.timeout" naming the
  // ranks that have not come, "rendezvous.disagree" if another caller named another size.
  virtual std::vector<std::string> exchange(const std::string& key, int rank, int size,
                                            const std::string& value,
                                            std::chrono::milliseconds timeout);
};

// In this process (tests, thread ranks).
std::unique_ptr<Store> make_local_store();

struct StoreServerOptions {
  std::string address = "127.0.0.1";  // IPv4, IPv6 ("::" serves both) or a name of this host
  uint16_t port = 0;                  // 0 = a free one
  std::string token;                  // the run's secret; required
  int64_t generation = 0;
  std::chrono::milliseconds auth_timeout{5'000};  // for a connection to prove the token
};
class StoreServer {
 public:
  virtual ~StoreServer() = default;
  virtual uint16_t port() const = 0;
};
// Serves in a background thread until destroyed. Throws Error "rendezvous.port" (Exit::environment)
// if the port is taken.
std::unique_ptr<StoreServer> serve_store(const StoreServerOptions& options);

struct StoreClientOptions {
  std::string address;
  uint16_t port = 0;
  std::string token;
  int64_t generation = 0;
  std::chrono::milliseconds connect_timeout{30'000};
};
// Throws Error "rendezvous.connect" (nobody answers in time), "rendezvous.auth" (the tokens differ)
// or "rendezvous.generation" (the server belongs to another one), all Exit::environment.
std::unique_ptr<Store> connect_store(const StoreClientOptions& options);

// 256 random bits, hex.
std::string make_token();

}  // namespace mtl
