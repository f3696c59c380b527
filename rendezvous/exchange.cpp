#include "rendezvous/exchange.h"

namespace mtl {

std::vector<std::string> exchange(Store& store, const std::string& key, int rank, int size,
                                  const std::string& value, std::chrono::milliseconds timeout) {
  const auto until = std::chrono::steady_clock::now() + timeout;
  store.set(key + "/" + std::to_string(rank), value);
  std::vector<std::string> all(static_cast<size_t>(size));
  for (int r = 0; r < size; ++r) {
    const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
        until - std::chrono::steady_clock::now());
    all[static_cast<size_t>(r)] = store.get(key + "/" + std::to_string(r), left);
  }
  return all;
}

}  // namespace mtl
