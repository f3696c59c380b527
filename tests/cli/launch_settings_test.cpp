// What file, environment and flags make of the launch of a program, and --dry-run, which shows it.
#include <filesystem>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include "cli/program.h"
#include "support/text.h"

using namespace mtl::test;

namespace {

using Words = std::vector<std::string>;

}  // namespace

TEST_CASE("a file that says NO means a process without a number, unless torchrun's words ask") {
  Shell shell;
  shell.write("no.yaml", "distributed_type: 'NO'\nnum_processes: 1\n");
  Words program = {"--", "/bin/sh", "-c", "echo ${RANK-none} ${MASTER_ADDR-none}"};
  Words args = {"launch", "--config_file", "no.yaml"};
  args.insert(args.end(), program.begin(), program.end());
  CHECK(shell.mtl(args).out == "none none\n");
  args.insert(args.begin() + 1, "--nproc_per_node=1");
  CHECK(shell.mtl(args).out == "0 127.0.0.1\n");
}

TEST_CASE("the config file decides the number of processes, the option wins") {
  Shell shell;
  shell.write(
      "two.yaml",
      "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_CPU\nnum_processes: 2\n");
  const Words program = {"--", "/bin/sh", "-c", "echo $WORLD_SIZE"};
  Words args = {"launch", "--config_file", "two.yaml"};
  args.insert(args.end(), program.begin(), program.end());
  CHECK(shell.mtl(args).out == "2\n");
  args.insert(args.begin() + 1, "--num-processes=1");
  CHECK(shell.mtl(args).out == "1\n");
  CHECK(shell.mtl({"launch", "--config_file", "missing.yaml", "true"}).code == 3);
  CHECK(shell
            .mtl({"launch", "--", "/bin/sh", "-c", "echo $WORLD_SIZE"},
                 {{"MTL_CONFIG_FILE", "two.yaml"}, {"MTL_NUM_PROCESSES", "3"}})
            .out == "3\n");
  shell.write("many.yaml", "num_machines: 2\nnum_processes: 2\ndistributed_type: 'NO'\n");
  const Outcome many = shell.mtl({"launch", "--config_file", "many.yaml", "true"});
  CHECK(many.code == 3);
  CHECK(has(many.err, "launch.address"));
  CHECK(has(many.err, "launch.machine_rank"));
}

TEST_CASE("flags of accelerate and torchrun reach the program as its environment") {
  Shell shell;
  const Outcome outcome =
      shell.mtl({"launch",
                 "--nproc-per-node=2",
                 "--use_fsdp",
                 "--fsdp_offload_params=true",
                 "--no-cpu",
                 "--role",
                 "trainer",
                 "--rdzv_id",
                 "job9",
                 "--max-restarts",
                 "0",
                 "--env",
                 "A=x y",
                 "--monitor_interval",
                 "5",
                 "--master_port",
                 "0",
                 "-t",
                 "0",
                 "--",
                 "/bin/sh",
                 "-c",
                 "test $RANK = 1 || echo $FSDP_OFFLOAD_PARAMS $ROLE_NAME $TORCHELASTIC_RUN_ID $A "
                 "$WORLD_SIZE ${SLURM_PROCID-none} $(dirname $TORCHELASTIC_ERROR_FILE)"},
                {{"SLURM_PROCID", "7"}});
  CAPTURE(outcome.err);
  CHECK(outcome.code == 0);
  CHECK(has(outcome.out, "true trainer job9 x y 2 none /"));
  CHECK(has(outcome.err, "--monitor_interval"));
  // What the ranks may leave behind goes away with the launch.
  const std::string folder = outcome.out.substr(outcome.out.rfind(' ') + 1);
  CHECK_FALSE(std::filesystem::exists(folder.substr(0, folder.find('\n'))));
}

TEST_CASE("contradictions of a launch are reported together before anything starts") {
  Shell shell;
  const Outcome outcome =
      shell.mtl({"launch", "--cpu", "--multi_gpu", "--nnodes", "3:2", "--use_fsdp",
                 "--use_deepspeed", "--", "/bin/sh", "-c", "touch started"});
  CHECK(outcome.code == 3);
  CHECK(has(outcome.err, "--cpu and --multi_gpu"));
  CHECK(has(outcome.err, "launch.nodes"));
  CHECK(has(outcome.err, "--use_fsdp and --use_deepspeed"));
  CHECK_FALSE(std::filesystem::exists(shell.dir() / "started"));
}

