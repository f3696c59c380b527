// mtl doctor, with what it is to find provoked; mtl topo, mtl recipes and mtl estimate-memory as
// commands.
#include <cstdlib>
#include <sstream>
#include <string>
#include <unistd.h>

#include <netinet/in.h>
#include <sys/socket.h>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "cli/program.h"
#include "common/terminal.h"
#include "support/text.h"

using mtl::test::file_text;
using mtl::test::Outcome;
using mtl::test::Shell;
using Json = nlohmann::json;

namespace {

Json finding(const Outcome& outcome, const std::string& check) {
  const Json json = Json::parse(outcome.out);
  for (const Json& one : json.at("findings")) {
    if (one.at("check") == check) return one;
  }
  return Json{{"level", "absent"}, {"what", ""}, {"cure", ""}};
}

using mtl::test::has;

Outcome in_shell(const Shell& shell, const std::string& command,
                 const std::map<std::string, std::string>& env = {}) {
  return shell.run({"/bin/sh", "-c", command}, env);
}

const std::string kDoctor = std::string("exec ") + MTL_PROGRAM + " doctor --json";

}  // namespace

TEST_CASE("mtl doctor finds a lowered limit and says how to raise it") {
  Shell shell;
  const Outcome outcome = in_shell(shell, "ulimit -n 100; " + kDoctor);
  CHECK(outcome.code == 4);
  const Json found = finding(outcome, "limits.nofile");
  CHECK(found["level"] == "problem");
  CHECK(has(found["what"], "open files: 100"));
  CHECK_FALSE(found["cure"].get<std::string>().empty());
  CHECK(Json::parse(outcome.out)["ok"] == false);
}

TEST_CASE("mtl doctor names who has the port") {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  REQUIRE(bind(listener, reinterpret_cast<sockaddr*>(&address), sizeof address) == 0);
  REQUIRE(listen(listener, 1) == 0);
  socklen_t size = sizeof address;
  getsockname(listener, reinterpret_cast<sockaddr*>(&address), &size);
  const std::string port = std::to_string(ntohs(address.sin_port));
  Shell shell;
  // One machine takes another; several have agreed on this one.
  const Outcome here = shell.mtl({"doctor", "--json", "--main_process_port", port});
  CHECK(finding(here, "network.port")["level"] == "warning");
  const Outcome taken =
      shell.mtl({"doctor", "--json", "--main_process_port", port, "--num_machines", "2",
                 "--machine_rank", "0", "--main_process_ip", "127.0.0.1"});
  CHECK(taken.code == 4);
  CHECK(finding(taken, "network.port")["level"] == "problem");
  for (const Outcome& outcome : {here, taken}) {
    CHECK(has(finding(outcome, "network.port")["what"], "process " + std::to_string(getpid())));
  }
  close(listener);
  const Outcome free = shell.mtl({"doctor", "--json", "--main_process_port", port});
  CHECK(finding(free, "network.port")["level"] == "ok");
}

TEST_CASE("mtl doctor finds a folder that cannot be written and a file system that is full") {
  Shell shell;
  const Outcome refused = shell.mtl({"doctor", "--json", "--run_dir", "/proc/runs"});
  CHECK(refused.code == 4);
  CHECK(finding(refused, "disk.write")["level"] == "problem");
  CHECK(has(finding(refused, "disk.write")["what"], "/proc"));
  // A file system of 1 MiB, in a mount namespace of its own: only where that is allowed.
  const std::string unshare = "unshare -m sh -c 'mkdir t && mount -t tmpfs -o size=1m tmpfs t";
  if (in_shell(shell, unshare + "'").code != 0) return;
  const Outcome full =
      in_shell(shell, "rm -rf t; " + unshare + " && " + kDoctor + " --run_dir t/runs'");
  CHECK(full.code == 4);
  CHECK(finding(full, "disk.write")["level"] == "problem");
  CHECK(has(finding(full, "disk.write")["what"], "No space left"));
  const Outcome tiny =
      in_shell(shell, "rm -rf t; unshare -m sh -c 'mount -t tmpfs -o size=4m tmpfs /dev/shm && " +
                          kDoctor + "'");
  CHECK(finding(tiny, "memory.shm")["level"] == "warning");
}

