// The settings of a launch: how many ranks and where, and all contradictions at once.
#include "launcher/request/launch_request.h"

#include <algorithm>

#include <sys/stat.h>

#include <fmt/format.h>

#include "launcher/launch_request_cases.h"
#include "launcher/processes.h"
#include "launcher/ranks/worker_env.h"

using namespace mtl;
using namespace mtl::test;

TEST_CASE("a stop for a scheduler's warning has most of the time that is left") {
  using std::chrono::seconds;
  const auto grace_in = [](Launcher launcher, const FlagValues& flags) {
    LaunchGiven given;
    given.around.launcher = launcher;
    given.flags = flags;
    Diagnostics diagnostics;
    return resolve_launch({}, given, true, diagnostics).warning_grace;
  };
  CHECK(grace_in(Launcher::none, {}) == seconds(30));
  CHECK(grace_in(Launcher::slurm, {}) == seconds(150));
  CHECK(grace_in(Launcher::slurm, values({{"grace", "200"}})) == seconds(200));
  CHECK(grace_in(Launcher::slurm, values({{"slurm_signal_s", "600"}})) == seconds(570));
  CHECK(grace_in(Launcher::slurm, values({{"slurm_time", "1:00"}})) == seconds(30));
}

TEST_CASE("a configuration file does not count in a task of srun") {
  const LaunchConfig file =
      file_of("distributed_type: MULTI_CPU\nuse_cpu: true\nnum_machines: 3\nnum_processes: 6\n");
  const auto in_step = [&](int nodes, const Values& flags) {
    LaunchGiven given;
    given.around.launcher = Launcher::slurm;
    given.around.task = Surroundings::Task{.world = nodes, .local_world = 1, .nodes = nodes};
    given.flags = values(flags);
    // As launch_surroundings says it.
    if (nodes > 1) {
      given.surroundings = values({{"num_machines", std::to_string(nodes)},
                                   {"machine_rank", "0"},
                                   {"main_process_ip", "10.0.0.1"}});
    }
    Diagnostics diagnostics;
    const LaunchRequest request = resolve_launch(file, given, false, diagnostics);
    for (const Diagnostic& one : diagnostics.all()) CAPTURE(one.what);
    CHECK_FALSE(diagnostics.has_errors());
    return fmt::format("{} x {}", request.max_nodes, request.local_ranks);
  };
  CHECK(in_step(2, {}) == "2 x 1");
  CHECK(in_step(1, {}) == "1 x 1");
  CHECK(in_step(2, {{"num_processes", "4"}}) == "2 x 2");
  CHECK(in_step(2, {{"nproc_per_node", "3"}}) == "2 x 3");
  CHECK(in_step(1, {{"standalone", "true"}, {"num_processes", "6"}}) == "1 x 6");
  CHECK(in_step(1, {{"machine_rank", "0"}, {"main_process_ip", "10.0.0.1"}}) == "3 x 2");
}

TEST_CASE("truth values are what they say") {
  for (const char* no : {"false", "0", "no", "off", "False"}) CHECK(truth_of(no) == false);
  for (const char* yes : {"true", "1", "yes", "on", "True"}) CHECK(truth_of(yes) == true);
  CHECK_FALSE(truth_of("maybe").has_value());
  const auto env = worker_environment(
      resolved({{"use_megatron_lm", "true"}, {"megatron_lm_no_load_optim", "false"}})
          .request.config,
      {}, 0);
  CHECK(env.at("MEGATRON_LM_NO_LOAD_OPTIM") == "False");
}

