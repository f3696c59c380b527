// A group whose operations count as waiting for others in a rank's StepClock: all of an operation,
// since what of it is the work of moving and what is waiting only the transport could say, and
// ranks that do the same operations move the same.
#pragma once

#include <memory>

#include "runtime/comm/communicator.h"
#include "runtime/device/step_clock.h"

namespace mtl {

// `clock` outlives what is returned; null, or a group of one: `group` itself.
std::unique_ptr<Communicator> clocked(std::unique_ptr<Communicator> group, StepClock* clock);

}  // namespace mtl
