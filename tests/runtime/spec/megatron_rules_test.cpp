// What follows from several flags of Megatron-LM, and from those that are not there.
#include <map>
#include <string>

#include <doctest/doctest.h>

#include "support/megatron_translated.h"

using namespace mtl;
using namespace mtl::test;

TEST_CASE("Megatron's defaults are written where mtl has others") {
  const std::map<std::string, std::string> given = translated(kSmall + "--swiglu").settings;
  for (const auto& [key, value] :
       std::map<std::string, std::string>{{"model.dropout.hidden", "0.1"},
                                          {"optimizer.betas", "[0.9, 0.999]"},
                                          {"optimizer.weight_decay", "0.01"},
                                          {"lr.schedule", "linear"},
                                          {"data.split", "[969, 30, 1]"},
                                          {"data.sampler", "megatron"},
                                          {"log.every", "100"},
                                          {"model.ffn", "128"}}) {
    CAPTURE(key);
    REQUIRE(given.contains(key));
    CHECK(given.at(key) == value);
  }
  CHECK(translated("pretrain_gpt.py --micro-batch-size 4").settings.at("train.accumulate") == "1");
  CHECK(translated(kSmall + "--lr-decay-style WSD").settings.at("lr.wsd_style") == "exponential");
}

TEST_CASE("flags that follow from others") {
  const auto setting = [](const std::string& flags, const std::string& key) {
    const Translated result = translated(kSmall + flags);
    CHECK(result.errors == "");
    const auto found = result.settings.find(key);
    return found == result.settings.end() ? std::string("none") : found->second;
  };
  const std::string muon = "--optimizer muon ";
  CHECK(setting(muon, "optimizer.type") == "muon");
  CHECK(setting("--optimizer dist_muon", "optimizer.type") == "muon");
  // Megatron's defaults, not mtl's.
  CHECK(setting(muon, "optimizer.muon.momentum") == "0.9");
  CHECK(setting(muon, "optimizer.muon.nesterov") == "false");
  CHECK(setting(muon, "optimizer.muon.factor") == "1.0");
  CHECK(setting(muon + "--muon-momentum 0.95", "optimizer.muon.momentum") == "0.95");
  CHECK(setting(muon + "--muon-nesterov", "optimizer.muon.nesterov") == "true");
  CHECK(setting(muon + "--muon-extra-scale-factor 0.2", "optimizer.muon.factor") == "0.2");
  CHECK(setting(muon + "--muon-scale-mode shape_scaling", "optimizer.muon.scale") == "shape");
  CHECK(setting(muon + "--muon-num-ns-steps 6", "optimizer.muon.steps") == "6");
  CHECK(setting(muon + "--muon-use-nesterov", "optimizer.muon.nesterov") == "true");
  CHECK(setting(muon, "optimizer.muon.coefficients") == "quintic");
  CHECK(setting(muon + "--muon-coefficient-type simple", "optimizer.muon.coefficients") ==
        "simple");
  CHECK(setting(muon + "--muon-tp-mode blockwise", "optimizer.type") == "muon");
  CHECK(setting("--adam-beta1 0.9", "optimizer.muon.momentum") == "none");
  CHECK(setting("--muon-num-ns-steps 6", "optimizer.muon.steps") == "none");
  CHECK(setting("--muon-num-ns-steps 6", "optimizer.muon.coefficients") == "none");
  CHECK(setting("--optimizer lion --lion-beta1 0.9", "optimizer.type") == "lion");
  CHECK(setting("--optimizer lion --lion-beta1 0.9", "optimizer.betas") == "[0.9, 0.98]");
  const std::string pipeline = "--pipeline-model-parallel-size 2 ";
  CHECK(setting(pipeline + "--num-layers-per-virtual-pipeline-stage 2",
                "parallel.virtual_stages") == "2");
  CHECK(setting("--use-megatron-fsdp --data-parallel-sharding-strategy optim_grads",
                "parallel.zero") == "2");
  CHECK(setting("--use-megatron-fsdp", "parallel.zero") == "3");
  CHECK(setting("--ddp-bucket-size 40000000", "parallel.bucket_mb") == "160");
  CHECK(setting("--recompute-granularity selective --recompute-modules core_attn layernorm",
                "recompute.modules") == "[core_attn, norm]");
  CHECK(setting("--recompute-granularity full --recompute-method uniform", "recompute.method") ==
        "uniform");
  CHECK(setting("--recompute-method uniform", "recompute.method") == "none");
  CHECK(setting("--lr-warmup-samples 33", "lr.warmup") == "5");
  CHECK(setting("--lr-warmup-fraction 0.02", "lr.warmup") == "2");
  CHECK(setting("--window-size (127,0)", "model.sliding_window") == "128");
  CHECK(setting("--window-size 127 0", "model.sliding_window") == "128");
  // A number and a list say which layers have none.
  const std::string window = "--window-size 127,0 --window-attn-skip-freq ";
  CHECK(setting(window + "4", "model.full_attention.every") == "4");
  CHECK(setting(window + "([1]*3+[0])*2", "model.full_attention.layers") == "[3, 7]");
  CHECK(setting(window + "([1]*3+[0])*2", "model.full_attention.every") == "none");
  CHECK(setting("--window-attn-skip-freq 4", "model.full_attention.every") == "none");
  CHECK(setting("--softmax-scale 0.125", "model.attention_scale") == "0.125");
  CHECK(setting("--rope-scaling-factor 32 --use-rope-scaling --position-embedding-type rope",
                "model.position.scaling.factor") == "32");
  CHECK(setting("--rotary-base 500000", "model.position.base") == "none");
  const std::string rope = "--position-embedding-type rope ";
  CHECK(setting(rope + "--no-rope-freq 4", "model.position.skip.every") == "4");
  CHECK(setting(rope + "--no-rope-freq ([0]*3+[1])*2", "model.position.skip.layers") == "[3, 7]");
  CHECK(setting("--no-rope-freq 4", "model.position.skip.every") == "none");
  CHECK(setting(rope + "--rotary-percent 0.25", "model.position.fraction") == "0.25");
  CHECK(setting("--rotary-percent 0.25", "model.position.fraction") == "none");
  CHECK(setting(rope + "--rotary-seq-len-interpolation-factor 4",
                "model.position.scaling.factor") == "4");
  CHECK(setting(rope + "--rotary-seq-len-interpolation-factor 4", "model.position.scaling.type") ==
        "linear");
  CHECK(setting("", "model.activation") == "none");
  CHECK(setting("--disable-bias-linear", "model.activation") == "gelu_exact");
  CHECK(setting("--no-bias-gelu-fusion", "model.activation") == "gelu_exact");
  CHECK(setting("--no-bias-gelu-fusion --openai-gelu", "model.activation") == "gelu");
  CHECK(setting("--exit-duration-in-mins 230", "health.max_time") == "230m");
  CHECK(setting("--bf16 --fp8-format hybrid --first-last-layers-bf16",
                "precision.fp8.bf16_last_layers") == "1");
  CHECK(setting("--data-path 0.7 web 0.3 code", "data.train") == "\"0.7 web 0.3 code\"");
  CHECK(setting("--train-data-path a --valid-data-path b", "data.split") == "none");
  CHECK(setting("--tokenizer-type NullTokenizer --vocab-size 127", "data.vocab") == "128");
  CHECK(setting("--load a --save a", "init.from") == "none");
  CHECK(setting("--load a --finetune --save b", "init.from") == "a");
  CHECK(setting("--save-interval 5 --save-retain-interval 10", "checkpoint.keep_last") == "1");
  CHECK(setting("--eval-interval 5 --eval-iters 0", "train.eval.iters") == "1");
  CHECK(setting("--eval-interval 5 --eval-iters 0", "train.eval.every") == "none");
  CHECK(setting("--eval-interval 5 --full-validation", "train.eval.iters") == "0");
  CHECK(setting("--group-query-attention", "model.kv_heads") == "1");
  CHECK(setting("--group-query-attention --num-query-groups $GROUPS", "model.kv_heads") == "none");
  CHECK(setting("--lr=1e-3", "lr.max") == "1e-3");
  CHECK(setting("--clip_grad 0.5", "optimizer.clip") == "0.5");
}

