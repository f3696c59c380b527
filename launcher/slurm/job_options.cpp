#include "launcher/slurm/job_options.h"

#include <algorithm>
#include <map>
#include <regex>
#include <set>
#include <string_view>

#include <fmt/format.h>

#include "common/text.h"
#include "launcher/settings/launch_flags.h"

namespace mtl {

namespace {

constexpr size_t kLongest = 1024;
constexpr int kSignal = 180;  // seconds before the limit

// What a value may be. Nothing that could end a line or a word of the script is among it.
struct Rule {
  const char* name;
  const char* option;   // of sbatch; nullptr = it is put elsewhere, or not as it is
  const char* pattern;  // of the whole value
  const char* allowed;  // in words
};

const char* const kName = "[A-Za-z0-9_.@+-]+";
const char* const kNodes = "[A-Za-z0-9_.,\\[\\]-]+";
const char* const kTime =
    "([0-9]+-[0-9]+(:[0-9]{1,2}){0,2}|[0-9]+(:[0-9]{1,2}){0,2}|[Uu][Nn][Ll][Ii]"
    "[Mm][Ii][Tt][Ee][Dd]|[Ii][Nn][Ff][Ii][Nn][Ii][Tt][Ee])";

// In the order of the script, which puts its own lines between them.
const std::vector<Rule>& rules() {
  static const std::vector<Rule> kRules = {
      {"partition", "--partition", "[A-Za-z0-9_.@+,-]+",
       "names of partitions: letters, digits, _ . - and commas between them"},
      {"account", "--account", kName, "the name of an account: letters, digits, _ . @ + -"},
      {"qos", "--qos", kName, "a name: letters, digits, _ . @ + -"},
      {"reservation", "--reservation", "[A-Za-z0-9_.@+,-]+", "a name: letters, digits, _ . @ + -"},
      {"time", "--time", kTime,
       "a time limit: 90 (minutes), 1:30:00, 12:00:00, 2-00:00:00 (days first) or UNLIMITED"},
      {"cpus_per_task", "--cpus-per-task", "[0-9]+", "a whole number"},
      {"mem", "--mem", "[0-9]+[KMGTkmgt]?",
       "a size: 64G, 512000M, or 0 for all of a node's memory"},
      {"constraint", "--constraint", "[A-Za-z0-9_.,&|()*:+\\[\\]-]+",
       "features of nodes, with & and | between them: a100&nvlink"},
      {"nodelist", "--nodelist", kNodes, "names of nodes: gpu[01-04],gpu07"},
      {"exclude", "--exclude", kNodes, "names of nodes: gpu[01-04],gpu07"},
      {"array", "--array", "[0-9]+(-[0-9]+(:[0-9]+)?)?(,[0-9]+(-[0-9]+(:[0-9]+)?)?)*(%[0-9]+)?",
       "numbers: 0-15, 1,3,7, 0-15%4 (4 at a time)"},
      {"dependency", "--dependency",
       "(singleton|(after|afterany|afterok|afternotok|afterburstbuffer|aftercorr|expand)"
       "(:[0-9]+(_[0-9*]+)?([+][0-9]+)?)+)"
       "([,?](singleton|(after|afterany|afterok|afternotok|afterburstbuffer|aftercorr|expand)"
       "(:[0-9]+(_[0-9*]+)?([+][0-9]+)?)+))*",
       "afterok:1234, afterany:1234:1235, singleton ..., with commas between them"},
      {"mail_user", "--mail-user", "[A-Za-z0-9_.%+@,-]+", "addresses: me@example.org"},
      {"mail_type", "--mail-type", "[A-Za-z0-9_]+(,[A-Za-z0-9_]+)*",
       "NONE, BEGIN, END, FAIL, REQUEUE, ALL, TIME_LIMIT, TIME_LIMIT_90, TIME_LIMIT_80, "
       "TIME_LIMIT_50, ARRAY_TASKS, INVALID_DEPEND or STAGE_OUT, with commas between them"},
      {"comment", "--comment", "[A-Za-z0-9 _.,:;@+=/()*!?-]+",
       "text of letters, digits, spaces and . , : ; @ + = / ( ) * ! ? -"},
      // Below: not lines of the same name.
      {"job_name", nullptr, "[A-Za-z0-9 _.,:@+=/()-]{1,200}",
       "a name: letters, digits, spaces and _ . , : @ + = / ( ) -"},
      {"gpu_type", nullptr, "[A-Za-z0-9_.+-]+", "a type of GPU as the site calls it: a100"},
      {"gres", nullptr, "[A-Za-z0-9_.:,=()/+-]+", "resources as --gres takes them: gpu:a100:8"},
      {"output", nullptr, "[^\\x00-\\x1f\\x7f\"\\\\$`]+", "a folder"},
      {"container", nullptr, "[A-Za-z0-9_./:@#+=~-]+",
       "an image: a path or docker://HOST#NAME:TAG"},
      {"container_mounts", nullptr, "[A-Za-z0-9_./:,@+=~ -]+", "folders: /data:/data:ro"},
      {"modules", nullptr, "[A-Za-z0-9_./+@=~-]+", "the name of a module: cuda/12.4"},
      {"setup", nullptr, "[^\\x00-\\x08\\x0a-\\x1f\\x7f]+", "one line of shell"},
      {"srun", nullptr, "[^\\x00-\\x1f\\x7f]+", "an option of srun"},
      {"extra", nullptr, "--[a-z][a-z0-9-]*(=[^\\x00-\\x1f\\x7f\"'`\\\\$#]+)?",
       "an option of sbatch in its long form: --switches=1"},
  };
  return kRules;
}

const std::vector<std::string>& mail_types() {
  static const std::vector<std::string> kTypes = {
      "NONE",        "BEGIN",          "END",           "FAIL",          "REQUEUE",
      "ALL",         "TIME_LIMIT",     "TIME_LIMIT_90", "TIME_LIMIT_80", "TIME_LIMIT_50",
      "ARRAY_TASKS", "INVALID_DEPEND", "STAGE_OUT"};
  return kTypes;
}

// What the script says by itself, and by which setting.
const std::map<std::string, std::string>& own_options() {
  static const std::map<std::string, std::string> kOwn = {
      {"--job-name", "slurm_job_name"},
      {"--nodes", "num_machines"},
      {"--ntasks", "num_processes"},
      {"--ntasks-per-node", "nproc_per_node"},
      {"--gpus-per-node", "slurm_gpus_per_node"},
      {"--gpus", "slurm_gpus_per_node"},
      {"--gres", "slurm_gres"},
      {"--signal", "slurm_signal_s"},
      {"--requeue", "slurm_chain"},
      {"--no-requeue", "slurm_chain"},
      {"--output", "slurm_output"},
      {"--exclusive", "slurm_exclusive"},
      {"--wrap", ""},
      {"--chdir", ""},
      {"--parsable", ""},
      {"--wait", "slurm_wait"}};
  return kOwn;
}

// As a word of an #SBATCH line, which sbatch takes apart like a shell without its expansions.
std::string line(const std::string& option, const std::string& value) {
  if (value.empty()) return option;
  const bool plain = value.find_first_of(" \t'()[]&|*?!;<>~#") == std::string::npos;
  return plain ? option + "=" + value : fmt::format("{}=\"{}\"", option, value);
}

std::string shortened(std::string text) {
  for (char& c : text) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = '?';
  }
  return text.size() > 60 ? text.substr(0, 57) + "..." : text;
}

class Reader {
 public:
  Reader(const LaunchRequest& request, const std::string& name, const std::filesystem::path& folder,
         Diagnostics& diagnostics)
      : request_(request), name_(name), folder_(folder), diagnostics_(diagnostics) {}

