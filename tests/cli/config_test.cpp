// mtl config in a terminal, through a pipe, and its members.
#include <filesystem>

#include <sys/stat.h>

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/config/wizard_view.h"
#include "cli/program.h"
#include "cli/pty.h"
#include "cli/wizard_sessions.h"
#include "common/terminal.h"
#include "launcher/config/config_edit.h"

using namespace mtl;
using namespace mtl::test;
namespace fs = std::filesystem;

namespace {

std::map<std::string, std::string> terminal_environment(const Shell& shell) {
  return {{"HF_HOME", (shell.dir() / "hf").string()},
          {"XDG_CONFIG_HOME", (shell.dir() / "xdg").string()},
          {"HOME", shell.dir().string()},
          {"TERM", "xterm"},
          {"LANG", "C.UTF-8"},
          {"LC_ALL", "C.UTF-8"},
          {"CUDA_VISIBLE_DEVICES", ""},
          {"SLURM_JOB_NUM_NODES", ""},
          {"SLURM_NNODES", ""},
          {"SLURM_JOB_NODELIST", ""}};
}

void check_file(const Shell& shell, const Session& session) {
  const std::string text = file_text(shell.dir() / kDefaultConfig);
  CAPTURE(text);
  Diagnostics diagnostics;
  const YamlValue root = parse_yaml(text, "file", diagnostics);
  parse_launch_config(text, "file", diagnostics);
  CHECK_FALSE(diagnostics.has_errors());
  for (const std::string& said : session.says) {
    const size_t equals = said.find('=');
    CAPTURE(said);
    CHECK(config_value(root, said.substr(0, equals)) == said.substr(equals + 1));
  }
  if (!session.same_as.empty() && fs::is_directory(kAccelerateSamples)) {
    CHECK(text == file_text(kAccelerateSamples / "wizard" / (session.same_as + ".yaml")));
  }
}

std::string piped(const std::vector<std::string>& answers) {
  std::string text;
  for (const std::string& answer : answers) text += answer + "\n";
  return text;
}

Outcome config_with_lines(const Shell& shell, const std::string& lines) {
  shell.write("answers.txt", lines);
  auto env = terminal_environment(shell);
  return shell.run({"/bin/sh", "-c", fmt::format("'{}' config < answers.txt", MTL_PROGRAM)}, env);
}

}  // namespace

TEST_CASE("22 sessions of mtl config in a terminal, key by key") {
  for (const Session& session : wizard_sessions()) {
    CAPTURE(session.name);
    Shell shell;
    Pty pty({MTL_PROGRAM, "config"}, terminal_environment(shell), shell.dir());
    REQUIRE(pty.wait_for("In which compute environment"));
    for (const std::string& answer : session.answers) pty.send(answer + "\r");
    const int code = pty.finish();
    CAPTURE(pty.screen());
    CHECK(code == 0);
    check_file(shell, session);
    struct stat info {};
    REQUIRE(stat((shell.dir() / kDefaultConfig).c_str(), &info) == 0);
    CHECK((info.st_mode & 0777) == 0600);
  }
}

TEST_CASE("the same sessions through a pipe, a line each") {
  for (const Session& session : wizard_sessions()) {
    CAPTURE(session.name);
    Shell shell;
    const Outcome outcome = config_with_lines(shell, piped(session.answers));
    CAPTURE(outcome.err);
    CHECK(outcome.code == 0);
    CHECK(outcome.out == (shell.dir() / kDefaultConfig).string() + "\n");
    check_file(shell, session);
  }
}

