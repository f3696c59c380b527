#include "launcher/launch_request.h"

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <unordered_map>

#include <sys/stat.h>

#include <fmt/format.h>

#include "common/files.h"
#include "launcher/launch_config_keys.h"

namespace mtl {

namespace {

constexpr int kFile = 0, kEnvironment = 1, kFlags = 2;
constexpr int kMeetingPort = 29500;  // torchrun's and accelerate's
constexpr int kManyRanks = 256;      // of a node, where nobody knows yet how many

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> words;
  size_t start = 0;
  while (start <= text.size()) {
    const size_t end = std::min(text.find(separator, start), text.size());
    if (end > start) words.push_back(text.substr(start, end - start));
    start = end + 1;
  }
  return words;
}

std::optional<int> whole(const std::string& text, int least, int most) {
  int number = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, number);
  if (error != std::errc() || stop != end || number < least || number > most) return std::nullopt;
  return number;
}

double scaled(const std::string& text) {
  double number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const std::string unit(end, text.data() + text.size());
  if (unit == "ms") return number / 1000;
  if (unit == "m") return number * 60;
  if (unit == "h") return number * 3600;
  if (unit == "K" || unit == "k") return number * 1024;
  if (unit == "M") return number * 1024 * 1024;
  if (unit == "G" || unit == "g") return number * 1024 * 1024 * 1024;
  return number;
}

std::chrono::milliseconds duration(const std::string& text) {
  return std::chrono::milliseconds(static_cast<int64_t>(scaled(text) * 1000 + 0.5));
}

bool is_megatron(const LaunchFlag& flag) {
  return flag.group == FlagGroup::megatron;
}

bool is_plugin(const LaunchFlag& flag) {
  switch (flag.group) {
    case FlagGroup::fsdp:
    case FlagGroup::deepspeed:
    case FlagGroup::fp8:
    case FlagGroup::parallelism:
    case FlagGroup::dynamo:
      return true;
    default:
      return false;
  }
}

// Words that people and YAML use for a truth value, in one spelling.
std::string canonical(const LaunchFlag& flag, const std::string& text) {
  if (flag.kind != FlagKind::truth) return text;
  return truth_of(text).value_or(false) ? "true" : "false";
}

// A setting that may come from several layers, of which the strongest counts.
template <typename T>
struct Layered {
  T value{};
  int layer = -1;  // nobody has said it
  std::string origin;
  bool said() const { return layer >= 0; }
  bool set(T given, int from, const std::string& by) {
    if (from < layer) return false;
    value = std::move(given);
    layer = from;
    origin = by;
    return true;
  }
};

struct Nodes {
  int min = 1, max = 1;
  bool operator==(const Nodes&) const = default;
};

class Resolver {
 public:
  Resolver(const LaunchConfig& file, bool train_yaml, Diagnostics& diagnostics)
      : diagnostics_(diagnostics), train_yaml_(train_yaml) {
    r_.config = file;
  }

  LaunchRequest resolve(const LaunchGiven& given) {
    apply_file();
    apply(given.environment, kEnvironment);
    apply(given.flags, kFlags);
    finish_engine();
    finish_hosts();
    finish_nodes();
    finish_counts();
    finish_meeting();
    finish_logs();
    finish_environment();
    ignored_flags(given);
    ignored_keys();
    return std::move(r_);
  }

 private:
  using Setter = std::function<void(Resolver&, const FlagValue&, int layer)>;

  void fail(const std::string& code, const std::string& what, const std::string& help) {
    diagnostics_.add({.code = code, .what = what, .help = help});
  }
  void conflict(const std::string& what, const std::string& help) {
    fail("launch.conflict", what, help);
  }
  // ---- the layers

  void apply_file() {
    LaunchConfig& config = r_.config;
    const std::string& path = config.path;
    if (config.num_processes > 0) total_.set(config.num_processes, kFile, path);
    if (!path.empty()) nodes_.set({config.num_machines, config.num_machines}, kFile, path);
    if (config.machine_rank_given) machine_rank_.set(config.machine_rank, kFile, path);
    if (!config.main_process_ip.empty()) address_.set(config.main_process_ip, kFile, path);
    if (config.main_process_port != 0) port_.set(config.main_process_port, kFile, path);
    if (config.enable_cpu_affinity) binding_.set(Binding::numa, kFile, path);
    if (const auto file = config.plugins.find("mpirun_hostfile"); file != config.plugins.end()) {
      hostfile_.set(file->second, kFile, path);
    }
    FlagValues own;
    for (const auto& [name, text] : config.own) {
      const LaunchFlag* flag = find_launch_flag(name);
      if (flag == nullptr || flag->name != name || !flag->file_key.empty()) {
        std::vector<std::string> names;
        for (const LaunchFlag& candidate : launch_flags()) {
          if (candidate.file_key.empty()) names.push_back("mtl_" + candidate.name);
        }
        const auto near = did_you_mean("mtl_" + name, names);
        diagnostics_.add({.code = "config.unknown_key",
                          .what = fmt::format("unknown key 'mtl_{}' in megatron_lm_config", name),
                          .place = Place{path},
                          .help = near ? fmt::format("did you mean '{}'?", *near)
                                       : "see the names with: mtl help launch-flags"});
        continue;
      }
      if (const auto wanted = flag_value_wanted(*flag, text)) {
        diagnostics_.add({.code = "config.bad_value",
                          .what = fmt::format("mtl_{} wants {}, got '{}'", name, *wanted, text),
                          .place = Place{path},
                          .help = "correct it in megatron_lm_config"});
        continue;
      }
      FlagValue value{{text}, path};
      // A list stands in one scalar there.
      if (flag->kind == FlagKind::list) value.texts = split(text, ',');
      own[name] = std::move(value);
    }
    apply(own, kFile);
  }

