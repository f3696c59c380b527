// The communicator of a group of one: every collective is already done.
#pragma once

#include <memory>

#include "runtime/comm/communicator.h"

namespace mtl {

std::unique_ptr<Communicator> make_self_communicator();

}  // namespace mtl
