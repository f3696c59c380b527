// Commands of Megatron-LM as train.yaml, and the table of its flags against the schema.
#include "runtime/spec/megatron_command.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include "common/error.h"
#include "runtime/spec/load_text.h"
#include "runtime/spec/megatron_flags.h"
#include "runtime/spec/schema.h"
#include "support/megatron_translated.h"

using namespace mtl;
using namespace mtl::test;
using spec::MegatronFlag;
using spec::MegatronHow;

TEST_CASE("GPT-3 175B as Megatron-LM's example trains it") {
  const Translated result = translated(
      "torchrun --nproc_per_node 8 --nnodes 16 pretrain_gpt.py --num-layers 96 --hidden-size 12288 "
      "--num-attention-heads 96 --seq-length 2048 --max-position-embeddings 2048 "
      "--attention-backend auto --micro-batch-size 1 --global-batch-size 1536 "
      "--rampup-batch-size 16 16 5859375 --train-iters 500000 --weight-decay 0.1 --adam-beta1 0.9 "
      "--adam-beta2 0.95 --init-method-std 0.006 --clip-grad 1.0 --fp16 --lr 6.0e-5 "
      "--lr-decay-style cosine --min-lr 6.0e-6 --lr-warmup-fraction .001 --lr-decay-iters 430000 "
      "--tensor-model-parallel-size 8 --pipeline-model-parallel-size 16 --data-path text_document "
      "--vocab-file vocab.json --merge-file merges.txt --split 949,50,1 --log-interval 100 "
      "--save-interval 10000 --eval-interval 1000 --save ckpt --load ckpt --eval-iters 10 "
      "--tensorboard-dir logs");
  CHECK(result.errors == "");
  const std::map<std::string, std::string> expected = {
      {"run.dir", "ckpt"},
      {"model.layers", "96"},
      {"model.hidden", "12288"},
      {"model.heads", "96"},
      {"model.max_seq", "2048"},
      {"model.dropout.hidden", "0.1"},
      {"model.dropout.attention", "0.1"},
      {"parallel.tp", "8"},
      {"parallel.pp", "16"},
      {"train.micro_batch", "1"},
      {"train.global_batch", "1536"},
      {"train.seq_len", "2048"},
      {"train.steps", "500000"},
      {"train.eval.every", "1000"},
      {"train.eval.iters", "10"},
      {"precision.dtype", "fp16"},
      {"precision.loss_scale.initial", "4294967296"},
      {"optimizer.betas", "[0.9, 0.95]"},
      {"optimizer.weight_decay", "0.1"},
      {"optimizer.clip", "1.0"},
      {"lr.max", "6.0e-5"},
      {"lr.min", "6.0e-6"},
      {"lr.schedule", "cosine"},
      {"lr.warmup", "430"},
      {"lr.decay", "430000"},
      {"init.std", "0.006"},
      {"data.train", "text_document"},
      {"data.split", "[949, 50, 1]"},
      {"data.sampler", "megatron"},
      {"data.tokenizer.type", "gpt2-bpe"},
      {"data.tokenizer.vocab", "vocab.json"},
      {"data.tokenizer.merges", "merges.txt"},
      {"checkpoint.every", "10000"},
      {"checkpoint.keep_last", "0"},
      {"log.every", "100"}};
  std::map<std::string, std::string> others = result.settings;
  others.erase("train.batch_ramp");
  CHECK(others == expected);
  // 95 rises of 61,678 samples each: 3,855 steps of 16, then 1,928 of 32.
  CHECK(result.settings.at("train.batch_ramp").starts_with("{0: 16, 3855: 32, 5783: 48, "));
  CHECK(result.settings.at("train.batch_ramp").ends_with(": 1536}"));
  Diagnostics diagnostics;
  const ResolvedSpec read = load_spec_text(result.yaml, "train.yaml", diagnostics);
  CHECK_FALSE(diagnostics.has_errors());
  CHECK(read.spec.train.batch_ramp.size() == 96);
  CHECK(read.spec.optimizer.beta2 == 0.95);
}

