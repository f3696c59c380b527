// libFuzzer: what torch.save writes, as a zip archive and as the pickle in it. Whatever the bytes,
// they are refused with an Error, or every value that is named is there.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "common/error.h"
#include "runtime/interchange/torch_file.h"
#include "runtime/interchange/torch_pickle.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  try {
    const mtl::Pickle pickle(bytes, "fuzz");
    // Ids grow, and lead only to values that are there.
    for (mtl::Pickle::Id id = 0; id <= pickle.root(); ++id) {
      for (const mtl::Pickle::Id item : pickle[id].items) {
        if (pickle[item].kind > mtl::Pickle::Kind::persistent) std::abort();
      }
      const std::string_view text = pickle[id].text;
      if (!text.empty() &&
          (text.data() < bytes.data() || text.data() + text.size() > bytes.data() + bytes.size())) {
        std::abort();
      }
      pickle.global_name(id);
      pickle.find(pickle[id], "model");
    }
  } catch (const mtl::Error&) {
  }
  try {
    for (const auto& [name, entry] : mtl::zip_entries(bytes, "fuzz")) {
      if (entry.begin < 0 || entry.bytes < 0 ||
          entry.bytes > static_cast<int64_t>(size) - entry.begin) {
        std::abort();
      }
    }
  } catch (const mtl::Error&) {
  }
  return 0;
}
