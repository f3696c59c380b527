// What facts about a machine are judged to be, and what a bug report does not tell.
#include "launcher/doctor/doctor.h"

#include <algorithm>

#include <doctest/doctest.h>

#include "launcher/settings/secret.h"
#include "support/text.h"

using namespace mtl;
using Level = Finding::Level;

namespace {

Finding of(const std::vector<Finding>& findings, const std::string& check) {
  const auto found = std::find_if(findings.begin(), findings.end(),
                                  [&](const Finding& f) { return f.check == check; });
  REQUIRE(found != findings.end());
  // Who has something to say says what to do about it.
  CHECK((found->level == Level::ok) == found->cure.empty());
  return *found;
}

using mtl::test::has;

constexpr int64_t kGiB = int64_t{1} << 30;

}  // namespace

TEST_CASE("limits: few files are a warning, very few a problem") {
  const auto level = [](std::optional<uint64_t> files) {
    return of(judge_limits({.nofile = files, .nofile_hard = 1 << 20}), "limits.nofile").level;
  };
  CHECK(level(128) == Level::problem);
  CHECK(level(512) == Level::warning);
  CHECK(level(1024) == Level::ok);
  CHECK(level(std::nullopt) == Level::ok);
  CHECK(has(of(judge_limits({.nofile = 128, .nofile_hard = 4096}), "limits.nofile").cure,
            "ulimit -n 4096"));
  CHECK(has(of(judge_limits({.nofile = 128, .nofile_hard = 256}), "limits.nofile").cure,
            "limits.conf"));
  CHECK(of(judge_limits({.nproc = 100}), "limits.nproc").level == Level::warning);
}

TEST_CASE("locked memory matters only with RDMA cards") {
  CHECK(of(judge_limits({.memlock = 65536, .rdma = false}), "limits.memlock").level == Level::ok);
  CHECK(of(judge_limits({.memlock = 65536, .rdma = true}), "limits.memlock").level ==
        Level::problem);
  CHECK(of(judge_limits({.memlock = {}, .rdma = true}), "limits.memlock").level == Level::ok);
}

TEST_CASE("memory: what the control group leaves is what counts") {
  MemoryFacts facts{.total = 64 * kGiB,
                    .available = 60 * kGiB,
                    .shm_total = 32 * kGiB,
                    .shm_free = 32 * kGiB,
                    .cores = 8};
  CHECK_FALSE(has_problem(judge_memory(facts)));
  facts.cgroup_limit = 4 * kGiB;
  facts.cgroup_used = 3 * kGiB + kGiB / 2;
  const Finding memory = of(judge_memory(facts), "memory.free");
  CHECK(memory.level == Level::problem);
  CHECK(has(memory.what, "512 MiB free of 4 GiB that the control group allows"));
  facts.shm_total = facts.shm_free = 64 << 20;  // Docker's
  CHECK(of(judge_memory(facts), "memory.shm").level == Level::warning);
  CHECK(has(of(judge_memory(facts), "memory.shm").cure, "--shm-size"));
  facts.shm_total = facts.shm_free = -1;
  CHECK(has(of(judge_memory(facts), "memory.shm").what, "not there"));
  facts.cpu_quota = 0.5;
  CHECK(of(judge_memory(facts), "memory.cores").level == Level::warning);
}

TEST_CASE("disk, names and ports") {
  CHECK(of(judge_disk({.folder = "/x", .refusal = "Permission denied"}), "disk.write").level ==
        Level::problem);
  CHECK(of(judge_disk({.folder = "/x", .free_bytes = 100 << 20}), "disk.space").level ==
        Level::problem);
  CHECK(of(judge_disk({.folder = "/x", .free_bytes = 10 * kGiB}), "disk.space").level ==
        Level::warning);
  CHECK(of(judge_disk({.folder = "/x", .free_bytes = 100 * kGiB, .bytes_per_s = 1e7}), "disk.speed")
            .level == Level::warning);
  CHECK(of(judge_disk({.folder = "/x", .free_bytes = 100 * kGiB, .free_inodes = 3}), "disk.inodes")
            .level == Level::problem);
  CHECK(of(judge_names({.name = "n", .resolves = false, .addresses = 1}), "network.name").level ==
        Level::warning);
  // Debian's 127.0.1.1 is fine for a machine alone.
  CHECK(of(judge_names({.name = "n", .to_loopback = true, .addresses = 1}), "network.name").level ==
        Level::ok);
  CHECK(of(judge_names({.name = "n", .to_loopback = true, .addresses = 1, .several_hosts = true}),
           "network.name")
            .level == Level::warning);
  CHECK(of(judge_names({.name = "n", .addresses = 0, .several_hosts = true}), "network.address")
            .level == Level::problem);
  CHECK(judge_port(29500, false, false, std::nullopt).level == Level::ok);
  CHECK(judge_port(29500, false, true, "process 7 (x)").level == Level::warning);
  CHECK(judge_port(29500, true, false, "process 7 (x)").level == Level::warning);
  CHECK(judge_port(29500, true, true, "process 7 (x)").level == Level::problem);
  CHECK(has(judge_port(29500, true, true, "process 7 (x)").what, "process 7 (x)"));
}

