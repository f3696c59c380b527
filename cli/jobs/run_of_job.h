// The run that a person means by a word of mtl ps.
#pragma once

#include <string>

namespace mtl {

// `text` where it is the path of something or a name under runs/, or nothing that mtl ps knows;
// else the directory of the run of the newest job with this ID or name.
std::string run_of_job(const std::string& text);

}  // namespace mtl
