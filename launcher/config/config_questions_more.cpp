// The questions behind "more settings": what accelerate's wizard asks everybody, and its defaults.
#include <cmath>

#include <fmt/format.h>

#include "common/text.h"
#include "launcher/config/config_questions.h"

namespace mtl {

namespace {

using Rows = std::vector<QuestionRow>;
using Applies = std::function<bool(const Answers&)>;

std::optional<double> as_number(const std::string& text) {
  const auto number = to_number<double>(text);
  return number && std::isfinite(*number) ? number : std::nullopt;
}

std::optional<std::string> not_negative(const Answers&, const std::string& text) {
  const auto number = as_number(text);
  if (!number) return fmt::format("'{}' is no number.", text);
  if (*number < 0) return fmt::format("{} is too small: at least 0 (0 = none).", text);
  return std::nullopt;
}

// "1" -> "1.0": accelerate writes a float.
std::string with_point(const std::string& text) {
  return text.find_first_of(".eE") == std::string::npos ? text + ".0" : text;
}

// "1e8" -> "100000000".
std::string whole(const std::string& text) {
  return fmt::format("{:.0f}", as_number(text).value_or(0));
}

std::vector<Choice> words(std::initializer_list<const char*> all) {
  std::vector<Choice> choices;
  for (const char* word : all) choices.push_back({word, word});
  return choices;
}

struct Builder {
  Rows rows;
  QuestionRow& add(const char* id, const std::string& key, const char* text, const char* help,
                   const char* usual, Applies applies) {
    rows.push_back({.id = id,
                    .text = text,
                    .help = help,
                    .key = key,
                    .applies = std::move(applies),
                    .preset = always(usual)});
    return rows.back();
  }
  // A question of yes or no.
  void truth(const char* id, const std::string& key, const char* text, const char* help, bool usual,
             Applies applies) {
    add(id, key, text, help, usual ? "true" : "false", std::move(applies)).choices = yes_no;
  }
  void menu(const char* id, const std::string& key, const char* text, const char* help,
            std::initializer_list<const char*> choices, const char* usual, Applies applies) {
    add(id, key, text, help, usual, std::move(applies)).choices =
        [all = words(choices)](const Answers&) { return all; };
  }
  void whole_number(const char* id, const std::string& key, const char* text, const char* help,
                    int64_t least, int64_t most, const char* usual, Applies applies) {
    add(id, key, text, help, usual, std::move(applies)).check = whole_number_from(least, most);
  }
  void number(const char* id, const std::string& key, const char* text, const char* help,
              const char* usual, Applies applies) {
    QuestionRow& row = add(id, key, text, help, usual, std::move(applies));
    row.check = not_negative;
    row.may_be_empty = true;
    row.normal = with_point;
  }
  // A text that may be left out.
  void text(const char* id, const std::string& key, const char* question, const char* help,
            const char* usual, Applies applies) {
    QuestionRow& row = add(id, key, question, help, usual, std::move(applies));
    row.note = [](const Answers&) { return "may be left empty"; };
    row.may_be_empty = true;
  }
};

constexpr int64_t kMany = 1'000'000;

void machine_questions(Builder& b) {
  const auto each = [](const Answers& a) { return a.is("place", "each"); };
  b.whole_number("port", "main_process_port",
                 "What is the port you will use to communicate with the main process?",
                 "It has to be free on machine 0, and open to the others.", 1, 65'535, "29500",
                 each);
  b.menu("rdzv", "rdzv_backend", "What rendezvous backend will you use?",
         "static: ranks follow from the rank of each machine. c10d: machines join as they come and "
         "get their rank.",
         {"static", "c10d"}, "static", each);
}

void megatron_questions(Builder& b) {
  const std::string section = "megatron_lm_config.megatron_lm_";
  const auto megatron = [](const Answers& a) { return a.is("engine", "MEGATRON_LM"); };
  b.truth("sp", section + "sequence_parallelism", "Do you want to enable Sequence Parallelism?",
          "Each of the tp ranks keeps its share of the tokens between the parts that tensor "
          "parallelism divides: less memory, no more traffic. train.yaml: parallel.sp",
          true, [=](const Answers& a) { return megatron(a) && a.tp() > 1; });
  b.whole_number("micro_batches", section + "num_micro_batches",
                 "What is the number of micro-batches?",
                 "Of a step, for PyTorch programs: a pipeline wants several times its stages. "
                 "A train.yaml says it with train.micro_batch and train.global_batch.",
                 1, kMany, "1", [=](const Answers& a) { return megatron(a) && a.pp() > 1; });
  b.truth("dist_opt", section + "use_distributed_optimizer",
          "Do you want to use the distributed optimizer?",
          "The optimizer's state is divided over the data-parallel ranks (ZeRO-1) instead of kept "
          "whole by each. train.yaml: parallel.zero",
          true, megatron);
  b.number("clip", section + "gradient_clipping",
           "What is the gradient clipping value based on global L2 Norm (0 to disable)?",
           "train.yaml: optimizer.clip", "1.0", megatron);
}

void deepspeed_questions(Builder& b) {
  const std::string section = "deepspeed_config.";
  const auto deepspeed = [](const Answers& a) { return a.is("engine", "DEEPSPEED"); };
  const auto stage = [=](int least) {
    return [=](const Answers& a) { return deepspeed(a) && a.number("zero_stage", 2) >= least; };
  };
  const auto nvme = [=](const char* id) {
    return [=](const Answers& a) { return stage(2)(a) && a.is(id, "nvme"); };
  };
  b.menu("offload_optimizer", section + "offload_optimizer_device",
         "Where to offload optimizer states?",
         "To make room on the GPUs, at a price in time. train.yaml: optimizer.offload, on the CPU.",
         {"none", "cpu", "nvme"}, "none", stage(2));
  b.menu("offload_param", section + "offload_param_device", "Where to offload parameters?",
         "DeepSpeed does this with stage 3.", {"none", "cpu", "nvme"}, "none", stage(2));
  b.text("offload_param_path", section + "offload_param_nvme_path",
         "Nvme path to offload parameters?", "A folder on a fast disk of every machine.", "/nvme",
         nvme("offload_param"));
  b.text("offload_optimizer_path", section + "offload_optimizer_nvme_path",
         "Nvme path to offload optimizer states?", "A folder on a fast disk of every machine.",
         "/nvme", nvme("offload_optimizer"));
  b.whole_number("accumulation", section + "gradient_accumulation_steps",
                 "How many gradient accumulation steps are you passing in your script?",
                 "For PyTorch programs; a train.yaml has train.accumulate.", 1, kMany, "1",
                 deepspeed);
  b.number("ds_clip", section + "gradient_clipping",
           "What is the gradient clipping value? Empty: no clipping by DeepSpeed.",
           "train.yaml: optimizer.clip", "", deepspeed);
  b.truth("save_16bit", section + "zero3_save_16bit_model",
          "Do you want to save 16-bit model weights when using ZeRO Stage-3?", "", false, stage(3));
  b.truth("zero3_init", section + "zero3_init_flag",
          "Do you want to enable deepspeed.zero.Init for constructing massive models?",
          "With stage 3 only, and with transformers.", false, deepspeed);
  b.text("moe_classes", section + "deepspeed_moe_layer_cls_names",
         "Mixture of experts: which layer classes, with commas between?",
         "transformers class names, for instance MixtralSparseMoeBlock.", "", deepspeed);
}

void fsdp_questions(Builder& b) {
  const std::string section = "fsdp_config.fsdp_";
  const auto fsdp = [](const Answers& a) { return a.is("engine", "FSDP"); };
  const auto one = [=](const Answers& a) { return fsdp(a) && a.is("fsdp_version", "1"); };
  const auto two = [=](const Answers& a) { return fsdp(a) && a.is("fsdp_version", "2"); };
  b.menu("fsdp_version", section + "version", "What should be your FSDP version?",
         "2 is PyTorch's newer one.", {"1", "2"}, "2", fsdp);
  b.menu("fsdp_strategy", section + "reshard_after_forward",
         "What should be your sharding strategy?",
         "train.yaml: parallel.zero=3, 2 or 0; of the hybrid ones a copy on each machine "
         "(parallel.zero_ranks)",
         {"FULL_SHARD", "SHARD_GRAD_OP", "NO_SHARD", "HYBRID_SHARD", "HYBRID_SHARD_ZERO2"},
         "FULL_SHARD", one);
  b.truth("fsdp_reshard", section + "reshard_after_forward",
          "Do you want to enable resharding after forward?",
          "Less memory, more traffic. train.yaml: parallel.zero=3, else 2", true, two);
  b.truth("fsdp_offload", section + "offload_params",
          "Do you want to offload parameters and gradients to CPU?",
          "train.yaml: the optimizer's state alone, optimizer.offload=cpu", false, fsdp);
  b.menu("fsdp_wrap", section + "auto_wrap_policy", "What should be your auto wrap policy?",
         "What becomes a unit that is gathered and let go together.",
         {"TRANSFORMER_BASED_WRAP", "SIZE_BASED_WRAP", "NO_WRAP"}, "TRANSFORMER_BASED_WRAP", fsdp);
  b.text("fsdp_layers", section + "transformer_layer_cls_to_wrap",
         "Which transformer layer classes, with commas between?",
         "For instance LlamaDecoderLayer; empty: the model's own _no_split_modules.", "",
         [=](const Answers& a) { return fsdp(a) && a.is("fsdp_wrap", "TRANSFORMER_BASED_WRAP"); });
  b.rows.push_back(
      {.id = "fsdp_min_params",
       .text = "How many parameters has a unit at least?",
       .help = "For the policy SIZE_BASED_WRAP.",
       .key = section + "min_num_params",
       .applies = [=](const Answers& a) { return fsdp(a) && a.is("fsdp_wrap", "SIZE_BASED_WRAP"); },
       .preset = always("100000000"),
       .check = [](const Answers&, const std::string& text) -> std::optional<std::string> {
         const auto number = as_number(text);
         if (number && *number >= 1 && std::floor(*number) == *number) return std::nullopt;
         return fmt::format("'{}' is no whole number (1e8 is one).", text);
       },
       .normal = whole});
  b.menu("fsdp_prefetch", section + "backward_prefetch",
         "What should be your FSDP's backward prefetch policy?", "",
         {"BACKWARD_PRE", "BACKWARD_POST", "NO_PREFETCH"}, "BACKWARD_PRE", one);
  b.menu("fsdp_state", section + "state_dict_type", "What should be your FSDP's state dict type?",
         "", {"SHARDED_STATE_DICT", "FULL_STATE_DICT", "LOCAL_STATE_DICT"}, "SHARDED_STATE_DICT",
         fsdp);
  b.truth("fsdp_forward", section + "forward_prefetch",
          "Do you want to enable FSDP's forward prefetch policy?", "", false, one);
  b.truth("fsdp_orig", section + "use_orig_params",
          "Do you want to enable FSDP's use_orig_params feature?", "", true, one);
  b.truth("fsdp_ram", section + "cpu_ram_efficient_loading",
          "Do you want to enable CPU RAM efficient model loading?",
          "Only rank 0 reads the weights.", true, fsdp);
  // With RAM-efficient loading it has to be yes: only rank 0 has the weights.
  b.truth("fsdp_sync", section + "sync_module_states",
          "Do you want each FSDP unit to broadcast its parameters from rank 0 at the start?", "",
          true, [=](const Answers& a) { return one(a) && !a.yes("fsdp_ram"); });
  b.truth("fsdp_checkpointing", section + "activation_checkpointing",
          "Do you want to enable FSDP activation checkpointing?", "train.yaml: recompute.mode=full",
          false, fsdp);
  const std::string mesh = "parallelism_config.parallelism_config_";
  b.truth("mesh", "", "Do you want to use the parallelism config?",
          "Several dimensions: replicas, shards, tensor and context parallelism.", false, two);
  const auto meshed = [=](const Answers& a) { return two(a) && a.yes("mesh"); };
  b.whole_number("mesh_replicate", mesh + "dp_replicate_size",
                 "What is the data parallelism replicate size?", "", 1, kMany, "1", meshed);
  b.whole_number("mesh_shard", mesh + "dp_shard_size", "What is the FSDP shard size?",
                 "train.yaml: with replicas, parallel.zero_ranks", 1, kMany, "1", meshed);
  b.whole_number("mesh_tp", mesh + "tp_size", "What is the tensor parallelism size?",
                 "train.yaml: parallel.tp", 1, kMany, "1", meshed);
  b.whole_number(
      "mesh_cp", mesh + "cp_size", "What is the context parallelism size?",
      "The last of the four: their product has to be the number of processes. train.yaml: "
      "parallel.cp",
      1, kMany, "1", meshed);
  b.rows.back().preset = [](const Answers& a) {
    const int rest = a.number("mesh_replicate") * a.number("mesh_shard") * a.number("mesh_tp");
    return std::to_string(rest > 0 ? std::max(1, a.number("processes") / rest) : 1);
  };
  b.rows.back().check = [](const Answers& a,
                           const std::string& text) -> std::optional<std::string> {
    if (auto wrong = whole_number_from(1, kMany)(a, text)) return wrong;
    const int64_t rest =
        int64_t{a.number("mesh_replicate")} * a.number("mesh_shard") * int64_t{a.number("mesh_tp")};
    const int64_t product = rest * std::stoll(text);
    if (product == a.number("processes")) return std::nullopt;
    return fmt::format("replicate {} x shard {} x tp {} x cp {} = {}, and there are {} processes.",
                       a.number("mesh_replicate"), a.number("mesh_shard"), a.number("mesh_tp"),
                       text, product, a.number("processes"));
  };
  b.menu("mesh_comm", mesh + "cp_comm_strategy",
         "What is the communication strategy of context parallelism?", "",
         {"allgather", "alltoall"}, "allgather",
         [=](const Answers& a) { return meshed(a) && a.number("mesh_cp") > 1; });
}

void program_questions(Builder& b) {
  const auto whole_copies = [](const Answers& a) {
    return a.is("type", "NO") || a.is("engine", "NONE");
  };
  b.truth("use_cpu", "use_cpu", "Do you want to run your training on CPU only?",
          "Even where there is a GPU.", false, [](const Answers& a) { return a.is("type", "NO"); });
  b.rows.back().preset = [](const Answers& a) -> std::string {
    return a.facts.gpus == 0 ? "true" : "false";
  };
  b.text("gpu_ids", "gpu_ids", "Which GPUs (by id) of this machine, with commas between?",
         "Numbers among the visible ones, UUIDs, or all.", "all",
         [=](const Answers& a) { return whole_copies(a) && on_gpus(a); });
  b.rows.back().may_be_empty = false;
  b.rows.back().note = {};
  b.rows.back().check = [](const Answers&, const std::string& text) -> std::optional<std::string> {
    const bool good = text.find_first_of(" \t'\"") == std::string::npos && text.front() != ',' &&
                      text.back() != ',' && text.find(",,") == std::string::npos;
    if (good) return std::nullopt;
    return fmt::format("'{}' is no list of GPUs: 0,1,2,3 or all.", text);
  };
  b.truth("affinity", "enable_cpu_affinity", "Would you like to enable numa efficiency?",
          "Binds each process to the CPUs and memory beside its GPU.", false, everybody);
  b.truth("debug", "debug", "Should distributed operations be checked while running for errors?",
          "By accelerate, in PyTorch programs: slower.", false,
          [](const Answers& a) { return !a.is("type", "NO"); });
  const std::string dynamo = "dynamo_config.dynamo_";
  b.truth("dynamo", "", "Do you wish to optimize your script with torch dynamo?",
          "torch.compile of PyTorch programs; a train.yaml has no use for it.", false, everybody);
  const auto compiled = [](const Answers& a) { return a.yes("dynamo"); };
  b.menu("dynamo_backend", dynamo + "backend", "Which dynamo backend would you like to use?", "",
         {"EAGER", "AOT_EAGER", "INDUCTOR", "AOT_TS_NVFUSER", "NVPRIMS_NVFUSER", "CUDAGRAPHS",
          "OFI", "FX2TRT", "ONNXRT", "TENSORRT", "IPEX", "TVM"},
         "INDUCTOR", compiled);
  b.menu("dynamo_mode", dynamo + "mode", "Which mode do you want to use?", "",
         {"default", "reduce-overhead", "max-autotune"}, "default", compiled);
  b.truth("dynamo_fullgraph", dynamo + "use_fullgraph", "Do you want the fullgraph mode?",
          "One graph or an error.", false, compiled);
  b.truth("dynamo_dynamic", dynamo + "use_dynamic", "Do you want to enable dynamic shape tracing?",
          "", false, compiled);
  b.truth("dynamo_regional", dynamo + "use_regional_compilation",
          "Do you want to enable regional compilation?", "Repeated blocks are compiled once.",
          false, compiled);
  const auto fp8 = [](const Answers& a) { return a.is("precision", "fp8"); };
  b.menu("fp8_backend", "fp8_config.backend", "Which FP8 backend do you want to use?",
         "torchao, Transformer Engine or MS-AMP: one that your program's machine has.",
         {"AO", "TE", "MSAMP"}, "AO", fp8);
  b.menu("fp8_format", "fp8_config.fp8_format", "What should be the FP8 format?", "",
         {"HYBRID", "E4M3", "E5M2"}, "HYBRID",
         [=](const Answers& a) { return fp8(a) && a.is("fp8_backend", "TE"); });
  b.whole_number("restarts", "megatron_lm_config.mtl_max_restarts",
                 "How often are all ranks started again after one failed?",
                 "A setting of mtl's own; accelerate does not read it.", 0, 1000, "0", everybody);
  // 0 is what is built in: not worth a key that accelerate does not know.
  b.rows.back().may_be_empty = true;
  b.rows.back().preset = always("");
  b.rows.back().note = [](const Answers&) { return "empty: never"; };
  b.rows.back().normal = [](const std::string& text) { return text == "0" ? std::string() : text; };
}

}  // namespace

std::vector<QuestionRow> more_questions() {
  Builder builder;
  machine_questions(builder);
  megatron_questions(builder);
  deepspeed_questions(builder);
  fsdp_questions(builder);
  program_questions(builder);
  return std::move(builder.rows);
}

}  // namespace mtl