TEST_CASE("Muon under tensor parallelism, and of gated units") {
  const std::string muon = kSmall + "--optimizer muon ", tp = "--tensor-model-parallel-size 2 ";
  const char* const by_default = "without --muon-tp-mode";
  // Nothing is divided.
  CHECK_FALSE(opens_with(translated(muon), by_default));
  CHECK(translated(muon + "--muon-tp-mode blockwise").errors == "");
  CHECK(opens_with(translated(muon + tp), by_default));
  for (const char* mode : {"duplicated", "distributed"}) {
    const Translated whole = translated(muon + tp + "--muon-tp-mode " + mode);
    CHECK(whole.errors == "");
    CHECK_FALSE(opens_with(whole, by_default));
  }
  CHECK(translated(muon + tp + "--muon-tp-mode blockwise").errors.find("orthogonalized whole") !=
        std::string::npos);
  CHECK(translated(muon + "--muon-tp-mode rowwise").errors.find("it can be") != std::string::npos);
  CHECK(translated(muon + "--muon-coefficient-type aol").errors.find("polar_express can be") !=
        std::string::npos);
  const char* const gated = "Megatron's Muon takes gate and up";
  CHECK(opens_with(translated(muon + "--swiglu"), gated));
  CHECK_FALSE(opens_with(translated(muon), gated));
  CHECK_FALSE(opens_with(translated(kSmall + "--swiglu"), gated));
  // A flag without a value lacks none.
  CHECK_FALSE(opens_with(translated(muon + "--muon-nesterov"), "--muon-nesterov"));
}