  SlurmOptions read() {
    check_all();
    job();
    nodes();
    for (const Rule& rule : rules()) {
      if (rule.option == nullptr) continue;
      if (const std::string value = text(rule.name); !value.empty()) add(rule.option, value);
    }
    exclusive();
    ending();
    for (const std::string& option : all("extra")) options_.sbatch.push_back(option);
    options_.modules = all("modules");
    options_.setup = all("setup");
    options_.wait = truth_of(text("wait")).value_or(false);
    return std::move(options_);
  }

 private:
  const std::vector<std::string>& all(const std::string& name) const {
    static const std::vector<std::string> kNone;
    const auto found = request_.slurm.find(name);
    return found == request_.slurm.end() ? kNone : found->second;
  }
  std::string text(const std::string& name) const {
    return all(name).empty() ? "" : all(name).back();
  }
  bool given(const std::string& name) const { return !text(name).empty(); }
  // "slurm_time (train.yaml:12)".
  std::string called(const std::string& name) const {
    const auto origin = request_.scheduler_origins.find("slurm_" + name);
    if (origin == request_.scheduler_origins.end()) return "slurm_" + name;
    return origin->second.starts_with("--") ? origin->second
                                            : fmt::format("slurm_{} ({})", name, origin->second);
  }
  static bool is_list(const std::string& name) {
    const LaunchFlag* flag = find_launch_flag("slurm_" + name);
    return flag != nullptr && flag->kind == FlagKind::list;
  }
  // How often something was found wrong with a setting: said is the first.
  size_t told(const std::string& name) const {
    return static_cast<size_t>(std::count_if(
        told_.begin(), told_.end(), [&](const auto& one) { return one.starts_with(name + "\n"); }));
  }
  void wrong(const std::string& name, const std::string& value, const std::string& allowed) {
    if (!told_.insert(name + "\n" + value).second || (!is_list(name) && told(name) > 1)) return;
    diagnostics_.add({.code = "slurm.value",
                      .what = fmt::format("{} cannot be '{}'", called(name), shortened(value)),
                      .help = "it is " + allowed});
  }
  void conflict(const std::string& what, const std::string& help) {
    diagnostics_.add({.code = "slurm.conflict", .what = what, .help = help});
  }
  void add(const std::string& option, const std::string& value = "") {
    options_.sbatch.push_back(line(option, value));
  }

