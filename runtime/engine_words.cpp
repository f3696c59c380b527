#include "runtime/engine_words.h"

#include <optional>

#include "runtime/comm/world.h"
#include "runtime/device/cpu/isa_word.h"
#include "runtime/device/make_device.h"

namespace mtl {

std::vector<Error> wrong_engine_words(
    const std::function<std::string(const std::string& name)>& variable) {
  std::vector<Error> wrong;
  for (const std::optional<Error>& error :
       {wrong_device_name(variable("MTL_DEVICE")), wrong_cpu_isa(variable("MTL_CPU_ISA")),
        wrong_transport(variable("MTL_COMM"))}) {
    if (error) wrong.push_back(*error);
  }
  return wrong;
}

}  // namespace mtl