TEST_CASE("mtl doctor looks on hosts at the folder that a launch from here would write to") {
  Shell shell;
  // A way to other machines that ends in a home folder, as ssh does.
  shell.write("far/ssh", "for word; do :; done\ncd /proc && exec sh -c \"$word\"\n");
  shell.write("my work/here", "");
  const std::string there = (shell.dir() / "my work").string();
  const std::string doctor = "cd 'my work' && " + kDoctor + " --hosts m1,m2 --ssh_command 'sh " +
                             (shell.dir() / "far/ssh").string() + "'";
  const auto space = [&](const std::string& more) {
    return finding(in_shell(shell, doctor + more), "disk.space")["what"].get<std::string>();
  };
  CHECK(has(space(""), "(" + there + ")"));
  CHECK(has(space(" --run_dir ../far/runs"), "far)"));
  CHECK(has(space(" --run_dir '" + there + "'"), "(" + there + ")"));
}

TEST_CASE("mtl doctor finds a host that does not resolve") {
  Shell shell;
  const Outcome outcome =
      shell.mtl({"doctor", "--json", "--hosts", "no-such-host.invalid", "--ssh_config", "none"});
  CHECK(outcome.code == 4);
  const Json found = finding(outcome, "hosts.ssh");
  CHECK(found["level"] == "problem");
  CHECK(found["host"] == "no-such-host.invalid");
  CHECK(has(found["what"], "[ssh.unknown_host]"));
}

TEST_CASE("mtl doctor --paste tells no names") {
  Shell shell;
  const std::filesystem::path home = shell.dir() / "secret-home";
  std::filesystem::create_directories(home / "runs");
  const Outcome outcome =
      shell.mtl({"doctor", "--paste", "--run_dir", (home / "runs").string()},
                {{"HOME", home.string()}, {"USER", "anna"}, {"HF_TOKEN", "hf_secretsecret"}});
  CHECK(has(outcome.out, "```\nmtl"));
  CHECK(has(outcome.out, "(~/runs)"));
  CHECK_FALSE(has(outcome.out, "secret-home"));
  CHECK_FALSE(has(outcome.out, "hf_secretsecret"));
  char name[256] = "";
  gethostname(name, sizeof name - 1);
  CHECK_FALSE(has(outcome.out, std::string("own name: ") + name + " "));
}

TEST_CASE("mtl topo speaks of this machine and of a saved one") {
  Shell shell;
  const Outcome here = shell.mtl({"topo", "--json"});
  CHECK(here.code == 0);
  CHECK(Json::parse(here.out)["cores"] >= 1);
  const std::string file = MTL_SOURCE_DIR "/tests/launcher/topologies/hgx-h100.txt";
  const Outcome saved = shell.mtl({"topo", "--file", file});
  CHECK(saved.code == 0);
  CHECK(has(saved.out, "tp 2, 4 or 8"));
  const Json json = Json::parse(shell.mtl({"topo", "--file", file, "--json"}).out);
  CHECK(json["schema"] == "mtl.topo/1");
  CHECK(json["tp_wise"] == Json{2, 4, 8});
  CHECK_FALSE(json.contains("cores"));
  CHECK(shell.mtl({"topo", "--file", "absent.txt"}).code != 0);
  shell.write("no.txt", "hello\n");
  const Outcome none = shell.mtl({"topo", "--file", "no.txt"});
  CHECK(none.code == 6);
  CHECK(has(none.err, "error[topo.format]"));
  CHECK(shell.mtl({"topo", "--file", file, "--bench"}).code == 2);
}

TEST_CASE("mtl topo --bench says once what keeps it from measuring") {
  Shell shell;
  const Outcome alone = shell.mtl({"topo", "--bench", "--num_processes", "1"});
  CAPTURE(alone.err);
  CHECK(alone.code == 2);
  CHECK(alone.err.starts_with("error[topo.bench]"));
  CHECK(alone.err.find("error[", 1) == std::string::npos);
  const Outcome device =
      shell.mtl({"topo", "--bench", "--num_processes", "2"}, {{"MTL_DEVICE", "gpu"}});
  CHECK(device.code == 2);
  CHECK(device.err.starts_with("error[device.name]"));
  CHECK(device.err.find("error[", 1) == std::string::npos);
}