  void check_all() {
    for (const Rule& rule : rules()) {
      const std::regex pattern(rule.pattern, std::regex::ECMAScript | std::regex::optimize);
      for (const std::string& value : all(rule.name)) {
        const bool fits = value.size() <= kLongest && std::regex_match(value, pattern);
        if (!fits) wrong(rule.name, value, rule.allowed);
      }
    }
    for (const LaunchFlag& flag : launch_flags()) {
      if (flag.group != FlagGroup::slurm || flag.kind == FlagKind::text) continue;
      const std::string name = flag.name.substr(std::string_view("slurm_").size());
      for (const std::string& value : all(name)) {
        if (const auto wanted = flag_value_wanted(flag, value)) wrong(name, value, *wanted);
      }
    }
    mail();
    extras();
    if (given("gres") && (given("gpus_per_node") || given("gpu_type"))) {
      const char* other = given("gpu_type") ? "gpu_type" : "gpus_per_node";
      conflict(fmt::format("{} and {} both ask for GPUs", called("gres"), called(other)),
               "leave one of them out; --slurm_gres gpu:a100:8 says it all");
    }
    // --gres is what the site wants to read, whatever the job does with it.
    if (request_.config.use_cpu && to_number<int>(text("gpus_per_node")).value_or(0) > 0) {
      conflict(fmt::format("{} asks for GPUs, and the job uses none", called("gpus_per_node")),
               "leave it out, or --cpu (--multi_gpu where a file says use_cpu)");
    }
    for (const char* name : {"container_mounts", "container_runtime"}) {
      if (!given(name) || given("container")) continue;
      conflict(fmt::format("{} without a container", called(name)), "add --slurm_container IMAGE");
    }
  }

  void mail() {
    const std::string value = upper(text("mail_type"));
    for (size_t at = 0; !value.empty() && at <= value.size();) {
      const size_t end = std::min(value.find(',', at), value.size());
      const std::string type = value.substr(at, end - at);
      const std::vector<std::string>& types = mail_types();
      if (std::find(types.begin(), types.end(), type) == types.end()) {
        const auto guess = did_you_mean(type, types);
        wrong("mail_type", type,
              fmt::format("{}{}", fmt::join(types, ", "),
                          guess ? fmt::format("; did you mean {}?", *guess) : std::string()));
      }
      at = end + 1;
    }
  }

  void extras() {
    for (const std::string& option : all("extra")) {
      std::string name = option.substr(0, option.find('='));
      auto own = own_options().find(name);
      std::string setting = own != own_options().end() ? own->second : "";
      for (const Rule& rule : rules()) {
        if (rule.option != nullptr && name == rule.option) {
          setting = fmt::format("slurm_{}", rule.name);
        }
      }
      if (own == own_options().end() && setting.empty()) continue;
      diagnostics_.add(
          {.code = "slurm.conflict",
           .what =
               fmt::format("{}: {} is a line that the script has by itself", called("extra"), name),
           .help = setting.empty() ? "leave it out" : fmt::format("say --{}", setting)});
    }
  }

  void job() {
    options_.job_name = given("job_name") ? text("job_name") : name_;
    add("--job-name", options_.job_name);
  }