  void apply(const FlagValues& values, int layer) {
    for (const LaunchFlag& flag : launch_flags()) {
      const auto found = values.find(flag.name);
      if (found == values.end() || found->second.texts.empty()) continue;
      const FlagValue& value = found->second;
      if (is_megatron(flag)) {
        r_.config.megatron_lm_config[flag.name] = canonical(flag, value.texts.back());
      } else if (is_plugin(flag)) {
        r_.config.plugins[flag.name] = canonical(flag, value.texts.back());
      }
      const auto setter = setters().find(flag.name);
      if (setter != setters().end()) setter->second(*this, value, layer);
    }
  }

  static bool yes(const FlagValue& value) { return truth_of(value.texts.back()).value_or(false); }

  // What a setting does to the request. A setting without a row here is passed on to a program, is
  // the command line's own (file_key "-"), or has no meaning.
  static const std::unordered_map<std::string, Setter>& setters() {
    using S = Resolver;
    using V = const FlagValue&;
    static const std::unordered_map<std::string, Setter> table = {
        {"num_processes",
         [](S& s, V v, int l) { s.total_.set(std::stoi(v.texts.back()), l, v.origin); }},
        {"nproc_per_node", [](S& s, V v, int l) { s.per_node(v, l); }},
        {"mixed_precision",
         [](S& s, V v, int) {
           s.r_.config.mixed_precision = v.texts.back();
           s.r_.config.mixed_precision_given = true;
         }},
        {"cpu",
         [](S& s, V v, int l) {
           if (s.multi_gpu_.value && s.multi_gpu_.layer == l && yes(v)) return s.cpu_and_gpu(v);
           s.cpu_.set(yes(v), l, v.origin);
         }},
        {"multi_gpu",
         [](S& s, V v, int l) {
           if (s.cpu_.value && s.cpu_.layer == l && yes(v)) return s.cpu_and_gpu(v);
           s.multi_gpu_.set(yes(v), l, v.origin);
         }},
        {"gpu_ids", [](S& s, V v, int) { s.r_.config.gpu_ids = v.texts.back(); }},
        {"hosts", [](S& s, V v, int l) { s.hosts_.set(v.texts.back(), l, v.origin); }},
        {"hostfile", [](S& s, V v, int l) { s.hostfile_.set(v.texts.back(), l, v.origin); }},
        {"mpirun_hostfile",
         [](S& s, V v, int l) {
           s.r_.config.plugins["mpirun_hostfile"] = v.texts.back();
           s.hostfile_.set(v.texts.back(), l, v.origin);
         }},
        {"num_machines",
         [](S& s, V v, int l) {
           const int n = std::stoi(v.texts.back());
           s.set_nodes({n, n}, v, l);
         }},
        {"nnodes", [](S& s, V v, int l) { s.nnodes(v, l); }},
        {"standalone",
         [](S& s, V v, int l) {
           if (yes(v)) s.standalone_.set(true, l, v.origin);
         }},
        {"machine_rank",
         [](S& s, V v, int l) { s.machine_rank_.set(std::stoi(v.texts.back()), l, v.origin); }},
        {"main_process_ip",
         [](S& s, V v, int l) {
           const auto endpoint = parse_endpoint(v.texts.back());
           s.address_.set(endpoint ? endpoint->host : v.texts.back(), l, v.origin);
         }},
        {"main_process_port", [](S& s, V v, int l) { s.main_port(v, l); }},
        {"rdzv_backend", [](S& s, V v, int) { s.r_.config.rdzv_backend = v.texts.back(); }},
        {"rdzv_endpoint", [](S& s, V v, int l) { s.endpoint(v, l); }},
        {"rdzv_id",
         [](S& s, V v, int) {
           s.r_.run_id = v.texts.back();
           s.r_.run_id_given = true;
         }},
        {"rdzv_conf", [](S& s, V v, int l) { s.rdzv_conf(v, l); }},
        {"join_timeout",
         [](S& s, V v, int l) {
           s.join_timeout_.set(duration(v.texts.back()), l + 10, v.origin);  // above rdzv_conf
         }},
        {"interface", [](S& s, V v, int) { s.r_.interface = v.texts.back(); }},
        {"ssh_command", [](S& s, V v, int) { s.r_.ssh_command = v.texts.back(); }},
        {"ssh_config", [](S& s, V v, int) { s.r_.ssh_config = v.texts.back(); }},
        {"remote_program", [](S& s, V v, int) { s.r_.remote_program = v.texts.back(); }},
        {"token_file", [](S& s, V v, int l) { s.token_file_.set(v.texts.back(), l, v.origin); }},
        {"forward_env", [](S& s, V v, int) { s.r_.forward = v.texts; }},
        {"num_cpu_threads_per_process",
         [](S& s, V v, int) { s.r_.omp_threads = std::stoi(v.texts.back()); }},
        {"numa_binding", [](S& s, V v, int l) { s.numa_binding(v, l); }},
        {"enable_cpu_affinity",
         [](S& s, V v, int l) {
           s.r_.config.enable_cpu_affinity = yes(v);
           s.binding_.set(yes(v) ? Binding::numa : Binding::none, l, v.origin);
         }},
        {"env", [](S& s, V v, int) { s.variables(v); }},
        {"role", [](S& s, V v, int) { s.r_.config.role = v.texts.back(); }},
        {"debug", [](S& s, V v, int) { s.r_.config.debug = yes(v); }},
        {"log_dir", [](S& s, V v, int) { s.r_.logs.dir = v.texts.back(); }},
        {"tee", [](S& s, V v, int l) { s.tee_.set(v.texts.back(), l, v.origin); }},
        {"redirects", [](S& s, V v, int l) { s.redirects_.set(v.texts.back(), l, v.origin); }},
        {"local_ranks_filter", [](S& s, V v, int) { s.ranks_filter(v); }},
        {"log_rotate",
         [](S& s, V v, int) {
           s.r_.logs.rotate_bytes = static_cast<int64_t>(scaled(v.texts.back()));
         }},
        {"max_restarts", [](S& s, V v, int) { s.r_.max_restarts = std::stoi(v.texts.back()); }},
        {"grace", [](S& s, V v, int) { s.r_.grace = duration(v.texts.back()); }},
        {"dead_after", [](S& s, V v, int) { s.r_.dead_after = duration(v.texts.back()); }},
        {"use_megatron_lm", [](S& s, V v, int l) { s.engine("MEGATRON_LM", yes(v), v, l); }},
        {"use_fsdp", [](S& s, V v, int l) { s.engine("FSDP", yes(v), v, l); }},
        {"use_deepspeed", [](S& s, V v, int l) { s.engine("DEEPSPEED", yes(v), v, l); }},
        {"use_parallelism_config",
         [](S& s, V v, int) {
           s.r_.config.use_parallelism_config = yes(v);
           // So that the merged settings, written as a file, say it too.
           if (yes(v)) s.r_.config.plugins.emplace("parallelism_config_dp_replicate_size", "1");
         }},
    };
    return table;
  }