TEST_CASE("variables of the environment: MTL_ and torchrun's PET_") {
  const char* const environment[] = {"MTL_NUM_PROCESSES=4", "PET_NNODES=2",     "PET_NODE_RANK=1",
                                     "MTL_GRACE=soon",      "MTL_CPU_ISA=avx2", "HOME=/",
                                     "MTL_TRAIN__STEPS=3",  "MTL_TEE=",         nullptr};
  Diagnostics diagnostics;
  const FlagValues found = flags_in_environment(environment, diagnostics);
  CHECK(found.size() == 3);
  CHECK(found.at("num_processes").texts == std::vector<std::string>{"4"});
  CHECK(found.at("nnodes").origin == "PET_NNODES");
  CHECK(found.at("machine_rank").texts[0] == "1");
  REQUIRE(diagnostics.all().size() == 1);
  CHECK(diagnostics.all()[0].code == "config.environment");
  CHECK(diagnostics.all()[0].what.find("MTL_GRACE") != std::string::npos);
}

TEST_CASE("how many ranks and where") {
  using Mode = LaunchRequest::Mode;
  const int cores = inspect_hardware(false).cores;
  struct Case {
    std::vector<std::pair<std::string, std::string>> flags;
    Mode mode;
    int ranks, local, min, max;
  };
  const std::vector<Case> table = {
      {{{"cpu", "true"}}, Mode::local, 1, 1, 1, 1},
      {{{"num_processes", "6"}}, Mode::local, 6, 6, 1, 1},
      // torchrun's word: without GPUs one per core.
      {{{"cpu", "true"}, {"nproc_per_node", "auto"}}, Mode::local, cores, cores, 1, 1},
      {{{"nproc_per_node", "3"}}, Mode::local, 3, 3, 1, 1},
      {{{"nproc_per_node", "3"}, {"rdzv_backend", "c10d"}, {"rdzv_endpoint", "localhost:0"}},
       Mode::local,
       3,
       3,
       1,
       1},
      {{{"num_processes", "6"},
        {"num_machines", "2"},
        {"machine_rank", "1"},
        {"main_process_ip", "10.0.0.1"}},
       Mode::member,
       6,
       3,
       2,
       2},
      {{{"nproc_per_node", "4"},
        {"nnodes", "2:3"},
        {"rdzv_backend", "c10d"},
        {"rdzv_endpoint", "n0:29400"}},
       Mode::member,
       0,
       4,
       2,
       3},
      {{{"hosts", "a:2,b:3"}}, Mode::hosts, 5, 0, 2, 2},
      {{{"hosts", "a,b"}, {"num_processes", "8"}}, Mode::hosts, 8, 4, 2, 2},
      {{{"hosts", "a:4,b:4"}, {"num_processes", "6"}}, Mode::hosts, 6, 0, 2, 2},
      {{{"hosts", "a:4,b:4"}, {"num_processes", "4"}}, Mode::hosts, 4, 0, 1, 1},
  };
  for (const Case& c : table) {
    std::string words;
    for (const auto& [name, text] : c.flags) words += name + "=" + text + " ";
    CAPTURE(words);
    const Outcome outcome = resolved(c.flags);
    CAPTURE(outcome.words);
    CHECK(outcome.codes.empty());
    CHECK(outcome.request.mode == c.mode);
    CHECK(outcome.request.ranks == c.ranks);
    CHECK(outcome.request.local_ranks == c.local);
    CHECK(outcome.request.min_nodes == c.min);
    CHECK(outcome.request.max_nodes == c.max);
  }
}