TEST_CASE("Llama 3 8B and a mixture, as Megatron-LM's examples have them") {
  const Translated llama = translated(
      "pretrain_gpt.py --use-mcore-models --num-layers 32 --hidden-size 4096 --ffn-hidden-size "
      "14336 --num-attention-heads 32 --group-query-attention --num-query-groups 8 --kv-channels "
      "128 --seq-length 8192 --max-position-embeddings 8192 --position-embedding-type rope "
      "--rotary-base 1000000 --rotary-percent 1.0 --attention-dropout 0.0 --hidden-dropout 0.0 "
      "--swiglu --init-method-std 0.0134 --attention-backend fused --apply-layernorm-1p "
      "--untie-embeddings-and-output-weights --disable-bias-linear");
  CHECK(llama.errors == "");
  CHECK(opens_with(llama, "--apply-layernorm-1p is left out"));
  CHECK(llama.settings.at("model.kv_heads") == "8");
  CHECK(llama.settings.at("model.position.base") == "1000000");
  CHECK(llama.settings.at("model.bias") == "false");
  CHECK(llama.settings.at("model.norm.bias") == "true");  // of layer norms, which these are
  CHECK(llama.settings.at("model.tie_embeddings") == "false");
  const Translated mixture = translated(
      kSmall +
      "--normalization RMSNorm --swiglu --disable-bias-linear --num-experts 8 --moe-router-topk 2 "
      "--moe-router-load-balancing-type aux_loss --moe-aux-loss-coeff 1e-2 --moe-ffn-hidden-size "
      "192 --moe-grouped-gemm --moe-token-dispatcher-type alltoall --expert-model-parallel-size 8 "
      "--use-distributed-optimizer --overlap-param-gather --sequence-parallel --bf16 "
      "--no-masked-softmax-fusion --tokenizer-type Llama2Tokenizer --tokenizer-model t.model");
  CHECK(mixture.errors == "");
  CHECK(mixture.open.empty());
  CHECK(mixture.settings.at("model.moe.experts") == "8");
  CHECK(mixture.settings.at("model.ffn") == "192");
  CHECK(mixture.settings.at("parallel.ep") == "8");
  CHECK(mixture.settings.at("data.tokenizer.type") == "sentencepiece");
  CHECK(mixture.settings.at("data.tokenizer.file") == "t.model");
  CHECK_FALSE(mixture.settings.contains("model.moe.normalize"));
  const Translated balanced =
      translated(kSmall +
                 "--swiglu --disable-bias-linear --num-experts 8 --moe-router-topk 2 "
                 "--moe-router-score-function sigmoid --moe-router-pre-softmax "
                 "--moe-router-load-balancing-type none --moe-router-enable-expert-bias "
                 "--moe-router-bias-update-rate 1e-4 --moe-shared-expert-intermediate-size 256 "
                 "--moe-shared-expert-gate");
  CHECK(balanced.errors == "");
  CHECK(balanced.open.empty());
  CHECK(balanced.settings.at("model.moe.score") == "sigmoid");
  CHECK(balanced.settings.at("model.moe.expert_bias") == "true");
  CHECK(balanced.settings.at("model.moe.bias_rate") == "1e-4");
  CHECK(balanced.settings.at("model.moe.shared_ffn") == "256");
  CHECK(balanced.settings.at("model.moe.shared_gate") == "true");
  // Sigmoids are divided by their sum all the same, unless there is one alone.
  CHECK_FALSE(balanced.settings.contains("model.moe.normalize"));
  // Layers of two kinds, groups, a scale.
  const std::string grouped =
      kSmall +
      "--swiglu --disable-bias-linear --num-experts 8 --moe-router-topk 4 --ffn-hidden-size 512 "
      "--moe-ffn-hidden-size 96 --moe-router-topk-scaling-factor 2.5 --moe-router-num-groups 4 ";
  const Translated deepseek =
      translated(grouped + "--moe-router-group-topk 2 --moe-layer-freq ([0]*3+[1]*5)");
  CHECK(deepseek.errors == "");
  CHECK(deepseek.settings.at("model.ffn") == "512");
  CHECK(deepseek.settings.at("model.moe.ffn") == "96");
  CHECK(deepseek.settings.at("model.moe.scale") == "2.5");
  CHECK(deepseek.settings.at("model.moe.groups") == "4");
  CHECK(deepseek.settings.at("model.moe.group_topk") == "2");
  CHECK(deepseek.settings.at("model.moe.dense_layers") == "[0, 1, 2]");
  CHECK_FALSE(deepseek.settings.contains("model.moe.every"));
  const Translated second = translated(grouped + "--moe-layer-freq 2");
  CHECK(second.settings.at("model.moe.every") == "2");
  CHECK(second.settings.at("model.moe.ffn") == "96");
  CHECK_FALSE(second.settings.contains("model.moe.groups"));  // as in Megatron
  CHECK(translated(grouped + "--moe-layer-freq [1]*8").settings.at("model.ffn") == "96");
  CHECK(translated(grouped + "--moe-layer-freq ([0]+[1]*3)*2")
            .settings.at("model.moe.dense_layers") == "[0, 4]");
  CHECK(translated(grouped + "--moe-layer-freq [0]*3+[1]*58").errors ==
        "--moe-layer-freq wants 8 numbers, one for each layer, got '[0]*3+[1]*58'\n");
  for (const std::string bad :
       {"[2]*8", "[1]*", "[1]*8)", "[-1]*8", "[1]*99999999999", "[1", "0"}) {
    CAPTURE(bad);
    CHECK(translated(grouped + "--moe-layer-freq " + bad)
              .errors.starts_with("--moe-layer-freq wants"));
  }
  const std::string one = kSmall + "--num-experts 8 --moe-router-topk 1 ";
  CHECK(
      translated(one + "--moe-router-score-function sigmoid").settings.at("model.moe.normalize") ==
      "false");
  CHECK(translated(one + "--moe-router-pre-softmax").settings.at("model.moe.normalize") == "false");
}

