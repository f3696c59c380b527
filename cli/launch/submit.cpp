#include "cli/launch/submit.h"

#include <algorithm>
#include <ctime>
#include <functional>

#include <fmt/chrono.h>
#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "common/files.h"
#include "common/shell_word.h"
#include "common/version.h"
#include "launcher/agent/signals.h"
#include "launcher/job/job_registry.h"
#include "launcher/job_template.h"
#include "launcher/slurm/follow.h"
#include "launcher/slurm/job_options.h"
#include "launcher/slurm/job_script.h"
#include "launcher/slurm/submit.h"
#include "launcher/system/own_program.h"
#include "rendezvous/network.h"

namespace mtl {

namespace {

namespace fs = std::filesystem;

// What is put into the job's folder and queue.
struct Submission {
  const LaunchOptions& options;
  const LaunchRequest& request;
  std::string config_file;          // in use here, "" = none
  std::string name;                 // of the job, unless one is given
  fs::path jobs;                    // the folder of the job is made in here
  std::string run;                  // folder of its run; "" = a program
  std::string train_yaml;           // its text; "" = a program
  std::vector<std::string> target;  // what follows the flags of the launch
};

// As sbatch and file systems take it.
std::string plain_name(const std::string& text) {
  std::string name;
  for (const char c : text) {
    const bool plain =
        std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-' || c == '.';
    name += plain ? c : '-';
  }
  return name.empty() || name[0] == '.' ? "job" + name : name.substr(0, 60);
}

// Flags that have done their work when the job begins, or are the job's to answer.
bool not_for_the_job(const LaunchFlag& flag) {
  static const std::vector<std::string> kHere = {"via",         "templates_dir", "dry_run",
                                                 "config_file", "machine_rank",  "main_process_ip"};
  // What mtl itself does inside the job; the last two say how long a stop before its end may take.
  static const std::vector<std::string> kInside = {"slurm_chain",
                                                   "slurm_srun",
                                                   "slurm_container",
                                                   "slurm_container_runtime",
                                                   "slurm_container_mounts",
                                                   "slurm_signal_s",
                                                   "slurm_time"};
  if (flag.group == FlagGroup::slurm) {
    return std::find(kInside.begin(), kInside.end(), flag.name) == kInside.end();
  }
  return flag.group == FlagGroup::kubernetes ||
         std::find(kHere.begin(), kHere.end(), flag.name) != kHere.end();
}

// The launch inside the job: the same settings, from the files that `job` names.
std::vector<std::string> launch_words(const Submission& job) {
  std::vector<std::string> words = {own_program(), "launch", "--config_file"};
  words.push_back(job.config_file.empty() ? "none" : job.config_file);
  const LaunchGiven& given = job.options.run.given;
  for (const LaunchFlag& flag : launch_flags()) {
    auto found = given.flags.find(flag.name);
    // A cluster need not carry the environment of a login over to the job.
    if (found == given.flags.end()) {
      found = given.environment.find(flag.name);
      if (found == given.environment.end()) continue;
    }
    if (not_for_the_job(flag)) continue;
    for (const std::string& text : found->second.texts) {
      if (flag.kind == FlagKind::truth) {
        const bool on = truth_of(text).value_or(false);
        words.push_back(fmt::format("--{}{}", flag.name, on ? "" : "=false"));
      } else if (text.starts_with('-')) {
        words.push_back(fmt::format("--{}={}", flag.name, text));
      } else {
        words.push_back("--" + flag.name);
        words.push_back(text);
      }
    }
  }
  // What was checked is what runs.
  if (!job.request.ranks_said) {
    words.insert(words.end(), {"--nproc_per_node", std::to_string(job.request.local_ranks)});
  }
  if (job.options.run.fresh) words.emplace_back("--fresh");
  if (job.options.after_separator) words.emplace_back("--");
  words.insert(words.end(), job.target.begin(), job.target.end());
  return words;
}

// The next free <time>-<n>; made unless nothing is to be written.
fs::path job_folder(const fs::path& jobs, bool make) {
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  const std::string stamp = fmt::format("{:%Y%m%d-%H%M%S}", local);
  if (make) make_directories(jobs);
  for (int n = 1;; ++n) {
    const fs::path folder = jobs / fmt::format("{}-{}", stamp, n);
    std::error_code failed;
    if (!make) {
      if (!fs::exists(folder, failed)) return folder;
    } else if (fs::create_directory(folder, failed)) {
      return folder;
    } else if (failed) {
      throw Error(
          Exit::environment,
          Diagnostic{.code = "file.directory",
                     .what = fmt::format("cannot make {}: {}", folder.string(), failed.message()),
                     .help = "submit from a folder that is yours, or set run.dir"});
    }
  }
}

// Where the script of a dry run is kept: the file that stdout goes to, else one that whoever
// reads it is told of.
fs::path kept_script(const std::string& name, bool json) {
  std::error_code failed;
  const fs::path file = fs::read_symlink("/proc/self/fd/1", failed);
  const bool kept = !json && !failed && fs::is_regular_file(file, failed);
  return kept ? file : fs::current_path() / (name + ".sbatch");
}

std::string words_of(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words)
    text += fmt::format("{}{}", text.empty() ? "" : " ", shell_word(word));
  return text;
}

std::string size_words(const SlurmOptions& options, const LaunchRequest& request) {
  const bool range = request.min_nodes < request.max_nodes;
  std::string text = range ? fmt::format("{} to {} nodes", request.min_nodes, request.max_nodes)
                           : fmt::format("{} node{}", options.nodes, options.nodes == 1 ? "" : "s");
  text += fmt::format(" x {} rank{}", request.local_ranks, request.local_ranks == 1 ? "" : "s");
  if (options.gpus_per_node > 0) text += fmt::format(", {} GPUs each", options.gpus_per_node);
  return text;
}

// The job that goes on with what another has begun (--slurm_chain dependency): it has its script.
std::string successor_of(const std::string& id, const std::string& script) {
  const auto queue = my_slurm_jobs(false);
  for (const SlurmJobState& job : queue.value_or(std::vector<SlurmJobState>())) {
    if (job.script == script && job.id != id) return job.id;
  }
  return {};
}

// `log_of`: where a job of that number prints.
int wait_for(std::string id, const std::string& script,
             const std::function<std::string(const std::string&)>& log_of, bool quiet) {
  SignalPipe signals;
  FollowEars ears;
  ears.on_log = [](std::string_view bytes) {
    std::fwrite(bytes.data(), 1, bytes.size(), stdout);
    std::fflush(stdout);
  };
  ears.on_notice = [&](const std::string& line) {
    if (!quiet) say(stderr, line + "\n");
  };
  int signal = 0;
  ears.stop = [&] {
    for (const int one : signals.take()) {
      if (one == SIGINT || one == SIGTERM || one == SIGHUP) signal = one;
    }
    return signal != 0;
  };
  FollowEnd end = follow_slurm_job(id, log_of(id), ears);
  while (!end.detached && end.exit_code == static_cast<int>(Exit::requeue)) {
    const std::string next = successor_of(id, script);
    if (next.empty()) break;
    ears.on_notice(fmt::format("job {} goes on as job {}", id, next));
    id = next;
    end = follow_slurm_job(id, log_of(id), ears);
  }
  if (end.detached) {
    say(stderr, fmt::format("\njob {0} goes on without being watched; to see it: mtl logs -f {0}; "
                            "to stop it: mtl stop {0}\n",
                            id));
    return 128 + signal;
  }
  if (!quiet || end.exit_code != 0) say(stderr, slurm_verdict(end.job) + "\n");
  return end.exit_code;
}

// One call of mtl launch --via slurm, from its checks to the job's end.
class SlurmSubmission {
 public:
  explicit SlurmSubmission(const Submission& job)
      : job_(job), template_(load_template(job)), now_(std::time(nullptr)) {
    slurm_.version = version();
    std::tm local{};
    localtime_r(&now_, &local);
    slurm_.when = fmt::format("{:%Y-%m-%d %H:%M}", local);
    slurm_.command = {"mtl", "launch"};
    if (!job.options.words.empty()) slurm_.command = job.options.words;
    slurm_.working_directory = fs::current_path().string();
  }

