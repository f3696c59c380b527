// cli/help/complete: what shells are told, and the manual pages from the same descriptions.
#include "cli/help/complete.h"

#include <algorithm>
#include <filesystem>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "cli/command_description.h"
#include "cli/commands.h"
#include "cli/help/manual.h"
#include "cli/program.h"
#include "launcher/job/job_registry.h"
#include "launcher/settings/launch_flags.h"
#include "runtime/spec/train_spec.h"
#include "support/text.h"
#include "support/variable.h"

using namespace mtl;
using mtl::test::has;
using mtl::test::Outcome;
using mtl::test::Shell;

namespace {

using Words = std::vector<std::string>;

Words words_of(const Completion& completion) {
  Words words;
  for (const Candidate& candidate : completion.candidates) words.push_back(candidate.word);
  return words;
}

bool offers(const Words& line, const std::string& word) {
  const Words words = words_of(complete(line));
  return std::find(words.begin(), words.end(), word) != words.end();
}

// Every command and member, as typed.
std::vector<Words> all_commands() {
  std::vector<Words> all;
  for (const Command& command : commands()) {
    if (command.summary == nullptr) continue;
    all.push_back({command.name});
    for (const auto& [name, what] : describe({command.name}).members) {
      all.push_back({command.name, name});
    }
  }
  return all;
}

// As it stands in the help: "--num_processes" of the rows that begin with an option.
Words options_in_help(const std::string& help) {
  Words options;
  for (size_t at = 0; at < help.size(); at = help.find('\n', at) + 1) {
    if (help.compare(at, 3, "  -") != 0) continue;
    const size_t begin = help.find("--", at);
    options.push_back(help.substr(begin, help.find_first_of(" \n", begin) - begin));
  }
  return options;
}

Words answer(const Shell& shell, Words line, const std::map<std::string, std::string>& env = {}) {
  line.insert(line.begin(), "__complete");
  const Outcome outcome = shell.mtl(line, env);
  CHECK(outcome.code == 0);
  CHECK(outcome.err.empty());
  Words lines;
  for (size_t at = 0; at < outcome.out.size();) {
    const size_t end = outcome.out.find('\n', at);
    lines.push_back(outcome.out.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

}  // namespace

TEST_CASE("every command, every member and every option of their help is offered") {
  CHECK(all_commands().size() > 40);
  for (const Words& command : all_commands()) {
    CAPTURE(fmt::format("{}", fmt::join(command, " ")));
    Words before(command.begin(), command.end() - 1);
    before.emplace_back("");
    CHECK(offers(before, command.back()));

    const CommandDescription description = describe(command);
    CHECK(description.command() == fmt::format("{}", fmt::join(command, " ")));
    const Words options = options_in_help(description.help(80));
    CHECK_FALSE(options.empty());
    Words line = command;
    line.emplace_back("--");
    const Words shown = words_of(complete(line));
    CHECK(shown.size() == options.size());
    for (const std::string& option : options) {
      CAPTURE(option);
      CHECK(std::find(shown.begin(), shown.end(), option) != shown.end());
    }
    // With a letter, also what the help does not show.
    std::set<std::string> all;
    for (char letter = 'a'; letter <= 'z'; ++letter) {
      line.back() = std::string("--") + letter;
      for (const std::string& word : words_of(complete(line))) all.insert(word);
    }
    for (const OptionDeclaration& option : description.options) {
      CAPTURE(option.name);
      CHECK(all.contains("--" + option.name) == !option.help.empty());
    }
  }
}

TEST_CASE("to describe a command runs nothing, prints nothing and writes nothing") {
  Shell shell;
  for (const Words& command : all_commands()) {
    if (command.size() > 1) continue;  // a process each, and members are alike
    CAPTURE(command[0]);
    Words line = command;
    line.emplace_back("--");
    CHECK(answer(shell, line).size() == complete(line).candidates.size());
  }
  CHECK(std::distance(std::filesystem::directory_iterator(shell.dir()), {}) == 2);  // our own
}

TEST_CASE("where the cursor is") {
  const auto same = [](const Words& line, const Words& expected) {
    CAPTURE(fmt::format("{}", fmt::join(line, " ")));
    CHECK(words_of(complete(line)) == expected);
  };
  same({"lau"}, {"launch"});
  same({"--v"}, {"--version"});
  same({"wor"}, {});  // not for people
  same({"nosuch", ""}, {});
  same({"ckpt", "re"}, {"reshard"});
  same({"config", "imp"}, {"import"});
  same({"help", "exit"}, {"exit-codes"});
  same({"help", "ckpt", "re"}, {"reshard"});
  same({"completion", ""}, {"bash", "zsh", "fish"});
  same({"ps", ""}, {"--all", "--json", "--help"});
  same({"ps", "-"}, {"--all", "-a", "--json", "--help"});
  // Values: behind a blank, behind =, behind a short name; of a flag, true and false.
  same({"launch", "--mixed_precision", ""}, {"no", "fp16", "bf16", "fp8"});
  same({"launch", "--mixed-precision=b"}, {"--mixed-precision=bf16"});
  same({"launch", "--cpu="}, {"--cpu=true", "--cpu=false"});
  same({"ckpt", "export", "--format", "m"}, {"megatron-split"});
  same({"launch", "--no-cp"}, {"--no-cpu"});
  same({"launch", "-n", ""}, {});
  same({"plan", "--gpu-type", "h100-80"}, {"h100-80g"});
  // In both spellings, as it is begun.
  same({"launch", "--num_p"}, {"--num_processes"});
  same({"launch", "--num-p"}, {"--num-processes"});
  // Another name where no option is called so.
  same({"launch", "--nproc"}, {"--nproc_per_node"});
  same({"launch", "--master_a"}, {"--master_addr"});
  // Behind `--` nothing is an option.
  same({"plan", "--", "--js"}, {});
  // A program has the rest of the line, a train.yaml has not.
  CHECK(complete({"launch", "script.py", ""}).command_at == 2);
  CHECK(complete({"launch", "-n", "2", "--cpu", "script.py", "--js"}).command_at == 5);
  CHECK(complete({"launch", "--", "train.yaml", ""}).command_at == 3);
  CHECK(complete({"launch", "--fsdp_offload_params", "true", "a.out", ""}).command_at == 4);
  CHECK(complete({"launch", "--", ""}).shell == Completion::Shell::programs);
  same({"launch", "train.yaml", "--fr"}, {"--fresh"});
  const Completion program = complete({"launch", ""});
  CHECK(program.shell == Completion::Shell::files);
  CHECK(program.suffixes == Words{"yaml", "yml", "py"});
  CHECK(complete({"topo", "--file", ""}).shell == Completion::Shell::files);
  CHECK(complete({"topo", "--file="}).shell == Completion::Shell::files);
  CHECK(complete({"ckpt", "import", ""}).shell == Completion::Shell::folders);
  CHECK(complete({"generate", "runs/a", ""}).shell == Completion::Shell::nothing);
  // Hostile lines are lines.
  for (const Words& line : {Words{}, Words{""}, Words{"--"}, Words{"launch", "-"},
                            Words{"launch", "--="}, Words{"launch", "=", "="},
                            Words{"plan", "t.yaml", "=="}, Words{"launch", "--\xff\n", "\t"}}) {
    const std::string lines = completion_lines(complete(line));
    CHECK((lines.empty() || lines.ends_with('\n')));
  }
}

TEST_CASE("settings of a train.yaml: sections, keys, values") {
  CHECK(offers({"plan", "t.yaml", ""}, "train."));
  CHECK(offers({"plan", "t.yaml", "train."}, "train.eval."));
  CHECK(offers({"launch", "t.yml", "train.st"}, "train.steps="));
  CHECK(offers({"submit", "t.yaml", "model.norm.type="}, "model.norm.type=rmsnorm"));
  CHECK(offers({"launch", "t.yaml", "model.bias=f"}, "model.bias=false"));
  CHECK(complete({"launch", "t.yaml", "data.train="}).shell == Completion::Shell::files);
  // Every key is reached by going down.
  for (const std::string& key : spec_keys()) {
    CAPTURE(key);
    CHECK(offers({"launch", "t.yaml", key}, key + '='));
  }
  CHECK(offers({"config", "set", "num_pro"}, "num_processes="));
  CHECK(offers({"config", "set", "mixed_precision=f"}, "mixed_precision=fp16"));
}

TEST_CASE("an option that is cut short has its value too") {
  // 4 is no program, so what follows is a train.yaml's.
  CHECK(offers({"launch", "--nproc_per", "4", "t.yaml", "train.ste"}, "train.steps="));
  CHECK(offers({"launch", "--nproc_per_n", "au"}, "auto"));
}

TEST_CASE("names that lie on the disk: recipes, runs, checkpoints, corpora, jobs") {
  Shell shell;
  shell.write("runs/mine/20260101-1/resolved.yaml", "");
  shell.write("runs/mine/20260101-2/resolved.yaml", "");
  shell.write("runs/mine/20260101-2/status.json",
              R"({"state": "stopped", "step": 40, "steps": 100})");
  shell.write("runs/mine/20260101-2/checkpoints/step-00000040/COMMITTED", "");
  shell.write("runs/mine/20260101-2/checkpoints/step-00000060/manifest.json", "");
  shell.write("runs/two words/20260101-3/resolved.yaml", "");
  shell.write("runs/empty/notes.txt", "");
  shell.write("corpora/c4.idx", "");
  shell.write("corpora/c4.bin", "");
  CHECK(answer(shell, {"logs", ""}) ==
        Words{"runs/two words\ta run", "runs/mine\tstopped, step 40 of 100"});
  CHECK(answer(shell, {"ckpt", "ls", "runs/mine/"}) ==
        Words{"runs/mine/20260101-2\tstopped, step 40 of 100", "runs/mine/20260101-1\ta run"});
  CHECK(answer(shell, {"ckpt", "show", "runs/mine/20260101-2/"}) ==
        Words{"runs/mine/20260101-2/checkpoints/step-00000040\ta checkpoint"});
  CHECK(answer(shell, {"generate", "ru"}).size() == 2);
  for (const char* typed : {".", "./", "./ru", "./runs/"}) {
    CAPTURE(typed);
    CHECK(answer(shell, {"logs", typed}) ==
          Words{"./runs/two words\ta run", "./runs/mine\tstopped, step 40 of 100"});
  }
  CHECK(answer(shell, {"logs", "./runs/m"}) == Words{"./runs/mine\tstopped, step 40 of 100"});
  CHECK(answer(shell, {"generate", "elsewhere/"}) == Words{":folders"});
  CHECK(answer(shell, {"data", "stats", "corpora/"}) == Words{"corpora/c4\ta corpus", ":folders"});
  const Words recipes = answer(shell, {"recipes", "cp", "char"});
  REQUIRE(recipes.size() == 1);
  CHECK(recipes[0].starts_with("char-shakespeare\t"));
  // A job that goes on; one that has ended is not to be stopped.
  const std::string state = (shell.dir() / "state").string();
  const mtl::test::Variable registry("XDG_STATE_HOME", state);
  JobRecord record = record_of_this_process("local", "mine");
  record.run = "runs/mine";
  record_job(record);
  JobRecord ended = record;
  ended.id = "p1";
  ended.started += 1;
  record_job(ended);
  CHECK(answer(shell, {"stop", "p"}) == Words{record.id + "\truns/mine"});
  record.run = (shell.dir() / "runs/mine").string();
  record_job(record);
  for (const std::string typed : {"ru", "./ru", "/"}) {
    CAPTURE(typed);
    const std::string whole = typed == "/"    ? record.run
                              : typed == "ru" ? "runs/mine"
                                              : "./runs/mine";
    CHECK(answer(shell, {"stop", typed}) == Words{whole + "\t" + record.id});
  }
  // A job of SLURM that its queue has; all of them, where that does not answer.
  for (const char* id : {"71", "72"}) {
    JobRecord job = record;
    job.kind = "slurm";
    job.id = job.name = id;
    job.run.clear();
    job.pid = 0;
    record_job(job);
  }
  const std::filesystem::path squeue = shell.dir() / "bin/squeue";
  shell.write("bin/squeue",
              "#!/bin/sh\nprintf "
              "'71\\03771\\037me\\037RUNNING\\037None\\0371\\037n1\\0370:10\\037job.sh\\n'\n");
  std::filesystem::permissions(squeue, std::filesystem::perms::owner_all);
  const mtl::test::Variable path("PATH", squeue.parent_path().string() + ":/usr/bin:/bin");
  const mtl::test::Variable conf("SLURM_CONF", "/dev/null");
  CHECK(answer(shell, {"stop", "7"}) == Words{"71\t71"});
  shell.write("bin/squeue", "#!/bin/sh\nexit 1\n");
  CHECK(answer(shell, {"stop", "7"}).size() == 2);
}

TEST_CASE("manual pages: one for each command, and all of their options") {
  const std::vector<ManPage> pages = manual_pages("2026-01-31");
  const auto page = [&](const std::string& file) {
    const auto found = std::find_if(pages.begin(), pages.end(),
                                    [&](const ManPage& one) { return one.file() == file; });
    REQUIRE(found != pages.end());
    return found->text();
  };
  const std::string overview = page("man1/mtl.1");
  const auto escaped = [](std::string name) {
    for (size_t at = 0; (at = name.find('-', at)) != std::string::npos; at += 2)
      name.insert(at, 1, '\\');
    return name;
  };
  for (const Words& command : all_commands()) {
    CAPTURE(command[0]);
    CHECK(has(overview, escaped("mtl-" + command[0] + "(1)")));
    const std::string text = page("man1/mtl-" + command[0] + ".1");
    for (const std::string& option : options_in_help(describe(command).help(80))) {
      CAPTURE(option);
      CHECK(has(text, "\\fB" + escaped(option) + "\\fR"));
    }
  }
  for (const LaunchFlag& flag : launch_flags()) {
    CAPTURE(flag.name);
    bool negated = false;
    const std::string name = describe({"launch"}).option(flag.name, negated)->name;
    CHECK(has(page("man1/mtl-launch.1"), "\\fB" + escaped("--" + name) + "\\fR"));
  }
  for (const std::string& key : spec_keys()) {
    CAPTURE(key);
    CHECK(has(page("man5/mtl-train.yaml.5"), ".TP\n\\fB" + key + "\\fR\n"));
  }
  for (const ManPage& one : pages) {
    CAPTURE(one.name());
    CHECK_FALSE(has(one.text(), "\n\n"));
    CHECK_FALSE(has(one.text(), ".SS Options\n"));
  }
}
