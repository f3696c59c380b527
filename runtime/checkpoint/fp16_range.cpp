#include "runtime/checkpoint/fp16_range.h"

#include <fmt/format.h>

#include "common/error.h"

namespace mtl {

void fail_beyond_fp16(const std::string& tensor, float value) {
  fail_data("ckpt.range",
            fmt::format("'{}' has a weight of {}, and the largest number of fp16 is 65504", tensor,
                        value),
            "use --dtype bf16 or fp32, which hold it");
}

}  // namespace mtl
