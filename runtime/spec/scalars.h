// One word of YAML as a number, a choice or a text.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "runtime/spec/schema.h"

namespace mtl::spec {

// What is wrong with a value; without help it is "give <what the row expects>".
struct Problem {
  std::string code;
  std::string what;
  std::string help = {};
};

// In backquotes, on one line, shortened.
std::string quoted(const std::string& text);
// `1000000` and not `1e6`.
std::string number_text(double value);

// Each leaves `result` alone when it returns a problem; `name` is the key, for the message.
//
// A whole number in decimal: sign, digits with `_` between them, fraction, exponent, suffix (k, M,
// G, where allowed). Exact: what is written must be a whole number and fit 64 bits.
std::optional<Problem> read_integer(const std::string& name, const std::string& text, bool suffixes,
                                    int64_t& result);
// "90s", "30m", "12h", "1d", or 0, in seconds.
std::optional<Problem> read_duration(const std::string& name, const std::string& text,
                                     int64_t& seconds);
std::string duration_text(int64_t seconds);
std::optional<Problem> read_double(const std::string& name, const std::string& text,
                                   double& result);
// One of the row's choices.
std::optional<Problem> read_choice(const Row& row, const std::string& text, std::string& result);
// A choice if the row has any, else a text, path or name.
std::optional<Problem> read_text(const Row& row, const std::string& text, std::string& result);

bool in_range(const Row& row, double value);
// Not by way of double, which cannot tell 2^53 + 1 from 2^53. No integer has an open bound.
bool in_range(const Row& row, int64_t value);
Problem out_of_range(const Row& row, const std::string& text);
// Of a number, which may be out of the range only as it is rounded.
Problem out_of_range(const Row& row, const std::string& text, double value);

}  // namespace mtl::spec
