// The manifests for Kubernetes: their fields against those that the API has, and what they say.
//
// The tables below are those fields that are emitted, with their types, from
//   Kubernetes API reference v1.32: v1 ConfigMap, Secret, Service, PodSpec, Container; batch/v1 Job
//   kubeflow.org/v1 PyTorchJob (training-operator 1.9, manifests/base/crds)
//   jobset.x-k8s.io/v1alpha2 JobSet (config/components/crd)
//   trainer.kubeflow.org/v1alpha1 TrainJob, TrainingRuntime (trainer 2.0 to 2.3, there too)
// An unknown field is an error, as the API server's strict validation has it; so is a wrong type, a
// required field that is missing, and a value outside of an enumeration. tests/clients compares
// with the published schemas themselves where PyPI is reachable.
#include <algorithm>
#include <fstream>
#include <map>
#include <sstream>

#include <doctest/doctest.h>
#include <fmt/format.h>
#include <yaml-cpp/yaml.h>

#include "launcher/kubernetes/manifest.h"
#include "support/temp_dir.h"
#include "support/text.h"

using namespace mtl;
using namespace mtl::test;

namespace {

// "name:type", "!" behind a required one. s text, i whole number, b truth, q quantity, m map of
// texts, a(x|y) one of these texts, [T] list of T, anything else another row.
const std::map<std::string, std::string> kSchema = {
    {"Meta", "name!:s namespace:s labels:m"},
    {"PodMeta", "labels:m"},
    // core/v1
    {"ConfigMap", "apiVersion!:a(v1) kind!:s metadata!:Meta immutable:b data:m"},
    {"Secret", "apiVersion!:a(v1) kind!:s metadata!:Meta type:a(Opaque) immutable:b stringData:m"},
    {"Service", "apiVersion!:a(v1) kind!:s metadata!:Meta spec!:ServiceSpec"},
    {"ServiceSpec", "clusterIP:a(None) publishNotReadyAddresses:b selector:m ports:[ServicePort]"},
    {"ServicePort", "name:s port!:i"},
    {"PodTemplate", "metadata:PodMeta spec!:PodSpec"},
    {"PodSpec",
     "subdomain:s restartPolicy:a(Never|OnFailure|Always) terminationGracePeriodSeconds:i "
     "securityContext:PodSecurity serviceAccountName:s priorityClassName:s "
     "imagePullSecrets:[NameOnly] nodeSelector:m "
     "tolerations:[Toleration] affinity:Affinity containers!:[Container] volumes:[Volume]"},
    {"PodSecurity",
     "runAsUser:i runAsGroup:i fsGroup:i fsGroupChangePolicy:a(OnRootMismatch|Always)"},
    {"NameOnly", "name!:s"},
    {"Toleration",
     "key:s operator:a(Exists|Equal) value:s effect:a(NoSchedule|PreferNoSchedule|NoExecute)"},
    {"Affinity", "podAntiAffinity:AntiAffinity"},
    {"AntiAffinity", "requiredDuringSchedulingIgnoredDuringExecution:[AffinityTerm]"},
    {"AffinityTerm", "topologyKey!:s labelSelector:Selector"},
    {"Selector", "matchLabels:m"},
    {"Container",
     "name!:s image:s command:[s] args:[s] workingDir:s "
     "terminationMessagePolicy:a(File|FallbackToLogsOnError) env:[EnvVar] ports:[ContainerPort] "
     "resources:Resources volumeMounts:[VolumeMount]"},
    {"EnvVar", "name!:s value:s valueFrom:EnvSource"},
    {"EnvSource", "secretKeyRef:KeyRef"},
    {"KeyRef", "name!:s key!:s"},
    {"ContainerPort", "name:s containerPort!:i"},
    {"Resources", "limits:quantities requests:quantities"},
    {"VolumeMount", "name!:s mountPath!:s readOnly:b"},
    {"Volume",
     "name!:s emptyDir:EmptyDir secret:SecretVolume configMap:NameOnly "
     "persistentVolumeClaim:Claim"},
    {"EmptyDir", "medium:a(Memory) sizeLimit:q"},
    {"SecretVolume", "secretName!:s defaultMode:i"},
    {"Claim", "claimName!:s readOnly:b"},
    // batch/v1
    {"Job", "apiVersion!:a(batch/v1) kind!:s metadata!:Meta spec!:JobSpec"},
    {"JobSpec",
     "completionMode:a(Indexed|NonIndexed) completions:i parallelism:i backoffLimit:i "
     "podReplacementPolicy:a(Failed|TerminatingOrFailed) podFailurePolicy:PodFailurePolicy "
     "template!:PodTemplate"},
    {"PodFailurePolicy", "rules!:[PodFailureRule]"},
    {"PodFailureRule",
     "action!:a(Ignore|FailJob|FailIndex|Count) onExitCodes:ExitCodes "
     "onPodConditions:[PodCondition]"},
    {"ExitCodes", "containerName:s operator!:a(In|NotIn) values!:[i]"},
    {"PodCondition", "type!:s status!:s"},
    // jobset.x-k8s.io/v1alpha2
    {"JobSet", "apiVersion!:a(jobset.x-k8s.io/v1alpha2) kind!:s metadata!:Meta spec!:JobSetSpec"},
    {"JobSetSpec",
     "network:Network successPolicy:SuccessPolicy failurePolicy:FailurePolicy "
     "replicatedJobs!:[ReplicatedJob]"},
    {"Network", "enableDNSHostnames:b subdomain:s publishNotReadyAddresses:b"},
    {"SuccessPolicy", "operator!:a(All|Any) targetReplicatedJobs:[s]"},
    {"FailurePolicy", "maxRestarts:i rules:[FailureRule]"},
    {"FailureRule",
     "name!:s action!:a(FailJobSet|RestartJobSet|RestartJobSetAndIgnoreMaxRestarts) "
     "onJobFailureReasons:[s]"},
    {"ReplicatedJob", "name!:s replicas:i template!:JobTemplate"},
    {"JobTemplate", "metadata:PodMeta spec!:JobSpec"},
    // kubeflow.org/v1
    {"PyTorchJob", "apiVersion!:a(kubeflow.org/v1) kind!:s metadata!:Meta spec!:PyTorchJobSpec"},
    {"PyTorchJobSpec", "nprocPerNode:s runPolicy:RunPolicy pytorchReplicaSpecs!:Replicas"},
    {"RunPolicy", "cleanPodPolicy:a(None|Running|All) backoffLimit:i"},
    {"Replicas", "Master:Replica Worker:Replica"},
    {"Replica", "replicas:i restartPolicy:a(Always|OnFailure|Never|ExitCode) template:PodTemplate"},
    // trainer.kubeflow.org/v1alpha1
    {"TrainingRuntime",
     "apiVersion!:a(trainer.kubeflow.org/v1alpha1) kind!:s metadata!:Meta spec!:RuntimeSpec"},
    {"RuntimeSpec", "mlPolicy:MlPolicy template!:JobSetTemplate"},
    {"MlPolicy", "numNodes:i torch:Torch"},
    {"Torch", ""},
    {"JobSetTemplate", "spec:JobSetSpec"},
    {"TrainJob",
     "apiVersion!:a(trainer.kubeflow.org/v1alpha1) kind!:s metadata!:Meta spec!:TrainJobSpec"},
    {"TrainJobSpec", "runtimeRef!:RuntimeRef trainer:Trainer"},
    {"RuntimeRef", "apiGroup:s kind:a(TrainingRuntime|ClusterTrainingRuntime) name!:s"},
    {"Trainer",
     "image:s command:[s] args:[s] numNodes:i numProcPerNode:i resourcesPerNode:Resources"},
};

// As a reader of YAML 1.1 takes a scalar, which kubectl has: s, i, b or n (null).
char type_of(const YAML::Node& node) {
  if (node.IsNull()) return 'n';
  if (node.Tag() == "!") return 's';
  std::string text = node.Scalar();
  std::transform(text.begin(), text.end(), text.begin(), [](char c) { return std::tolower(c); });
  for (const char* word : {"true", "false", "yes", "no", "on", "off", "y", "n"}) {
    if (text == word) return 'b';
  }
  if (text == "null" || text == "~" || text.empty()) return 'n';
  if (text.find_first_not_of("0123456789") == std::string::npos) return 'i';
  char* end = nullptr;
  std::strtod(text.c_str(), &end);
  return *end == '\0' ? 'f' : 's';
}

class Checker {
 public:
  std::vector<std::string> problems;