  void value_error(const FlagValue& value, const std::string& wants) {
    fail("launch.value",
         fmt::format("{} wants {}, got '{}'", value.origin, wants, value.texts.back()),
         "see: mtl help launch-flags");
  }

  void per_node(const FlagValue& value, int layer) {
    const std::string& text = value.texts.back();
    const auto number = whole(text, 1, 1 << 20);
    if (number) {
      per_node_.set(*number, layer, value.origin);
    } else if (text == "gpu") {
      per_node_.set(LaunchRequest::kPerGpu, layer, value.origin);
    } else if (text == "cpu") {
      per_node_.set(LaunchRequest::kPerCore, layer, value.origin);
    } else if (text == "auto") {
      per_node_.set(LaunchRequest::kAuto, layer, value.origin);
    } else {
      value_error(value, "a whole number >= 1, gpu, cpu or auto");
    }
  }

  void set_nodes(Nodes nodes, const FlagValue& value, int layer) {
    if (nodes_.layer == layer && layer != kFile && !(nodes_.value == nodes)) {
      return conflict(
          fmt::format("{} and {} say different numbers of machines", nodes_.origin, value.origin),
          "leave one of them out");
    }
    nodes_.set(nodes, layer, value.origin);
  }

  void nnodes(const FlagValue& value, int layer) {
    const std::string& text = value.texts.back();
    const size_t colon = text.find(':');
    const auto min = whole(text.substr(0, colon), 1, 1 << 20);
    const auto max = colon == std::string::npos ? min : whole(text.substr(colon + 1), 1, 1 << 20);
    if (!min || !max) return value_error(value, "a number of machines, or MIN:MAX");
    if (*min > *max) {
      return fail("launch.nodes",
                  fmt::format("{} {}: the least, {}, is more than the most, {}", value.origin, text,
                              *min, *max),
                  fmt::format("swap them: {} {}:{}", value.origin, *max, *min));
    }
    set_nodes({*min, *max}, value, layer);
  }