TEST_CASE("mtl topo --bench measures the all-reduce of real ranks") {
  Shell shell;
  const Outcome outcome = shell.mtl({"topo", "--bench", "--json", "--num_processes", "2"});
  CAPTURE(outcome.err);
  REQUIRE(outcome.code == 0);
  const Json found = Json::parse(outcome.out)["all_reduce"];
  CHECK(found["ranks"] == 2);
  REQUIRE(found["timings"].size() == 5);
  for (const Json& timing : found["timings"]) CHECK(timing["seconds"] > 0.0);
  CHECK(found["timings"][4]["bytes"] == 64 << 20);
  // Large ones take longer than one number.
  CHECK(found["timings"][4]["seconds"] > found["timings"][0]["seconds"]);
  const Outcome alone = shell.mtl({"topo", "--bench", "--num_processes", "1"});
  CHECK(alone.code != 0);
  CHECK(has(alone.err, "nobody to exchange"));
}

TEST_CASE("mtl recipes lists, shows and copies, and writes over nothing") {
  Shell shell;
  const Json list = Json::parse(shell.mtl({"recipes", "ls", "--json"}).out);
  CHECK(list["recipes"].size() >= 20);
  CHECK(has(shell.mtl({"recipes", "ls"}).out, "64 GPUs of 80 GB"));
  CHECK(shell.mtl({"recipes", "show", "char-shakespeare"}).out ==
        file_text(MTL_SOURCE_DIR "/templates/recipes/char-shakespeare.yaml"));
  CHECK(shell.mtl({"recipes", "cp", "char-shakespeare"}).out == "./train.yaml\n");
  const Outcome again = shell.mtl({"recipes", "cp", "llama3-8b"});
  CHECK(again.code == 4);
  CHECK(has(again.err, "error[recipe.exists]"));
  shell.write("two words/train.yaml", "");
  CHECK(has(shell.mtl({"recipes", "cp", "llama3-8b", "two words"}).err,
            "mtl recipes cp llama3-8b 'two words/llama3-8b.yaml'"));
  CHECK(has(file_text(shell.dir() / "train.yaml"), "name: char-shakespeare"));
  CHECK(shell.mtl({"recipes", "cp", "llama3-8b", "big/one.yaml"}).code == 0);
  CHECK(has(file_text(shell.dir() / "big/one.yaml"), "name: llama3-8b"));
  const Outcome wrong = shell.mtl({"recipes", "show", "lama3-8b"});
  CHECK(wrong.code == 2);
  CHECK(has(wrong.err, "did you mean llama3-8b?"));
}