  void check(const YAML::Node& node, const std::string& type, const std::string& where) {
    if (type.front() == '[') {
      if (!node.IsSequence() || node.size() == 0) return problem(where, "is no list");
      for (size_t i = 0; i < node.size(); ++i) {
        check(node[i], type.substr(1, type.size() - 2), fmt::format("{}[{}]", where, i));
      }
    } else if (type == "m" || type == "quantities") {
      if (!node.IsMap()) return problem(where, "is no map");
      for (const auto& pair : node) {
        check(pair.second, type == "m" ? "s" : "q", where + "." + pair.first.Scalar());
      }
    } else if (const auto row = kSchema.find(type); row != kSchema.end()) {
      fields(node, row->second, where);
    } else {
      scalar(node, type, where);
    }
  }

 private:
  void problem(const std::string& where, const std::string& what) {
    problems.push_back(where + " " + what);
  }

  void fields(const YAML::Node& node, const std::string& row, const std::string& where) {
    if (!node.IsMap()) return problem(where, "is no object");
    std::map<std::string, std::string> known;
    std::istringstream words(row);
    for (std::string word; words >> word;) {
      const size_t colon = word.find(':');
      std::string name = word.substr(0, colon);
      if (name.ends_with('!')) {
        name.pop_back();
        if (!node[name]) problem(where, "has no " + name);
      }
      known[name] = word.substr(colon + 1);
    }
    std::map<std::string, int> seen;
    for (const auto& pair : node) {
      const std::string name = pair.first.Scalar();
      if (++seen[name] > 1) problem(where, "has " + name + " twice");
      if (!known.contains(name)) {
        problem(where, "has no field " + name);
      } else {
        check(pair.second, known[name], where + "." + name);
      }
    }
  }

