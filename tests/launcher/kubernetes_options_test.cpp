// What is asked of Kubernetes: every value checked as the API and the container runtimes take it.
#include <map>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "launcher/kubernetes/options.h"
#include "support/text.h"

using namespace mtl;
using namespace mtl::test;

TEST_CASE("options of Kubernetes are checked and told together") {
  LaunchRequest request;
  request.max_nodes = request.min_nodes = 2;
  request.local_ranks = 8;
  request.ranks_said = true;
  const auto told = [&](const std::map<std::string, std::vector<std::string>>& given) {
    request.kubernetes = given;
    Diagnostics diagnostics;
    for (const auto& [name, texts] : given) {
      request.scheduler_origins["kubernetes_" + name] = "--kubernetes_" + name;
    }
    kubernetes_options(request, "My Run_2", diagnostics);
    std::string all;
    for (const Diagnostic& one : diagnostics.all()) all += one.code + ": " + one.what + "\n";
    return all;
  };
  CHECK(told({{"image", {"mtl:1"}}}) == "");
  CHECK(told({}).starts_with("kubernetes.missing: no image"));
  CHECK(told({{"image", {"mtl:1"}},
              {"name", {"Train"}},
              {"memory", {"64GB"}},
              {"pvc", {"a:data", "b:/x:ro", "c:/x"}},
              {"toleration", {"a=b:Never"}},
              {"node_selector", {"zone"}},
              {"env_secret", {"A=b"}},
              {"user", {"mtl"}},
              {"gpus", {"4"}}}) ==
        "kubernetes.value: --kubernetes_name wants at most 40 lower-case letters, digits and "
        "dashes, a letter first, got 'Train'\n"
        "kubernetes.conflict: 8 ranks in a pod of 4 GPUs\n"
        "kubernetes.value: --kubernetes_memory wants a quantity as 16, 500m or 64Gi, got '64GB'\n"
        "kubernetes.value: --kubernetes_pvc wants CLAIM:/PATH, perhaps with :ro behind it, got "
        "'a:data'\n"
        "kubernetes.value: --kubernetes_pvc wants a path that is not taken yet, got 'c:/x'\n"
        "kubernetes.value: --kubernetes_user wants one number or two, UID[:GID], got 'mtl'\n"
        "kubernetes.value: --kubernetes_node_selector wants LABEL=VALUE, got 'zone'\n"
        "kubernetes.value: --kubernetes_toleration wants "
        "KEY[=VALUE][:NoSchedule|PreferNoSchedule|NoExecute], got 'a=b:Never'\n"
        "kubernetes.value: --kubernetes_env_secret wants VARIABLE=SECRET:KEY, got 'A=b'\n");
  for (const char* image : {"a b", "mtl:1\"", "-x", "{{image}}", "a//b", "$(x)", "mtl:"}) {
    CAPTURE(std::string(image));
    CHECK(told({{"image", {image}}}).starts_with("kubernetes.value: --kubernetes_image"));
  }
  const std::string zeros(64, '0');
  for (const std::string& image :
       std::vector<std::string>{"Reg/MTL:1", "reg/mtl:", "reg/mtl/", "reg/a@sha256:abc",
                                "reg/a@sha256:x" + zeros.substr(1), "reg/a@" + zeros, "reg.io/-a",
                                "reg.io/a..b", "a:b:c"}) {
    CAPTURE(image);
    CHECK(told({{"image", {image}}}).starts_with("kubernetes.value: --kubernetes_image"));
  }
  for (const std::string& image : std::vector<std::string>{
           "m", "Reg/mtl:V1", "Reg.Example.org:5000/group/a-b_c.d__e/mtl:1.0-RC_1", "localhost/mtl",
           "reg/a@sha256:" + zeros, "reg/a:1@sha512:" + zeros + zeros}) {
    CAPTURE(image);
    CHECK(told({{"image", {image}}}) == "");
  }
  CHECK(told({{"image", {"m"}}, {"env_secret", {"HF_TOKEN=hf:token", "HF_TOKEN=b:c"}}}) ==
        "kubernetes.value: --kubernetes_env_secret wants a variable that is not taken yet, got "
        "'HF_TOKEN=b:c'\n");
  for (const char* secret : {"MTL_TOKEN_FILE=hf:a", "MTL_CONFIG_FILE=hf:a"}) {
    CHECK(told({{"image", {"m"}}, {"env_secret", {secret}}})
              .starts_with("kubernetes.value: --kubernetes_env_secret wants another variable"));
  }
  for (const char* quantity : {"0", "-1", "1e3", "1.", "Gi", "64 Gi", "1.2.3", "64GiB"}) {
    CAPTURE(std::string(quantity));
    CHECK(told({{"image", {"m"}}, {"shm", {quantity}}}).starts_with("kubernetes.value"));
  }
  for (const char* user : {"-1", "1000:", ":1000", "1000:x", "1000:1:1", "2147483648"}) {
    CAPTURE(std::string(user));
    CHECK(told({{"image", {"m"}}, {"user", {user}}}).starts_with("kubernetes.value"));
  }
  for (const char* claim : {"a:/dev/shm/", "a:/run/mtl", "a:/run/mtl/x", "a:/etc/mtl//"})
    CHECK(has(told({{"image", {"m"}}, {"pvc", {claim}}}), "wants another path than "));
  CHECK(has(told({{"image", {"m"}}, {"pvc", {"b:/x", "c:/x/"}}}), "not taken yet, got 'c:/x/'"));
  CHECK(has(told({{"image", {"m"}}, {"grace", {"0s"}}}), "--kubernetes_grace wants a second"));
  request.kubernetes = {{"image", {"m"}}, {"grace", {"10m"}}, {"user", {"1000660000"}}};
  Diagnostics diagnostics;
  const KubernetesOptions options = kubernetes_options(request, "My Run_2", diagnostics);
  CHECK(options.name == "my-run-2");
  CHECK(options.grace_s == 600);
  CHECK(options.gpus == 8);
  CHECK(options.user == 1000660000);
  CHECK(options.group == 1000660000);
}