TEST_CASE("mtl estimate-memory reads a config.json, a recipe, a train.yaml and sizes") {
  Shell shell;
  shell.write("hf/qwen2/config.json",
              R"({"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2",
                  "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
                  "num_attention_heads": 14, "num_key_value_heads": 2, "vocab_size": 151936,
                  "max_position_embeddings": 32768, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0,
                  "hidden_act": "silu", "tie_word_embeddings": true})");
  const Json folder =
      Json::parse(shell.mtl({"estimate-memory", "hf/qwen2", "--json", "--gpus", "4"}).out);
  CHECK(folder["parameters"] == 494032768);
  // accelerate 0.32.1 over transformers 4.46.3: 1.84 GB, of which 6,400 bytes are rotary numbers.
  CHECK(folder["dtypes"][0]["total_bytes"].get<double>() ==
        doctest::Approx(1976134272.0).epsilon(1e-5));
  CHECK(folder["dtypes"][0]["largest_layer_bytes"] == 544538624.0);
  CHECK(folder["gpus"] == 4);
  CHECK(folder["zero"][3]["total_bytes"].get<double>() == doctest::Approx(494032768.0 * 16 / 4));
  CHECK(folder ==
        Json::parse(
            shell.mtl({"estimate-memory", "hf/qwen2/config.json", "--json", "--gpus", "4"}).out));
  const Json sizes = Json::parse(
      shell
          .mtl({"estimate-memory", "--layers", "32", "--hidden", "4096", "--heads", "32",
                "--kv_heads", "8", "--ffn", "14336", "--vocab", "128256", "--json"})
          .out);
  const Json recipe = Json::parse(shell.mtl({"estimate-memory", "llama3-8b", "--json"}).out);
  CHECK(sizes["parameters"] == recipe["parameters"]);
  CHECK(sizes["zero"] == recipe["zero"]);
  REQUIRE(shell.mtl({"recipes", "cp", "llama3-8b"}).code == 0);
  CHECK(Json::parse(shell.mtl({"estimate-memory", "train.yaml", "--json"}).out)["dtypes"] ==
        recipe["dtypes"]);
  // Of a run, and of the newest one of a name.
  shell.write("runs/x/20260101-000000-abcd/resolved.yaml", file_text(shell.dir() / "train.yaml"));
  for (const char* run : {"runs/x/20260101-000000-abcd", "runs/x"}) {
    CAPTURE(run);
    const Outcome of_run = shell.mtl({"estimate-memory", run, "--json"});
    REQUIRE(of_run.code == 0);
    CHECK(Json::parse(of_run.out)["dtypes"] == recipe["dtypes"]);
  }
  CHECK(shell.mtl({"estimate-memory", "runs"}).code == 2);
  // A vocabulary that its text or its tokenizer decides.
  shell.write("tiny.txt", "abcabcabcabcabcabcabcabcabcabcabcabcabcabcabcabc");
  shell.write("tiny.yaml",
              "model: {layers: 1, hidden: 16, heads: 2}\n"
              "data: {train: tiny.txt, tokenizer: {type: chars}}\n"
              "train: {steps: 1, seq_len: 4, global_batch: 1}\nrun: {name: tiny}\n");
  REQUIRE(shell.mtl({"launch", "tiny.yaml"}).code == 0);
  const Json settings = Json::parse(shell.mtl({"estimate-memory", "tiny.yaml", "--json"}).out);
  CHECK(settings["parameters"] == 3424);
  CHECK(Json::parse(shell.mtl({"estimate-memory", "tiny", "--json"}).out)["parameters"] ==
        settings["parameters"]);
  const std::string words =
      shell.mtl({"estimate-memory", "llama3-8b", "--gpus", "1024"}, {{"COLUMNS", "80"}}).out;
  CHECK(has(words, "ZeRO 3"));
  std::istringstream lines(words);
  for (std::string line; std::getline(lines, line);) CHECK(mtl::display_width(line) <= 80);
  // Sizes are those of a model or of options, and products of them are numbers.
  for (const auto& [option, value] : std::vector<std::pair<const char*, const char*>>{
           {"--ffn", "100"}, {"--experts", "8"}, {"--family", "gpt2"}, {"--topk", "2"}}) {
    CAPTURE(option);
    const Outcome both = shell.mtl({"estimate-memory", "llama3-8b", option, value});
    CHECK(both.code == 2);
    CHECK(has(both.err, std::string("leave ") + option + " out, or the MODEL"));
  }
  const Outcome large = shell.mtl({"estimate-memory", "--layers", "9223372036854775807", "--hidden",
                                   "1099511627776", "--heads", "64", "--vocab", "32000"});
  CHECK(large.code == 2);
  CHECK(has(large.err, "--layers 9223372036854775807 is more than a model can have"));
  CHECK(has(large.err, "--hidden 1099511627776 is more than a model can have"));
  const Outcome many =
      shell.mtl({"estimate-memory", "--layers", "2000", "--hidden", "1048576", "--heads", "1024",
                 "--vocab", "1000", "--ffn", "16777216", "--experts", "512", "--json"});
  CHECK(many.code == 2);
  CHECK(has(many.err, "parameters are more than a model can have"));
  CHECK(has(large.err, "use at most 100000"));
  const Outcome unknown = shell.mtl({"estimate-memory", "llama3-9b"});
  CHECK(unknown.code == 2);
  CHECK(has(unknown.err, "did you mean llama3-8b?"));
  const Outcome lacking =
      shell.mtl({"estimate-memory", "--layers", "3", "--hidden", "10", "--heads", "3"});
  CHECK(lacking.code == 2);
  CHECK(has(lacking.err, "--vocab"));
  CHECK(has(lacking.err, "cannot be divided"));
}
