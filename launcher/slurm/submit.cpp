#include "launcher/slurm/submit.h"

#include <algorithm>
#include <cstdlib>
#include <set>
#include <sstream>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/shell_word.h"
#include "common/text.h"
#include "launcher/slurm/control.h"

namespace mtl {

namespace {

std::string setting(const LaunchRequest& request, const std::string& name) {
  const auto found = request.slurm.find(name);
  return found == request.slurm.end() || found->second.empty() ? "" : found->second.back();
}

std::vector<std::string> names_of(const std::string& partitions) {
  std::vector<std::string> names;
  std::istringstream in(partitions);
  for (std::string line; std::getline(in, line);) names.push_back(line.substr(0, line.find(' ')));
  return names;
}

// "debug infinite, low infinite": name and time limit of each.
std::string ask_partitions() {
  const CommandAnswer answer = ask_slurm({"sinfo", "-h", "-o", "%R %l"}, std::chrono::seconds(10));
  std::set<std::string> lines;
  std::istringstream in(answer.ok() ? answer.out : "");
  for (std::string line; std::getline(in, line);) lines.insert(line);
  return fmt::format("{}", fmt::join(lines, "\n"));
}

}  // namespace

std::string slurm_partitions() {
  const CommandAnswer answer =
      ask_slurm({"scontrol", "-o", "show", "partition"}, std::chrono::seconds(10));
  return answer.ok() ? answer.out : std::string();
}

std::optional<Diagnostic> slurm_shortage(const LaunchRequest& request,
                                         const std::string& partitions) {
  // sbatch hears its own variable rather than the script.
  const char* const said = std::getenv("SBATCH_PARTITION");
  const std::string names = said != nullptr ? said : setting(request, "partition");
  std::vector<std::string> wanted;
  std::istringstream in(names);
  for (std::string name; std::getline(in, name, ',');) wanted.push_back(name);
  size_t known = 0;
  int most = 0;
  std::string of;
  std::istringstream lines(partitions);
  for (std::string line; std::getline(lines, line);) {
    const std::string name = control_field(line, "PartitionName");
    const bool meant = wanted.empty()
                           ? control_field(line, "Default") == "YES"
                           : std::find(wanted.begin(), wanted.end(), name) != wanted.end();
    const auto there = to_number<int>(control_field(line, "TotalNodes"));
    if (!meant || !there) continue;
    ++known;
    const auto limit = to_number<int>(control_field(line, "MaxNodes"));  // or UNLIMITED
    const int nodes = limit ? std::min(*limit, *there) : *there;
    most = std::max(most, nodes);
    of += fmt::format("{}partition {} {} {}", of.empty() ? "" : ", ", name,
                      nodes < *there ? "gives a job at most" : "has", nodes);
  }
  if (known == 0 || known < wanted.size() || request.min_nodes <= most) return std::nullopt;
  return Diagnostic{
      .code = "slurm.nodes",
      .what = fmt::format("the job waits for {} nodes, and {}", request.min_nodes, of),
      .help = fmt::format("end it and ask for at most {} (--num_machines), or for another "
                          "--slurm_partition: sinfo shows them",
                          most),
      .severity = Diagnostic::Severity::warning};
}

Diagnostic slurm_refusal(const std::string& words, const LaunchRequest& request,
                         const std::string& partitions) {
  const auto says = [&](const char* text) { return contains_ignoring_case(words, text); };
  Diagnostic refusal{.code = "slurm.refused", .what = "SLURM does not take the job"};
  std::istringstream in(words);
  for (std::string line; std::getline(in, line);) {
    if (!line.empty()) refusal.notes.push_back(line);
  }
  const std::string partition = setting(request, "partition");
  const std::string in_partition = partition.empty() ? "" : " of partition " + partition;
  std::string there;
  for (const std::string& name : names_of(partitions)) there += (there.empty() ? "" : ", ") + name;
  if (says("invalid partition")) {
    refusal.what = fmt::format("there is no partition '{}'", partition);
    const auto guess = did_you_mean(partition, names_of(partitions));
    refusal.help = guess           ? fmt::format("did you mean {}? there are: {}", *guess, there)
                   : there.empty() ? "see: sinfo"
                                   : fmt::format("there are: {}", there);
  } else if (says("no partition specified")) {
    refusal.what = "this cluster has no default partition, and none is named";
    refusal.help = fmt::format("add --slurm_partition NAME; there are: {}", there);
  } else if (says("invalid account")) {
    const std::string account = setting(request, "account");
    refusal.what = account.empty()
                       ? "SLURM wants to know an account to charge"
                       : fmt::format("account '{}' is not yours{}", account,
                                     in_partition.empty() ? "" : " or not" + in_partition);
    refusal.help = "add --slurm_account NAME; yours: sacctmgr show associations user=$USER";
  } else if (says("invalid qos")) {
    refusal.what = fmt::format("qos '{}' is none that this job may use", setting(request, "qos"));
    refusal.help = "see: sacctmgr show qos; or leave --slurm_qos out";
  } else if (says("time limit is invalid") || says("exceeds some limit")) {
    const std::string time = setting(request, "time");
    refusal.what = time.empty() ? "SLURM wants a time limit"
                                : fmt::format("the time limit {} is more than{} allows", time,
                                              in_partition.empty() ? " the partition"
                                                                   : in_partition.substr(3));
    std::string limits = partitions;
    std::replace(limits.begin(), limits.end(), '\n', ',');
    refusal.help = limits.empty() ? "give --slurm_time" : "limits: " + limits;
  } else if (says("invalid generic resource") || says("Invalid GRES")) {
    refusal.what = fmt::format("nodes{} have no such GPUs", in_partition);
    refusal.help =
        "see what they have: sinfo -o '%P %G'; without GPUs: --cpu, or --slurm_gpus_per_node 0; "
        "some sites want --slurm_gres gpu:TYPE:N";
  } else if (says("node configuration is not available") || says("more processors requested") ||
             says("node count specification invalid") || says("nodes required for job are down")) {
    refusal.what = request.max_nodes == 1
                       ? fmt::format("no node{} has what the job asks for", in_partition)
                       : fmt::format("there are no {} nodes{} with what the job asks for",
                                     request.max_nodes, in_partition);
    refusal.help =
        "ask for fewer nodes, GPUs, CPUs or less memory; what there is: sinfo -o '%P %D %c %m %G'";
  } else if (says("invalid feature")) {
    refusal.what = fmt::format("no node has the features '{}'", setting(request, "constraint"));
    refusal.help = "see: sinfo -o '%P %f'";
  } else if (says("invalid node name")) {
    refusal.what = "a node of slurm_nodelist or slurm_exclude does not exist";
    refusal.help = "see: sinfo -N";
  } else if (says("reservation")) {
    refusal.what = fmt::format("reservation '{}' cannot be used", setting(request, "reservation"));
    refusal.help = "see: scontrol show reservation";
  } else if (says("dependency")) {
    refusal.what = fmt::format("dependency '{}' cannot be", setting(request, "dependency"));
    refusal.help = "the jobs in it have to be there; see: squeue --me";
  } else if (says("violates accounting") || says("policy")) {
    refusal.what = "the job is more than an account or QOS allows";
    refusal.help = "ask for less, or for another --slurm_account or --slurm_qos";
  } else {
    refusal.help = "see what SLURM says above; the script is plain: sbatch --test-only SCRIPT";
  }
  return refusal;
}

std::optional<Diagnostic> slurm_unreachable(const std::string& words, bool late,
                                            const std::filesystem::path& script) {
  const auto says = [&](const char* text) { return contains_ignoring_case(words, text); };
  // Without a slurm.conf its programs ask DNS for a controller that has one.
  const bool configured = !says("configuration source");
  if (configured && !late && !says("contact slurm controller") && !says("Socket timed out") &&
      !says("Connection refused")) {
    return std::nullopt;
  }
  const char* const where = configured ? "try again"
                                       : "on a login node of the cluster, or with SLURM_CONF "
                                         "naming its slurm.conf";
  return Diagnostic{.code = "slurm.unreachable",
                    .what = configured
                                ? "SLURM's controller does not answer"
                                : "SLURM has no configuration here, and so no controller to ask",
                    .notes = {words.substr(0, words.find('\n'))},
                    .help = fmt::format("{}: sbatch {}", where, shell_word(script.string()))};
}

std::string submit_to_slurm(const std::filesystem::path& script, const LaunchRequest& request) {
  const CommandAnswer answer =
      ask_slurm({"sbatch", "--parsable", script.string()}, std::chrono::seconds(120));
  if (answer.missing) {
    throw Error(Exit::environment,
                Diagnostic{.code = "slurm.missing",
                           .what = "there is no sbatch on this machine",
                           .notes = {"the script is " + script.string()},
                           .help = "submit from a login node of the cluster (or load its SLURM "
                                   "module); --dry-run only shows the script"});
  }
  if (answer.ok()) {
    const std::string id = answer.out.substr(0, answer.out.find_first_of(";\n"));
    if (!id.empty() && id.find_first_not_of("0123456789") == std::string::npos) return id;
  }
  const std::string words = answer.late ? "sbatch did not answer in time" : answer.err + answer.out;
  if (words.starts_with("SLURM_CONF=")) {
    throw Error(
        Exit::environment,
        Diagnostic{.code = "slurm.missing",
                   .what = words,
                   .help = "correct SLURM_CONF or unset it; it names SLURM's configuration"});
  }
  const auto unreachable = slurm_unreachable(words, answer.late, script);
  if (unreachable) throw Error(Exit::environment, *unreachable);
  throw Error(Exit::config, slurm_refusal(words, request, ask_partitions()));
}

}  // namespace mtl