TEST_CASE("answers that end in the middle or cannot be leave nothing behind") {
  Shell shell;
  Outcome outcome = config_with_lines(shell, "1\n2\n");
  CHECK(outcome.code == 2);
  CHECK(outcome.err.find("error[config.input_ended]") != std::string::npos);
  CHECK(outcome.err.find("question 3: How is the model divided") != std::string::npos);
  CHECK_FALSE(fs::exists(shell.dir() / kDefaultConfig));
  outcome = config_with_lines(shell, "1\n2\n2\n2\n2\n1\n6\n");
  CHECK(outcome.code == 2);
  CHECK(outcome.err.find("error[config.answer]") != std::string::npos);
  CHECK(outcome.err.find("6 processes cannot hold whole models of tp 2 x pp 2") !=
        std::string::npos);
  CHECK_FALSE(fs::exists(shell.dir() / kDefaultConfig));
  outcome = config_with_lines(shell, "1\n1\n1\nquit\n");
  CHECK(outcome.code == 130);
  CHECK(outcome.err.find("nothing was written") != std::string::npos);
  CHECK_FALSE(fs::exists(shell.dir() / kDefaultConfig));
}

TEST_CASE("a place that cannot be written is an error before the first question") {
  Shell shell;
  shell.write("file", "x");
  const Outcome outcome = shell.mtl({"config", "--config_file", "file/below.yaml"});
  CHECK(outcome.code == 4);
  CHECK(outcome.err.find("In which compute") == std::string::npos);
  CHECK(shell.mtl({"config", "--config_file", "x.json"}).code == 2);
}

TEST_CASE("Ctrl-C and signals put the terminal back") {
  for (const int signal : {0, SIGTERM, SIGHUP}) {
    CAPTURE(signal);
    Shell shell;
    Pty pty({MTL_PROGRAM, "config"}, terminal_environment(shell), shell.dir());
    const termios& before = pty.modes_before();
    REQUIRE(pty.wait_for("Ctrl-C leaves"));
    CHECK((pty.modes().c_lflag & ICANON) == 0);
    if (signal == 0) {
      pty.send("\x03");
    } else {
      pty.signal(signal);
    }
    CHECK(pty.wait_for("\x1b[?25h"));
    const termios after = pty.modes();
    CHECK(pty.finish() == (signal == 0 ? 130 : 128 + signal));
    CHECK(after.c_lflag == before.c_lflag);
    CHECK(after.c_iflag == before.c_iflag);
    CHECK(after.c_oflag == before.c_oflag);
    if (signal == 0) CHECK(pty.screen().find("nothing was written") != std::string::npos);
    CHECK_FALSE(fs::exists(shell.dir() / kDefaultConfig));
  }
}

TEST_CASE("a step back keeps the answer, and an error keeps what was typed") {
  Shell shell;
  Pty pty({MTL_PROGRAM, "config"}, terminal_environment(shell), shell.dir());
  REQUIRE(pty.wait_for("In which compute environment"));
  pty.send("\r2\r2\r2\r2\r\r");
  REQUIRE(pty.wait_for("How many processes"));
  pty.send("6\r");
  REQUIRE(pty.wait_for("cannot hold whole models"));
  pty.send("\x15<");  // an empty field: one question back
  REQUIRE(pty.wait_for("Which activations"));
  pty.send("<");
  REQUIRE(pty.wait_for("[2]"));  // of pp: what was said stands as the proposal
  pty.send("1\r\x1bOB\r");       // application mode's arrow: FULL
  REQUIRE(pty.wait_for("How many processes"));
  pty.resize(60, 20);
  pty.send("6\r\x1b[A\x1b[B\r");
  REQUIRE(pty.wait_for("Write"));
  pty.send("\r");
  CHECK(pty.finish() == 0);
  const std::string text = file_text(shell.dir() / kDefaultConfig);
  CHECK(text.find("megatron_lm_pp_degree: 1") != std::string::npos);
  CHECK(text.find("recompute_granularity: full") != std::string::npos);
  CHECK(text.find("num_processes: 6") != std::string::npos);
}