  int run() {
    const LaunchOptions& options = job_.options;
    if (options.dry_run) {
      fill_to_keep();
    } else {
      fill(job_folder(job_.jobs, false));
    }
    if (slurm_.options.gpus_unsaid && !options.quiet) {
      say(stderr,
          "one rank per node, and no GPUs are asked for: --nproc_per_node N (or "
          "--slurm_gpus_per_node N) does; --cpu says that none are wanted\n");
    }
    if (options.dry_run) {
      warn_of_log_folder();
      fmt::print("{}", options.json ? document("", "%j").dump(2) + "\n" : text_);
      return 0;
    }
    const fs::path folder = job_folder(job_.jobs, true);
    fill(folder);
    const std::string id = write_and_submit(folder);
    record(id);
    announce(id);
    warn_of_shortage();
    if (!slurm_.options.wait) return 0;
    const auto log = [&](const std::string& one) { return log_of(one); };
    return wait_for(id, slurm_.script, log, options.quiet);
  }

 private:
  // Options are checked first without a folder: a mistake leaves nothing behind.
  static JobTemplate load_template(const Submission& job) {
    Diagnostics diagnostics;
    slurm_options(job.request, job.name, "/", diagnostics);
    diagnostics.throw_if_errors();
    return load_job_template("slurm/job.sbatch", job.request.templates_dir);
  }

