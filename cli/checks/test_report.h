// What `mtl test` says: a line for each stage that passed, what is odd about it, and the verdict.
#pragma once

#include <span>
#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "common/error.h"

namespace mtl {

// What the ranks found, as runtime/selftest.h says it.
using TestRecord = nlohmann::ordered_json;

struct TestHost {
  std::string name;
  int first_rank = 0;
  int ranks = 0;
};
// From the record of "spawn": hosts in order of their first rank.
std::vector<TestHost> hosts_of(const TestRecord& spawn);
// "4 ranks on 2 hosts (m1 2, m2 2)".
std::string ranks_words(const std::vector<TestHost>& hosts);

// What a stage that passed has found, in one or more lines. Adds what is odd to `warnings`:
// "selftest.slow_host", "selftest.clock".
std::string stage_words(const TestRecord& record, const std::vector<TestHost>& hosts,
                        std::vector<Diagnostic>& warnings);

// Which of some times are more than twice the median; of fewer than three, none.
std::vector<size_t> slow_ones(std::span<const double> times);

// "ok  network      text                0.16 s", further lines below the first.
std::string stage_row(const std::string& mark, const std::string& name, const std::string& text,
                      double seconds, int columns);

}  // namespace mtl
