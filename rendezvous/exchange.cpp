#include "rendezvous/exchange.h"

namespace mtl {

std::vector<std::string> exchange(Store& store, const std::string& key, int rank, int size,
                                  const std::string& value, std::chrono::milliseconds timeout) {
  return store.exchange(key, rank, size, value, timeout);
}

}  // namespace mtl