  void scalar(const YAML::Node& node, const std::string& type, const std::string& where) {
    if (!node.IsScalar()) return problem(where, "is no scalar");
    const char is = type_of(node);
    if (type == "s" && is != 's') problem(where, "is no text: " + node.Scalar());
    if (type == "i" && is != 'i') problem(where, "is no whole number: " + node.Scalar());
    if (type == "b" && is != 'b') problem(where, "is no truth: " + node.Scalar());
    if (type == "q" && is != 's' && is != 'i') problem(where, "is no quantity: " + node.Scalar());
    if (type.starts_with("a(")) {
      const std::string all = "|" + type.substr(2, type.size() - 3) + "|";
      if (is != 's' || all.find("|" + node.Scalar() + "|") == std::string::npos) {
        problem(where, "cannot be " + node.Scalar());
      }
    }
  }
};

std::string problems_of(const std::string& manifest) {
  Checker checker;
  for (const YAML::Node& document : YAML::LoadAll(manifest)) {
    const std::string kind = document["kind"].as<std::string>("");
    if (!kSchema.contains(kind)) checker.problems.push_back("no kind " + kind);
    if (kSchema.contains(kind)) checker.check(document, kind, kind);
  }
  std::string all;
  for (const std::string& problem : checker.problems) all += problem + "\n";
  return all;
}

KubernetesJob small_job(const std::string& kind, int nodes) {
  KubernetesJob job;
  job.options.kind = kind;
  job.options.name = "train";
  job.options.image = "registry.example.org:5000/mtl:1.0";
  job.options.nodes = nodes;
  job.options.ranks_per_node = 8;
  job.options.gpus = 8;
  job.arguments = {"--grace=285s", "/etc/mtl/train.yaml", "train.steps=10"};
  job.train_yaml = "model:\n  layers: 2\n";
  job.token = std::string(64, 'a');
  return job;
}

KubernetesJob full_job(const std::string& kind, int nodes) {
  KubernetesJob job = small_job(kind, nodes);
  KubernetesOptions& options = job.options;
  options.name_space = "research";
  options.cpus = "16";
  options.memory = "64Gi";
  options.shm = "16Gi";
  options.claims = {{"checkpoints", "/checkpoints", false}, {"text", "/data", true}};
  options.working_dir = "/checkpoints";
  options.node_selector = {{"nvidia.com/gpu.product", "H100"}, {"zone", "1"}, {"fast", "true"}};
  options.tolerations = {{"nvidia.com/gpu", "", ""}, {"team", "research", "NoSchedule"}};
  options.user = 1000;
  options.group = 2000;
  options.service_account = "trainer";
  options.priority_class = "high";
  options.queue = "team-a";
  options.image_pull_secrets = {"registry", "other"};
  options.env_secrets = {{"HF_TOKEN", "hf", "token"}, {"N", "n", "y"}};
  options.one_per_host = true;
  job.default_config = "num_machines: 1\n";
  return job;
}

const std::vector<std::string> kKinds = {"indexed-job", "jobset", "pytorchjob", "trainjob"};

YAML::Node document_of(const std::string& manifest, const std::string& kind) {
  for (const YAML::Node& document : YAML::LoadAll(manifest)) {
    if (document["kind"].as<std::string>("") == kind) return document;
  }
  FAIL("no " << kind);
  return {};
}

}  // namespace