TEST_CASE("the driver and its libraries") {
  CHECK_FALSE(has_problem(judge_driver({})));
  CHECK(of(judge_driver({.nouveau = true}), "gpu.driver").level == Level::warning);
  DriverFacts facts{.files = true,
                    .module = "580.65.06",
                    .user_library = "570.10.01",
                    .plugin = true,
                    .cuda_driver = 13000,
                    .cuda_runtime = 13000,
                    .nccl = "2.28.3",
                    .gpus = {{"H200", ""}}};
  const Finding mismatch = of(judge_driver(facts), "gpu.driver");
  CHECK(mismatch.level == Level::problem);
  CHECK(has(mismatch.cure, "reboot"));
  facts.user_library = facts.module;
  CHECK_FALSE(has_problem(judge_driver(facts)));
  facts.cuda_driver = 12080;
  CHECK(of(judge_driver(facts), "gpu.cuda").level == Level::problem);
  facts.cuda_driver = 13010;
  facts.cuda_runtime = 13000;
  CHECK(of(judge_driver(facts), "gpu.cuda").what == "CUDA 13.0, and the driver has 13.1");
  facts.nccl.clear();
  facts.nccl_needed = true;
  CHECK(of(judge_driver(facts), "gpu.nccl").level == Level::problem);
  facts.gpus[0].refusal = "too old";
  CHECK(of(judge_driver(facts), "gpu.device").level == Level::problem);
  facts.plugin = false;
  CHECK(of(judge_driver(facts), "gpu.engine").level == Level::problem);
  facts.user_library.clear();
  CHECK(has(of(judge_driver(facts), "gpu.driver").cure, "--gpus all"));
}

TEST_CASE("hosts are to be alike and their clocks together") {
  const auto host = [](const std::string& name, const std::string& version, double ahead) {
    return HostReport{.host = name,
                      .facts = {{"mtl", version}, {"kernel", name}, {"GPUs", "none"}},
                      .findings = {},
                      .clock_ahead_s = ahead,
                      .clock_error_s = 0.01};
  };
  const auto alike = compare_hosts({host("a", "1", 0), host("b", "1", 0.1)});
  CHECK_FALSE(has_problem(alike));
  CHECK(of(alike, "hosts.versions").level == Level::ok);
  CHECK(of(alike, "hosts.clock").level == Level::ok);
  const auto apart = compare_hosts({host("a", "1", 0), host("b", "2", -5), host("c", "1", 100)});
  CHECK(of(apart, "hosts.mtl").level == Level::problem);
  CHECK(of(apart, "hosts.mtl").what == "mtl differs: 1 on a, c; 2 on b");
  CHECK(of(apart, "hosts.clock").level == Level::problem);
  CHECK(has(of(apart, "hosts.clock").what, "c is 105 s ahead of b"));
  CHECK(of(compare_hosts({host("a", "1", 0), host("b", "1", 5)}), "hosts.clock").level ==
        Level::warning);
}

TEST_CASE("secrets are known by the words of their names, settings of a launch are none") {
  for (const char* name : {"HF_TOKEN",
                           "WANDB_API_KEY",
                           "AWS_SECRET_ACCESS_KEY",
                           "MY_TOKEN_2",
                           "GITHUB_TOKEN_RO",
                           "hf_token",
                           "PGPASSWORD",
                           "MYSQL_PASSWD",
                           "OPENAI_APIKEY",
                           "HFTOKEN",
                           "AUTH",
                           "BASICAUTH",
                           "HTTP_AUTHORIZATION",
                           "AZURE_CREDENTIALS",
                           "GOOGLE_CREDENTIAL_JSON",
                           "CLIENTSECRETS",
                           "SSH_KEYS",
                           "TOKEN2",
                           "my-token",
                           "  aws_secret_access_key",
                           "MTL_TOKEN",
                           "MTL_AWS_SECRET_ACCESS_KEY"}) {
    CAPTURE(name);
    CHECK(is_secret(name));
  }
  for (const char* name :
       {"MEGATRON_LM_CALCULATE_PER_TOKEN_LOSS", "MTL_MEGATRON_LM_CALCULATE_PER_TOKEN_LOSS",
        "  megatron_lm_calculate_per_token_loss", "  mtl_kubernetes_env_secret", "MTL_TOKEN_FILE",
        "TOKENIZERS_PARALLELISM", "XAUTHORITY", "KEYBOARD", "AUTHOR", "MTL_LISTENER_FD", "PATH",
        ""}) {
    CAPTURE(name);
    CHECK_FALSE(is_secret(name));
  }
}

TEST_CASE("a bug report has no names") {
  const Secrets secrets{.user = "anna",
                        .home = "/home/anna",
                        .hosts = {"node1", "node1.lab.example.org"},
                        .values = {"hf_abcdefgh"}};
  CHECK(without_secrets("runs in /home/anna/work on node1.lab.example.org (node1, 10.0.3.7:29500)",
                        secrets) == "runs in ~/work on HOST1 (HOST0, ADDRESS:29500)");
  CHECK(without_secrets("user anna, token hf_abcdefgh, by fe80::1", secrets) ==
        "user USER, token SECRET, by ADDRESS");
  // What only looks alike stays.
  CHECK(
      without_secrets("savanna node12 version 580.65.06 12:30:00 0.1.0 Linux 6.1.0-18", secrets) ==
      "savanna node12 version 580.65.06 12:30:00 0.1.0 Linux 6.1.0-18");
  const Secrets root{.user = "root", .home = "/root", .hosts = {}, .values = {}};
  CHECK(without_secrets("not root in /root/runs", root) == "not root in ~/runs");
}
