#include "launcher/kubernetes/manifest.h"

#include <algorithm>
#include <string_view>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "common/error.h"
#include "common/utf8.h"
#include "launcher/job_template.h"

namespace mtl {

namespace {

using Json = nlohmann::ordered_json;

// kubectl apply keeps what it was given, as JSON, in an annotation, and the API refuses annotations
// of more than 256 KiB. A ConfigMap without it may have 1 MiB.
constexpr size_t kMostBytes = (256 << 10) - 2'048;

// What JSON leaves as it is, and readers of YAML refuse or fold: DEL and the controls behind it,
// line and paragraph separators, byte order marks and what is no character.
bool is_odd(char32_t code) {
  return (code >= 0x7f && code < 0xa0) || code == 0x2028 || code == 0x2029 || code == 0xfeff ||
         code == 0xfffe || code == 0xffff;
}

std::string quoted(const std::string& text) {
  const std::string json = Json(text).dump(-1, ' ', false, Json::error_handler_t::replace);
  std::string escaped;
  for (size_t at = 0; at < json.size();) {
    const size_t begin = at;
    char32_t code = 0;
    read_utf8(json, at, code);
    at = next_character(json, begin);
    escaped += is_odd(code) ? fmt::format("\\u{:04x}", static_cast<uint32_t>(code))
                            : json.substr(begin, at - begin);
  }
  return escaped;
}

// "{cpu: 8, ...}" as YAML and JSON have it.
std::string flow(const Json& value) {
  return value.empty() ? "" : value.dump();
}

std::string limits(const KubernetesOptions& options) {
  Json all = Json::object();
  if (options.gpus > 0) all[options.gpu_resource] = options.gpus;
  if (!options.cpus.empty()) all["cpu"] = options.cpus;
  if (!options.memory.empty()) all["memory"] = options.memory;
  return flow(all);
}

std::string tolerations(const KubernetesOptions& options) {
  Json all = Json::array();
  for (const auto& one : options.tolerations) {
    Json row = {{"key", one.key}, {"operator", one.value.empty() ? "Exists" : "Equal"}};
    if (!one.value.empty()) row["value"] = one.value;
    if (!one.effect.empty()) row["effect"] = one.effect;
    all.push_back(row);
  }
  return flow(all);
}

// With fsGroup the token and the volumes can be used by a user that is not root. Volumes that have
// the group already are not gone through file by file.
std::string security_context(const KubernetesOptions& options) {
  if (options.user < 0) return "";
  return flow({{"runAsUser", options.user},
               {"runAsGroup", options.group},
               {"fsGroup", options.group},
               {"fsGroupChangePolicy", "OnRootMismatch"}});
}

// Kubernetes puts variables for $(NAME) in arguments, secrets too, and a $ for $$.
std::string as_argument(const std::string& word) {
  std::string text;
  for (const char c : word) text += c == '$' ? "$$" : std::string(1, c);
  return text;
}

Json arguments(const KubernetesJob& job) {
  const KubernetesOptions& options = job.options;
  std::vector<std::string> all;
  // What these two say themselves, in the pods' environment, is not said twice.
  const bool indexed = options.kind == "indexed-job" || options.kind == "jobset";
  if (indexed) {
    const std::string pod = options.kind == "jobset" ? "-node-0-0." : "-0.";
    all = {fmt::format("--num_machines={}", options.nodes),
           fmt::format("--nproc_per_node={}", options.ranks_per_node)};
    if (options.nodes > 1) {
      all.push_back(fmt::format("--main_process_ip={}{}{}", options.name, pod, options.name));
      all.push_back(fmt::format("--main_process_port={}", kKubernetesPort));
    }
  }
  all.insert(all.end(), job.arguments.begin(), job.arguments.end());
  Json words = Json::array();
  for (const std::string& word : all) words.push_back(yaml_word(as_argument(word)));
  return words;
}

const char* kind_words(const std::string& kind) {
  if (kind == "jobset") return "JobSet";
  if (kind == "pytorchjob") return "PyTorchJob";
  return kind == "trainjob" ? "TrainJob" : "Indexed Job";
}

}  // namespace

std::string yaml_word(const std::string& text) {
  static const std::vector<std::string> taken = {"true", "false", "yes", "no",  "on",  "off",
                                                 "null", "y",     "n",   "nan", "inf", "infinity"};
  std::string lower = text;
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + 32) : c; });
  const bool letter = !lower.empty() && lower[0] >= 'a' && lower[0] <= 'z';
  const bool plain = std::all_of(lower.begin(), lower.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') ||
           std::string_view("-_./").find(c) != std::string_view::npos;
  });
  const bool word = std::find(taken.begin(), taken.end(), lower) == taken.end();
  return letter && plain && word ? text : quoted(text);
}

std::string yaml_block(const std::string& text, int indent) {
  const bool printable = std::all_of(text.begin(), text.end(), [](char c) {
    const auto byte = static_cast<unsigned char>(c);
    return c == '\n' || c == '\t' || (byte >= 0x20 && byte != 0x7f);
  });
  const bool odd = quoted(text).find("\\u") != std::string::npos;
  if (!printable || odd || text.find_first_not_of('\n') == std::string::npos) return quoted(text);
  // Two columns, said so, since the first line may begin with blanks of its own.
  std::string block = "|2";
  if (!text.ends_with('\n')) block += '-';
  if (text.ends_with("\n\n")) block += '+';
  const std::string margin(static_cast<size_t>(indent) + 2, ' ');
  size_t from = 0;
  while (from < text.size()) {
    const size_t end = std::min(text.find('\n', from), text.size());
    block += '\n';
    if (end > from) block += margin + text.substr(from, end - from);
    from = end + 1;
  }
  return block;
}

