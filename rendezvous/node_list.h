// SLURM's way of writing many host names: gpu[001-003,007],dgx-[1-2], rack[1-2]n[01-04], and its
// way of counting: tasks per node as 8(x3),4. The one expansion of brackets: --hosts and hostfiles
// use it too.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/error.h"

namespace mtl {

// In the order written, duplicates kept, as `scontrol show hostnames` prints them. Numbers keep
// their leading zeros; several brackets in one name multiply, in SLURM's order, so that the nodes
// have the ranks that SLURM gives them: the last one runs fastest, then the first, the second ...
// Names are separated by commas or white space. Beyond SLURM's own, text may follow a bracket
// (n[1-2]-ib). Anything that is no such list, names nothing, or more than 65,536 names: nothing,
// and what is wrong and where goes to `diagnostics` (code nodes.syntax).
std::vector<std::string> expand_node_list(std::string_view text, Diagnostics& diagnostics);

// One name of such a list, "rack[1-2]n[01-04]", added to `names`. False with `problem` in words.
bool expand_brackets(std::string_view text, std::vector<std::string>& names, std::string& problem);

// "8(x3),4" -> 8 8 8 4. Nothing for anything else.
std::vector<int> expand_counts(std::string_view text);

}  // namespace mtl