  void main_port(const FlagValue& value, int layer) {
    const auto port = whole(value.texts.back(), 0, 65'535);
    if (!port) {
      return fail("launch.port", fmt::format("{} {} is no port", value.origin, value.texts.back()),
                  "ports go from 1 to 65535; 0 takes a free one");
    }
    port_.set(*port, layer, value.origin);
  }

  void endpoint(const FlagValue& value, int layer) {
    const auto endpoint = parse_endpoint(value.texts.back());
    if (!endpoint) {
      return fail("launch.endpoint",
                  fmt::format("{} '{}' is not HOST or HOST:PORT", value.origin, value.texts.back()),
                  "for example 10.0.0.1:29400, node0, [fd00::1]:29400");
    }
    endpoint_.set(*endpoint, layer, value.origin);
  }

  void rdzv_conf(const FlagValue& value, int layer) {
    static const std::vector<std::string> without_meaning = {
        "close_timeout",     "keep_alive_interval", "keep_alive_max_attempt",
        "heartbeat_timeout", "heartbeat",           "read_timeout",
        "is_host",           "store_type",          "use_libuv",
        "nproc_per_node",    "local_addr",          "max_attempts"};
    static const std::vector<std::string> known = {"join_timeout", "timeout", "last_call_timeout",
                                                   "rank"};
    for (const std::string& pair : split(value.texts.back(), ',')) {
      const size_t equals = pair.find('=');
      const std::string key = pair.substr(0, equals);
      const std::string text = equals == std::string::npos ? "" : pair.substr(equals + 1);
      const std::string name = fmt::format("{} {}", value.origin, key);
      const bool ignored =
          std::find(without_meaning.begin(), without_meaning.end(), key) != without_meaning.end();
      if (ignored) {
        ignored_words_.push_back(name);
        continue;
      }
      if (std::find(known.begin(), known.end(), key) == known.end()) {
        std::vector<std::string> words = known;
        words.insert(words.end(), without_meaning.begin(), without_meaning.end());
        const auto near = did_you_mean(key, words);
        fail("launch.rdzv_conf", fmt::format("{} has no '{}'", value.origin, key),
             near ? fmt::format("did you mean {}?", *near)
                  : "it knows join_timeout, last_call_timeout, timeout and rank");
        continue;
      }
      const LaunchFlag number{.name = key,
                              .kind = key == "rank" ? FlagKind::whole : FlagKind::seconds,
                              .value = {},
                              .help = {},
                              .built_in = {},
                              .file_key = {},
                              .aliases = {},
                              .meaningless = {}};
      if (const auto wanted = flag_value_wanted(number, text)) {
        fail("launch.rdzv_conf", fmt::format("{} wants {}, got '{}'", name, *wanted, text),
             "write it as " + key + "=30");
      } else if (key == "rank") {
        machine_rank_.set(std::stoi(text), layer, name);
      } else if (key == "last_call_timeout") {
        r_.last_call = duration(text);
      } else {
        join_timeout_.set(duration(text), layer, name);
      }
    }
  }

  void numa_binding(const FlagValue& value, int layer) {
    const std::string& word = value.texts.back();
    const bool none = word == "none" || word == "false";
    const bool core = word == "core" || word == "exclusive" || word == "core-complex";
    binding_.set(none   ? Binding::none
                 : core ? Binding::core
                        : Binding::numa,
                 layer + 10,
                 value.origin);  // more exact than enable_cpu_affinity, of whatever layer
  }

  void variables(const FlagValue& value) {
    r_.env.clear();
    for (const std::string& text : value.texts) {
      const size_t equals = text.find('=');
      if (equals == std::string::npos || equals == 0) {
        fail("launch.value", fmt::format("{} wants NAME=VALUE, got '{}'", value.origin, text),
             fmt::format("to pass on a variable as it is here: --forward_env {}", text));
        continue;
      }
      r_.env[text.substr(0, equals)] = text.substr(equals + 1);
    }
  }

  void ranks_filter(const FlagValue& value) {
    r_.logs.only_local_ranks.clear();
    for (const std::string& word : split(value.texts.back(), ',')) {
      const auto rank = whole(word, 0, 1 << 20);
      if (!rank) return value_error(value, "local ranks like 0,1");
      r_.logs.only_local_ranks.push_back(*rank);
    }
  }

  void cpu_and_gpu(const FlagValue&) {
    conflict("--cpu and --multi_gpu contradict each other", "leave one of them out");
  }

  void engine(const std::string& type, bool on, const FlagValue& value, int layer) {
    if (on) {
      if (layer > engine_layer_) engines_.clear();
      engine_layer_ = layer;
      engines_.emplace_back(type, value.origin);
    } else if (r_.config.distributed_type == type) {
      r_.config.distributed_type = "NO";  // the file's, switched off
    }
  }

  // ---- what follows from all layers together

  void finish_engine() {
    if (engines_.size() > 1) {
      std::string names;
      for (const auto& [type, origin] : engines_) names += (names.empty() ? "" : " and ") + origin;
      conflict(names + " exclude each other: a program has one engine", "leave all but one out");
    }
    LaunchConfig& config = r_.config;
    if (!engines_.empty()) config.distributed_type = engines_.front().first;
    const bool gpu_said = multi_gpu_.said() && multi_gpu_.value;
    if (cpu_.said() && (!gpu_said || cpu_.layer > multi_gpu_.layer)) {
      config.use_cpu = cpu_.value;
    } else if (gpu_said) {
      config.use_cpu = false;
    }
    if (gpu_said && !config.use_cpu) {
      r_.need_gpu = true;
      if (config.distributed_type == "NO" || config.distributed_type == "MULTI_CPU") {
        config.distributed_type = "MULTI_GPU";
      }
    }
    if (multi_gpu_.said() && !multi_gpu_.value && config.distributed_type == "MULTI_GPU") {
      config.distributed_type = "NO";
    }
    const auto setting = [&](const char* name) {
      const auto found = config.plugins.find(name);
      return found == config.plugins.end() || truth_of(found->second).value_or(true);
    };
    if (config.distributed_type == "FSDP" && setting("fsdp_cpu_ram_efficient_loading") &&
        !setting("fsdp_sync_module_states")) {
      conflict("fsdp_cpu_ram_efficient_loading needs fsdp_sync_module_states: only rank 0 loads",
               "--fsdp_sync_module_states true, or --fsdp_cpu_ram_efficient_loading false");
    }
  }

  void finish_hosts() {
    // DeepSpeed's own name for it counts where DeepSpeed does.
    if (const auto file = r_.config.plugins.find("deepspeed_hostfile");
        file != r_.config.plugins.end() && r_.config.distributed_type == "DEEPSPEED" &&
        !hostfile_.said()) {
      hostfile_.set(file->second, kFile, "deepspeed_hostfile");
    }
    if (standalone_.said()) {
      const int layer = standalone_.layer;
      if (hosts_.layer >= layer || hostfile_.layer >= layer) {
        conflict("--standalone means one machine, and hosts are given", "leave one of them out");
      }
      return;
    }
    if (hosts_.said() && hostfile_.said()) {
      if (hosts_.layer == hostfile_.layer) {
        conflict(fmt::format("{} and {} both name the machines", hosts_.origin, hostfile_.origin),
                 "leave one of them out");
      }
      if (hosts_.layer < hostfile_.layer) hosts_ = {};
    }
    if (hosts_.said()) {
      r_.hosts = parse_hosts(hosts_.value, diagnostics_);
    } else if (hostfile_.said()) {
      r_.hosts = read_hostfile(hostfile_.value, diagnostics_);
    } else {
      return;
    }
    r_.mode = LaunchRequest::Mode::hosts;
    if (machine_rank_.layer > kFile) {
      conflict(fmt::format("{} is for a command that is typed on every machine; --hosts starts "
                           "them all from here",
                           machine_rank_.origin),
               "leave one of them out");
    }
  }

  void finish_nodes() {
    if (standalone_.said() && nodes_.layer >= standalone_.layer && nodes_.layer > kFile &&
        nodes_.value.max > 1) {
      conflict(fmt::format("--standalone means one machine, and {} says {}", nodes_.origin,
                           nodes_.value.max),
               "leave one of them out");
    }
    if (r_.mode == LaunchRequest::Mode::hosts) {
      const int hosts = static_cast<int>(r_.hosts.size());
      const bool told = nodes_.said() && (nodes_.layer > kFile || nodes_.value.max > 1);
      r_.max_nodes = hosts;
      r_.min_nodes = told ? std::min(nodes_.value.min, std::max(hosts, 1)) : hosts;
      if (told && hosts > 0 && nodes_.value.max != hosts) {
        conflict(fmt::format("{} says {} machines, and {} are named", nodes_.origin,
                             nodes_.value.max, hosts),
                 "leave the number out, or name as many");
      }
    } else if (!standalone_.said()) {
      r_.min_nodes = nodes_.value.min;
      r_.max_nodes = nodes_.value.max;
      if (r_.max_nodes > 1) r_.mode = LaunchRequest::Mode::member;
    }
    r_.config.num_machines = std::max(r_.max_nodes, 1);
    r_.elastic = r_.config.rdzv_backend != "static" || r_.min_nodes != r_.max_nodes;
    if (r_.mode == LaunchRequest::Mode::member && r_.min_nodes != r_.max_nodes &&
        r_.config.rdzv_backend == "static") {
      conflict(fmt::format("{} {}:{} with rdzv_backend static: ranks that follow from machine_rank "
                           "cannot change",
                           nodes_.origin, r_.min_nodes, r_.max_nodes),
               "add --rdzv_backend tcp");
    }
  }

  void finish_counts() {
    const bool hosts = r_.mode == LaunchRequest::Mode::hosts;
    const int nodes = std::max(r_.max_nodes, 1);
    // The stronger one counts; of the same layer, both.
    if (total_.said() && per_node_.said() && total_.layer != per_node_.layer) {
      if (total_.layer < per_node_.layer) {
        total_ = {};
      } else {
        per_node_ = {};
      }
    }
    if (per_node_.said() && per_node_.value == LaunchRequest::kPerGpu) {
      if (r_.config.use_cpu) {
        conflict(fmt::format("{} gpu with --cpu", per_node_.origin), "leave one of them out");
      }
      r_.need_gpu = true;
    }
    r_.local_ranks = per_node_.said() ? per_node_.value : LaunchRequest::kAuto;
    r_.ranks = 0;
    if (total_.said() && per_node_.said()) {
      if (per_node_.value > 0 && total_.value != per_node_.value * nodes) {
        conflict(
            fmt::format("{} {} and {} {} on {} machine{} do not agree", total_.origin, total_.value,
                        per_node_.origin, per_node_.value, nodes, nodes == 1 ? "" : "s"),
            fmt::format("num_processes is the total: {}", per_node_.value * nodes));
      } else if (per_node_.value <= 0) {
        conflict(fmt::format("{} and {} both say how many ranks", total_.origin, per_node_.origin),
                 "leave one of them out");
      }
    }
    if (hosts && hosts_have_slots()) return count_slots();
    if (total_.said() && !per_node_.said()) {
      if (total_.value % nodes != 0) {
        fail("launch.processes",
             fmt::format("num_processes {} ({}) cannot be shared out evenly by {} machines",
                         total_.value, total_.origin, nodes),
             hosts ? "give the hosts their ranks: a:3,b:2"
                   : fmt::format("num_processes is the total of all machines; {} and {} would do",
                                 std::max(total_.value / nodes, 1) * nodes,
                                 (total_.value / nodes + 1) * nodes));
      }
      r_.local_ranks = std::max(total_.value / nodes, 1);
    }
    if (!hosts && r_.local_ranks <= 0) {
      r_.local_ranks =
          ranks_of_node(r_.local_ranks, inspect_hardware(false), r_.config.use_cpu, diagnostics_);
    }
    if (r_.local_ranks > 0 && r_.min_nodes == r_.max_nodes) r_.ranks = r_.local_ranks * nodes;
    r_.config.num_processes = r_.local_ranks > 0 ? r_.local_ranks * nodes : -1;
  }

  bool hosts_have_slots() const {
    return std::any_of(r_.hosts.begin(), r_.hosts.end(),
                       [](const Host& host) { return host.slots > 0; });
  }

  // Ranks fill the hosts in their order, as mpirun does.
  void count_slots() {
    int sum = 0;
    bool all = true;
    for (const Host& host : r_.hosts) {
      const int slots = host.slots > 0 ? host.slots : std::max(r_.local_ranks, 0);
      all = all && slots > 0;
      sum += slots;
    }
    if (all && total_.said() && total_.value > sum) {
      fail("launch.processes",
           fmt::format("num_processes {} ({}), and the hosts have {} slots", total_.value,
                       total_.origin, sum),
           "give them more slots, name more hosts, or start fewer");
    } else if (all && total_.said()) {
      int left = total_.value;
      for (Host& host : r_.hosts) {
        host.slots = std::min(host.slots > 0 ? host.slots : r_.local_ranks, left);
        left -= host.slots;
      }
      std::erase_if(r_.hosts, [](const Host& host) { return host.slots == 0; });
      r_.max_nodes = static_cast<int>(r_.hosts.size());
      r_.min_nodes = std::min(r_.min_nodes, r_.max_nodes);
      r_.config.num_machines = r_.max_nodes;
      sum = total_.value;
    }
    r_.ranks = all && r_.min_nodes == r_.max_nodes ? sum : 0;
    r_.config.num_processes = all ? sum : -1;
  }

  void finish_meeting() {
    r_.join_timeout = join_timeout_.said() ? join_timeout_.value : r_.join_timeout;
    r_.binding = binding_.said() ? binding_.value : Binding::none;
    // The endpoint is where machines meet; main_process_ip says the same unless both are given.
    const bool member = r_.mode == LaunchRequest::Mode::member;
    const std::string host = endpoint_.said() ? endpoint_.value.host : address_.value;
    int port = endpoint_.said() && endpoint_.value.port >= 0 ? endpoint_.value.port : port_.value;
    if (member && host.empty()) {
      fail("launch.address",
           fmt::format("{} machines, and nobody says where they meet", r_.max_nodes),
           r_.elastic ? "add --rdzv_endpoint HOST:PORT, the same on every machine"
                      : "add --main_process_ip ADDRESS of machine 0, the same on every machine");
    }
    if (member && port == 0) {
      if (endpoint_.value.port == 0 || port_.said()) {
        fail("launch.port", "port 0 with several machines: the others would not know which it is",
             "name one, the same on every machine: --main_process_port 29500");
      }
      port = kMeetingPort;
    }
    if (!host.empty()) r_.address = host;
    r_.port = static_cast<uint16_t>(member ? port : 0);
    // Where our own agents meet is taken; the workers' own meeting has a port of its own.
    const bool both = endpoint_.said() && port_.said() && endpoint_.value.port != port_.value;
    if (!member || both) r_.master_port = static_cast<uint16_t>(port_.value);
    if (!member && !port_.said() && endpoint_.said() && endpoint_.value.port > 0) {
      r_.master_port = static_cast<uint16_t>(endpoint_.value.port);
    }
    r_.machine_rank = machine_rank_.said() ? machine_rank_.value : 0;
    if (member && !r_.elastic && !machine_rank_.said()) {
      fail("launch.machine_rank",
           fmt::format("{} machines, and nobody says which one this is", r_.max_nodes),
           "add --machine_rank: 0 here, 1 on the next machine, ...");
    }
    if (machine_rank_.said() && r_.mode != LaunchRequest::Mode::hosts && !r_.elastic &&
        r_.machine_rank >= r_.max_nodes) {
      fail("launch.machine_rank",
           fmt::format("machine_rank {} ({}) does not exist with {} machine{}", r_.machine_rank,
                       machine_rank_.origin, r_.max_nodes, r_.max_nodes == 1 ? "" : "s"),
           fmt::format("ranks count from 0 to {}", r_.max_nodes - 1));
    }
    r_.config.machine_rank = r_.machine_rank;
    r_.config.main_process_ip = host;
    r_.config.main_process_port = port;
    read_token();
  }

  void read_token() {
    if (!token_file_.said()) return;
    const std::string& path = token_file_.value;
    try {
      std::string text = read_file(path, 1 << 16);
      while (!text.empty() && (text.back() == '\n' || text.back() == '\r' || text.back() == ' ')) {
        text.pop_back();
      }
      if (text.empty()) {
        return fail("launch.token_file", fmt::format("{} is empty", path),
                    "put a long random word in it: openssl rand -hex 32");
      }
      r_.token = text;
    } catch (const Error& failure) {
      for (const Diagnostic& diagnostic : failure.diagnostics()) diagnostics_.add(diagnostic);
      return;
    }
    struct stat info {};
    if (stat(path.c_str(), &info) == 0 && S_ISREG(info.st_mode) && (info.st_mode & 077) != 0) {
      diagnostics_.add({.code = "launch.token_mode",
                        .what = fmt::format("{} has the job's secret and others may read it", path),
                        .help = "chmod 600 " + path,
                        .severity = Diagnostic::Severity::warning});
    }
  }

  // "3", or "0:3,1:1": bits by local rank.
  bool bits(const Layered<std::string>& given, std::optional<int>& all, std::map<int, int>& some) {
    const std::string& text = given.value;
    if (const auto number = whole(text, 0, 3)) {
      all = *number;
      return true;
    }
    for (const std::string& pair : split(text, ',')) {
      const size_t colon = pair.find(':');
      const auto rank = whole(pair.substr(0, colon), 0, 1 << 20);
      const auto which =
          colon == std::string::npos ? std::nullopt : whole(pair.substr(colon + 1), 0, 3);
      if (!rank || !which) {
        fail("launch.value",
             fmt::format("{} wants 0 to 3, or pairs like 0:3,1:1, got '{}'", given.origin, text),
             "0 = nothing, 1 = stdout, 2 = stderr, 3 = both");
        return false;
      }
      some[*rank] = *which;
    }
    return true;
  }

  void finish_logs() {
    std::optional<int> all;
    if (tee_.said() && bits(tee_, all, r_.logs.console)) {
      if (all && *all > 0) r_.logs.console_default = *all;
      r_.logs.prefix = (all && *all > 0) || !r_.logs.console.empty();
    }
    all.reset();
    if (redirects_.said() && bits(redirects_, all, r_.logs.redirected) && all && *all > 0) {
      const int ranks = r_.local_ranks > 0 ? r_.local_ranks : kManyRanks;
      for (int rank = 0; rank < ranks; ++rank) r_.logs.redirected[rank] = *all;
    }
    if (!r_.logs.only_local_ranks.empty() && !tee_.said()) {
      r_.logs.console_default = 3;
      r_.logs.prefix = r_.logs.only_local_ranks.size() > 1;
    }
  }

  void finish_environment() {
    if (r_.omp_threads == 0) {
      const char* threads = std::getenv("OMP_NUM_THREADS");
      // OpenMP takes a list for nested levels; the first is what a rank has.
      if (threads != nullptr) r_.omp_threads = std::max(std::atoi(threads), 0);
    }
    if (r_.config.distributed_type == "DEEPSPEED" && r_.env.count("PYTHONPATH") == 0) {
      const char* path = std::getenv("PYTHONPATH");
      std::error_code ignored;
      const std::string here = std::filesystem::current_path(ignored).string();
      r_.env["PYTHONPATH"] = path != nullptr && *path != '\0' ? here + ":" + path : here;
    }
  }

  // ---- what was said in vain

  bool in_vain(const LaunchFlag& flag) const {
    if (!flag.meaningless.empty()) return true;
    const std::string& type = r_.config.distributed_type;
    switch (flag.group) {
      case FlagGroup::megatron:
        if (train_yaml_) {
          const auto& keys = megatron_train_keys();
          return std::none_of(keys.begin(), keys.end(),
                              [&](const MegatronKey& key) { return key.key == flag.name; });
        }
        return type != "MEGATRON_LM";
      case FlagGroup::fsdp:
        return train_yaml_ || type != "FSDP";
      case FlagGroup::deepspeed:
        return train_yaml_ || type != "DEEPSPEED";
      case FlagGroup::fp8:
        return train_yaml_ || r_.config.mixed_precision != "fp8";
      case FlagGroup::parallelism:
        return train_yaml_ || !r_.config.use_parallelism_config;
      case FlagGroup::dynamo:
        return train_yaml_ || type == "DEEPSPEED";
      default:
        return train_yaml_ && (flag.name == "use_fsdp" || flag.name == "use_deepspeed" ||
                               flag.name == "use_parallelism_config" || flag.name == "debug");
    }
  }

  void ignored_flags(const LaunchGiven& given) {
    std::map<std::string, std::vector<std::string>> by_reason;
    for (const LaunchFlag& flag : launch_flags()) {
      if (!in_vain(flag)) continue;
      for (const FlagValues* values : {&given.flags, &given.environment}) {
        const auto found = values->find(flag.name);
        if (found == values->end()) continue;
        std::string reason = flag.meaningless;
        if (reason.empty() && train_yaml_) reason = "a train.yaml does not know it";
        if (reason.empty() && flag.group == FlagGroup::fp8) reason = "mixed_precision is not fp8";
        if (reason.empty()) reason = "its engine is not used (--use_...)";
        by_reason[reason].push_back(found->second.origin);
        break;
      }
    }
    if (!ignored_words_.empty()) by_reason["the rendezvous is mtl's own"] = ignored_words_;
    std::string what;
    for (const auto& [reason, names] : by_reason) {
      what += fmt::format("{}{} ({})", what.empty() ? "" : "; ", fmt::join(names, ", "), reason);
    }
    if (what.empty()) return;
    diagnostics_.add({.code = "launch.ignored_flag",
                      .what = "changes nothing here: " + what,
                      .severity = Diagnostic::Severity::warning});
  }

  // Of the file; neutral values, which accelerate's wizard writes, are not worth a word.
  void ignored_keys() {
    for (const IgnoredKey& ignored : r_.config.ignored) {
      if (ignored.neutral || (!train_yaml_ && reaches_program(ignored.key))) continue;
      diagnostics_.add({.code = "launch.ignored_key",
                        .what = fmt::format("'{}' means nothing to {} and is ignored", ignored.key,
                                            train_yaml_ ? "mtl's own runtime" : "this launch"),
                        .place = ignored.place,
                        .severity = Diagnostic::Severity::warning});
    }
  }

  bool reaches_program(const std::string& key) const {
    const std::string& type = r_.config.distributed_type;
    if (key.starts_with("megatron_lm_config")) return type == "MEGATRON_LM";
    if (key == "fsdp_config") return type == "FSDP";
    if (key == "deepspeed_config") return type == "DEEPSPEED";
    if (key == "fp8_config") return r_.config.mixed_precision == "fp8";
    if (key == "parallelism_config") return r_.config.use_parallelism_config;
    if (key == "dynamo_config" || key == "dynamo_backend") return type != "DEEPSPEED";
    return key == "mpirun_config";
  }

  LaunchRequest r_;
  Diagnostics& diagnostics_;
  const bool train_yaml_;
  Layered<int> total_, per_node_, machine_rank_, port_;
  Layered<Nodes> nodes_;
  Layered<bool> cpu_, multi_gpu_, standalone_;
  Layered<std::string> hosts_, hostfile_, address_, token_file_, tee_, redirects_;
  Layered<Endpoint> endpoint_;
  Layered<std::chrono::milliseconds> join_timeout_;
  Layered<Binding> binding_;
  std::vector<std::pair<std::string, std::string>> engines_;  // of the strongest layer
  int engine_layer_ = -1;
  std::vector<std::string> ignored_words_;  // keys of rdzv_conf
};

}  // namespace

