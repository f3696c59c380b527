// The questions which processes there are, what of the model each of them holds, and in which
// precision.
#include <algorithm>
#include <numeric>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "launcher/config/config_questions.h"
#include "launcher/hosts.h"

namespace mtl {

namespace {

bool megatron(const Answers& a) {
  return a.is("engine", "MEGATRON_LM");
}

bool hosts_have_slots(const Answers& a) {
  Diagnostics ignored;
  const std::vector<Host> hosts = parse_hosts(a.get("hosts"), ignored);
  return !hosts.empty() && hosts.front().slots > 0;
}

std::vector<Choice> types(const Answers& a) {
  std::vector<Choice> all;
  if (on_this_machine(a)) {
    all.push_back({"NO", "no distributed training: one process",
                   a.facts.gpus > 0 ? "on one GPU" : "on the CPU"});
  }
  all.push_back({"MULTI_GPU", "multi-GPU", "one process per GPU"});
  all.push_back({"MULTI_CPU", "multi-CPU", "several processes, no GPU"});
  return all;
}

std::string usual_type(const Answers& a) {
  if (!on_this_machine(a)) return "MULTI_GPU";
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

}  // namespace

std::vector<QuestionRow> process_questions() {
  std::vector<QuestionRow> rows;
  rows.push_back({.id = "type",
                  .text = "Which type of machine are you using?",
                  .help = "A process for each GPU, or processes on CPUs alone: mtl trains on both.",
                  .applies = everybody,
                  .choices = types,
                  .preset = [](const Answers& a) -> std::string {
                    const YamlValue* type = a.old.find("distributed_type");
                    if (type == nullptr) return usual_type(a);
                    if (type->text == "NO") return on_this_machine(a) ? "NO" : usual_type(a);
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

}  // namespace mtl