TEST_CASE("a dry run shows what accelerate is told where there is no device for it") {
  Shell shell;
  const std::string told = shell
                               .mtl({"launch", "-q", "-n", "1", "--", "/bin/sh", "-c",
                                     "echo ACCELERATE_USE_CPU=$ACCELERATE_USE_CPU"})
                               .out;
  REQUIRE(told.starts_with("ACCELERATE_USE_CPU="));
  const std::string line = told.substr(0, told.find('\n'));
  CHECK(has(shell.mtl({"launch", "--dry-run", "-n", "1", "--", "true"}).out, line));
  const Outcome document = shell.mtl({"launch", "--dry-run", "--json", "-n", "1", "--", "true"});
  CHECK(has(document.out, "\"ACCELERATE_USE_CPU\": \"" + line.substr(line.find('=') + 1) + '"'));
}

TEST_CASE("--dry-run of a program prints what would be started, and starts nothing") {
  Shell shell;
  const Outcome outcome = shell.mtl(
      {"launch", "--dry-run", "--num_processes", "2", "--", "/bin/sh", "-c", "touch started"});
  CHECK(outcome.code == 0);
  CHECK(has(outcome.out, "\nrank 1\n  host     "));
  CHECK(has(outcome.out, "\n  device   "));
  CHECK(has(outcome.out, "\n  binding  none\n"));
  CHECK(has(outcome.out, " RANK=1 "));
  CHECK(has(outcome.out, " /bin/sh -c 'touch started'\n"));
  // The command can be copied: it gives what rank 1 would have given.
  const size_t at = outcome.out.rfind("  command  ");
  const std::string line = outcome.out.substr(at + 11);
  const Outcome copied = shell.run({"/bin/sh", "-c", line});
  CHECK(copied.code == 0);
  CHECK(std::filesystem::exists(shell.dir() / "started"));
  std::filesystem::remove(shell.dir() / "started");
  CHECK_FALSE(std::filesystem::exists(shell.dir() / "started"));
}

TEST_CASE("--dry-run --json says what is wrong in its document, too") {
  Shell shell;
  shell.write("train.yaml", "model:\n  layerz: 2\n");
  const auto problems = [&](const std::vector<std::string>& more, int code) {
    std::vector<std::string> words = {"launch", "--dry-run", "--json"};
    words.insert(words.end(), more.begin(), more.end());
    const Outcome outcome = shell.mtl(words);
    CAPTURE(outcome.err);
    CHECK(outcome.code == code);
    CHECK(has(outcome.err, "error["));
    const auto document = nlohmann::json::parse(outcome.out);
    CHECK(document["schema"] == "mtl.launch/1");
    CHECK(document["exit_code"] == code);
    return document["problems"];
  };
  const auto of_file = problems({"train.yaml"}, 3);
  REQUIRE(of_file.size() >= 1);
  CHECK(of_file[0]["severity"] == "error");
  CHECK(of_file[0]["code"] == "config.unknown_key");
  CHECK(of_file[0]["file"] == "train.yaml");
  CHECK(of_file[0]["line"] == 2);
  CHECK(problems({"--tee", "7", "--", "true"}, 3)[0]["code"] == "launch.value");
  CHECK(problems({"model.layers=2", "train.yaml"}, 2)[0]["code"] == "usage.order");
  // What this machine has not stands beside what the launch would be.
  const Outcome elsewhere = shell.mtl(
      {"launch", "--dry-run", "--json", "--num_processes", "2", "--gpu_ids", "7,8", "--", "true"});
  CHECK(elsewhere.code == 4);
  const auto document = nlohmann::json::parse(elsewhere.out);
  CHECK(document["exit_code"] == 4);
  CHECK(document["problems"][0]["code"] == "placement.gpu_id");
  CHECK(document["settings"]["num_processes"] == 2);
  CHECK(shell.mtl({"launch", "--dry-run", "--tee", "7", "--", "true"}).out.empty());
}
