// The questions where it runs: which machines, and how they find each other.
#include <algorithm>
#include <cctype>
#include <charconv>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "launcher/config/config_edit.h"
#include "launcher/config/config_questions.h"
#include "launcher/hosts.h"
#include "launcher/request/launch_request.h"
#include "launcher/slurm/job_options.h"

namespace mtl {

namespace {

bool in_jobs(const Answers& a) {
  return a.is("place", "slurm");
}

bool each(const Answers& a) {
  return a.is("place", "each");
}

std::vector<Choice> places(const Answers& a) {
  return {
      {"here", "this machine", gpus_here(a)},
      {"ssh", "several machines, started from here over ssh",
       a.facts.ssh_hosts.empty() ? ""
                                 : fmt::format("{} in ~/.ssh/config", a.facts.ssh_hosts.size())},
      {"each", "several machines, the same command typed on each",
       a.facts.slurm_nodes > 1
           ? fmt::format("srun in this SLURM job of {} nodes", a.facts.slurm_nodes)
           : "as with accelerate and torchrun, or under srun"},
      {"slurm", "a SLURM cluster, in jobs", "mtl launch submits them; inside a job it just runs"}};
}

std::optional<std::string> host_list(const Answers&, const std::string& text) {
  Diagnostics diagnostics;
  const std::vector<Host> hosts = parse_hosts(text, diagnostics);
  if (diagnostics.has_errors()) {
    const Diagnostic& first = diagnostics.all().front();
    return fmt::format("{}{}{}.", first.what, first.help.empty() ? "" : "; ", first.help);
  }
  const auto has = [](const Host& host) { return host.slots > 0; };
  if (std::any_of(hosts.begin(), hosts.end(), has) &&
      !std::all_of(hosts.begin(), hosts.end(), has)) {
    return "Give every machine its number of processes (a:4,b:4), or none.";
  }
  return std::nullopt;
}

// What sbatch would not take.
Check slurm_word(const std::string& name) {
  return [name](const Answers&, const std::string& text) -> std::optional<std::string> {
    LaunchRequest request;
    request.slurm[name] = {text};
    Diagnostics diagnostics;
    slurm_options(request, "job", "/", diagnostics);
    if (!diagnostics.has_errors()) return std::nullopt;
    const Diagnostic& first = diagnostics.all().front();
    return fmt::format("'{}' is no {} for SLURM{}{}.", text, name, first.help.empty() ? "" : ": ",
                       first.help);
  };
}

std::optional<std::string> address(const Answers&, const std::string& text) {
  if (std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; })) {
    return fmt::format("'{}' is a bare number: an address looks like 10.0.0.1, fd00::1 or node0.",
                       text);
  }
  const auto endpoint = parse_endpoint(text);
  if (!endpoint || text.starts_with('[') || endpoint->port >= 0) {
    return fmt::format("'{}' is no address or host name; the port is asked on its own.", text);
  }
  const bool dotted = text.find_first_not_of("0123456789.") == std::string::npos;
  if (dotted) {
    int parts = 0;
    for (const char* at = text.data(); at < text.data() + text.size(); ++parts) {
      int number = -1;
      const auto [stop, error] = std::from_chars(at, text.data() + text.size(), number);
      if (error != std::errc() || number > 255) return fmt::format("'{}' is no address.", text);
      at = stop + 1;
    }
    if (parts != 4 || text.ends_with('.')) {
      return fmt::format("'{}' is no address: four numbers, as in 10.0.0.1.", text);
    }
  }
  const bool good = std::all_of(text.begin(), text.end(), [](unsigned char c) {
    return std::isalnum(c) != 0 || c == '.' || c == '-' || c == ':' || c == '_' || c == '%';
  });
  if (!good) return fmt::format("'{}' is no address or host name.", text);
  return std::nullopt;
}

}  // namespace

