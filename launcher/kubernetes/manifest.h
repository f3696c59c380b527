// The manifest of a job for Kubernetes: everything that it needs, in one text for kubectl apply.
#pragma once

#include <string>
#include <vector>

#include "launcher/kubernetes/options.h"

namespace mtl {

struct KubernetesJob {
  KubernetesOptions options;
  std::string train_yaml;      // its text; "" = a program is launched
  std::string default_config;  // text of a configuration file that the pods are to read, too
  // What `mtl launch` is given in a pod, after what says where the pods are.
  std::vector<std::string> arguments;
  std::string token;
  std::string templates_dir;  // of the user's; "" = none
};

constexpr int kKubernetesPort = 29400;  // where the pods meet

// Throws Error: those of job_template.h; kubernetes.size (Exit::config) for files that are too big
// for a ConfigMap.
std::string kubernetes_manifest(const KubernetesJob& job);

// "job,service,configmap,secret": what there is to delete.
std::string kubernetes_resources(const KubernetesOptions& options);

// A YAML scalar for any text, in one line: plain where that cannot be taken for anything else.
std::string yaml_word(const std::string& text);
// A YAML scalar of several lines for any text, behind "key: " of a mapping indented by `indent`.
std::string yaml_block(const std::string& text, int indent);

}  // namespace mtl
