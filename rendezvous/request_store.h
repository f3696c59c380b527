// A store whose operations are the protocol's requests, wherever they are carried out: what a
// request looks like and what a reply means is the same for the local store and the TCP client.
#pragma once

#include "rendezvous/protocol.h"
#include "rendezvous/store.h"

namespace mtl {

class RequestStore : public Store {
 public:
  void set(const std::string& key, const std::string& value) override;
  std::string get(const std::string& key, std::chrono::milliseconds timeout) override;
  int64_t add(const std::string& key, int64_t amount) override;
  std::string compare_set(const std::string& key, const std::string& expected,
                          const std::string& desired) override;
  std::optional<StoreValue> watch(const std::string& key, int64_t since,
                                  std::chrono::milliseconds timeout) override;
  void barrier(const std::string& name, int participants,
               std::chrono::milliseconds timeout) override;
  std::vector<std::string> exchange(const std::string& key, int rank, int size,
                                    const std::string& value,
                                    std::chrono::milliseconds timeout) override;

 protected:
  // Carries it out, waiting for up to its timeout_ms; may take the request's strings.
  virtual wire::Reply call(wire::Request& request) = 0;
};

}  // namespace mtl