TEST_CASE("a dumb terminal gets numbered lists and asks again after a mistake") {
  Shell shell;
  auto env = terminal_environment(shell);
  env["TERM"] = "dumb";
  Pty pty({MTL_PROGRAM, "config"}, env, shell.dir());
  REQUIRE(pty.wait_for("1) this machine"));
  pty.send("7\n");
  REQUIRE(pty.wait_for("none of the choices"));
  pty.send("\n?\n1\n1\n\n");
  CHECK(pty.finish() == 0);
  CHECK(pty.screen().find('\x1b') == std::string::npos);
  Pty left({MTL_PROGRAM, "config", "--config_file", "other.yaml"}, env, shell.dir());
  REQUIRE(left.wait_for("1) this machine"));
  left.send("\x03");
  CHECK(left.finish() == 130);
  CHECK(left.screen().find("nothing was written") != std::string::npos);
  CHECK_FALSE(fs::exists(shell.dir() / "other.yaml"));
  CHECK(file_text(shell.dir() / kDefaultConfig).find("distributed_type: 'NO'") !=
        std::string::npos);
}

TEST_CASE("no line of a question is wider than the terminal and none is lost below it") {
  Question menu;
  menu.text = "A question of some length, which has to be wrapped where the terminal is narrow?";
  menu.help =
      "An explanation that is longer than a line of any terminal that people use today, "
      "with 日本語 in it, so that columns and bytes are not the same thing at all.";
  menu.note = "a note with ünïcödé";
  for (int i = 0; i < 12; ++i) {
    menu.choices.push_back({fmt::format("v{}", i), fmt::format("choice {} 日本語日本語", i),
                            "a hint that says what it means in a few words more"});
  }
  Question text = menu;
  text.choices.clear();
  text.preset = "a proposal";
  const std::vector<ConfigWizard::Said> trail(9,
                                              {"An earlier question, rather long?", "an answer"});
  for (int columns : {20, 40, 60, 79, 80, 120, 200}) {
    for (int rows : {8, 12, 24, 50}) {
      for (bool color : {false, true}) {
        for (const Question& question : {menu, text}) {
          QuestionView view(question);
          view.fail("What was typed cannot be, and this sentence says why it cannot be so.");
          view.type("some text that is typed and is longer than twenty columns, surely");
          if (rows == 24) view.key({Key::Kind::home, {}});
          const Canvas canvas{columns, rows, color, true};
          const auto lines = view.draw(canvas, trail, [](const std::string&) { return "so"; });
          CHECK(static_cast<int>(lines.size()) <= rows);
          for (std::string line : lines) {
            for (size_t at; (at = line.find('\x1b')) != std::string::npos;) {
              line.erase(at, line.find('m', at) - at + 1);
            }
            CAPTURE(line);
            CHECK(display_width(line) < columns);
          }
        }
      }
    }
  }
  QuestionView view(menu);
  for (const char* letter : {"1", "1"})
    view.key({Key::Kind::character, letter});  // choice 1, twice
  view.key({Key::Kind::end, {}});
  CHECK(view.answer() == "v11");
  view.key({Key::Kind::character, "k"});
  CHECK(view.answer() == "v10");
  view.key({Key::Kind::character, "c"});  // letters filter, then digits do too
  view.key({Key::Kind::character, "h"});
  const auto says = [&](const char* words) {
    for (const std::string& line :
         view.draw({100, 40, false, true}, {}, [](const std::string&) { return ""; })) {
      if (line.find(words) != std::string::npos) return true;
    }
    return false;
  };
  CHECK(says("with the letters: ch"));
  CHECK(!says("in no choice"));
  view.key({Key::Kind::character, "%"});
  CHECK(says("with the letters: ch% (in no choice; Esc shows all)"));
  CHECK(!says("An explanation"));
  view.key({Key::Kind::character, "?"});
  CHECK(says("An explanation"));
  view.key({Key::Kind::escape, {}});
  CHECK(view.key({Key::Kind::escape, {}}) == QuestionView::Event::back);
}

