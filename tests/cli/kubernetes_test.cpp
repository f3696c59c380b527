// mtl launch --via kubernetes as a person uses it. What is rendered is checked in tests/launcher
// and tests/clients, and run in tests/cluster.
#include <set>
#include <string>

#include <yaml-cpp/yaml.h>

#include "cli/tiny_run.h"

using namespace mtl::test;

namespace {

std::vector<std::string> command(const std::vector<std::string>& more) {
  std::vector<std::string> args = {
      "launch",           "--via", "kubernetes",         "--num_machines", "2",
      "--nproc_per_node", "1",     "--kubernetes_image", "mtl:1"};
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

YAML::Node container_of(const std::string& manifest) {
  for (const YAML::Node& document : YAML::LoadAll(manifest)) {
    if (document["kind"].as<std::string>("") == "Job") {
      return document["spec"]["template"]["spec"]["containers"][0];
    }
  }
  FAIL("no Job");
  return {};
}

std::string words_of(const std::string& manifest) {
  std::string words;
  for (const YAML::Node& word : container_of(manifest)["args"]) words += word.Scalar() + "\n";
  return words;
}

}  // namespace

TEST_CASE("a launch becomes a manifest with all that was said here") {
  const Shell shell;
  write_recipe(shell, 10);
  const Outcome outcome = shell.mtl(
      command({"--mixed_precision", "bf16", "--env", "A=b c", "train.yaml", "train.steps=20"}),
      {{"MTL_TRAIN__SEED", "7"}, {"MTL_DEAD_AFTER", "9"}});
  CAPTURE(outcome.err);
  CHECK(outcome.code == 0);
  CHECK(words_of(outcome.out) ==
        "--num_machines=2\n--nproc_per_node=1\n--main_process_ip=tiny-0.tiny\n"
        "--main_process_port=29400\n--dead_after=9\n--env=A=b c\n--mixed_precision=bf16\n"
        "--grace=285s\n/etc/mtl/train.yaml\ntrain.seed=7\ntrain.steps=20\n");
  CHECK(has(outcome.err, "warning[kubernetes.checkpoints]"));
  CHECK(has(outcome.err, "kubectl delete job,service,configmap,secret"));
  // Another one has another token.
  const Outcome again = shell.mtl(command({"train.yaml"}));
  CHECK(again.out.find("token: ") != std::string::npos);
  const auto token = [](const std::string& text) {
    return text.substr(text.find("  token: "), 70);
  };
  CHECK(token(again.out) != token(outcome.out));
  CHECK(!has(again.err, token(again.out).substr(9, 40)));
}

TEST_CASE("a program becomes a manifest too") {
  const Shell shell;
  const Outcome script = shell.mtl(command({"-m", "pkg.train", "--lr", "1e-3"}));
  CHECK_MESSAGE(script.code == 0, script.err);
  CHECK(has(words_of(script.out), "--module=true\n"));
  CHECK(has(words_of(script.out), "\npkg.train\n--lr\n1e-3\n"));
  const Outcome program = shell.mtl(command({"--cpu", "--", "./prog", "--x"}));
  CHECK_MESSAGE(program.code == 0, program.err);
  CHECK(has(words_of(program.out), "\n--\n./prog\n--x\n"));
  CHECK_FALSE(container_of(program.out)["resources"]);
}

TEST_CASE("a train.yaml says that it is for Kubernetes and a pod does not make another job of it") {
  const Shell shell;
  write_recipe(shell, 10);
  shell.write("train.yaml",
              "launch:\n  via: kubernetes\n  kubernetes:\n    image: mtl:2\n"
              "    memory: 8Gi\n    toleration: [a, b]\n" +
                  file_text(shell.dir() / "train.yaml"));
  const Outcome rendered = shell.mtl({"launch", "--num_machines", "2", "--nproc_per_node", "1",
                                      "train.yaml", "launch.kubernetes.memory=16Gi"});
  CHECK_MESSAGE(rendered.code == 0, rendered.err);
  CHECK(container_of(rendered.out)["image"].Scalar() == "mtl:2");
  CHECK(container_of(rendered.out)["resources"]["limits"]["memory"].Scalar() == "16Gi");
  CHECK(!has(words_of(rendered.out), "launch."));
  const Outcome wrong = shell.mtl(
      {"launch", "train.yaml", "launch.kubernetes.memory=16GB", "launch.kubernetes.gpus=1"});
  CHECK(wrong.code == 3);
  CHECK(has(wrong.err, "launch.kubernetes.memory wants a quantity"));
  const Outcome pod = shell.mtl({"launch", "--num_processes", "2", "train.yaml"},
                                {{"KUBERNETES_SERVICE_HOST", "10.96.0.1"}});
  CHECK_MESSAGE(pod.code == 0, pod.err);
  CHECK(metrics_of(run_of(shell)).size() >= 10 / 5);
}

TEST_CASE("what is wrong with a job for Kubernetes is told before anything is written") {
  const Shell shell;
  write_recipe(shell, 10);
  const Outcome wrong = shell.mtl(command({"--kubernetes_memory", "64GB", "--kubernetes_name", "A",
                                           "--kubernetes_shm=1Gi", "train.yaml"}));
  CHECK(wrong.code == 3);
  CHECK(wrong.out.empty());
  CHECK(has(wrong.err, "--kubernetes_memory wants"));
  CHECK(has(wrong.err, "--kubernetes_name wants"));
  CHECK(shell.mtl(command({"train.yaml", "model.heads=5"})).code == 3);
  CHECK(shell.mtl(command({"--fresh", "train.yaml"})).code == 2);
  CHECK(shell.mtl(command({"--kubernetes_kind", "pod", "train.yaml"})).code == 2);
}

TEST_CASE("jobs of Kubernetes whose names are cut have other names where the runs have") {
  const Shell shell;
  write_recipe(shell, 10);
  const std::string same = "run.name=llama-3-8b-continued-pretraining-on-our-own-";
  std::set<std::string> names;
  for (const char* end : {"lr-1", "lr-2", "batch"}) {
    const Outcome outcome = shell.mtl(command({"train.yaml", same + end}));
    REQUIRE(outcome.code == 0);
    const YAML::Node job = YAML::LoadAll(outcome.out).back();
    const auto name = job["metadata"]["name"].as<std::string>();
    CHECK(name.size() <= 40);
    CHECK(name.starts_with("llama-3-8b-continued-pretraining"));
    names.insert(name);
  }
  CHECK(names.size() == 3);
}

TEST_CASE("kubectl is given the manifest and its failure is ours") {
  const Shell shell;
  write_recipe(shell, 10);
  // What it is given, and how it ends, is all that matters here.
  shell.write("bin/kubectl",
              "#!/bin/sh\ncat > applied.yaml\necho \"$@\" > asked\n"
              "[ ! -e refuse ] || { echo 'no such kind' >&2; exit 1; }\n");
  fs::permissions(shell.dir() / "bin/kubectl", fs::perms(0755));
  const std::map<std::string, std::string> env = {
      {"PATH", (shell.dir() / "bin").string() + ":/usr/bin:/bin"}};
  const auto apply = command({"--kubernetes_apply", "train.yaml"});
  const Outcome applied = shell.mtl(apply, env);
  CHECK_MESSAGE(applied.code == 0, applied.err);
  CHECK(applied.out.empty());
  CHECK(file_text(shell.dir() / "asked") == "apply -f -\n");
  CHECK(has(words_of(file_text(shell.dir() / "applied.yaml")), "/etc/mtl/train.yaml\n"));
  shell.write("refuse", "");
  const Outcome refused = shell.mtl(apply, env);
  CHECK(refused.code == 4);
  CHECK(has(refused.err, "no such kind"));
  CHECK(has(refused.err, "error[kubernetes.apply]"));
  shell.write("empty/x", "");
  const Outcome absent = shell.mtl(apply, {{"PATH", (shell.dir() / "empty").string()}});
  CHECK(absent.code == 4);
  CHECK(has(absent.err, "error[kubernetes.kubectl]"));
  // --dry-run shows, whatever else is said.
  fs::remove(shell.dir() / "asked");
  const Outcome shown = shell.mtl(command({"--kubernetes_apply", "--dry-run", "train.yaml"}), env);
  CHECK(shown.code == 0);
  CHECK(!shown.out.empty());
  CHECK_FALSE(fs::exists(shell.dir() / "asked"));
}
