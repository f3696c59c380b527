// mtl env: facts for a bug report, and no secrets in them.
#include <map>
#include <string>

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/program.h"
#include "cli/pty.h"
#include "support/text.h"

using namespace mtl::test;

TEST_CASE("mtl env says what is there and hides what is secret") {
  Shell shell;
  shell.write("hf/accelerate/default_config.yaml",
              "distributed_type: 'NO'\naws_secret_access_key: hush-file\n");
  const std::map<std::string, std::string> env = {{"MTL_TOKEN", "hush-token"},
                                                  {"HF_API_KEY", "hush-key"},
                                                  {"MTL_TOKEN_FILE", "/somewhere/token"},
                                                  {"NCCL_DEBUG", "INFO"}};
  const Outcome text = shell.mtl({"env"}, env);
  CHECK(text.code == 0);
  CHECK(text.err.empty());
  CHECK(text.out.find("hush") == std::string::npos);
  CHECK(text.out.find("/somewhere/token") != std::string::npos);
  CHECK(text.out.find("\nnetwork\n") != std::string::npos);

  const Outcome outcome = shell.mtl({"env", "--json"}, env);
  CHECK(outcome.code == 0);
  CHECK(outcome.out.find("hush") == std::string::npos);
  const auto json = nlohmann::json::parse(outcome.out);
  CHECK(json["variables"]["NCCL_DEBUG"] == "INFO");
  CHECK(json["variables"]["MTL_TOKEN"] == "set");
  CHECK(json["variables"]["HF_API_KEY"] == "set");
  CHECK(json["cpu"]["cores_to_use"] >= 1);
  CHECK(json["network"].contains("lo"));
  CHECK(json["limits"].contains("open files"));
  CHECK(json["mtl"]["version"].get<std::string>().size() > 2);
  CHECK(json["config"]["content"].get<std::string>().find("distributed_type") == 0);
  CHECK_FALSE(json.contains("python"));
}

TEST_CASE("in a terminal the facts of mtl env stay beside their names; in a file lines are whole") {
  Shell shell;
  std::string words;
  for (int i = 0; i < 12; ++i) words += fmt::format("{}word-{}", i > 0 ? " " : "", i);
  std::map<std::string, std::string> env = {{"MTL_WORDS", words}, {"COLUMNS", "50"}};
  CHECK(has(shell.mtl({"env"}, env).out, "  MTL_WORDS          " + words + "\n"));
  env.erase("COLUMNS");
  env["XDG_CONFIG_HOME"] = shell.dir().string();
  Pty terminal({MTL_PROGRAM, "env"}, env, shell.dir().string(), 50);
  CHECK(terminal.finish() == 0);
  std::string shown = terminal.screen();
  std::erase(shown, '\r');
  CHECK(has(shown, "  MTL_WORDS          word-0 word-1 word-2 word-3\n" + std::string(21, ' ') +
                       "word-4 word-5 word-6 word-7\n"));
}