TEST_CASE("set, update, validate and show") {
  Shell shell;
  CHECK(shell.mtl({"config", "show"}).code == 0);
  Outcome outcome = shell.mtl({"config", "set", "num_processes=8", "megatron_lm_tp_degree=4",
                               "distributed_type=MEGATRON_LM", "hosts=a,b", "num_machines=2"});
  CAPTURE(outcome.err);
  CHECK(outcome.code == 0);
  const std::string path = (shell.dir() / kDefaultConfig).string();
  CHECK(outcome.out == path + "\n");
  const std::string text = file_text(path);
  CHECK(text.find("  megatron_lm_tp_degree: 4\n  mtl_hosts: a,b\n") != std::string::npos);
  outcome =
      shell.mtl({"config", "set", "num_procesess=8", "mixed_precision=bf6", "machine_rank=x"});
  CHECK(outcome.code == 3);
  CHECK(outcome.err.find("did you mean 'num_processes'?") != std::string::npos);
  CHECK(outcome.err.find("bf6") != std::string::npos);
  CHECK(outcome.err.find("machine_rank") != std::string::npos);
  CHECK(file_text(path) == text);
  CHECK(shell.mtl({"config", "set", "hosts=", "num_machines=1"}).code == 0);
  // A file that was not there has nothing that is replaced.
  outcome = shell.mtl({"config", "set", "--config_file", "new.yaml", "num_processes=2"});
  CHECK(outcome.code == 0);
  CHECK(has(outcome.err, "+ num_processes: 2\n"));
  CHECK(has(outcome.err, "+ use_cpu: "));
  CHECK_FALSE(has(outcome.err, "- num_processes"));
  CHECK(file_text(path).find("mtl_hosts") == std::string::npos);
  CHECK(shell.mtl({"config", "update"}).code == 0);
  CHECK(shell.mtl({"config", "show"}).out.find("# train.yaml: parallel.tp=4") != std::string::npos);
  CHECK(shell.mtl({"config", "validate"}).code == 0);
  shell.write("bad.yaml",
              "distributed_type: MEGATRON_LM\nnum_processes: 6\nnonsense: 1\nmegatron_lm_config:\n"
              "  megatron_lm_tp_degreee: 4\n");
  outcome = shell.mtl({"config", "validate", "bad.yaml"});
  CHECK(outcome.code == 3);
  CHECK(shell.mtl({"config", "validate", "--config_file", "bad.yaml"}).err == outcome.err);
  CHECK(shell.mtl({"config", "validate", "--config_file", "bad.yaml", "bad.yaml"}).code == 2);
  CHECK(shell.mtl({"config", "show", "--config_file", "none"}).out.starts_with("# no file"));
  for (const char* writes : {"default", "set"}) {
    const Outcome refused =
        shell.mtl({"config", writes, "--config_file", "none",
                   writes == std::string("set") ? "num_processes=2" : "--mixed_precision=no"});
    CAPTURE(refused.err);
    CHECK(refused.code == 2);
    CHECK(!std::filesystem::exists(shell.dir() / "none"));
  }
  CHECK(outcome.err.find("bad.yaml:3:1") != std::string::npos);
  CHECK(outcome.err.find("did you mean 'megatron_lm_tp_degree'?") != std::string::npos);
  const std::string worse =
      "distributed_type: MEGATRON_LM\nnum_processes: 6\nmegatron_lm_config:\n"
      "  megatron_lm_tp_degree: 4\n";
  shell.write("worse.yaml", worse);
  outcome = shell.mtl({"config", "validate", "worse.yaml"});
  CHECK(outcome.code == 3);
  CHECK(outcome.err.find("6 processes cannot hold whole models of tp 4") != std::string::npos);
  // A launch takes what is no value no more than this does.
  shell.write("worse.yaml", worse + "fsdp_config:\n  fsdp_offload_params: perhaps\n");
  for (const std::vector<std::string>& command :
       {std::vector<std::string>{"config", "validate", "worse.yaml"},
        {"launch", "--config_file", "worse.yaml", "--", "true"}}) {
    outcome = shell.mtl(command);
    CHECK(outcome.code == 3);
    CHECK(outcome.err.find("worse.yaml:6:24") != std::string::npos);
  }
}