TEST_CASE("a file's number of processes is for its machines, not for hosts that a flag names") {
  const auto ranks = [](const std::string& hosts, const std::string& file, Values flags = {}) {
    flags.emplace_back("hosts", hosts);
    flags.emplace_back("cpu", "true");
    const Outcome outcome = resolved(flags, file_of(file));
    CAPTURE(outcome.words);
    CHECK(outcome.codes.empty());
    std::string text = fmt::format("{} ", outcome.request.local_ranks);
    for (const Host& host : outcome.request.hosts)
      text += fmt::format("{}:{} ", host.name, host.slots);
    return text;
  };
  // mtl config default writes this where there are no GPUs.
  const std::string here = "distributed_type: NO\nnum_processes: 1\nuse_cpu: true\n";
  CHECK(ranks("a:2,b:2", here) == "0 a:2 b:2 ");
  CHECK(ranks("a,b", here) == "0 a:0 b:0 ");
  CHECK(ranks("a:4,b:4", here, {{"num_processes", "6"}}) == "0 a:4 b:2 ");
  CHECK(ranks("a,b", here, {{"num_processes", "6"}}) == "3 a:0 b:0 ");
  CHECK(ranks("a:2,b,c", here, {{"num_processes", "6"}}) == "0 a:2 b:2 c:2 ");
  CHECK(ranks("a:2,b:2", here, {{"tee", "3"}}) == "0 a:2 b:2 ");
  CHECK(ranks("a:2,b:1", here, {{"tee", "1:3"}}) == "0 a:2 b:1 ");
  // As many machines as the file has.
  const std::string two =
      "distributed_type: MULTI_CPU\nuse_cpu: true\nnum_machines: 2\nnum_processes: 8\n";
  CHECK(ranks("a,b", two) == "4 a:0 b:0 ");
  CHECK(ranks("a:1,b:2", two) == "0 a:1 b:2 ");
  // The file's own hosts.
  const Outcome own = resolved({}, file_of(two + "megatron_lm_config:\n  mtl_hosts: a:9,b:9\n"));
  CHECK(own.request.ranks == 8);
}

TEST_CASE("that a file's use_cpu keeps a job from GPUs is said, unless it was meant") {
  const auto codes = [](const Values& flags, const std::string& more = "") {
    return resolved(flags,
                    file_of("distributed_type: NO\nnum_processes: 1\nuse_cpu: true\n" + more))
        .codes;
  };
  const std::vector<std::string> said = {"launch.job_on_cpus"};
  CHECK(codes({{"via", "slurm"}}) == said);
  CHECK(codes({{"via", "kubernetes"}}) == said);
  CHECK(codes({{"hosts", "a:2,b:2"}}) == said);
  CHECK(codes({{"hosts", "a:2,b:2"}, {"multi_gpu", "true"}}).empty());
  CHECK(codes({}, "megatron_lm_config:\n  mtl_hosts: a:2,b:2\n").empty());
  CHECK(codes({{"via", "slurm"}, {"cpu", "true"}}).empty());
  CHECK(codes({{"via", "slurm"}, {"multi_gpu", "true"}}).empty());
  CHECK(codes({}, "megatron_lm_config:\n  mtl_via: slurm\n").empty());
  CHECK(codes({}).empty());
}

TEST_CASE("what a node without a word or with one runs, by what it has") {
  NodeHardware hardware;
  hardware.cores = 6;
  Diagnostics none;
  const auto ranks = [&](int word, bool use_cpu) {
    return ranks_of_node(word, hardware, use_cpu, none);
  };
  CHECK(ranks(LaunchRequest::kAuto, false) == 1);
  CHECK(ranks(LaunchRequest::kPerCore, false) == 6);
  CHECK(ranks(LaunchRequest::kPerDevice, false) == 6);
  hardware.gpus.resize(2);
  CHECK(ranks(LaunchRequest::kAuto, false) == 2);
  CHECK(ranks(LaunchRequest::kPerDevice, false) == 2);
  CHECK(ranks(LaunchRequest::kPerDevice, true) == 6);
  CHECK(!none.has_errors());
}

TEST_CASE("a hostfile without a name in accelerate's file is none") {
  const Outcome outcome =
      resolved({}, file_of("distributed_type: MULTI_CPU\nnum_processes: 2\nuse_cpu: true\n"
                           "mpirun_config: {mpirun_hostfile: '', mpirun_ccl: '1'}\n"));
  CHECK(outcome.words == "");
  CHECK(outcome.request.mode == LaunchRequest::Mode::local);
}