  // The job runs copies of the files as they are now, in its folder.
  void fill(const fs::path& folder) {
    Submission inside = job_;
    if (!job_.train_yaml.empty()) inside.target[0] = (folder / "train.yaml").string();
    if (!job_.config_file.empty()) inside.config_file = (folder / "default_config.yaml").string();
    fill(folder, folder / "job.sbatch", inside);
  }

  // Nothing is written but the script, which may be given to sbatch at any time: it names the files
  // as they were given, and its log comes to where it was made.
  void fill_to_keep() {
    Submission inside = job_;
    if (!job_.config_file.empty()) inside.config_file = fs::absolute(job_.config_file).string();
    fill(fs::current_path(), kept_script(job_.name, job_.options.json), inside);
  }

  void fill(const fs::path& folder, const fs::path& script, const Submission& inside) {
    Diagnostics diagnostics;
    slurm_.options = slurm_options(job_.request, job_.name, folder, diagnostics);
    diagnostics.throw_if_errors();
    slurm_.script = script.string();
    slurm_.launch = launch_words(inside);
    text_ = slurm_script(slurm_, job_.request, template_);
  }

  void warn_of_log_folder() const {
    const fs::path& folder = slurm_.options.output;
    std::error_code ignored;
    if (fs::is_directory(folder, ignored)) return;
    print_warnings({{.code = "slurm.log_folder",
                     .what = fmt::format("{} is not there, and sbatch makes no folder for a log: "
                                         "the job would end at once",
                                         folder.string()),
                     .help = fmt::format("before sbatch: mkdir -p {}", shell_word(folder.string())),
                     .severity = Diagnostic::Severity::warning}});
  }

  std::string log_of(const std::string& id) const {
    const SlurmOptions& options = slurm_.options;
    return (options.output / (options.array ? id + "_%a.log" : id + ".log")).string();
  }

  // Of the job with this number, "" = of one that would be.
  nlohmann::ordered_json document(const std::string& id, const std::string& log_id) const {
    const auto known = [](const std::string& text) {
      return text.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(text);
    };
    nlohmann::ordered_json json;
    json["schema"] = "mtl.submit/1";
    json["via"] = "slurm";
    json["job_id"] = known(id);
    json["name"] = slurm_.options.job_name;
    json["nodes"] = slurm_.options.nodes;
    json["ranks_per_node"] = job_.request.local_ranks;
    json["script"] = slurm_.script;
    json["log"] = log_of(log_id);
    json["run"] = known(job_.run);
    json["sbatch"] = slurm_.options.sbatch;
    json["launch"] = slurm_.launch;
    if (id.empty()) json["text"] = text_;
    return json;
  }