TEST_CASE("--no-input writes what the flags say") {
  Shell shell;
  Outcome outcome = shell.mtl({"config", "--no-input", "--num_processes", "8",
                               "--megatron_lm_tp_degree", "4", "--mixed-precision=bf16"});
  CAPTURE(outcome.err);
  CHECK(outcome.code == 0);
  const std::string text = file_text(shell.dir() / kDefaultConfig);
  CHECK(text.find("distributed_type: MEGATRON_LM") != std::string::npos);
  CHECK(text.find("megatron_lm_tp_degree: 4") != std::string::npos);
  CHECK(text.find("mixed_precision: bf16") != std::string::npos);
  CHECK(shell.mtl({"config", "--no-input", "--num_processes", "2"}).code == 3);
  CHECK(shell.mtl({"config", "--no-input", "--force", "--num_processes", "2"}).code == 0);
  CHECK(file_text(shell.dir() / kDefaultConfig).find("num_processes: 2") != std::string::npos);
  CHECK(shell.mtl({"config", "--num_processes", "2"}).code == 2);
  // A variable that is not set does not name the default file.
  outcome = shell.mtl({"launch", "--config_file", "", "--", "true"});
  CHECK(outcome.code == 2);
  CHECK(has(outcome.err, "error[usage.value]: --config_file wants a path, got ''"));
  outcome = shell.mtl(
      {"config", "--no-input", "--force", "--num_processes", "6", "--megatron_lm_tp_degree", "4"});
  CHECK(outcome.code == 3);
  CHECK(outcome.err.find("6 processes cannot hold") != std::string::npos);
}

TEST_CASE("--no-input: ranks of each machine are counted together") {
  Shell shell;
  const auto written = [&](std::vector<std::string> flags) {
    flags.insert(flags.begin(), {"config", "--no-input", "--force"});
    const Outcome outcome = shell.mtl(flags, {{"CUDA_VISIBLE_DEVICES", ""}});
    CHECK_MESSAGE(outcome.code == 0, outcome.err);
    Diagnostics diagnostics;
    const YamlValue root = read_yaml(shell.dir() / kDefaultConfig, diagnostics);
    std::string text;
    for (const char* key :
         {"num_processes", "num_machines", "megatron_lm_config.mtl_nproc_per_node",
          "megatron_lm_config.mtl_nnodes"}) {
      text += config_value(root, key) + ' ';
    }
    return text;
  };
  CHECK(written({"--nproc_per_node", "2"}) == "2 1   ");
  CHECK(written({"--nproc_per_node", "auto"}) == "-1 1 auto  ");
  CHECK(written({"--nproc_per_node", "2", "--num_machines", "3", "--main_process_ip", "a"}) ==
        "6 3   ");
  CHECK(written({"--nproc_per_node", "2", "--nnodes", "3", "--main_process_ip", "a"}) == "6 3   ");
  CHECK(written({"--nproc_per_node", "2", "--nnodes", "1:3", "--rdzv_backend", "tcp",
                 "--rdzv_endpoint", "a"}) == "-1 1 2 1:3 ");
  CHECK(written({"--nproc_per_node", "2", "--num_processes", "2"}) == "2 1 2  ");
  CHECK(written({"--nproc_per_node", "4", "--hosts", "a,b"}) == "8 2   ");
  CHECK(written({"--hosts", "a:3,b:2"}) == "-1 2   ");
  CHECK(shell.mtl({"config", "set", "num_processes=8"}).code == 0);
  CHECK(
      shell
          .mtl({"config", "--no-input", "--force", "--nproc_per_node", "2", "--num_processes", "3"})
          .code == 3);
}