TEST_CASE("a hostfile that is not there is told with what named it") {
  const auto told = [](const Values& flags, const std::string& file) {
    Diagnostics diagnostics;
    const LaunchConfig config = file.empty() ? LaunchConfig{} : file_of(file);
    resolve_launch(config, {.flags = values(flags)}, false, diagnostics);
    for (const Diagnostic& one : diagnostics.all()) {
      if (one.code != "hosts.file") continue;
      return fmt::format("{}:{} {}", one.place->file, one.place->line, one.help);
    }
    return std::string("nothing");
  };
  CHECK(told({{"hostfile", "/none"}}, "") == "/none:0 correct the path that --hostfile gives");
  CHECK(told({}, "distributed_type: MULTI_CPU\nmpirun_config:\n  mpirun_hostfile: /none\n") ==
        "c.yaml:3 correct the path that mpirun_hostfile gives");
  CHECK(told({}, "distributed_type: DEEPSPEED\ndeepspeed_config:\n  deepspeed_hostfile: /none\n") ==
        "c.yaml:3 correct the path that deepspeed_hostfile gives");
  CHECK(told({}, "distributed_type: MEGATRON_LM\nmegatron_lm_config:\n  mtl_hostfile: /none\n") ==
        "c.yaml:0 correct the path that mtl_hostfile gives");
}

TEST_CASE("contradictions are errors, all of them at once") {
  using Flags = std::vector<std::pair<std::string, std::string>>;
  struct Case {
    Flags flags;
    std::vector<std::string> codes;
    const char* words;
  };
  const std::vector<Case> table = {
      {{{"cpu", "true"}, {"multi_gpu", "true"}}, {"launch.conflict"}, "--cpu and --multi_gpu"},
      {{{"hosts", "a,b"}, {"machine_rank", "1"}}, {"launch.conflict"}, "--machine_rank"},
      {{{"hosts", "a,b"}, {"num_processes", "3"}}, {"launch.processes"}, "evenly by 2"},
      {{{"nnodes", "4:3"}}, {"launch.nodes"}, "3:4"},
      {{{"nnodes", "2"}, {"num_machines", "3"}, {"main_process_ip", "a"}, {"machine_rank", "0"}},
       {"launch.conflict"},
       "different numbers"},
      {{{"num_machines", "2"}, {"machine_rank", "2"}, {"main_process_ip", "a"}},
       {"launch.machine_rank"},
       "does not exist"},
      {{{"num_machines", "2"}, {"machine_rank", "0"}}, {"launch.address"}, "--main_process_ip"},
      {{{"num_machines", "2"}, {"main_process_ip", "a"}},
       {"launch.machine_rank"},
       "--machine_rank"},
      {{{"nnodes", "2:3"}, {"rdzv_backend", "tcp"}}, {"launch.address"}, "--rdzv_endpoint"},
      {{{"nnodes", "2:3"}, {"rdzv_endpoint", "a"}, {"machine_rank", "0"}},
       {"launch.conflict"},
       "--rdzv_backend tcp"},
      {{{"main_process_port", "70000"}}, {"launch.port"}, "65535"},
      {{{"num_machines", "2"},
        {"machine_rank", "0"},
        {"main_process_ip", "a"},
        {"main_process_port", "0"}},
       {"launch.port"},
       "would not know"},
      {{{"use_fsdp", "true"}, {"use_megatron_lm", "true"}}, {"launch.conflict"}, "one engine"},
      {{{"use_fsdp", "true"}, {"use_deepspeed", "true"}}, {"launch.conflict"}, "one engine"},
      {{{"num_processes", "4"}, {"nproc_per_node", "3"}}, {"launch.conflict"}, "do not agree"},
      {{{"rdzv_endpoint", "a:b:c]"}, {"env", "X"}}, {"launch.value"}, "--forward_env X"},
      {{{"rdzv_endpoint", "[::1"}}, {"launch.endpoint"}, "[fd00::1]:29400"},
      {{{"rdzv_conf", "join_timeot=3"}}, {"launch.rdzv_conf"}, "did you mean join_timeout?"},
      {{{"tee", "0:7"}}, {"launch.value"}, "pairs"},
      {{{"standalone", "true"}, {"hosts", "a"}}, {"launch.conflict"}, "--standalone"},
      {{{"cpu", "true"}, {"nproc_per_node", "gpu"}},
       {"launch.conflict", "placement.gpu_count"},
       "gpu with --cpu"},
      {{{"hosts", "a:1"}, {"num_processes", "9"}}, {"launch.processes"}, "1 slots"},
      {{{"hosts", "a:2,b,c"}, {"num_processes", "5"}},
       {"launch.processes"},
       "leaves 3 for 2 hosts without a number"},
      {{{"hosts", "a:5,b"}, {"num_processes", "5"}},
       {"launch.processes"},
       "leaves 0 for 1 host without a number"},
      {{{"hosts", "a:2,b:2"}, {"nproc_per_node", "4"}},
       {"launch.ignored_flag"},
       "--nproc_per_node (each host is given a number of its own)"},
      {{{"num_processes", "2"}, {"local_ranks_filter", "0,7"}},
       {"launch.value"},
       "--local_ranks_filter names local rank 7, and there is 0 to 1"},
      {{{"num_processes", "1"}, {"tee", "1:3"}, {"cpu", "true"}},
       {"launch.value"},
       "--tee names local rank 1, and there is 0 only"},
      {{{"cpu", "true"},
        {"multi_gpu", "true"},
        {"main_process_port", "99999"},
        {"num_machines", "2"},
        {"use_fsdp", "true"},
        {"use_deepspeed", "true"}},
       {"launch.conflict", "launch.port", "launch.conflict", "launch.address",
        "launch.machine_rank"},
       "one engine"},
  };
  for (const Case& c : table) {
    std::string words;
    for (const auto& [name, text] : c.flags) words += name + "=" + text + " ";
    CAPTURE(words);
    Outcome outcome = resolved(c.flags);
    CAPTURE(outcome.words);
    auto codes = c.codes;
    std::sort(codes.begin(), codes.end());
    std::sort(outcome.codes.begin(), outcome.codes.end());
    CHECK(outcome.codes == codes);
    CHECK(outcome.words.find(c.words) != std::string::npos);
  }
}

