// The words behind a command's name.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace mtl {

struct CommandDescription;

struct Arguments : std::vector<std::string> {
  using std::vector<std::string>::vector;
  Arguments(std::vector<std::string> words, CommandDescription* asked = nullptr)
      : std::vector<std::string>(std::move(words)), description(asked) {}

  // Those behind the first one: a member's of a group.
  Arguments behind_first() const { return Arguments({begin() + 1, end()}, description); }

  // Where --help leaves what it would have printed; nullptr: it prints. See describe().
  CommandDescription* description = nullptr;
};

}  // namespace mtl
