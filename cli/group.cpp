#include "cli/group.h"

#include <algorithm>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/command_line.h"
#include "common/error.h"

namespace mtl {

int run_group(const std::string& group, const std::string& about,
              const std::vector<Command>& members, const Arguments& args) {
  std::vector<std::string> names;
  for (const Command& member : members) names.emplace_back(member.name);
  const auto found =
      args.empty() ? names.end() : std::find(names.begin(), names.end(), args.front());
  if (found != names.end()) {
    return members[static_cast<size_t>(found - names.begin())].run(args.behind_first());
  }
  std::vector<std::string> words;
  CommandLine line({group + " MEMBER [options]"}, about);
  for (const Command& member : members) {
    line.member(member.name, member.summary);
  }
  line.rest("MEMBER", words, "what to do; each has its own --help");
  if (!line.parse(args)) return 0;
  if (words.empty()) {
    throw Error(Exit::usage,
                {.code = "usage.missing",
                 .what = fmt::format("mtl {} wants one of {}", group, fmt::join(names, ", ")),
                 .help = fmt::format("see: mtl {} --help", group)});
  }
  const auto guess = did_you_mean(words.front(), names);
  throw Error(Exit::usage, {.code = "usage.unknown_command",
                            .what = fmt::format("mtl {} has no '{}'", group, words.front()),
                            .help = guess ? fmt::format("did you mean mtl {} {}?", group, *guess)
                                          : fmt::format("it knows {}; see: mtl {} --help",
                                                        fmt::join(names, ", "), group)});
}

}  // namespace mtl