TEST_CASE("gpt-oss, as Megatron-LM's flags have it") {
  const std::string oss =
      kSmall +
      "--group-query-attention --num-query-groups 2 --normalization RMSNorm --quick-geglu "
      "--glu-linear-offset 1.0 --activation-func-clamp-value 7.0 --window-size 127,0 "
      "--window-attn-skip-freq 2 --rotary-base 150000 --num-experts 32 --moe-router-topk 4 "
      "--moe-ffn-hidden-size 96 --hidden-dropout 0.0 --attention-dropout 0.0 ";
  const std::string yarn =
      "--position-embedding-type yarn --rotary-scaling-factor 32.0 "
      "--yarn-original-max-position-embeddings 2048 --yarn-beta-fast 16.0 --yarn-beta-slow 2.0 "
      "--mscale 1.0 --mscale-all-dim 0.0 ";
  const Translated whole = translated(oss + yarn +
                                      "--softmax-type learnable "
                                      "--no-yarn-correction-range-round-to-int");
  CHECK(whole.errors == "");
  CHECK(whole.open.empty());
  for (const auto& [key, value] :
       std::map<std::string, std::string>{{"model.activation", "quick_geglu"},
                                          {"model.glu_offset", "1.0"},
                                          {"model.glu_clamp", "7.0"},
                                          {"model.attention_sinks", "true"},
                                          {"model.ffn", "96"},
                                          {"model.sliding_window", "128"},
                                          {"model.full_attention.every", "2"},
                                          {"model.position.type", "rope"},
                                          {"model.position.scaling.type", "yarn"},
                                          {"model.position.scaling.factor", "32"},
                                          {"model.position.scaling.original_max_seq", "2048"},
                                          {"model.position.scaling.beta_fast", "16.0"},
                                          {"model.position.scaling.beta_slow", "2.0"},
                                          {"model.position.scaling.truncate", "false"}}) {
    CAPTURE(key);
    REQUIRE(whole.settings.contains(key));
    CHECK(whole.settings.at(key) == value);
  }
  // Biases everywhere, of experts too, are what holds without a flag, there and here.
  CHECK_FALSE(whole.settings.contains("model.bias"));
  CHECK_FALSE(whole.settings.contains("model.position.scaling.attention_factor"));
  const Translated plain = translated(oss + "--softmax-type vanilla --disable-bias-linear");
  CHECK(plain.errors == "");
  CHECK(plain.settings.at("model.activation") == "quick_geglu");
  CHECK(plain.settings.at("model.bias") == "false");
  for (const char* none : {"model.attention_sinks", "model.position.scaling.type"}) {
    CHECK_FALSE(plain.settings.contains(none));
  }
  CHECK(translated(oss + "--softmax-type off-by-one").errors ==
        "--softmax-type off-by-one is not available here: the score of no key is a learned one of "
        "each head (learnable), or there is none (vanilla)\n");
  CHECK(translated(oss + yarn + "--yarn-correction-range-round-to-int")
            .settings.count("model.position.scaling.truncate") == 0);
  const Translated scaled =
      translated(oss + "--position-embedding-type yarn --rotary-scaling-factor 4 --mscale 2");
  CHECK(scaled.settings.at("model.position.scaling.original_max_seq") == "4096");
  CHECK(std::stod(scaled.settings.at("model.position.scaling.attention_factor")) ==
        doctest::Approx(0.2 * std::log(4.0) + 1));
  // Of dense layers Megatron has another width, and of plain ones no gate.
  CHECK(translated(kSmall + "--quick-geglu").settings.at("model.ffn") == "256");
  CHECK_FALSE(translated(kSmall + "--glu-linear-offset 1").settings.contains("model.glu_offset"));
  CHECK(translated(kSmall + "--swiglu --quick-geglu").errors ==
        "--quick-geglu is not available here: --swiglu is another activation\n");
}

