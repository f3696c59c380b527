#include "runtime/interchange/hf_config_reader.h"

namespace mtl {

namespace {

// Fields that say nothing about what the model computes from given weights.
const std::set<std::string>& harmless_fields() {
  static const std::set<std::string> kFields = {"_name_or_path",
                                                "_num_labels",
                                                "_attn_implementation",
                                                "architectures",
                                                "auto_map",
                                                "aux_loss_alpha",
                                                "bos_token_id",
                                                "cache_implementation",
                                                "classifier_dropout",
                                                "decoder_start_token_id",
                                                "do_sample",
                                                "dtype",
                                                "embd_pdrop",
                                                "embedding_dropout",
                                                "attn_pdrop",
                                                "resid_pdrop",
                                                "attention_dropout",
                                                "eos_token_id",
                                                "ep_size",
                                                "hidden_dropout",
                                                "id2label",
                                                "initializer_range",
                                                "is_llama_config",
                                                "is_decoder",
                                                "is_encoder_decoder",
                                                "keys_to_ignore_at_inference",
                                                "label2id",
                                                "max_length",
                                                "model_type",
                                                "n_ctx",
                                                "num_labels",
                                                "output_attentions",
                                                "output_hidden_states",
                                                "output_past",
                                                "output_router_logits",
                                                "pad_token_id",
                                                "prefix",
                                                "pretraining_tp",
                                                "problem_type",
                                                "reorder_and_upcast_attn",
                                                "residual_dropout",
                                                "return_dict",
                                                "router_aux_loss_coef",
                                                "router_jitter_noise",
                                                "sep_token_id",
                                                "seq_aux",
                                                "sliding_window_size",
                                                "summary_activation",
                                                "summary_first_dropout",
                                                "summary_proj_to_labels",
                                                "summary_type",
                                                "summary_use_proj",
                                                "task_specific_params",
                                                "temperature",
                                                "tokenizer_class",
                                                "top_k",
                                                "top_p",
                                                "torch_dtype",
                                                "torchscript",
                                                "transformers.js_config",
                                                "transformers_version",
                                                "unk_token_id",
                                                "use_cache"};
  return kFields;
}

}  // namespace

ConfigReader ConfigReader::section(const std::string& key) {
  static const nlohmann::json kNothing = nlohmann::json::object();
  const nlohmann::json* const object = find(key);
  const bool there = object != nullptr && object->is_object();
  if (object != nullptr && !there) refuse(named(key) + " is not an object");
  ConfigReader reader(there ? *object : kNothing, file_, diagnostics_);
  reader.of_ = fmt::format(" of '{}'", key);
  return reader;
}

void ConfigReader::finish() {
  for (const char* key : {"quantization_config", "compression_config"}) {
    if (seen_.contains(key)) continue;  // and read
    const nlohmann::json* const quantised = find(key);
    if (quantised == nullptr) continue;
    // DeepSeek-V3 and Kimi K2 are published like that alone, and come with a program for it.
    const bool fp8 = quantised->is_object() && quantised->contains("quant_method") &&
                     quantised->at("quant_method") == "fp8";
    refuse(fmt::format("{} is there: {}", named(key),
                       fp8 ? "weights in fp8, with scales" : "quantised weights"),
           fp8 ? "convert the weights to bf16 first (DeepSeek-V3's fp8_cast_bf16.py does), and "
                 "take the field out of config.json"
               : "import the model that it was made from");
  }
  for (const auto& [key, value] : json_.items()) {
    if (seen_.contains(key) || harmless_fields().contains(key) || value.is_null()) continue;
    warn(named(key) + " is not known here and has been ignored",
         "compare a few outputs with the original model's");
  }
}

}  // namespace mtl