TEST_CASE("every field of a manifest is one of the API") {
  for (const std::string& kind : kKinds) {
    for (const int nodes : {1, 4}) {
      CAPTURE(kind);
      CAPTURE(nodes);
      CHECK(problems_of(kubernetes_manifest(small_job(kind, nodes))) == "");
      CHECK(problems_of(kubernetes_manifest(full_job(kind, nodes))) == "");
      KubernetesJob program = small_job(kind, nodes);
      program.train_yaml.clear();
      program.options.gpus = 0;
      CHECK(problems_of(kubernetes_manifest(program)) == "");
    }
  }
}

TEST_CASE("a claim that is mounted twice is one volume") {
  for (const std::string& kind : kKinds) {
    CAPTURE(kind);
    KubernetesJob job = full_job(kind, 2);
    job.options.claims = {{"disk", "/checkpoints", false},
                          {"disk", "/data", true},
                          {"text", "/a", true},
                          {"text", "/b", true}};
    const std::string manifest = kubernetes_manifest(job);
    CHECK(problems_of(manifest) == "");
    // PyTorchJob has two kinds of pods.
    const size_t pods = kind == "pytorchjob" ? 2 : 1;
    const auto count = [&](const std::string& words) {
      size_t found = 0;
      for (size_t at = 0; (at = manifest.find(words, at)) != std::string::npos; ++at) ++found;
      return found;
    };
    CHECK(count("claimName: \"disk\", readOnly: false") == pods);
    CHECK(count("claimName: \"text\", readOnly: true") == pods);
    CHECK(count("claimName") == 2 * pods);
    CHECK(count("{name: volume-0, mountPath: \"/checkpoints\", readOnly: false}") == pods);
    CHECK(count("{name: volume-0, mountPath: \"/data\", readOnly: true}") == pods);
    CHECK(count("{name: volume-1, mountPath: \"/b\", readOnly: true}") == pods);
  }
}

