// What a person asks of Kubernetes for a job: --kubernetes_* (launch.kubernetes.*), each value
// checked against what the API takes, so that nothing in a manifest has to be trusted.
#pragma once

#include <string>
#include <vector>

#include "common/error.h"
#include "launcher/request/launch_request.h"

namespace mtl {

struct KubernetesOptions {
  std::string kind = "indexed-job";  // indexed-job, jobset, pytorchjob, trainjob
  std::string name;
  std::string name_space;  // "" = kubectl's own
  std::string image;
  int nodes = 1;
  int ranks_per_node = 1;
  int gpus = 0;  // of a pod
  std::string gpu_resource = "nvidia.com/gpu";
  std::string cpus, memory, shm;  // quantities; "" = not said
  struct Claim {
    std::string name;
    std::string path;
    bool read_only = false;
  };
  std::vector<Claim> claims;
  std::string working_dir;  // of the first claim, the checkpoints'; "" = the image's own
  struct Pair {
    std::string key;
    std::string value;
  };
  std::vector<Pair> node_selector;
  struct Toleration {
    std::string key;
    std::string value;   // "" = any
    std::string effect;  // "" = all
  };
  std::vector<Toleration> tolerations;
  long user = -1, group = -1;  // that pods run as; -1 = the image's own
  std::string service_account, priority_class, queue;
  std::vector<std::string> image_pull_secrets;
  struct EnvSecret {
    std::string variable;
    std::string secret;
    std::string key;
  };
  std::vector<EnvSecret> env_secrets;
  bool one_per_host = false;
  int grace_s = 300;
  int max_restarts = 10;
  bool apply = false;
};

// `default_name`: of what is launched (run.name, the program), made to fit. All that is wrong is
// told at once, with who said it: kubernetes.value, kubernetes.missing, kubernetes.conflict.
KubernetesOptions kubernetes_options(const LaunchRequest& request, const std::string& default_name,
                                     Diagnostics& diagnostics);

}  // namespace mtl