LaunchRequest resolve_launch(const LaunchConfig& file, const LaunchGiven& given, bool train_yaml,
                             Diagnostics& diagnostics) {
  return Resolver(file, train_yaml, diagnostics).resolve(given);
}

int ranks_of_node(int local_ranks, const NodeHardware& hardware, bool use_cpu,
                  Diagnostics& diagnostics) {
  if (local_ranks > 0) return local_ranks;
  if (local_ranks == LaunchRequest::kPerCore) return hardware.cores;
  const int gpus = use_cpu ? 0 : static_cast<int>(hardware.gpus.size());
  if (local_ranks == LaunchRequest::kPerGpu && gpus == 0) {
    diagnostics.add({.code = "placement.gpu_count",
                     .what = "one rank per GPU, and 0 GPUs are visible",
                     .help = "nproc_per_node auto or a number runs without; see: mtl env"});
  }
  return std::max(gpus, 1);
}

PlacementRequest placement_request(const LaunchRequest& request, int ranks) {
  PlacementRequest placement;
  placement.ranks = ranks;
  placement.use_cpu = request.config.use_cpu;
  placement.need_gpu = request.need_gpu && !request.config.use_cpu;
  placement.gpu_ids = request.config.gpu_ids;
  placement.binding = request.binding;
  placement.omp_threads = request.omp_threads;
  return placement;
}

