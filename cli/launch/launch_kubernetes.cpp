// mtl launch --via kubernetes: checks a launch as it would be checked here, and writes it as a
// manifest, on stdout or to kubectl apply.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <unistd.h>

#include <sys/wait.h>

#include <fmt/format.h>

#include "cli/launch/launch.h"
#include "common/error.h"
#include "common/files.h"
#include "common/text.h"
#include "launcher/kubernetes/manifest.h"
#include "rendezvous/store.h"

namespace mtl {

namespace {

// Where the pods are is said by the manifest; what this machine has and is, they do not have.
bool stays_here(const LaunchFlag& flag) {
  static const std::vector<std::string> names = {
      "via",           "templates_dir",   "config_file",       "num_machines",  "nnodes",
      "num_processes", "nproc_per_node",  "machine_rank",      "rdzv_endpoint", "rdzv_id",
      "hosts",         "main_process_ip", "main_process_port", "hostfile",      "ssh_command",
      "ssh_config",    "remote_program",  "forward_env",       "token_file",    "dry_run",
      "standalone",    "mpirun_hostfile", "rdzv_backend",      "grace"};
  return flag.group == FlagGroup::slurm || flag.group == FlagGroup::kubernetes ||
         std::find(names.begin(), names.end(), flag.name) != names.end();
}

void add_flags(const FlagValues& values, const FlagValues& stronger,
               std::vector<std::string>& arguments) {
  for (const auto& [name, value] : values) {
    const LaunchFlag* flag = find_launch_flag(name);
    if (flag == nullptr || stays_here(*flag) || stronger.contains(name)) continue;
    for (const std::string& text : value.texts) {
      arguments.push_back(fmt::format("--{}={}", name == "dry_run" ? "dry-run" : name, text));
    }
  }
}

// MTL_TRAIN__STEPS=10 -> train.steps=10: the pods do not have our environment.
void add_settings(const std::vector<std::string>& said, std::vector<std::string>& arguments) {
  for (const auto& [name, value] : settings_in_environment(environ)) {
    std::string key;
    for (size_t at = 4; at < name.size(); ++at) {
      const bool section = name.compare(at, 2, "__") == 0;
      key += section ? '.' : lower(name[at]);
      if (section) ++at;
    }
    const bool again = std::any_of(said.begin(), said.end(), [&](const std::string& one) {
      return one.starts_with(key + "=");
    });
    if (!again && !key.starts_with("launch.")) arguments.push_back(key + "=" + value);
  }
  for (const std::string& one : said) {
    if (!one.starts_with("launch.")) arguments.push_back(one);
  }
}

// mtl's own end of the workers has to come before that of the pod.
std::string grace_flag(const LaunchGiven& given, const KubernetesOptions& options) {
  const std::string said = given_text(given, "grace");
  if (!said.empty()) return "--grace=" + said;
  return fmt::format("--grace={}s",
                     std::max(1, options.grace_s - std::min(15, options.grace_s / 4)));
}

struct Checked {
  LaunchRequest request;
  std::string config_file;
  std::string name;
  std::vector<Diagnostic> warnings;
};

Checked check_train_yaml(const LaunchOptions& options, const std::string& train_yaml,
                         const std::vector<std::string>& settings) {
  RunOptions run = options.run;
  run.plan_only = true;  // the data may be where the pods are, and so are their GPUs
  const PreparedRun prepared = prepare_run(run, train_yaml, settings);
  return {prepared.request, prepared.config_file, prepared.checked.resolved.spec.run.name,
          prepared.warnings};
}

Checked check_program(const LaunchOptions& options, const std::string& program) {
  Diagnostics all;
  const LaunchConfig file = load_launch_config(options.run.given, all);
  Checked checked;
  checked.request = resolve_launch(file, options.run.given, false, all);
  checked.config_file = file.path;
  checked.name = std::filesystem::path(program).stem().string();
  Diagnostics diagnostics;
  for (const Diagnostic& diagnostic : all.all()) {
    const bool meeting =
        diagnostic.code == "launch.address" || diagnostic.code == "launch.machine_rank";
    if (!meeting) diagnostics.add(diagnostic);
  }
  diagnostics.throw_if_errors();
  checked.warnings = diagnostics.all();
  return checked;
}

int apply(const std::string& manifest) {
  std::FILE* kubectl = nullptr;
  if (std::system("command -v kubectl >/dev/null 2>&1") == 0) {
    kubectl = popen("kubectl apply -f -", "w");
  }
  if (kubectl == nullptr) {
    throw Error(
        Exit::environment,
        {.code = "kubernetes.kubectl",
         .what = "there is no kubectl here to apply the manifest with",
         .help = "install it; or leave --kubernetes_apply out and carry the manifest, which "
                 "is printed then, to where it is"});
  }
  const size_t written = fwrite(manifest.data(), 1, manifest.size(), kubectl);
  const int status = pclose(kubectl);
  if (written == manifest.size() && WIFEXITED(status) && WEXITSTATUS(status) == 0) return 0;
  throw Error(
      Exit::environment,
      {.code = "kubernetes.apply",
       .what = fmt::format("kubectl apply failed (exit {}); its words are above",
                           WIFEXITED(status) ? WEXITSTATUS(status) : 128),
       .help = "what it has made so far is removed by the line at the head of the manifest; "
               "try --kubernetes_kind indexed-job where a kind is not known"});
}

void say_how_to_follow(const KubernetesOptions& options, bool applied) {
  const std::string space = options.name_space.empty() ? "" : " -n " + options.name_space;
  const std::string ours = "-l app.kubernetes.io/instance=" + options.name;
  std::string text;
  if (!applied) text += "apply   mtl launch ... | kubectl apply -f -\n";
  text += fmt::format("pods    kubectl{} get pods {}\n", space, ours);
  text += fmt::format("logs    kubectl{} logs -f --prefix --max-log-requests {} {}\n", space,
                      std::max(5, options.nodes), ours);
  text +=
      fmt::format("stop    kubectl{} delete {} {}\n", space, kubernetes_resources(options), ours);
  say(stderr, text);
}

}  // namespace

bool goes_to_kubernetes(const LaunchOptions& options, const std::string& train_yaml,
                        const std::vector<std::string>& settings) {
  LaunchGiven given = options.run.given;
  if (!train_yaml.empty()) {
    SpecSources sources;
    sources.train_yaml = train_yaml;
    sources.environment = settings_in_environment(environ);
    sources.overrides = settings;
    Diagnostics ignored;  // told by the launch, of either kind
    add_launch_section(load_spec(sources, ignored), given);
  }
  if (given_text(given, "via") != "kubernetes") return false;
  return options.run.given.flags.contains("via") ||
         std::getenv("KUBERNETES_SERVICE_HOST") == nullptr;
}

int launch_kubernetes(const LaunchOptions& options, const std::string& program,
                      const std::vector<std::string>& arguments, bool after_separator) {
  const bool is_yaml = is_train_yaml(options, program, after_separator);
  if (options.run.fresh) {
    throw Error(Exit::usage, {.code = "usage.option",
                              .what = "--fresh would begin again each time that a pod is replaced",
                              .help = "give the run another name instead: run.name=..."});
  }
  const LaunchGiven& given = options.run.given;
  const Checked checked =
      is_yaml ? check_train_yaml(options, program, arguments) : check_program(options, program);
  print_warnings(checked.warnings);
  KubernetesJob job;
  Diagnostics diagnostics;
  job.options = kubernetes_options(checked.request, checked.name, diagnostics);
  diagnostics.throw_if_errors();
  if (is_yaml && job.options.working_dir.empty()) {
    print_warnings({{.code = "kubernetes.checkpoints",
                     .what = "no volume for checkpoints: they go with the pods",
                     .help = "add --kubernetes_checkpoint_pvc CLAIM, one that all pods can write",
                     .severity = Diagnostic::Severity::warning}});
  }
  add_flags(given.environment, given.flags, job.arguments);
  add_flags(given.flags, {}, job.arguments);
  job.arguments.push_back(grace_flag(given, job.options));
  if (is_yaml) {
    job.train_yaml = read_file(program);
    job.arguments.emplace_back("/etc/mtl/train.yaml");
    add_settings(arguments, job.arguments);
  } else {
    if (after_separator) job.arguments.emplace_back("--");
    job.arguments.push_back(program);
    job.arguments.insert(job.arguments.end(), arguments.begin(), arguments.end());
  }
  if (!checked.config_file.empty()) job.default_config = read_file(checked.config_file);
  job.templates_dir = checked.request.templates_dir;
  job.token = make_token();
  const bool applies = job.options.apply && !options.dry_run;
  // What a terminal has shown stays in its memory, and in others' sight.
  const bool seen = !applies && isatty(STDOUT_FILENO) == 1;
  if (seen) job.token = "<made when this goes to a file or a pipe>";
  const std::string manifest = kubernetes_manifest(job);
  if (applies) {
    apply(manifest);
  } else {
    say(stdout, manifest);
    std::fflush(stdout);
  }
  if (!options.quiet) say_how_to_follow(job.options, applies);
  return 0;
}

}  // namespace mtl
