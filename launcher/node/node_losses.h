// What a node says that cannot join its job, or has lost the job's controller.
#pragma once

#include <string>

#include "common/error.h"
#include "rendezvous/link.h"

namespace mtl {

// The link never opened; `where`: what was dialled.
Error cannot_join(const LinkEvent& event, const std::string& where);
// The link was lost, and the ranks were ended.
Diagnostic launcher_lost(const LinkEvent& event);
// The keeper has killed the ranks because the lease had ended; `reason`: what the link says of it,
// if it says anything.
Diagnostic lease_is_over(const std::string& reason);

}  // namespace mtl