std::vector<std::pair<std::string, std::string>> train_settings(const FlagValues& values) {
  LaunchConfig config;
  config.distributed_type = "MEGATRON_LM";
  for (const LaunchFlag& flag : launch_flags()) {
    const auto found = values.find(flag.name);
    if (found == values.end() || found->second.texts.empty()) continue;
    const std::string& text = found->second.texts.back();
    if (flag.group == FlagGroup::megatron) {
      config.megatron_lm_config[flag.name] = canonical(flag, text);
    } else if (flag.name == "mixed_precision") {
      config.mixed_precision = text;
      config.mixed_precision_given = true;
    }
  }
  return train_settings(config);
}

std::string given_text(const LaunchGiven& given, std::string_view name) {
  for (const FlagValues* values : {&given.flags, &given.environment}) {
    const auto found = values->find(name);
    if (found != values->end() && !found->second.texts.empty()) return found->second.texts.back();
  }
  return {};
}

bool is_on(const LaunchGiven& given, std::string_view name) {
  return truth_of(given_text(given, name)).value_or(false);
}

std::optional<Endpoint> parse_endpoint(const std::string& text) {
  Endpoint endpoint;
  std::string port;
  bool has_port = false;
  if (text.starts_with('[')) {
    const size_t close = text.find(']');
    if (close == std::string::npos) return std::nullopt;
    endpoint.host = text.substr(1, close - 1);
    const std::string rest = text.substr(close + 1);
    has_port = rest.starts_with(':');
    if (!rest.empty() && !has_port) return std::nullopt;
    if (has_port) port = rest.substr(1);
  } else if (const size_t colon = text.find(':');
             colon != std::string::npos && text.find(':', colon + 1) == std::string::npos) {
    endpoint.host = text.substr(0, colon);
    port = text.substr(colon + 1);
    has_port = true;
  } else {
    endpoint.host = text;  // a name, or a bare IPv6 address, which can have no port
  }
  if (endpoint.host.empty() || endpoint.host.find_first_of(" \t/") != std::string::npos) {
    return std::nullopt;
  }
  if (has_port) {
    const auto number = whole(port, 0, 65'535);
    if (!number) return std::nullopt;
    endpoint.port = *number;
  }
  return endpoint;
}

}  // namespace mtl