TEST_CASE("--no-input: without GPUs here, ranks that run elsewhere have theirs") {
  Shell shell;
  const auto device = [&](std::vector<std::string> flags) {
    flags.insert(flags.begin(), {"config", "--no-input", "--force", "--nproc_per_node", "4"});
    const Outcome outcome = shell.mtl(flags, {{"CUDA_VISIBLE_DEVICES", ""}});
    CHECK_MESSAGE(outcome.code == 0, outcome.err);
    Diagnostics diagnostics;
    const YamlValue root = read_yaml(shell.dir() / kDefaultConfig, diagnostics);
    return config_value(root, "use_cpu") + ' ' + config_value(root, "distributed_type");
  };
  CHECK(device({}) == "true MULTI_CPU");
  CHECK(device({"--via", "local"}) == "true MULTI_CPU");
  CHECK(device({"--via", "slurm", "--num_machines", "2"}) == "false MULTI_GPU");
  CHECK(device({"--via", "slurm", "--num_machines", "2", "--cpu"}) == "true MULTI_CPU");
  CHECK(device({"--via", "kubernetes", "--kubernetes_image", "i"}) == "false MULTI_GPU");
  CHECK(device({"--hosts", "a,b", "--use_fsdp"}) == "false FSDP");
  // So the job asks for them.
  CHECK(device({"--via", "slurm"}) == "false MULTI_GPU");
  const Outcome job = shell.mtl({"submit", "--dry-run", "--", "true"});
  CHECK_MESSAGE(has(job.out, "#SBATCH --gpus-per-node=4\n"), job.err);
}

TEST_CASE("what accelerate would read otherwise is written as it reads it") {
  Shell shell;
  Outcome outcome = shell.mtl({"config", "--no-input", "--mixed_precision", "fp8", "--multi_gpu",
                               "--num_processes", "4", "--fp8_override_linear_precision",
                               "true,false,true", "--main_process_port", "0"});
  CHECK_MESSAGE(outcome.code == 0, outcome.err);
  const std::string text = file_text(shell.dir() / kDefaultConfig);
  CHECK(text.find("  fp8_override_linear_precision:\n  - true\n  - false\n  - true\n") !=
        std::string::npos);
  CHECK(text.find("main_process_port: 0\n") != std::string::npos);
  CHECK(shell.mtl({"config", "validate"}).code == 0);
  outcome = shell.mtl({"config", "update"});
  CHECK(outcome.code == 0);
  CHECK(outcome.err.empty());
  CHECK(file_text(shell.dir() / kDefaultConfig) == text);
  CHECK(shell.mtl({"config", "set", "fp8_override_linear_precision=false,false,true"}).code == 0);
  CHECK(file_text(shell.dir() / kDefaultConfig)
            .find("precision:\n  - false\n  - false\n  - true\n") != std::string::npos);
  CHECK(shell.mtl({"config", "set", "fp8_override_linear_precision=true"}).code == 3);
}

TEST_CASE("a launch says which file it reads: ours, else accelerate's") {
  Shell shell;
  shell.write("hf/accelerate/default_config.yaml",
              "distributed_type: MULTI_CPU\nnum_processes: 2\nuse_cpu: true\n");
  const std::vector<std::string> launch = {"launch", "--dry-run", "--json", "--", "true"};
  Outcome outcome = shell.mtl(launch);
  CAPTURE(outcome.err);
  CHECK(outcome.err.find("hf/accelerate/default_config.yaml (accelerate's") != std::string::npos);
  CHECK(nlohmann::json::parse(outcome.out)["settings"]["num_processes"] == 2);
  shell.write(kDefaultConfig, "distributed_type: MULTI_CPU\nnum_processes: 3\nuse_cpu: true\n");
  outcome = shell.mtl(launch);
  CHECK(outcome.err.find(fmt::format("config: {}\n", (shell.dir() / kDefaultConfig).string())) !=
        std::string::npos);
  CHECK(nlohmann::json::parse(outcome.out)["settings"]["num_processes"] == 3);
  outcome = shell.mtl({"launch", "--config_file", "none", "--dry-run", "--json", "--", "true"});
  CHECK(nlohmann::json::parse(outcome.out)["config_file"].is_null());
}