TEST_CASE("the check of manifests sees what is wrong in one") {
  const std::string manifest = kubernetes_manifest(full_job("jobset", 4));
  const auto broken = [&](const std::string& from, const std::string& to) {
    std::string text = manifest;
    const size_t at = text.find(from);
    REQUIRE(at != std::string::npos);
    return problems_of(text.replace(at, from.size(), to));
  };
  CHECK(broken("completions: 4", "complitions: 4").find("has no field complitions") !=
        std::string::npos);
  CHECK(broken("completions: 4", "completions: \"4\"").find("is no whole number") !=
        std::string::npos);
  CHECK(broken("restartPolicy: Never", "restartPolicy: Nevr").find("cannot be Nevr") !=
        std::string::npos);
  CHECK(broken("image: \"registry.example.org:5000/mtl:1.0\"", "image: 8").find("is no text") !=
        std::string::npos);
  CHECK(broken("medium: Memory", "medium: {}") != "");
  CHECK(broken("kind: JobSet", "kind: JobSets").find("no kind JobSets") != std::string::npos);
  CHECK(broken("\"zone\":\"1\"", "\"zone\":1").find("nodeSelector.zone is no text") !=
        std::string::npos);
}

TEST_CASE("a broken template of the user's is seen with its place") {
  const TempDir dir;
  std::filesystem::create_directories(dir.path() / "kubernetes");
  std::ofstream(dir.path() / "kubernetes/jobset.yaml") << "kind: {{kind_words}}\n  name: {{nam}}\n";
  KubernetesJob job = small_job("jobset", 2);
  job.templates_dir = dir.path().string();
  try {
    kubernetes_manifest(job);
    FAIL("rendered");
  } catch (const Error& error) {
    CHECK(error.diagnostics()[0].code == "template.unknown_tag");
    REQUIRE(error.diagnostics()[0].place);
    CHECK(error.diagnostics()[0].place->line == 2);
  }
}

TEST_CASE("any text is a word of YAML") {
  for (const std::string text :
       {"plain",  "true", "No",           "null", "8",    "1e3",   "a b",        "a: b",
        "#c",     "'",    "\"",           "\\",   "-x",   "",      "{}",         "[",
        "&a",     "*a",   "!t",           "|",    ">",    "%",     "@",          "`",
        "a#b",    "a:b",  "--grace=285s", "~",    "é",    "tab\t", "line\nline", " lead",
        "trail ", "0x1f", "2026-01-01",   "NaN",  ".inf", "=",     "y"}) {
    CAPTURE(text);
    const YAML::Node node = YAML::Load("- " + yaml_word(text) + "\n");
    CHECK(node[0].Scalar() == text);
    CHECK(type_of(node[0]) == 's');
  }
}

TEST_CASE("any train.yaml comes out of a ConfigMap as it went in") {
  for (const std::string& text :
       {std::string("a: 1\n"), std::string("a: 1"), std::string("a: 1\n\n\n"),
        std::string("  indented: 1\nb: 2\n"), std::string("\n\nfirst: 3\n"),
        std::string("a: |\n  x\n\n  y\n"), std::string("a: \"q: # '\"\n# end\n"),
        std::string("---\na: 1\n...\n"), std::string("tab:\t1\n"), std::string("cr: 1\r\nb: 2\r\n"),
        std::string("u: \xc3\xa9\xe2\x80\xa8\n"), std::string("bell: \a\n"), std::string("\n"),
        std::string("a: 1\n   \n"), std::string("{{name}}: {{{x}}}\n"),
        std::string("x: '\xef\xbb\xbf \x7f \u0085 \u009f \u2029 \ufffe \uffff'\n")}) {
    CAPTURE(text);
    KubernetesJob job = full_job("indexed-job", 2);
    job.train_yaml = text;
    const std::string manifest = kubernetes_manifest(job);
    const YAML::Node map = document_of(manifest, "ConfigMap");
    for (const char* odd : {"\x7f", "\u0085", "\ufffe"}) CHECK(manifest.find(odd) == manifest.npos);
    CHECK(map["data"]["train.yaml"].Scalar() == text);
    CHECK(map["data"]["default_config.yaml"].Scalar() == "num_machines: 1\n");
  }
}