TEST_CASE("endpoints with names and addresses of both families") {
  const auto text = [](const std::string& given) {
    const auto endpoint = parse_endpoint(given);
    return endpoint ? fmt::format("{} {}", endpoint->host, endpoint->port) : "none";
  };
  CHECK(text("node0") == "node0 -1");
  CHECK(text("node0:29400") == "node0 29400");
  CHECK(text("10.0.0.1:0") == "10.0.0.1 0");
  CHECK(text("[fd00::1]:29400") == "fd00::1 29400");
  CHECK(text("[fd00::1]") == "fd00::1 -1");
  CHECK(text("fd00::1") == "fd00::1 -1");
  for (const char* bad : {"", ":1", "a:", "a:x", "a:70000", "[::1", "[::1]x", "a b"}) {
    CAPTURE(bad);
    CHECK(text(bad) == "none");
  }
}

TEST_CASE("the secret is read from its file and its readers are looked at") {
  TempDir dir;
  const std::string path = dir.file("token", "0123456789abcdef\n");
  chmod(path.c_str(), 0600);
  Outcome outcome = resolved({{"token_file", path}});
  CHECK(outcome.codes.empty());
  CHECK(outcome.request.token == "0123456789abcdef");
  chmod(path.c_str(), 0644);
  CHECK(resolved({{"token_file", path}}).codes == std::vector<std::string>{"launch.token_mode"});
  CHECK(resolved({{"token_file", path + "x"}}).codes == std::vector<std::string>{"file.missing"});
  CHECK(resolved({{"token_file", dir.file("empty", "\n")}}).codes ==
        std::vector<std::string>{"launch.token_file"});
}

TEST_CASE("what tee shows of every rank is shown though it is redirected") {
  for (const auto& [tee, shown] : {std::pair{"3", 3}, {"1", 1}}) {
    const LogOptions logs =
        resolved({{"nproc_per_node", "2"}, {"tee", tee}, {"redirects", "3"}}).request.logs;
    CHECK(logs.console == std::map<int, int>{{0, shown}, {1, shown}});
    CHECK(logs.redirected == std::map<int, int>{{0, 3}, {1, 3}});
    CHECK(logs.prefix);
  }
}
