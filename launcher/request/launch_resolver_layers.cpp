// The layers of a launch: what each setting does to the request.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>

#include <fmt/format.h>

#include "launcher/request/launch_resolver.h"

namespace mtl {

namespace {

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
  return std::chrono::milliseconds(std::llround(scaled(text) * 1000));
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

}  // namespace

void LaunchResolver::apply_file() {
  LaunchConfig& config = r_.config;
  const std::string& path = config.path;
  if (config.num_processes > 0) total_.set(config.num_processes, kFile, path);
  if (!path.empty()) nodes_.set({config.num_machines, config.num_machines}, kFile, path);
  if (config.machine_rank_given) machine_rank_.set(config.machine_rank, kFile, path);
  if (!config.main_process_ip.empty()) address_.set(config.main_process_ip, kFile, path);
  if (config.main_process_port != 0) port_.set(config.main_process_port, kFile, path);
  if (config.enable_cpu_affinity) binding_.set(Binding::numa, kFile, path);
  if (const auto file = config.plugins.find("mpirun_hostfile");
      file != config.plugins.end() && !file->second.empty()) {
    hostfile_.set(file->second, kFile, path);
    hostfile_key_ = "mpirun_hostfile";
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
    if (flag->kind == FlagKind::list) value.texts = split_words(text, ',');
    own[name] = std::move(value);
  }
  apply(own, kFile);
}

void LaunchResolver::apply(const FlagValues& values, int layer) {
  for (const LaunchFlag& flag : launch_flags()) {
    const auto found = values.find(flag.name);
    if (found == values.end() || found->second.texts.empty()) continue;
    const FlagValue& value = found->second;
    if (is_megatron(flag)) {
      r_.config.megatron_lm_config[flag.name] = canonical_value(flag, value.texts.back());
    } else if (is_plugin(flag)) {
      r_.config.plugins[flag.name] = canonical_value(flag, value.texts.back());
    }
    if (flag.group == FlagGroup::slurm) {
      r_.slurm[flag.name.substr(std::strlen("slurm_"))] = value.texts;
      r_.scheduler_origins[flag.name] = value.origin;
    }
    if (flag.group == FlagGroup::kubernetes) {
      r_.kubernetes[flag.name.substr(std::strlen("kubernetes_"))] = value.texts;
      r_.scheduler_origins[flag.name] = value.origin;
    }
    const auto setter = setters().find(flag.name);
    if (setter != setters().end()) setter->second(*this, value, layer);
  }
}

// What a setting does to the request. A setting without a row here is passed on to a program, is
// the command line's own (file_key "-"), or has no meaning.
const std::unordered_map<std::string, LaunchResolver::Setter>& LaunchResolver::setters() {
  using S = LaunchResolver;
  using V = const FlagValue&;
  static const std::unordered_map<std::string, Setter> table = {
      {"num_processes",
       [](S& s, V v, int l) { s.total_.set(std::stoi(v.texts.back()), l, v.origin); }},
      {"nproc_per_node", [](S& s, V v, int l) { s.per_node(v, l); }},
      {"mixed_precision",
       [](S& s, V v, int) {
         s.r_.config.mixed_precision = v.texts.back();
         s.r_.config.mixed_precision_given = true;
         std::string& fields = s.r_.config.deepspeed_fields;
         if (const size_t at = fields.rfind("mixed_precision"); at != std::string::npos) {
           fields.resize(at > 0 ? at - 1 : 0);  // the last one, and the file's no more
         }
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
      {"hostfile",
       [](S& s, V v, int l) {
         if (!s.hostfile_.set(v.texts.back(), l, v.origin)) return;
         s.hostfile_key_ = l == kFile ? "mtl_hostfile" : "";
       }},
      {"mpirun_hostfile",
       [](S& s, V v, int l) {
         s.r_.config.plugins["mpirun_hostfile"] = v.texts.back();
         if (s.hostfile_.set(v.texts.back(), l, v.origin)) s.hostfile_key_.clear();
       }},
      // Whose it is where no other is said; see finish_hosts().
      {"deepspeed_hostfile", [](S& s, V v, int) { s.deepspeed_hostfile_origin_ = v.origin; }},
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
      {"via", [](S& s, V v, int l) { s.via_.set(v.texts.back(), l, v.origin); }},
      {"templates_dir", [](S& s, V v, int) { s.r_.templates_dir = v.texts.back(); }},
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

void LaunchResolver::value_error(const FlagValue& value, const std::string& wants) {
  fail("launch.value",
       fmt::format("{} wants {}, got '{}'", value.origin, wants, value.texts.back()),
       "see: mtl help launch-flags");
}

void LaunchResolver::per_node(const FlagValue& value, int layer) {
  const std::string& text = value.texts.back();
  const auto number = whole_number(text, 1, 1 << 20);
  if (number) {
    per_node_.set(*number, layer, value.origin);
  } else if (text == "gpu") {
    per_node_.set(LaunchRequest::kPerGpu, layer, value.origin);
  } else if (text == "cpu") {
    per_node_.set(LaunchRequest::kPerCore, layer, value.origin);
  } else if (text == "auto") {
    per_node_.set(LaunchRequest::kPerDevice, layer, value.origin);
  } else {
    value_error(value, "a whole number >= 1, gpu, cpu or auto");
  }
}

void LaunchResolver::set_nodes(Nodes nodes, const FlagValue& value, int layer) {
  if (nodes_.layer == layer && layer != kFile && !(nodes_.value == nodes)) {
    return conflict(
        fmt::format("{} and {} say different numbers of machines", nodes_.origin, value.origin),
        "leave one of them out");
  }
  nodes_.set(nodes, layer, value.origin);
}

void LaunchResolver::nnodes(const FlagValue& value, int layer) {
  const std::string& text = value.texts.back();
  const size_t colon = text.find(':');
  const auto min = whole_number(text.substr(0, colon), 1, 1 << 20);
  const auto max =
      colon == std::string::npos ? min : whole_number(text.substr(colon + 1), 1, 1 << 20);
  if (!min || !max) return value_error(value, "a number of machines, or MIN:MAX");
  if (*min > *max) {
    return fail("launch.nodes",
                fmt::format("{} {}: the least, {}, is more than the most, {}", value.origin, text,
                            *min, *max),
                fmt::format("swap them: {} {}:{}", value.origin, *max, *min));
  }
  set_nodes({*min, *max}, value, layer);
}

void LaunchResolver::main_port(const FlagValue& value, int layer) {
  const auto port = whole_number(value.texts.back(), 0, 65'535);
  if (!port) {
    return fail("launch.port", fmt::format("{} {} is no port", value.origin, value.texts.back()),
                "ports go from 1 to 65535; 0 takes a free one");
  }
  port_.set(*port, layer, value.origin);
}

void LaunchResolver::endpoint(const FlagValue& value, int layer) {
  const auto endpoint = parse_endpoint(value.texts.back());
  if (!endpoint) {
    return fail("launch.endpoint",
                fmt::format("{} '{}' is not HOST or HOST:PORT", value.origin, value.texts.back()),
                "for example 10.0.0.1:29400, node0, [fd00::1]:29400");
  }
  endpoint_.set(*endpoint, layer, value.origin);
}

void LaunchResolver::rdzv_conf(const FlagValue& value, int layer) {
  static const std::vector<std::string> without_meaning = {
      "close_timeout",     "keep_alive_interval", "keep_alive_max_attempt",
      "heartbeat_timeout", "heartbeat",           "read_timeout",
      "is_host",           "store_type",          "use_libuv",
      "nproc_per_node",    "local_addr",          "max_attempts"};
  static const std::vector<std::string> known = {"join_timeout", "timeout", "last_call_timeout",
                                                 "rank"};
  for (const std::string& pair : split_words(value.texts.back(), ',')) {
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

void LaunchResolver::numa_binding(const FlagValue& value, int layer) {
  const std::string& word = value.texts.back();
  const bool none = word == "none" || word == "false";
  const bool core = word == "core" || word == "exclusive" || word == "core-complex";
  binding_.set(none   ? Binding::none
               : core ? Binding::core
                      : Binding::numa,
               layer + 10,
               value.origin);  // more exact than enable_cpu_affinity, of whatever layer
}

void LaunchResolver::variables(const FlagValue& value) {
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

void LaunchResolver::ranks_filter(const FlagValue& value) {
  r_.logs.only_local_ranks.clear();
  for (const std::string& word : split_words(value.texts.back(), ',')) {
    const auto rank = whole_number(word, 0, 1 << 20);
    if (!rank) return value_error(value, "local ranks like 0,1");
    r_.logs.only_local_ranks.push_back(*rank);
  }
}

void LaunchResolver::cpu_and_gpu(const FlagValue&) {
  conflict("--cpu and --multi_gpu contradict each other", "leave one of them out");
}

void LaunchResolver::engine(const std::string& type, bool on, const FlagValue& value, int layer) {
  if (on) {
    if (layer > engine_layer_) engines_.clear();
    engine_layer_ = layer;
    engines_.emplace_back(type, value.origin);
  } else if (r_.config.distributed_type == type) {
    r_.config.distributed_type = "NO";  // the file's, switched off
  }
}

}  // namespace mtl