TEST_CASE("latent attention, as Megatron-LM's examples of DeepSeek have it") {
  const std::string latents =
      kSmall +
      "--position-embedding-type rope --multi-latent-attention --kv-lora-rank 512 "
      "--qk-head-dim 128 --qk-pos-emb-head-dim 64 --v-head-dim 96 --swiglu "
      "--disable-bias-linear --normalization RMSNorm --norm-epsilon 1e-6 --kv-channels 128 ";
  const Translated v3 =
      translated(latents +
                 "--qk-layernorm --q-lora-rank 1536 --rotary-scaling-factor 40 --mscale 1.0 "
                 "--mscale-all-dim 1.0 --recompute-granularity selective --recompute-modules "
                 "mla_up_proj mlp");
  CHECK(v3.errors == "");
  CHECK(v3.open.empty());
  CHECK(v3.settings.at("model.head_dim") == "192");
  CHECK(v3.settings.at("model.latent.kv_rank") == "512");
  CHECK(v3.settings.at("model.latent.q_rank") == "1536");
  CHECK(v3.settings.at("model.latent.rope_dim") == "64");
  CHECK(v3.settings.at("model.latent.value_dim") == "96");
  CHECK(v3.settings.at("model.latent.norm_eps") == "1e-6");
  CHECK_FALSE(v3.settings.contains("model.qk_norm"));
  CHECK(v3.settings.at("model.position.scaling.type") == "yarn");
  CHECK(v3.settings.at("model.position.scaling.factor") == "40");
  CHECK(v3.settings.at("model.position.scaling.original_max_seq") == "4096");
  CHECK(std::stod(v3.settings.at("model.position.scaling.attention_factor")) == 1);
  const double mscale = 0.1 * std::log(40) + 1;
  CHECK(std::stod(v3.settings.at("model.attention_scale")) ==
        doctest::Approx(mscale * mscale / std::sqrt(192)));
  CHECK(v3.settings.at("recompute.modules") == "[latent_up, mlp]");
  const Translated plain = translated(latents + "--qk-layernorm");
  CHECK(plain.errors == "");
  CHECK_FALSE(plain.settings.contains("model.latent.q_rank"));
  CHECK_FALSE(plain.settings.contains("model.position.scaling.type"));
  CHECK_FALSE(plain.settings.contains("model.attention_scale"));
  CHECK(translated(latents).errors ==
        "--multi-latent-attention is not available here: latents have norms here "
        "(--qk-layernorm)\n");
  CHECK(translated(kSmall + "--multi-latent-attention --qk-layernorm --normalization RMSNorm")
            .errors ==
        "--multi-latent-attention is not available here: it goes with --position-embedding-type "
        "rope\n");
}