std::string kubernetes_resources(const KubernetesOptions& options) {
  const std::string rest = "configmap,secret";
  if (options.kind == "jobset") return "jobset," + rest;
  if (options.kind == "pytorchjob") return "pytorchjob," + rest;
  if (options.kind == "trainjob") return "trainjob,trainingruntime," + rest;
  return "job,service," + rest;
}

namespace {

// A claim is one volume, however often it is mounted: a pod that has it twice never starts. It is
// read-only if it is so everywhere.
void add_claims(const KubernetesOptions& options, Json& values) {
  values["claims"] = Json::array();
  values["volumes"] = Json::array();
  for (const auto& claim : options.claims) {
    Json* volume = nullptr;
    for (Json& one : values["volumes"]) {
      if (one["claim"] == quoted(claim.name)) volume = &one;
    }
    if (volume == nullptr) {
      values["volumes"].push_back({{"volume", fmt::format("volume-{}", values["volumes"].size())},
                                   {"claim", quoted(claim.name)},
                                   {"read_only", "true"}});
      volume = &values["volumes"].back();
    }
    const char* read_only = claim.read_only ? "true" : "false";
    if (!claim.read_only) (*volume)["read_only"] = read_only;
    values["claims"].push_back({{"volume", (*volume)["volume"]},
                                {"claim", quoted(claim.name)},
                                {"path", quoted(claim.path)},
                                {"read_only", read_only}});
  }
}

}  // namespace

std::string kubernetes_manifest(const KubernetesJob& job) {
  const KubernetesOptions& options = job.options;
  if (const size_t bytes = quoted(job.train_yaml).size() + quoted(job.default_config).size();
      bytes > kMostBytes) {
    throw Error(Exit::config,
                {.code = "kubernetes.size",
                 .what = fmt::format("the configuration has {} bytes as JSON; what kubectl applies "
                                     "may have {}",
                                     bytes, kMostBytes),
                 .help = "put long lists into a file on a volume"});
  }
  Json values;
  // Names of the rows of lists: known where a section that is off hides such a list, too.
  for (const char* row : {"variable", "secret", "key", "volume", "claim", "path", "read_only"}) {
    values[row] = nullptr;
  }
  values["kind_words"] = kind_words(options.kind);
  values["resources"] = kubernetes_resources(options);
  values["name"] = yaml_word(options.name);
  values["namespace"] = options.name_space.empty() ? "" : yaml_word(options.name_space);
  values["namespace_words"] = options.name_space.empty() ? "" : "-n " + options.name_space + " ";
  values["image"] = quoted(options.image);
  // The operators look for the container by its name.
  values["container"] = options.kind == "pytorchjob" ? "pytorch"
                        : options.kind == "trainjob" ? "node"
                                                     : "mtl";
  values["nodes"] = options.nodes;
  // PyTorchJob's: rank 0's pod, and the others, the same but for their number.
  values["roles"] = Json::array({{{"role", "Master"}, {"count", 1}}});
  if (options.nodes > 1) {
    values["roles"].push_back({{"role", "Worker"}, {"count", options.nodes - 1}});
  }
  values["nproc"] = options.ranks_per_node;
  values["nproc_text"] = quoted(std::to_string(options.ranks_per_node));
  values["max_restarts"] = options.max_restarts;
  values["failures"] = options.max_restarts * options.nodes;
  values["grace_s"] = options.grace_s;
  values["port"] = options.kind == "pytorchjob" ? 23456 : kKubernetesPort;
  values["limits"] = limits(options);
  values["shm"] = options.shm.empty() ? "" : quoted(options.shm);
  values["working_dir"] = options.working_dir.empty() ? "" : quoted(options.working_dir);
  values["security_context"] = security_context(options);
  values["service_account"] =
      options.service_account.empty() ? "" : quoted(options.service_account);
  values["priority_class"] = options.priority_class.empty() ? "" : quoted(options.priority_class);
  values["queue"] = options.queue.empty() ? "" : quoted(options.queue);
  values["one_per_host"] = options.one_per_host;
  values["tolerations"] = tolerations(options);
  Json selector = Json::object();
  for (const auto& pair : options.node_selector) selector[pair.key] = pair.value;
  values["node_selector"] = flow(selector);
  Json secrets = Json::array();
  for (const std::string& name : options.image_pull_secrets) secrets.push_back({{"name", name}});
  values["image_pull_secrets"] = flow(secrets);
  values["env_secrets"] = Json::array();
  for (const auto& one : options.env_secrets) {
    values["env_secrets"].push_back({{"variable", yaml_word(one.variable)},
                                     {"secret", quoted(one.secret)},
                                     {"key", quoted(one.key)}});
  }
  add_claims(options, values);
  values["args"] = arguments(job);
  values["train_yaml"] = job.train_yaml.empty() ? "" : yaml_block(job.train_yaml, 2);
  values["default_config"] = job.default_config.empty() ? "" : yaml_block(job.default_config, 2);
  values["files"] = !job.train_yaml.empty() || !job.default_config.empty();
  values["config_file"] = job.default_config.empty() ? "none" : "/etc/mtl/default_config.yaml";
  values["token"] = yaml_word(job.token);
  return render_job_template(
      load_job_template("kubernetes/" + options.kind + ".yaml", job.templates_dir), values);
}

}  // namespace mtl