TEST_CASE("a configuration that kubectl could not keep is refused here") {
  KubernetesJob job = small_job("indexed-job", 2);
  job.train_yaml = "# " + std::string(200'000, 'x') + "\n";
  CHECK_NOTHROW(kubernetes_manifest(job));
  // Quotes and ends of lines have two characters in the annotation, whose limit is 262144.
  job.train_yaml = std::string(140'000, '\n');
  CHECK_THROWS_AS(kubernetes_manifest(job), Error);
  job.train_yaml = "# " + std::string(262'144, 'x') + "\n";
  CHECK_THROWS_AS(kubernetes_manifest(job), Error);
}

TEST_CASE("what pods are told and what their end means") {
  const std::string manifest = kubernetes_manifest(full_job("indexed-job", 4));
  const YAML::Node job = document_of(manifest, "Job");
  const YAML::Node pod = job["spec"]["template"]["spec"];
  std::string args;
  for (const YAML::Node& word : pod["containers"][0]["args"]) args += word.Scalar() + " ";
  CHECK(args ==
        "--num_machines=4 --nproc_per_node=8 --main_process_ip=train-0.train "
        "--main_process_port=29400 --grace=285s /etc/mtl/train.yaml train.steps=10 ");
  CHECK(pod["subdomain"].Scalar() == document_of(manifest, "Service")["metadata"]["name"].Scalar());
  CHECK(job["spec"]["backoffLimit"].as<int>() == 40);
  CHECK(document_of(manifest, "Secret")["stringData"]["token"].Scalar() == std::string(64, 'a'));
  CHECK(pod["containers"][0]["resources"]["limits"]["nvidia.com/gpu"].as<int>() == 8);
  // Who is not root can read the token and write to the volumes.
  CHECK(pod["securityContext"]["runAsUser"].as<int>() == 1000);
  CHECK(pod["securityContext"]["fsGroup"].as<int>() == 2000);
  CHECK(kubernetes_manifest(small_job("indexed-job", 1)).find("securityContext") ==
        std::string::npos);
  // 75 is started again and does not count, before anything else is asked.
  const YAML::Node rules = job["spec"]["podFailurePolicy"]["rules"];
  CHECK(rules[0]["action"].Scalar() == "Ignore");
  CHECK(rules[0]["onExitCodes"]["values"][0].as<int>() == 75);
  CHECK(rules[2]["action"].Scalar() == "FailJob");
  CHECK(YAML::Dump(rules[2]["onExitCodes"]["values"]) == "[2, 3, 6]");
  // The rules are about the container that there is.
  for (const std::string& kind : kKinds) {
    const std::string text = kubernetes_manifest(small_job(kind, 2));
    const std::string name = kind == "pytorchjob" ? "pytorch" : kind == "trainjob" ? "node" : "mtl";
    CHECK(text.find("- name: " + name + "\n") != std::string::npos);
    if (kind != "pytorchjob") CHECK(text.find("containerName: " + name + ",") != std::string::npos);
  }
  // One pod has nobody to meet.
  CHECK(kubernetes_manifest(small_job("indexed-job", 1)).find("main_process_ip") ==
        std::string::npos);
  CHECK(kubernetes_manifest(small_job("pytorchjob", 1)).find("Worker:") == std::string::npos);
  CHECK(kubernetes_manifest(small_job("jobset", 2)).find("train-node-0-0.train") !=
        std::string::npos);
}

TEST_CASE("dollars reach pods as they were typed") {
  for (const std::string& kind : kKinds) {
    KubernetesJob job = small_job(kind, 2);
    job.arguments = {"--env=PW=a$$b", "sh", "-c", "echo pid=$$ $(KEY) $HOME"};
    const std::string manifest = kubernetes_manifest(job);
    for (const char* word : {"\"--env=PW=a$$$$b\"", "\"echo pid=$$$$ $$(KEY) $$HOME\""}) {
      CAPTURE(manifest);
      CHECK(manifest.find(word) != std::string::npos);
    }
  }
}
