#include "launcher/config/shell_arithmetic.h"

#include <map>

#include <doctest/doctest.h>

using namespace mtl;

TEST_CASE("a shell's arithmetic, and what it has no value for") {
  const std::map<std::string, std::string> set = {{"GPUS", "8"}, {"NODES", "4"}, {"NAME", "x"}};
  const auto value = [&](const std::string& expression) {
    return shell_arithmetic(expression, [&](const std::string& name) {
      const auto found = set.find(name);
      return found == set.end() ? std::string() : found->second;
    });
  };
  CHECK(value("2*512") == 1024);
  CHECK(value(" $GPUS * ${NODES} ") == 32);
  CHECK(value("GPUS+NODES*2") == 16);
  CHECK(value("(GPUS+NODES)*2") == 24);
  CHECK(value("7 / 2 - -1") == 4);
  CHECK(value("17 % 5") == 2);
  for (const char* none : {"", "UNSET", "NAME", "1/0", "GPUS %", "(1", "1)", "2 3", "a=1", "1<<3",
                           "9223372036854775807+1", "9223372036854775807*2", "010", "$"}) {
    CAPTURE(none);
    CHECK_FALSE(value(none).has_value());
  }
  CHECK_FALSE(value(std::string(2'000'000, '(')).has_value());
  CHECK_FALSE(value(std::string(2'000'000, '-') + "1").has_value());
}