TEST_CASE("what cannot be taken over is an error or named") {
  const std::string errors = translated(kSmall +
                                        "--softmax-type off-by-one "
                                        "--squared-relu --lr-decay-style polynomial --lr fast "
                                        "--rampup-batch-size 3 2 10")
                                 .errors;
  for (const char* part :
       {"--softmax-type off-by-one is not", "--squared-relu is not",
        "--lr-decay-style polynomial is", "--lr: ", "--rampup-batch-size wants"}) {
    CAPTURE(part);
    CAPTURE(errors);
    CHECK(errors.find(part) != std::string::npos);
  }
  const Translated named = translated(
      "pretrain_gpt.py --num-layers 2 --data-path --wandb-project x --foo 3 "
      "--decoder-last-pipeline-num-layers 3 --multiple-validation-sets --softmax-type vanilla");
  CHECK(named.errors == "");
  CHECK(opens_with(named, "--data-path has no value in this command"));
  CHECK(opens_with(named, "--wandb-project is left out"));
  CHECK(opens_with(named, "--foo is not known here"));
  CHECK(opens_with(named, "--decoder-last-pipeline-num-layers is not taken over"));
  CHECK(opens_with(named, "--multiple-validation-sets is not taken over"));
  CHECK(opens_with(named, "model.hidden is required"));
  CHECK(named.yaml.find("# --foo is not known here") != std::string::npos);
  // Said once, and not as a number that is none.
  const Translated unknown = translated(
      "pretrain_gpt.py --num-layers ${N} --train-iters $1 --wandb-project x --wandb-project y");
  CHECK(unknown.errors == "");
  CHECK(opens_with(unknown, "--num-layers has no value in this command"));
  CHECK_FALSE(opens_with(unknown, "model.layers is required"));
  CHECK_FALSE(opens_with(unknown, "train.steps, train.samples"));
  CHECK(std::count_if(unknown.open.begin(), unknown.open.end(), [](const std::string& sentence) {
          return sentence.starts_with("--wandb-project");
        }) == 1);
  // A variable of the script for both: there is nothing to load.
  CHECK_FALSE(opens_with(translated("pretrain_gpt.py --save --load"), "--load"));
  CHECK(opens_with(translated("pretrain_gpt.py --load"), "--load has no value"));
}

TEST_CASE("each of Megatron's flags stands once, and keys and values are those of the schema") {
  std::set<std::string> seen;
  for (const spec::MegatronGroup& group : spec::megatron_groups()) {
    for (const MegatronFlag& row : group.flags) {
      CAPTURE(row.flag);
      CHECK(seen.insert(row.flag).second);
      CHECK((row.key.empty() ? row.how == MegatronHow::only || row.how == MegatronHow::computed
                             : spec::find_row(row.key) != nullptr));
      std::vector<std::string> values = {row.without};
      if (row.how == MegatronHow::truth) values.push_back(row.value);
      for (const auto& [theirs, ours] : row.words) values.push_back(ours);
      for (const std::string& value : values) {
        if (value.empty()) continue;
        MegatronSettings one;
        one.settings = {{row.key, value}};
        Diagnostics diagnostics;
        load_spec_text(megatron_train_yaml(one, ""), "train.yaml", diagnostics);
        for (const Diagnostic& problem : diagnostics.all()) {
          CAPTURE(problem.what);
          CHECK(problem.code == "config.missing");
        }
      }
      if (row.how == MegatronHow::by_hand || row.how == MegatronHow::computed) {
        CHECK_FALSE(row.note.empty());
      }
    }
  }
  for (const auto* rows :
       {&spec::megatron_needless(), &spec::megatron_left_out(), &spec::megatron_refused()}) {
    for (const spec::MegatronOthers& row : *rows) {
      for (const std::string& flag : row.flags) {
        CAPTURE(flag);
        CHECK(seen.insert(flag).second);
      }
    }
  }
  CHECK(seen.size() > 450);
}