std::vector<QuestionRow> place_questions() {
  std::vector<QuestionRow> rows;
  rows.push_back(
      {.id = "place",
       .text = "In which compute environment will it run?",
       .help = "This machine: all processes start here. Over ssh: mtl launch starts them on every "
               "machine that you name. On each: you (or srun) type the same mtl launch on every "
               "machine, and they meet at one address. In SLURM jobs: mtl launch writes a script "
               "and submits it.",
       .applies = everybody,
       .choices = places,
       .preset = [](const Answers& a) -> std::string {
         const YamlValue* megatron_config = a.old.find("megatron_lm_config");
         if (megatron_config != nullptr && megatron_config->find("mtl_hosts") != nullptr) {
           return "ssh";
         }
         if (config_value(a.old, "megatron_lm_config.mtl_via") == "slurm") return "slurm";
         const YamlValue* machines = a.old.find("num_machines");
         if (machines != nullptr) return machines->text == "1" ? "here" : "each";
         return a.facts.slurm_nodes > 1 ? "each" : "here";
       }});
  rows.push_back({.id = "hosts",
                  .text = "On which machines?",
                  .help = "Names or addresses with commas between: a,b,user@c[1-8]. A colon gives "
                          "a machine its number of processes: a:4,b:4. What ~/.ssh/config says of "
                          "them counts.",
                  .key = "megatron_lm_config.mtl_hosts",
                  .applies = [](const Answers& a) { return a.is("place", "ssh"); },
                  .check = host_list,
                  .note = [](const Answers& a) -> std::string {
                    if (a.facts.ssh_hosts.empty()) return "for instance a,b or node[1-4]";
                    return fmt::format("in ~/.ssh/config: {}", fmt::join(a.facts.ssh_hosts, ", "));
                  }});
  rows.push_back(
      {.id = "machines",
       .text = "How many different machines will you use?",
       .help = "The same command is typed on each of them.",
       .key = "num_machines",
       .applies = each,
       .preset = [](const Answers& a) { return std::to_string(std::max(2, a.facts.slurm_nodes)); },
       .check = whole_number_from(2, 100'000),
       .note = [](const Answers& a) -> std::string {
         return a.facts.slurm_nodes > 1 ? "the nodes of this SLURM job" : "";
       }});
  rows.push_back({.id = "nodes",
                  .text = "How many nodes does a job have?",
                  .help = "mtl launch --num_machines N wins over the file.",
                  .key = "num_machines",
                  .applies = in_jobs,
                  .preset = always("1"),
                  .check = whole_number_from(1, 100'000)});
  rows.push_back({.id = "partition",
                  .text = "In which partition?",
                  .help = "Several with commas between: the first that can start the job. sinfo "
                          "shows them.",
                  .key = "megatron_lm_config.mtl_slurm_partition",
                  .applies = in_jobs,
                  .check = slurm_word("partition"),
                  .note = [](const Answers&) { return "empty: the cluster's default"; },
                  .may_be_empty = true});
  rows.push_back({.id = "account",
                  .text = "To which account is it charged?",
                  .help = "Where the cluster asks for one; sacctmgr show associations "
                          "user=$USER shows yours.",
                  .key = "megatron_lm_config.mtl_slurm_account",
                  .applies = in_jobs,
                  .check = slurm_word("account"),
                  .note = [](const Answers&) { return "empty: your usual one"; },
                  .may_be_empty = true});
  rows.push_back(
      {.id = "time",
       .text = "How long may a job run?",
       .help = "Shorter jobs start sooner, and a run goes on in the next job from a "
               "checkpoint that is written before the end.",
       .key = "megatron_lm_config.mtl_slurm_time",
       .applies = in_jobs,
       .check = slurm_word("time"),
       .note = [](const Answers&) { return "12:00:00 or 2-00:00:00; empty: the partition's"; },
       .may_be_empty = true});
  rows.push_back(
      {.id = "rank",
       .text = "What is the rank of this machine?",
       .help = "Machines count from 0, and 0 is the one where they all meet. The file of every "
               "machine has another rank; mtl launch --machine_rank R wins over the file.",
       .key = "machine_rank",
       .applies = each,
       .preset =
           [](const Answers& a) {
             const bool known = a.facts.slurm_rank >= 0 && a.facts.slurm_rank < a.machines();
             return std::to_string(known ? a.facts.slurm_rank : 0);
           },
       .check = [](const Answers& a, const std::string& text) -> std::optional<std::string> {
         if (auto wrong = whole_number_from(0, kManyRanks)(a, text)) return wrong;
         if (std::stoll(text) < a.machines()) return std::nullopt;
         return fmt::format("{} machines count from 0 to {}.", a.machines(), a.machines() - 1);
       },
       .note = [](const Answers& a) { return fmt::format("0 to {}", a.machines() - 1); }});
  rows.push_back({.id = "ip",
                  .text = "What is the address of the machine that hosts the main process?",
                  .help = "A host name or an address of machine 0, as the others reach it; IPv6 "
                          "without brackets.",
                  .key = "main_process_ip",
                  .applies = each,
                  .preset = [](const Answers& a) { return a.facts.slurm_first; },
                  .check = address});
  return rows;
}

}  // namespace mtl