  std::string write_and_submit(const fs::path& folder) const {
    make_directories(slurm_.options.output);
    if (!job_.train_yaml.empty()) write_file_atomic(folder / "train.yaml", job_.train_yaml);
    if (!job_.config_file.empty()) {
      write_file_atomic(folder / "default_config.yaml", read_file(job_.config_file));
    }
    // Variables for the ranks may be secrets.
    const Readers readers = job_.request.env.empty() ? Readers::as_before : Readers::owner;
    write_file_atomic(slurm_.script, text_, readers);
    std::string id;
    try {
      id = submit_to_slurm(slurm_.script, job_.request);
    } catch (const Error& error) {
      // A script that can be submitted later stays; one that SLURM refuses helps nobody.
      std::error_code ignored;
      if (error.exit() == Exit::config) fs::remove_all(folder, ignored);
      throw;
    }
    write_file_atomic(folder / "job.json", document(id, id).dump(1) + "\n", readers);
    return id;
  }

  void record(const std::string& id) const {
    JobRecord record;
    record.kind = "slurm";
    record.id = id;
    record.name = slurm_.options.job_name;
    record.run = job_.run;
    record.log = log_of(id);
    record.host = host_name();
    record.command = words_of(slurm_.command);
    record.when = now_;
    record.nodes = slurm_.options.nodes;
    record_job(record);
  }

  // After sbatch has taken it: there may be more nodes later, or an exception for this user.
  void warn_of_shortage() const {
    const std::vector<std::string>& lines = slurm_.options.sbatch;
    const bool elsewhere = std::any_of(lines.begin(), lines.end(), [](const std::string& line) {
      return line.starts_with("--clusters");
    });
    if (elsewhere || job_.request.min_nodes <= 1) return;
    if (const auto warning = slurm_shortage(job_.request, slurm_partitions())) {
      print_warnings({*warning});
    }
  }

  void announce(const std::string& id) const {
    if (job_.options.json) {
      fmt::print("{}\n", document(id, id).dump(2));
    } else if (job_.options.quiet) {
      fmt::print("{}\n", id);
    } else {
      fmt::print("submitted job {0} ({1}, {2})\n  script  {3}\n  log     {4}\n", id,
                 slurm_.options.job_name, size_words(slurm_.options, job_.request), slurm_.script,
                 log_of(id));
      if (!job_.run.empty()) fmt::print("  run     {}\n", job_.run);
      fmt::print("  follow  mtl logs -f {0}\n  stop    mtl stop {0}    (with a checkpoint)\n", id);
    }
    std::fflush(stdout);
  }

  const Submission& job_;
  const JobTemplate template_;
  const std::time_t now_;
  SlurmJob slurm_;
  std::string text_;  // of the script
};

}  // namespace

int submit_run(const LaunchOptions& options, const PreparedRun& run, const std::string& train_yaml,
               const std::vector<std::string>& settings) {
  const TrainSpec& spec = run.checked.resolved.spec;
  const fs::path home = fs::absolute(fs::path(spec.run.dir) / spec.run.name).lexically_normal();
  Submission job{.options = options,
                 .request = run.request,
                 .config_file = run.config_file,
                 .name = plain_name(spec.run.name),
                 .jobs = home / "jobs",
                 .run = home.string(),
                 .train_yaml = run.checked.resolved.source,
                 .target = {train_yaml}};
  for (const std::string& setting : settings) {
    // Who submits has been said, and would be heard again inside.
    if (!setting.starts_with("launch.via=")) job.target.push_back(setting);
  }
  return SlurmSubmission(job).run();
}

int submit_program(const LaunchOptions& options, const LaunchRequest& request,
                   const std::string& config_file, const std::string& program,
                   const std::vector<std::string>& arguments) {
  const std::string name = plain_name(fs::path(program).stem().string());
  Submission job{.options = options,
                 .request = request,
                 .config_file = config_file,
                 .name = name,
                 .jobs = fs::current_path() / "jobs" / name,
                 .run = {},
                 .train_yaml = {},
                 .target = {program}};
  job.target.insert(job.target.end(), arguments.begin(), arguments.end());
  const bool path = program.find('/') != std::string::npos || program.ends_with(".py");
  if (path && !options.module && !fs::exists(program)) {
    print_warnings({{.code = "launch.program_missing",
                     .what = fmt::format("{} is not there", program),
                     .help = "it has to be on the nodes of the job",
                     .severity = Diagnostic::Severity::warning}});
  }
  return SlurmSubmission(job).run();
}

}  // namespace mtl
