// The table of questions of `mtl config`, and the questions that everybody is asked. The order is
// that of accelerate's wizard, and so are the defaults, where this machine does not know better.
#include "launcher/config_questions.h"

#include <algorithm>
#include <charconv>
#include <numeric>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "launcher/config_edit.h"
#include "launcher/hosts.h"
#include "launcher/launch_request.h"
#include "launcher/slurm/job_options.h"

namespace mtl {

Check whole_number_from(int64_t least, int64_t most) {
  return [=](const Answers&, const std::string& text) -> std::optional<std::string> {
    int64_t number = 0;
    const char* const end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, number);
    if (error != std::errc() || stop != end) return fmt::format("'{}' is no whole number.", text);
    if (number < least) return fmt::format("{} is too small: at least {}.", number, least);
    if (number > most) return fmt::format("{} is too large: at most {}.", number, most);
    return std::nullopt;
  };
}

std::vector<Choice> yes_no(const Answers&) {
  return {{"true", "yes"}, {"false", "no"}};
}

Preset always(std::string value) {
  return [value = std::move(value)](const Answers&) { return value; };
}

bool on_gpus(const Answers& a) {
  if (a.is("type", "NO")) return !a.yes("use_cpu");
  return a.is("type", "MULTI_GPU");
}

namespace {

constexpr int64_t kManyRanks = 1'000'000;

bool everybody(const Answers&) {
  return true;
}

bool here(const Answers& a) {
  return a.is("place", "here");
}

bool in_jobs(const Answers& a) {
  return a.is("place", "slurm");
}

bool each(const Answers& a) {
  return a.is("place", "each");
}

bool megatron(const Answers& a) {
  return a.is("engine", "MEGATRON_LM");
}

std::string gpus_here(const Answers& a) {
  const MachineFacts& facts = a.facts;
  if (facts.gpus == 0) return "no NVIDIA GPU is visible here";
  return fmt::format("{} GPU{} visible here{}", facts.gpus, facts.gpus == 1 ? " is" : "s are",
                     facts.gpu_name.empty() ? "" : ": " + facts.gpu_name);
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

bool hosts_have_slots(const Answers& a) {
  Diagnostics ignored;
  const std::vector<Host> hosts = parse_hosts(a.get("hosts"), ignored);
  return !hosts.empty() && hosts.front().slots > 0;
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

std::vector<Choice> types(const Answers& a) {
  std::vector<Choice> all;
  if (here(a)) {
    all.push_back({"NO", "no distributed training: one process",
                   a.facts.gpus > 0 ? "on one GPU" : "on the CPU"});
  }
  all.push_back({"MULTI_GPU", "multi-GPU", "one process per GPU"});
  all.push_back({"MULTI_CPU", "multi-CPU", "several processes, no GPU"});
  return all;
}

std::string usual_type(const Answers& a) {
  if (!here(a)) return "MULTI_GPU";
  return a.facts.gpus > 1 ? "MULTI_GPU" : "NO";
}

std::vector<Choice> engines(const Answers& a) {
  std::vector<Choice> all = {{"NONE", "every process holds the whole model (data parallel)", ""},
                             {"MEGATRON_LM", "Megatron-LM: the model is divided",
                              "train.yaml: parallel.tp, pp, sp, zero"}};
  if (a.is("type", "MULTI_GPU")) {
    all.push_back(
        {"FSDP", "FullyShardedDataParallel, of PyTorch programs", "train.yaml: parallel.zero=3"});
    all.push_back(
        {"DEEPSPEED", "DeepSpeed ZeRO, of PyTorch programs", "train.yaml: parallel.zero"});
  }
  return all;
}

std::string old_engine(const Answers& a) {
  const YamlValue* type = a.old.find("distributed_type");
  if (type == nullptr) return "NONE";
  for (const Choice& choice : engines(a)) {
    if (choice.value == type->text) return choice.value;
  }
  return "NONE";
}

// Those that a process count has to be a multiple of, for a whole number of replicas.
int64_t multiple(const Answers& a) {
  const int64_t divided = megatron(a) ? int64_t{a.tp()} * a.pp() : 1;
  return std::lcm(divided, int64_t{std::max(1, a.machines())});
}

std::optional<std::string> processes(const Answers& a, const std::string& text) {
  if (auto wrong = whole_number_from(1, kManyRanks)(a, text)) return wrong;
  const int64_t number = std::stoll(text);
  const int64_t machines = std::max(1, a.machines());
  if (number == 1 && machines == 1) {
    return "One process is not distributed: go back and take 'no distributed training'.";
  }
  const int64_t unit = multiple(a);
  const int64_t below = number / unit * unit;
  const std::string near = below > (machines == 1 ? 1 : 0)
                               ? fmt::format("{} and {} would do", below, below + unit)
                               : fmt::format("{} would do", std::max<int64_t>(below + unit, unit));
  if (megatron(a)) {
    const int64_t divided = int64_t{a.tp()} * a.pp();
    if (number % divided != 0) {
      return fmt::format("{} processes cannot hold whole models of tp {} x pp {} = {} ranks: {}.",
                         number, a.tp(), a.pp(), divided, near);
    }
  }
  if (number % machines != 0) {
    return fmt::format(
        "{} processes cannot be shared out evenly by {} machines: {} (the number is the total).",
        number, machines, near);
  }
  return std::nullopt;
}

std::string usual_processes(const Answers& a) {
  const int64_t unit = multiple(a);
  const int64_t machines = std::max(1, a.machines());
  const int64_t each_has = on_gpus(a) ? std::max(1, a.facts.gpus) : std::max(1, a.facts.cores);
  int64_t number = each_has * machines / unit * unit;
  if (number == 0) number = unit;
  return std::to_string(number == 1 ? 2 : number);
}

std::string what_processes_give(const Answers& a, const std::string& text) {
  const int64_t number = std::stoll(text);
  std::string words;
  if (megatron(a)) {
    words = fmt::format("data parallel {} = {} / (tp {} x pp {})", number / (a.tp() * a.pp()),
                        number, a.tp(), a.pp());
  } else {
    words = fmt::format("{} replicas", number);
    if (!a.is("engine", "NONE")) words = fmt::format("divided over {}", number);
  }
  if (a.machines() > 1) words += fmt::format("; {} on each machine", number / a.machines());
  if (on_gpus(a) && a.facts.gpus > 0 && number / a.machines() > a.facts.gpus) {
    words += fmt::format("; more than the {} GPU{} of this machine", a.facts.gpus,
                         a.facts.gpus == 1 ? "" : "s");
  }
  return words;
}

std::string fast_enough(const Answers& a) {
  if (!on_gpus(a) || a.facts.tp_wise.empty()) return "";
  return fmt::format("the links between this machine's GPUs are fast enough for {}",
                     fmt::join(a.facts.tp_wise, ", "));
}

// Another train.yaml may be meant, so these are words and no refusals.
std::string heads_of_model(const Answers& a, const std::string& text) {
  const ModelFacts& model = a.facts.model;
  const int64_t degree = std::stoll(text);
  if (model.heads == 0 || degree == 1) return "";
  if (model.heads % degree == 0) {
    return fmt::format("{} of the {} heads in {}", model.heads / degree, model.heads, model.file);
  }
  return fmt::format("does not divide the {} heads in {}", model.heads, model.file);
}
std::string layers_of_model(const Answers& a, const std::string& text) {
  const ModelFacts& model = a.facts.model;
  const int64_t degree = std::stoll(text);
  if (model.layers == 0 || degree == 1) return "";
  if (degree > model.layers) {
    return fmt::format("more than the {} layers in {}", model.layers, model.file);
  }
  const int64_t each = (model.layers + degree - 1) / degree;
  return fmt::format("{}{} of the {} layers in {}", model.layers % degree == 0 ? "" : "at most ",
                     each, model.layers, model.file);
}

std::vector<QuestionRow> main_rows() {
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
  rows.push_back({.id = "type",
                  .text = "Which type of machine are you using?",
                  .help = "A process for each GPU, or processes on CPUs alone: mtl trains on both.",
                  .applies = everybody,
                  .choices = types,
                  .preset = [](const Answers& a) -> std::string {
                    const YamlValue* type = a.old.find("distributed_type");
                    if (type == nullptr) return usual_type(a);
                    if (type->text == "NO") return here(a) ? "NO" : usual_type(a);
                    const YamlValue* cpu = a.old.find("use_cpu");
                    return cpu != nullptr && cpu->text == "true" ? "MULTI_CPU" : "MULTI_GPU";
                  },
                  .note = gpus_here});
  rows.push_back(
      {.id = "engine",
       .text = "How is the model divided over the processes?",
       .help = "Data parallel: each process has all of it and takes its share of the batch. "
               "Megatron-LM: layers and stages are divided, for models that one GPU cannot hold; "
               "mtl's own runtime does this for a train.yaml. FSDP and DeepSpeed are for PyTorch "
               "programs; a train.yaml gets the same from mtl's own runtime (parallel.zero).",
       .applies = [](const Answers& a) { return !a.is("type", "NO"); },
       .choices = engines,
       .preset = old_engine});
  rows.push_back({.id = "zero_stage",
                  .text = "What should be your DeepSpeed's ZeRO optimization stage?",
                  .help = "What is divided over the processes instead of kept whole by each.",
                  .key = "deepspeed_config.zero_stage",
                  .applies = [](const Answers& a) { return a.is("engine", "DEEPSPEED"); },
                  .choices =
                      [](const Answers&) {
                        return std::vector<Choice>{
                            {"0", "0", "nothing; train.yaml: parallel.zero=0"},
                            {"1", "1", "optimizer; train.yaml: parallel.zero=1"},
                            {"2", "2", "and gradients; train.yaml: parallel.zero=2"},
                            {"3", "3", "and parameters; train.yaml: parallel.zero=3"}};
                      },
                  .preset = always("2")});
  rows.push_back({.id = "tp",
                  .text = "What is the Tensor Parallelism degree/size?",
                  .help = "Ranks that share every layer. They talk all the time, so they should "
                          "be GPUs of one machine with NVLink: 2, 4 or 8. It has to divide the "
                          "heads of the model. train.yaml: parallel.tp",
                  .key = "megatron_lm_config.megatron_lm_tp_degree",
                  .applies = megatron,
                  .preset = always("1"),
                  .check = whole_number_from(1, 65'536),
                  .note = fast_enough,
                  .comment = heads_of_model});
  rows.push_back({.id = "pp",
                  .text = "What is the Pipeline Parallelism degree/size?",
                  .help = "Stages of consecutive layers. They talk little, so they may be on "
                          "different machines. train.yaml: parallel.pp",
                  .key = "megatron_lm_config.megatron_lm_pp_degree",
                  .applies = megatron,
                  .preset = always("1"),
                  .check = whole_number_from(1, 65'536),
                  .comment = layers_of_model});
  rows.push_back({.id = "recompute",
                  .text = "Which activations are computed again in the backward pass?",
                  .help = "Saves memory for time. SELECTIVE: attention only, nearly free. FULL: "
                          "whole layers, about a third more work. train.yaml: recompute.mode",
                  .applies = megatron,
                  .choices =
                      [](const Answers&) {
                        return std::vector<Choice>{{"selective", "SELECTIVE", "attention only"},
                                                   {"full", "FULL", "whole layers"},
                                                   {"none", "NONE", "nothing"}};
                      },
                  .preset = [](const Answers& a) -> std::string {
                    const YamlValue* old = a.old.find("megatron_lm_config");
                    if (old == nullptr) return "selective";
                    const YamlValue* full = old->find("megatron_lm_recompute_granularity");
                    if (full != nullptr) return full->text;
                    const YamlValue* some = old->find("megatron_lm_recompute_activations");
                    return some != nullptr && some->text == "true" ? "selective" : "none";
                  }});
  rows.push_back(
      {.id = "processes",
       .text = "How many processes should be used for training, over all machines?",
       .help = "One for each GPU. The number is the total of all machines.",
       .key = "num_processes",
       .applies =
           [](const Answers& a) {
             return !a.is("type", "NO") && !(a.is("place", "ssh") && hosts_have_slots(a));
           },
       .preset = usual_processes,
       .check = processes,
       .note = [](const Answers& a) -> std::string {
         return on_gpus(a) ? gpus_here(a) : fmt::format("{} cores are here", a.facts.cores);
       },
       .comment = what_processes_give});
  rows.push_back(
      {.id = "precision",
       .text = "Do you wish to use mixed precision?",
       .help = "bf16 is the choice on every GPU since Ampere (A100, RTX 30); fp16 "
               "scales the loss. train.yaml: precision.dtype",
       .key = "mixed_precision",
       .applies = everybody,
       .choices =
           [](const Answers&) {
             return std::vector<Choice>{
                 {"no", "no", "everything in fp32"},
                 {"fp16", "fp16", "with loss scaling"},
                 {"bf16", "bf16", "Ampere GPUs and later, CPUs with AMX"},
                 {"fp8", "fp8", "bf16 with 8-bit products in linears: Hopper GPUs and later"}};
           },
       .preset = [](const Answers& a) -> std::string {
         return on_gpus(a) && a.facts.gpus > 0 ? "bf16" : "no";
       }});
  return rows;
}

}  // namespace

const std::vector<QuestionRow>& question_rows() {
  static const std::vector<QuestionRow> rows = [] {
    std::vector<QuestionRow> all = main_rows();
    for (QuestionRow& row : more_questions()) {
      row.more = true;
      all.push_back(std::move(row));
    }
    return all;
  }();
  return rows;
}

}  // namespace mtl