  void nodes() {
    const int most = std::max(request_.max_nodes, 1), least = std::max(request_.min_nodes, 1);
    options_.nodes = most;
    add("--nodes", least == most ? fmt::format("{}", most) : fmt::format("{}-{}", least, most));
    add("--ntasks-per-node", "1");
    if (given("gres")) {
      add("--gres", text("gres"));
      options_.gpus_per_node = -1;
      return;
    }
    if (given("gpus_per_node")) {
      options_.gpus_per_node = to_number<int>(text("gpus_per_node")).value_or(0);
    } else if (!request_.config.use_cpu && request_.ranks_said) {
      options_.gpus_per_node = std::max(request_.local_ranks, 0);
    } else {
      options_.gpus_unsaid = !request_.config.use_cpu;
    }
    if (options_.gpus_per_node == 0) return;
    add("--gpus-per-node", given("gpu_type")
                               ? fmt::format("{}:{}", text("gpu_type"), options_.gpus_per_node)
                               : fmt::format("{}", options_.gpus_per_node));
  }

  void exclusive() {
    const std::string value = text("exclusive");
    if (value.empty() || value == "false") return;
    add("--exclusive", value == "true" ? "" : value);
  }

  // How it ends: the warning before the limit, and what follows.
  void ending() {
    const long limit = slurm_seconds(text("time")).value_or(-1);
    const long before = slurm_warning_s(request_);
    if (given("signal_s")) {
      if (limit >= 0 && before >= limit) {
        conflict(fmt::format("{} {}: so long before the limit of {} the job has not begun",
                             called("signal_s"), before, text("time")),
                 fmt::format("give less, or more {}", called("time")));
      } else if (before > 65'535) {
        wrong("signal_s", text("signal_s"), "seconds up to 65535");
      }
    }
    if (before > 0) add("--signal", fmt::format("B:USR2@{}", before));
    const std::string chain = given("chain") ? text("chain") : "requeue";
    add(chain == "requeue" ? "--requeue" : "--no-requeue");
    // Nodes may come and go.
    if (request_.min_nodes < request_.max_nodes) add("--no-kill");
    add("--open-mode", "append");
    options_.array = given("array");
    options_.output = given("output") ? std::filesystem::absolute(text("output")) : folder_;
    std::string path = options_.output.lexically_normal().string();
    if (path.find_first_of("\"\\$`\n") != std::string::npos) {
      wrong("output", path, "a folder without quotes, $ and \\ in its name");
    }
    std::string escaped;
    for (const char c : path) escaped.append(c == '%' ? 2 : 1, c);
    path = std::move(escaped);
    add("--output", fmt::format("{}/{}", path, options_.array ? "%A_%a.log" : "%j.log"));
  }

  const LaunchRequest& request_;
  const std::string& name_;
  const std::filesystem::path& folder_;
  Diagnostics& diagnostics_;
  SlurmOptions options_;
  std::set<std::string> told_;  // name, newline, value
};

}  // namespace

SlurmOptions slurm_options(const LaunchRequest& request, const std::string& name,
                           const std::filesystem::path& folder, Diagnostics& diagnostics) {
  return Reader(request, name, folder, diagnostics).read();
}

long slurm_warning_s(const LaunchRequest& request) {
  const auto last = [&](const char* name) {
    const auto found = request.slurm.find(name);
    return found == request.slurm.end() || found->second.empty() ? "" : found->second.back();
  };
  if (const std::string given = last("signal_s"); !given.empty())
    return to_number<int>(given).value_or(kSignal);
  // SLURM looks once a minute, so it may come so much earlier. A short job still has a beginning.
  const long limit = slurm_seconds(last("time")).value_or(-1);  // -1 = there is none to speak of
  if (limit < 0 || limit >= 4 * kSignal) return kSignal;
  return limit <= 60 ? 0 : limit / 4;
}

std::optional<long> slurm_seconds(const std::string& limit) {
  static const std::regex kLimit(
      "(?:([0-9]{1,6})-)?([0-9]{1,9})(?::([0-9]{1,2}))?(?::([0-9]{1,2}))?");
  std::smatch parts;
  if (!std::regex_match(limit, parts, kLimit)) return std::nullopt;
  const auto number = [&](size_t i) { return parts[i].matched ? std::stol(parts[i]) : 0L; };
  if (parts[1].matched) {
    return number(1) * 86'400 + number(2) * 3'600 + number(3) * 60 + number(4);
  }
  if (parts[4].matched) return number(2) * 3'600 + number(3) * 60 + number(4);
  return number(2) * 60 + number(3);
}

}  // namespace mtl
