// Manifests against the schemas that the projects themselves publish.
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "clients/clients.h"

using namespace mtl::test;

TEST_CASE("manifests are valid by the published schemas of four APIs") {
  const auto env = accelerate_environment();
  const std::string python = std::string(MTL_CLIENT_VENV) + "/bin/python";
  const Shell shell;
  if (shell.run({python, "-c", "import kubernetes_validate, kubeflow_trainer_api"}, env).code !=
      0) {
    skip("no kubernetes-validate: make it with scripts/client-venv " MTL_CLIENT_VENV);
  }
  shell.write("train.yaml",
              "run:\n  name: tiny\nmodel:\n  layers: 2\n  hidden: 32\n  heads: 4\n"
              "train:\n  global_batch: 8\n  seq_len: 16\n  steps: 5\n"
              "data:\n  train: corpus.txt\n  vocab: 64\n");
  const std::string full =
      " --kubernetes_namespace ml --kubernetes_cpus 500m --kubernetes_memory 64Gi"
      " --kubernetes_shm 16Gi --kubernetes_checkpoint_pvc ckpt --kubernetes_pvc data:/data:ro"
      " --kubernetes_node_selector zone=1 --kubernetes_toleration nvidia.com/gpu"
      " --kubernetes_toleration team=a:NoSchedule --kubernetes_one_per_host"
      " --kubernetes_user 1000 --kubernetes_service_account trainer --kubernetes_priority_class "
      "high"
      " --kubernetes_queue q --kubernetes_image_pull_secret r"
      " --kubernetes_env_secret HF_TOKEN=hf:token";
  // Each check does see what is wrong.
  std::vector<std::string> check = {python, client("manifests.py")};
  std::string expected;
  for (const std::string kind : {"indexed-job", "jobset", "pytorchjob", "trainjob"}) {
    for (const std::string& more : {std::string(" --num_machines 1"), " --num_machines 4" + full}) {
      CAPTURE(kind);
      CAPTURE(more);
      const std::string name = kind + (more.find("--num_machines 1") == 1 ? "-1" : "-4");
      const std::string render = std::string(MTL_PROGRAM) +
                                 " launch --via kubernetes --nproc_per_node 2 --kubernetes_image "
                                 "r.example.org/mtl:1 --kubernetes_kind " +
                                 kind + more + " train.yaml >" + name +
                                 " && sed "
                                 "'s/terminationMessagePolicy/terminationMesage/' " +
                                 name + " >broken-" + name;
      const Outcome rendered = shell.run({"/bin/bash", "-c", render}, env);
      REQUIRE_MESSAGE(rendered.code == 0, rendered.err);
      check.insert(check.end(), {name, "broken-" + name});
      expected += "right " + name + "\nwrong broken-" + name + "\n";
    }
  }
  const Outcome checked = shell.run(check, env);
  CHECK_MESSAGE(checked.out == expected, checked.err);
}
