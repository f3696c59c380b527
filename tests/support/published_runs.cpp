#include "support/published_runs.h"

#include <fmt/format.h>

namespace mtl::test {

ModelShape gpt_shape(int64_t layers, int64_t hidden, int64_t heads, int64_t vocab, int64_t seq) {
  ModelShape model;
  model.layers = layers;
  model.hidden = hidden;
  model.heads = model.kv_heads = heads;
  model.head_dim = hidden / heads;
  model.ffn = 4 * hidden;
  model.vocab = model.padded_vocab = vocab;
  model.max_seq = seq;
  return model;
}

ModelShape llama_shape(int64_t layers, int64_t hidden, int64_t heads, int64_t ffn, int64_t seq) {
  ModelShape model = gpt_shape(layers, hidden, heads, 128256, seq);
  model.kv_heads = 8;
  model.ffn = ffn;
  model.norm = NormType::rmsnorm;
  model.activation = Activation::swiglu;
  model.position = PositionType::rope;
  model.bias = model.qkv_bias = model.tie_embeddings = false;
  return model;
}

namespace {

using Measure = PublishedRun::Measure;

Recompute full() {
  Recompute recompute;
  recompute.full = Recompute::Full::uniform;
  return recompute;
}

// Megatron's cross-entropy takes logits to fp32 and makes maximum, difference, exponentials, sum,
// softmax and its gradient in passes of their own: 44 bytes per logit. Until 2022 also: fused
// scale-mask-softmax over scores in memory, dropout; all-reduces of 2021 were waited for.
Software megatron(int year) {
  Software software;
  software.logits_bytes = 44;
  if (year > 2022) return software;
  software.flash_attention = false;
  software.dropout = true;
  software.async_tensor = year > 2021;
  if (year == 2021) software.grad_bytes = software.main_grad_bytes = 2;  // fp16 gradients
  return software;
}

Software torchtitan(bool compiled) {
  Software software;
  software.torch_fsdp = true;
  // Eager: rms norm, rotation and SwiGLU are several kernels each, partly in fp32.
  software.elementwise = compiled ? 1.3 : 3.0;
  software.logits_bytes = compiled ? 16 : 30;
  software.kernels = compiled ? 1 : 2;
  software.main_grad_bytes = 2;  // one micro-batch: nothing is added to
  return software;
}

// The fastest of the micro-batches and virtual stages that the source leaves open.
void choose(PublishedRun& run, bool micro_batch) {
  const Cluster cluster = cluster_of(run);
  double best = 0;
  LayoutChoice chosen = run.layout;
  for (const int64_t mb : {1, 2, 4, 8}) {
    if (!micro_batch && mb > 1) continue;
    const int64_t per_stage = run.work.model.layers / run.layout.pp;
    for (int chunks = 1; chunks <= (run.layout.pp > 1 ? per_stage : 1); ++chunks) {
      if (per_stage % chunks != 0) continue;
      LayoutChoice layout = run.layout;
      layout.micro_batch = mb;
      layout.chunks = chunks;
      if (!impossible(run.work, layout).empty()) continue;
      const Forecast one = forecast(run.work, layout, cluster, run.software);
      if (one.memory.total > 0.98 * cluster.gpu.memory_bytes) continue;
      if (one.tokens_per_s > best) {
        best = one.tokens_per_s;
        chosen = layout;
      }
    }
  }
  run.layout = chosen;
}

void megatron_core(std::vector<PublishedRun>& runs) {
  // README of Megatron-LM (images/model_table.png): sequences of 4096, vocabulary 131 072, overlap
  // of data, tensor and pipeline communication. GPT with ffn 4 h and an untied head gives its
  // sizes.
  struct Row {
    const char* name;
    int heads, hidden, layers, tp, pp, batch;
    double mfu;
  };
  constexpr Row kRows[] = {
      {"1.7 B", 16, 2048, 24, 1, 1, 192, 408.8},      {"7.1 B", 32, 4096, 30, 2, 1, 192, 465.9},
      {"16 B", 48, 6144, 32, 4, 1, 192, 489.1},       {"32 B", 56, 7168, 48, 8, 1, 192, 459.6},
      {"70 B", 64, 8192, 84, 8, 2, 384, 419.7},       {"119 B", 80, 10240, 92, 8, 4, 768, 420.5},
      {"177 B", 96, 12288, 96, 8, 6, 1152, 432.8},    {"314 B", 128, 16384, 96, 8, 8, 1536, 474.4},
      {"462 B", 144, 18432, 112, 8, 16, 3072, 459.9},
  };
  for (const Row& row : kRows) {
    PublishedRun run;
    run.table = "Megatron-Core, H100";
    run.name = row.name;
    run.gpu = "h100-80g";
    run.their_kernels = true;
    run.software = megatron(2024);
    run.work.model = gpt_shape(row.layers, row.hidden, row.heads, 131072, 4096);
    run.work.model.tie_embeddings = false;
    run.work.seq = 4096;
    run.work.global_batch = row.batch;
    run.layout.tp = row.tp;
    run.layout.pp = row.pp;
    run.layout.dp = 48;
    run.layout.sequence_parallel = row.tp > 1;
    run.layout.overlap_tensor = row.tp > 1;
    run.published = row.mfu / 989.4;
    run.calibrates = row.hidden == 12288;
    choose(run, true);
    runs.push_back(run);
  }
}

void paper_2021(std::vector<PublishedRun>& runs) {
  // arXiv 2104.04473, table 1: sequences of 2048, vocabulary 51 200, fp16, full recompute,
  // interleaved schedule, data parallelism without a divided optimizer. FLOPs with recompute.
  struct Row {
    const char* name;
    int heads, hidden, layers, tp, pp, gpus, batch;
    double tflops;
  };
  constexpr Row kRows[] = {
      {"1.7 B", 24, 2304, 24, 1, 1, 32, 512, 137},
      {"3.6 B", 32, 3072, 30, 2, 1, 64, 512, 138},
      {"7.5 B", 32, 4096, 36, 4, 1, 128, 512, 142},
      {"18.4 B", 48, 6144, 40, 8, 1, 256, 1024, 135},
      {"39.1 B", 64, 8192, 48, 8, 2, 512, 1536, 138},
      {"76.1 B", 80, 10240, 60, 8, 4, 1024, 1792, 140},
      {"145.6 B", 96, 12288, 80, 8, 8, 1536, 2304, 148},
      {"310.1 B", 128, 16384, 96, 8, 16, 1920, 2160, 155},
      {"529.6 B", 128, 20480, 105, 8, 35, 2520, 2520, 163},
      {"1008 B", 160, 25600, 128, 8, 64, 3072, 3072, 163},
  };
  for (const Row& row : kRows) {
    PublishedRun run;
    run.table = "2021 paper, A100";
    run.name = row.name;
    run.gpu = "a100-80g";
    run.software = megatron(2021);
    run.work.model = gpt_shape(row.layers, row.hidden, row.heads, 51200, 2048);
    run.work.seq = 2048;
    run.work.global_batch = row.batch;
    run.work.compute = DType::f16;
    run.layout.tp = row.tp;
    run.layout.pp = row.pp;
    run.layout.dp = row.gpus / (row.tp * row.pp);
    run.layout.zero = 0;
    run.layout.recompute = full();
    run.layout.overlap_data = run.layout.overlap_send = false;
    run.measure = Measure::hfu;
    run.published = row.tflops / 312;
    choose(run, true);
    runs.push_back(run);
  }
}

void paper_2022(std::vector<PublishedRun>& runs) {
  // arXiv 2205.05198, tables 3 and 5: one replica, vocabulary 51 200, sequences of 2048; 3 virtual
  // stages for 175 B and 530 B. Full recompute without sequence parallelism against sequence
  // parallelism with selective recompute.
  struct Row {
    const char* name;
    int heads, hidden, layers, pp, chunks, batch, micro;
    double mfu, full_s, selective_s;
  };
  constexpr Row kRows[] = {
      {"22 B", 64, 6144, 48, 1, 1, 4, 4, 0.415, 1.42, 1.10},
      {"175 B", 96, 12288, 96, 8, 3, 64, 1, 0.514, 18.13, 13.75},
      {"530 B", 128, 20480, 105, 35, 3, 280, 1, 0.560, 49.05, 37.83},
      {"1 T", 160, 25600, 128, 64, 1, 512, 1, 0.563, 94.42, 71.49},
  };
  for (const bool selective : {false, true}) {
    for (const Row& row : kRows) {
      PublishedRun run;
      run.table = "2022 paper, A100";
      run.name = fmt::format("{} {}", row.name, selective ? "selective" : "full");
      run.gpu = "a100-80g";
      run.software = megatron(2022);
      run.work.model = gpt_shape(row.layers, row.hidden, row.heads, 51200, 2048);
      run.work.seq = 2048;
      run.work.global_batch = row.batch;
      run.work.compute = DType::f16;
      run.layout.tp = 8;
      run.layout.pp = row.pp;
      run.layout.chunks = row.chunks;
      run.layout.micro_batch = row.micro;
      run.layout.zero = 0;
      run.layout.sequence_parallel = selective;
      if (selective) {
        run.layout.recompute.core_attention = true;
      } else {
        run.layout.recompute = full();
      }
      run.layout.overlap_data = run.layout.overlap_send = false;
      run.published = selective ? row.mfu : row.mfu * row.selective_s / row.full_s;
      run.calibrates = selective && row.hidden == 20480;
      runs.push_back(run);
    }
  }
}

void torchtitan_rows(std::vector<PublishedRun>& runs) {
  // torchtitan, benchmarks/llama3_h100_202412 and asyncTP_llama3_h100_2025-06: sequences of 8192,
  // Grand Teton (H100 96 GB, 500 W). Local batch 2 (8B), 16 (70B), 32 (405B), which
  // its pipelines cut into as many micro-batches as stages unless told otherwise.
  const auto add = [&](const char* name, const ModelShape& model, double tokens, double gib,
                       bool compiled, bool fp8, auto&& lay) {
    PublishedRun run;
    run.table = "torchtitan, H100 500 W";
    run.name = name;
    run.gpu = "h100-96g-500w";
    run.their_kernels = true;
    run.software = torchtitan(compiled);
    run.work.model = model;
    run.work.seq = 8192;
    run.layout.zero = 3;
    run.layout.float8.on = fp8;
    lay(run.layout);
    run.work.global_batch = run.layout.micro_batch * run.layout.dp * run.layout.pp;
    run.measure = Measure::tokens_per_s_gpu;
    run.published = tokens;
    run.gib = gib;
    runs.push_back(run);
  };
  const ModelShape b8 = llama_shape(32, 4096, 32, 14336, 8192);
  const ModelShape b70 = llama_shape(80, 8192, 64, 28672, 8192);
  const ModelShape b405 = llama_shape(126, 16384, 128, 53248, 8192);
  for (const int gpus : {8, 128}) {
    const auto lay = [&](LayoutChoice& layout) {
      layout.dp = gpus;
      layout.micro_batch = 2;
      layout.keep_every_second = true;
    };
    const bool few = gpus == 8;
    add(few ? "8B, 8 GPUs, eager" : "8B, 128 GPUs, eager", b8, few ? 5762 : 5605, few ? 82.4 : 67.0,
        false, false, lay);
    add(few ? "8B, 8 GPUs, compiled" : "8B, 128 GPUs, compiled", b8, few ? 6667 : 6514,
        few ? 77.0 : 62.0, true, false, lay);
    add(few ? "8B, 8 GPUs, fp8" : "8B, 128 GPUs, fp8", b8, few ? 8532 : 8380, few ? 76.8 : 61.8,
        true, true, lay);
  }
  for (const bool fp8 : {false, true}) {
    for (const bool async : {false, true}) {
      add(fp8     ? async ? "70B, fp8, async TP" : "70B, fp8"
          : async ? "70B, bf16, async TP"
                  : "70B, bf16",
          b70, fp8 ? (async ? 876 : 829) : (async ? 652.4 : 597.3), fp8 ? (async ? 67.6 : 71.9) : 0,
          true, fp8, [&](LayoutChoice& layout) {
            layout.dp = 32;
            layout.tp = 8;
            layout.micro_batch = 16;
            layout.sequence_parallel = true;
            layout.recompute = full();
            layout.overlap_tensor = async;
          });
    }
  }
  for (const int chunks : {1, 2}) {
    add(chunks == 1 ? "405B, fp8, 1F1B" : "405B, fp8, interleaved", b405, chunks == 1 ? 100 : 128,
        chunks == 1 ? 82.5 : 72.7, true, true, [&](LayoutChoice& layout) {
          layout.dp = layout.tp = layout.pp = 8;
          layout.micro_batch = 4;
          layout.chunks = chunks;
          layout.zero = 2;
          layout.sequence_parallel = true;
          layout.recompute = full();
          layout.overlap_tensor = true;
          layout.overlap_send = false;
        });
  }
}

void llama3(std::vector<PublishedRun>& runs) {
  // arXiv 2407.21783, table 4: 16 M tokens per step, sequences of 8192, 128 virtual stages of a
  // layer each, less one in the first and the last; gradients divided, weights gathered once.
  for (const int dp : {64, 128}) {
    PublishedRun run;
    run.table = "Llama 3 405B, H100";
    run.name = dp == 64 ? "8 192 GPUs" : "16 384 GPUs";
    run.gpu = "h100-80g";
    run.their_kernels = true;
    run.work.model = llama_shape(126, 16384, 128, 53248, 8192);
    run.work.seq = 8192;
    run.work.global_batch = 2048;
    run.layout.tp = 8;
    run.layout.pp = 16;
    run.layout.dp = dp;
    run.layout.sequence_parallel = true;
    run.layout.chunks = 8;
    run.layout.layers_of_virtual.assign(128, 1);
    run.layout.layers_of_virtual.front() = run.layout.layers_of_virtual.back() = 0;
    run.published = dp == 64 ? 430 / 989.4 : 400 / 989.4;
    runs.push_back(run);
  }
}

}  // namespace

std::vector<PublishedRun> published_runs() {
  std::vector<PublishedRun> runs;
  megatron_core(runs);
  paper_2021(runs);
  paper_2022(runs);
  torchtitan_rows(runs);
  llama3(runs);
  return runs;
}

Cluster cluster_of(const PublishedRun& run) {
  const Cluster& cluster = *find_cluster(run.gpu);
  return run.their_kernels ? with_kernels_of_others(cluster) : cluster;
}

double predicted(const PublishedRun& run, const Forecast& forecast) {
  switch (run.measure) {
    case Measure::mfu_full:
      return forecast.mfu_full;
    case Measure::hfu:
      return forecast.hfu;
    case Measure::tokens_per_s_gpu:
      return forecast.tokens_per_s_gpu;
  }
  return 0;
}

std::vector<PublishedRun> held_out_runs() {
  std::vector<PublishedRun> runs;
  const auto add = [&](const char* name, const char* gpu, const ModelShape& model, int64_t seq,
                       int64_t batch, double tokens, const LayoutChoice& layout) {
    PublishedRun run;
    run.table = "not looked at before";
    run.name = name;
    run.gpu = gpu;
    run.their_kernels = true;
    run.software = megatron(2024);
    run.work.model = model;
    run.work.seq = seq;
    run.work.global_batch = batch;
    run.layout = layout;
    run.measure = Measure::tokens_per_s_gpu;
    run.published = tokens;
    runs.push_back(run);
  };
  // Megatron-Bridge's performance summary, NeMo 25.11: fp8 with current scaling.
  LayoutChoice layout;
  layout.float8.on = true;
  layout.zero = 3;
  layout.dp = 8;
  add("Llama-3 8B fp8, 8 H100", "h100-80g", llama_shape(32, 4096, 32, 14336, 8192), 8192, 128,
      14451, layout);
  layout.zero = 1;
  layout.tp = 4;
  layout.pp = 8;
  layout.chunks = 5;
  layout.dp = 2;
  layout.sequence_parallel = layout.overlap_tensor = true;
  add("Llama-3 70B fp8, 64 H100", "h100-80g", llama_shape(80, 8192, 64, 28672, 8192), 8192, 128,
      1602, layout);
  layout.tp = 8;
  layout.chunks = 8;
  layout.cp = 2;
  layout.dp = 8;
  add("Llama-3.1 405B fp8, 1024 H100", "h100-80g", llama_shape(126, 16384, 128, 53248, 8192), 8192,
      512, 292, layout);
  // llm.c's run script of GPT-2 1558M (half a million tokens twice per step, micro-batch 16), and
  // llmq's benchmark of Qwen2.5 7B: one node, one GPU.
  LayoutChoice data;
  data.dp = 8;
  data.micro_batch = 16;
  add("GPT-2 1558M, 8 H100 (llm.c)", "h100-80g", gpt_shape(48, 1600, 25, 50304, 1024), 1024, 1024,
      46800, data);
  runs.back().software = software_mtl();
  runs.back().their_kernels = false;
  ModelShape qwen = llama_shape(28, 3584, 28, 18944, 1024);
  qwen.kv_heads = 4;
  qwen.vocab = qwen.padded_vocab = 152064;
  LayoutChoice one;
  one.micro_batch = 16;
  add("Qwen2.5 7B, 1 H100 (llmq)", "h100-80g", qwen, 1024, 512, 13850, one);
  runs.back().software = software_mtl();
  runs.back().their_kernels = false;
  return runs;
}

std::vector<GuideRow> guide_rows() {
  // docs/user-guide/parallelism-guide.md of Megatron-LM gives TP, PP, CP and EP. Sequences as the
  // models were trained (8192, GPT-3 2048, Mixtral 4096); batches of 2 to 16 M tokens,
  // micro-batches of 1. DeepSeek-V3 is left out: latent attention is not among our models.
  std::vector<GuideRow> rows;
  const auto add = [&](const char* name, const ModelShape& model, int64_t seq, int64_t batch,
                       int gpus, int tp, int pp, int cp, int ep) {
    GuideRow row;
    row.name = name;
    row.work.model = model;
    row.work.seq = seq;
    row.work.global_batch = batch;
    row.layout.tp = tp;
    row.layout.pp = pp;
    row.layout.cp = cp;
    row.layout.ep = ep;
    row.layout.dp = gpus / (tp * pp * cp * ep);
    row.layout.sequence_parallel = tp > 1;
    rows.push_back(row);
  };
  add("Llama-3 8B on 8", llama_shape(32, 4096, 32, 14336, 8192), 8192, 128, 8, 1, 1, 2, 1);
  add("Llama-3 70B on 64", llama_shape(80, 8192, 64, 28672, 8192), 8192, 128, 64, 4, 4, 2, 1);
  add("Llama-3.1 405B on 1024", llama_shape(126, 16384, 128, 53248, 8192), 8192, 512, 1024, 8, 8, 2,
      1);
  const ModelShape gpt3 = gpt_shape(96, 12288, 96, 51200, 2048);
  add("GPT-3 175B on 128", gpt3, 2048, 1536, 128, 4, 8, 1, 1);
  add("GPT-3 175B on 512", gpt3, 2048, 1536, 512, 4, 8, 1, 1);
  ModelShape mixtral = llama_shape(32, 4096, 32, 14336, 4096);
  mixtral.vocab = mixtral.padded_vocab = 32000;
  mixtral.experts = 8;
  mixtral.experts_per_token = 2;
  add("Mixtral 8x7B on 64", mixtral, 4096, 256, 64, 1, 4, 1, 8);
  mixtral.layers = 56;
  mixtral.hidden = 6144;
  mixtral.heads = 48;
  mixtral.ffn = 16384;
  add("Mixtral 8x22B on 256", mixtral, 4096, 256, 256, 4, 4, 1, 8);
  return rows;
}

}  // namespace mtl::test
