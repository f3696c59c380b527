// The work behind resolve_launch(): the layers are applied one after another, then what follows
// from all of them together is decided and checked. For launch_request.cpp and its parts only.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "launcher/request/launch_request.h"

namespace mtl {

// Where a value comes from; the higher one wins.
constexpr int kFile = 0, kTrainYaml = 1, kSurroundings = 2, kEnvironment = 3, kFlags = 4;

std::vector<std::string> split_words(const std::string& text, char separator);
std::optional<int> whole_number(const std::string& text, int least, int most);

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

class LaunchResolver {
 public:
  LaunchResolver(const LaunchConfig& file, bool train_yaml, Diagnostics& diagnostics)
      : diagnostics_(diagnostics), train_yaml_(train_yaml), file_type_(file.distributed_type) {
    r_.config = file;
  }
  LaunchRequest resolve(const LaunchGiven& given);

 private:
  using Setter = std::function<void(LaunchResolver&, const FlagValue&, int layer)>;

  void fail(const std::string& code, const std::string& what, const std::string& help) {
    diagnostics_.add({.code = code, .what = what, .help = help});
  }
  void conflict(const std::string& what, const std::string& help) {
    fail("launch.conflict", what, help);
  }

  // ---- the layers
  void apply_file();
  void apply(const FlagValues& values, int layer);
  // A job is to be written for somewhere else: nothing of this machine decides about it.
  bool scheduled() const { return r_.via == "slurm" || r_.via == "kubernetes"; }
  void finish_via();
  int scheduled_ranks();
  static bool yes(const FlagValue& value) { return truth_of(value.texts.back()).value_or(false); }
  // What a setting does to the request. A setting without a row here is passed on to a program, is
  // the command line's own (file_key "-"), or has no meaning.
  static const std::unordered_map<std::string, Setter>& setters();
  void value_error(const FlagValue& value, const std::string& wants);
  void per_node(const FlagValue& value, int layer);
  void set_nodes(Nodes nodes, const FlagValue& value, int layer);
  void nnodes(const FlagValue& value, int layer);
  void main_port(const FlagValue& value, int layer);
  void endpoint(const FlagValue& value, int layer);
  void rdzv_conf(const FlagValue& value, int layer);
  void numa_binding(const FlagValue& value, int layer);
  void variables(const FlagValue& value);
  void ranks_filter(const FlagValue& value);
  void cpu_and_gpu(const FlagValue&);
  void engine(const std::string& type, bool on, const FlagValue& value, int layer);

  // ---- what follows from all layers together
  void finish_engine();
  void check_job_device();
  void check_stage(const LaunchGiven& given);
  void check_fsdp(const LaunchGiven& given);
  void finish_hosts();
  void read_hosts();
  bool wants_allocation() const;
  void finish_allocation();
  void finish_step();
  void finish_nodes();
  void finish_counts();
  void finish_layout();
  void finish_numbers(const LaunchGiven& given);
  bool hosts_have_slots() const;
  // Ranks fill the hosts in their order, as mpirun does.
  void count_slots();
  void share_rest();
  void finish_meeting();
  void read_token();
  // "3", or "0:3,1:1": bits by local rank.
  bool bits(const Layered<std::string>& given, std::optional<int>& all, std::map<int, int>& some);
  void finish_logs();
  void finish_environment();
  void finish_warning();

  // ---- what was said in vain
  bool in_vain(const LaunchFlag& flag) const;
  bool would_decide(const LaunchFlag& flag) const;
  void ignored_flags(const LaunchGiven& given);
  void absent_ranks(const LaunchGiven& given);
  // Of the file; neutral values, which accelerate's wizard writes, are not worth a word.
  void ignored_keys();
  bool reaches_program(const std::string& key) const;
  bool taken_in_part(const IgnoredKey& section);

  LaunchRequest r_;
  Diagnostics& diagnostics_;
  const bool train_yaml_;
  const std::string file_type_;  // the distributed_type that the file was read with
  Layered<int> total_, per_node_, machine_rank_, port_;
  Layered<Nodes> nodes_;
  Layered<bool> cpu_, multi_gpu_, standalone_;
  bool node_of_step_ = false;  // srun has started this on each node, and says how many there are
  Layered<std::string> via_, hosts_, hostfile_, address_, token_file_, tee_, redirects_;
  std::string hostfile_key_;  // of the configuration file, where that names the hostfile
  std::string deepspeed_hostfile_origin_;  // "" = the file
  Layered<Endpoint> endpoint_;
  Layered<std::chrono::milliseconds> join_timeout_;
  Layered<Binding> binding_;
  std::vector<std::pair<std::string, std::string>> engines_;  // of the strongest layer
  int engine_layer_ = -1;
  std::vector<std::string> ignored_words_;  // keys of rdzv_conf
};

}  // namespace mtl
