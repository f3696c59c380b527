// Pods: the command that a manifest gives them, with the environment that each controller sets, on
// machines with the names that the cluster's DNS would have.
#include <chrono>
#include <csignal>
#include <fstream>
#include <thread>

#include <yaml-cpp/yaml.h>

#include "cluster/tiny_run.h"

using namespace mtl::test;
using namespace std::chrono_literals;

namespace {

constexpr int kPods = 4;

// A job as `mtl launch --via kubernetes` renders it, and its pods here.
class Pods {
 public:
  Pods(const Cluster& cluster, std::string kind, const std::vector<std::string>& settings)
      : cluster_(cluster), kind_(std::move(kind)) {
    std::vector<std::string> args = {"--via",
                                     "kubernetes",
                                     "--kubernetes_kind",
                                     kind_,
                                     "--kubernetes_image",
                                     "mtl:1",
                                     "--kubernetes_name",
                                     "train",
                                     "--num_machines",
                                     std::to_string(kPods),
                                     "--nproc_per_node",
                                     "1",
                                     "--cpu",
                                     "train.yaml"};
    args.insert(args.end(), settings.begin(), settings.end());
    const CommandEnd rendered = cluster.launched(args);
    REQUIRE_MESSAGE(rendered.code == 0, rendered.err);
    for (const YAML::Node& document : YAML::LoadAll(rendered.out)) {
      const std::string what = document["kind"].as<std::string>();
      if (what == "Secret") token(document["stringData"]["token"].as<std::string>());
      if (what == "ConfigMap") {
        cluster.write("etc/train.yaml", document["data"]["train.yaml"].as<std::string>());
      }
      if (what == "Job") words(document["spec"]["template"]["spec"]["containers"][0]);
      if (what == "JobSet") {
        words(document["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
                      ["containers"][0]);
      }
      if (what == "PyTorchJob") {
        words(
            document["spec"]["pytorchReplicaSpecs"]["Worker"]["template"]["spec"]["containers"][0]);
      }
      if (what == "TrainJob") words(document["spec"]["trainer"]);
    }
    REQUIRE(args_.size() > 1);
  }

  // The names of the pods, as the headless service or the operator gives them.
  void name_pods() const {
    std::ofstream hosts(cluster_.dir() / "hosts", std::ios::app);
    for (int pod = 0; pod < kPods; ++pod) {
      hosts << Lab::address(pod + 1) << " " << name(pod) << "\n";
    }
  }

  Command start(int pod) const {
    auto env = environment(pod);
    env.insert({{"MTL_TOKEN_FILE", (cluster_.work() / "token").string()},
                {"MTL_CONFIG_FILE", "none"},
                {"KUBERNETES_SERVICE_HOST", "10.96.0.1"},
                {"KUBERNETES_PORT", "tcp://10.96.0.1:443"},
                {"OMP_NUM_THREADS", "1"}});
    return cluster_.launch(args_, pod + 1, env);
  }
  std::vector<Command> start_all() const {
    std::vector<Command> pods;
    for (int pod = 0; pod < kPods; ++pod) pods.push_back(start(pod));
    return pods;
  }

 private:
  void token(const std::string& text) {
    const fs::path path = cluster_.write("token", text);
    fs::permissions(path, fs::perms(0600));
  }
  void words(const YAML::Node& container) {
    REQUIRE(container["command"].as<std::vector<std::string>>() ==
            std::vector<std::string>{"mtl", "launch"});
    args_ = container["args"].as<std::vector<std::string>>();
    for (std::string& word : args_) {
      if (word == "/etc/mtl/train.yaml") word = (cluster_.work() / "etc/train.yaml").string();
    }
  }

  std::string name(int pod) const {
    const std::string number = std::to_string(pod);
    if (kind_ == "indexed-job") return "train-" + number + ".train";
    if (kind_ == "pytorchjob") {
      return pod == 0 ? "train-master-0" : "train-worker-" + std::to_string(pod - 1);
    }
    return "train-node-0-" + number + ".train";
  }

  // As training-operator 1.9 (envvar.go), trainer 2.3 (torch.go), JobSet and the Job controller set
  // it.
  std::map<std::string, std::string> environment(int pod) const {
    const std::string number = std::to_string(pod);
    const std::string host = name(pod).substr(0, name(pod).find('.'));
    if (kind_ == "pytorchjob") {
      return {{"HOSTNAME", host},
              {"PYTHONUNBUFFERED", "1"},
              {"MASTER_PORT", "23456"},
              {"PET_MASTER_PORT", "23456"},
              {"MASTER_ADDR", "train-master-0"},
              {"PET_MASTER_ADDR", "train-master-0"},
              {"WORLD_SIZE", std::to_string(kPods)},
              {"RANK", number},
              {"PET_NPROC_PER_NODE", "1"},
              {"PET_NODE_RANK", number},
              {"PET_NNODES", std::to_string(kPods)}};
    }
    if (kind_ == "trainjob") {
      return {{"HOSTNAME", host},
              {"JOB_COMPLETION_INDEX", number},
              {"PET_NNODES", std::to_string(kPods)},
              {"PET_NPROC_PER_NODE", "1"},
              {"PET_NODE_RANK", number},
              {"PET_MASTER_ADDR", "train-node-0-0.train"},
              {"PET_MASTER_PORT", "29500"}};
    }
    return {{"HOSTNAME", host}, {"JOB_COMPLETION_INDEX", number}};
  }

  const Cluster& cluster_;
  const std::string kind_;
  std::vector<std::string> args_;
};

std::string run_dir(const Cluster& cluster, const std::string& name) {
  return "run.dir=" + (cluster.work() / name).string();
}

}  // namespace

TEST_CASE_FIXTURE(Machines, "pods of every kind of job train what one machine trains") {
  std::string kind;
  for (const char* one : {"indexed-job", "jobset", "pytorchjob", "trainjob"}) {
    SUBCASE(one) {
      kind = one;
    }
  }
  CAPTURE(kind);
  Cluster cluster(kPods);
  const TinyRun tiny(cluster, 10);
  const CommandEnd alone = tiny.trained("alone", {"--num_processes", std::to_string(kPods)});
  REQUIRE_MESSAGE(alone.code == 0, alone.err);
  const Pods pods(cluster, kind, {run_dir(cluster, "pods")});
  std::vector<Command> started;
  if (kind == "indexed-job") {
    // The first pod is the last that is there, and has a name later still.
    for (int pod = kPods - 1; pod > 0; --pod) started.push_back(pods.start(pod));
    std::this_thread::sleep_for(2s);
    started.push_back(pods.start(0));
    std::this_thread::sleep_for(1s);
    pods.name_pods();
  } else {
    pods.name_pods();
    started = pods.start_all();
  }
  for (Command& pod : started) {
    const CommandEnd end = pod.wait(kPatience);
    CHECK_MESSAGE(end.code == 0, end.err);
  }
  CHECK(tiny.losses("pods").size() == 10);
  CHECK(tiny.losses("pods") == tiny.losses("alone"));
  CHECK(tiny.weights("pods") == tiny.weights("alone"));
  CHECK_NOTHING_LEFT(cluster);
}

TEST_CASE_FIXTURE(Machines,
                  "a pod that is told to end stops all with a checkpoint and they go on") {
  Cluster cluster(kPods);
  const TinyRun tiny(cluster, 400, 100'000);
  const CommandEnd alone = tiny.trained("alone", {"--num_processes", std::to_string(kPods)});
  REQUIRE_MESSAGE(alone.code == 0, alone.err);
  const Pods pods(cluster, "jobset", {run_dir(cluster, "pods")});
  pods.name_pods();
  std::vector<Command> started = pods.start_all();
  REQUIRE(tiny.reached("pods", 5));
  started[2].signal(SIGTERM);  // evicted
  for (Command& pod : started) {
    const CommandEnd end = pod.wait(kPatience);
    CHECK_MESSAGE(end.code == 75, end.err);
  }
  CHECK(tiny.checkpoints("pods").size() == 1);
  CHECK(tiny.last_step("pods") < 400);
  // 75 is no failure: the controller makes them again.
  started = pods.start_all();
  for (Command& pod : started) {
    const CommandEnd end = pod.wait(2 * kPatience);
    CHECK_MESSAGE(end.code == 0, end.err);
  }
  CHECK(tiny.resumed_at("pods").size() == 1);
  CHECK(tiny.losses("pods") == tiny.losses("alone"));
  CHECK(tiny.weights("pods") == tiny.weights("alone"));
  CHECK_NOTHING_LEFT(cluster);
}

TEST_CASE_FIXTURE(Machines, "as the first process of a container mtl reaps and hears TERM") {
  Cluster cluster(1);
  const std::string script = cluster.script(
      "main",
      // A daemon's way: a child whose parent ends before it, thirty times.
      "for i in $(seq 30); do (sleep 0.1 &) ; done\nsleep 1\n"
      "grep -l '^State:.Z' /proc/[0-9]*/status | wc -l > zombies\n"
      "trap 'echo > heard; exit 75' TERM\nkill -TERM 1\nwhile :; do sleep 0.05; done\n");
  Command pod = cluster.start(1, {"unshare", "--pid", "--fork", "--mount-proc", "--kill-child",
                                  MTL_PROGRAM, "launch", "--num_processes", "1", "--", script});
  const CommandEnd end = pod.wait(kPatience);
  CHECK(cluster.files("zombies")["zombies"] == "0\n");
  CHECK(cluster.files("heard").size() == 1);
  CHECK_MESSAGE(end.code == 75, end.err);
  CHECK_NOTHING_LEFT(cluster);
}
