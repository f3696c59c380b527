// What mtl config writes, loaded by accelerate itself.
#include <doctest/doctest.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/wizard_sessions.h"
#include "clients/clients.h"

using namespace mtl::test;
using Json = nlohmann::json;

namespace {

// A value as accelerate has it, in the words of our sessions.
std::string words(const Json& value) {
  if (value.is_boolean()) return value.get<bool>() ? "true" : "false";
  if (value.is_string()) return value.get<std::string>();
  return value.dump();
}

}  // namespace

TEST_CASE("accelerate loads the wizard's files to the settings that were answered") {
  auto env = accelerate_environment();
  Shell shell;
  shell.write("load.py", R"(
import json, sys
from accelerate.commands.config.config_args import load_config_from_file
for name in sys.argv[1:]:
    config = vars(load_config_from_file(name))
    plain = {k: (v if isinstance(v, (dict, list, int, float, bool, type(None))) else str(getattr(v, "value", v)))
             for k, v in config.items()}
    print(json.dumps(plain))
)");
  const std::string python = env.at("PATH").substr(0, env.at("PATH").find(':')) + "/python";
  std::vector<std::string> argv = {python, "load.py"};
  std::vector<const Session*> loaded;
  for (const Session& session : wizard_sessions()) {
    if (!session.old_accelerate) continue;
    std::string answers;
    for (const std::string& answer : session.answers) answers += answer + "\n";
    shell.write("answers.txt", answers);
    const std::string file = fmt::format("s{}.yaml", loaded.size());
    const Outcome written =
        shell.run({"/bin/sh", "-c",
                   fmt::format("'{}' config --config_file {} < answers.txt", MTL_PROGRAM, file)},
                  {{"CUDA_VISIBLE_DEVICES", ""}, {"HOME", shell.dir().string()}});
    REQUIRE_MESSAGE(written.code == 0, written.err);
    argv.push_back(file);
    loaded.push_back(&session);
  }
  CHECK(loaded.size() >= 20);
  const Outcome outcome = shell.run(argv, env);
  REQUIRE_MESSAGE(outcome.code == 0, outcome.err);
  std::istringstream lines(outcome.out);
  std::string line;
  for (const Session* session : loaded) {
    REQUIRE(std::getline(lines, line));
    CAPTURE(session->name);
    const Json config = Json::parse(line);
    for (const std::string& said : session->says) {
      const size_t equals = said.find('=');
      const std::string path = said.substr(0, equals);
      const size_t dot = path.find('.');
      CAPTURE(said);
      const Json& top = config.at(path.substr(0, dot));
      const Json& value = dot == std::string::npos ? top : top.at(path.substr(dot + 1));
      CHECK(words(value) == said.substr(equals + 1));
    }
  }
}

TEST_CASE("accelerate launch runs with a file that mtl config wrote") {
  auto env = accelerate_environment();
  Shell shell;
  shell.write("answers.txt", "1\n1\n1\n\n");
  const Outcome written = shell.run(
      {"/bin/sh", "-c", fmt::format("'{}' config --config_file c.yaml < answers.txt", MTL_PROGRAM)},
      {{"CUDA_VISIBLE_DEVICES", ""}, {"HOME", shell.dir().string()}});
  REQUIRE_MESSAGE(written.code == 0, written.err);
  shell.write("show.py",
              "import os; print('precision', os.environ['ACCELERATE_MIXED_PRECISION'])\n");
  const std::string bin = env.at("PATH").substr(0, env.at("PATH").find(':'));
  const Outcome outcome =
      shell.run({bin + "/accelerate", "launch", "--config_file", "c.yaml", "show.py"}, env);
  CHECK_MESSAGE(outcome.code == 0, outcome.err);
  CHECK(outcome.out.find("precision no") != std::string::npos);
}
