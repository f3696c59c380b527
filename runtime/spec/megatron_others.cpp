// The flags that have no key.
#include <sstream>

#include "runtime/spec/megatron_flags.h"

namespace mtl::spec {

namespace {

MegatronOthers others(const std::string& why, const std::string& flags) {
  MegatronOthers result{why, {}};
  std::istringstream words(flags);
  for (std::string word; words >> word;) result.flags.push_back(word);
  return result;
}

}  // namespace

const std::vector<MegatronOthers>& megatron_needless() {
  static const std::vector<MegatronOthers> rows = {
      others("kernels, fusions and streams are mtl's own and are not chosen in a train.yaml",
             "transformer-impl attention-backend use-flash-attn flash-attention-version "
             "use-mcore-models cuda-graph-impl cuda-graph-warmup-steps cuda-graph-scope "
             "enable-cuda-graph external-cuda-graph cross-entropy-loss-fusion "
             "cross-entropy-fusion-impl no-bias-swiglu-fusion "
             "no-bias-dropout-fusion no-masked-softmax-fusion no-rope-fusion "
             "no-persist-layer-norm no-gradient-accumulation-fusion disable-jit-fuser "
             "moe-grouped-gemm moe-permute-fusion moe-router-fusion moe-shared-expert-overlap "
             "defer-embedding-wgrad-compute wgrad-deferral-limit delay-wgrad-compute "
             "overlap-p2p-communication-warmup-flush overlap-param-gather-with-optimizer-step "
             "overlap-moe-expert-parallel-comm use-ring-exchange-p2p te-rng-tracker "
             "muon-fp32-matmul-prec muon-use-syrk batch-invariant-mode optimizer-cuda-graph "
             "use-torch-optimizer-for-cpu-offload "
             "overlap-cpu-optimizer-d2h-h2d no-pin-cpu-grads no-pin-cpu-params"),
      others("scores, softmax, losses, gradients and the router are in fp32",
             "attention-softmax-in-fp32 accumulate-allreduce-grads-in-fp32 moe-router-dtype "
             "apply-query-key-layer-scaling no-query-key-layer-scaling "
             "disable-bf16-reduced-precision-matmul main-grads-dtype main-params-dtype "
             "ddp-reduce-scatter-with-fp32-accumulation"),
      others("gradients are the mean over the tokens of the global batch",
             "calculate-per-token-loss ddp-average-in-collective"),
      others("rows of tokens travel by all-to-all, and none is dropped",
             "moe-token-dispatcher-type moe-flex-dispatcher-backend moe-enable-deepep "
             "moe-token-drop-policy"),
      others("communication between ranks is set up by mtl",
             "distributed-backend distributed-timeout-minutes "
             "distributed-timeout-seconds-after-init pipeline-model-parallel-comm-backend "
             "nccl-communicator-config-path high-priority-stream-groups use-sharp "
             "sharp-enabled-group use-nccl-ub disable-gloo-process-groups local-rank "
             "cp-comm-type hierarchical-context-parallel-sizes no-align-grad-reduce "
             "no-align-param-gather ddp-num-buckets ddp-pad-buckets-for-high-nccl-busbw "
             "fsdp-double-buffer suggested-communication-unit-size "
             "torch-fsdp2-no-reshard-after-forward tp-comm-overlap tp-comm-overlap-cfg "
             "no-tp-comm-overlap-ag no-tp-comm-overlap-rs tp-comm-overlap-rs-dgrad "
             "no-tp-comm-bulk-dgrad no-tp-comm-bulk-wgrad no-tp-comm-split-ag "
             "no-tp-comm-split-rs tp-comm-bootstrap-backend use-tp-pp-dp-mapping "
             "expert-tensor-parallel-size lazy-mpu-init DDP-impl"),
      others("every rank has a flight recorder",
             "flight-recorder-dump-path flight-recorder-trace-buffer-size "
             "no-flight-recorder-dump-on-timeout"),
      others("initial values are made where they are needed, from the seed alone",
             "use-cpu-initialization init-model-with-meta-device no-initialization"),
      others("there is no interpreter and no cache to clean",
             "manual-gc manual-gc-interval empty-unused-memory-level train-sync-interval"),
      others("corpora are mapped into memory, and indices are made at the start",
             "no-mmap-bin-files num-dataset-builder-threads dataloader-fast-cache-load "
             "dataloader-defer-npy-index-mmap no-create-attention-mask-in-dataloader "
             "per-dataset-sequences-path object-storage-cache-path mid-level-dataset-surplus"),
      others("a run evaluates on `data.valid`, or on the second part of `data.split`",
             "test-data-path"),
      others("the vocabulary follows from the tokenizer or `data.vocab`, and is padded in memory "
             "only",
             "padded-vocab-size no-pad-vocab-size vocab-extra-ids tokenizer-hf-no-use-fast "
             "tokenizer-metadata trust-remote-code use-gigatoken tokenizer-sentencepiece-legacy "
             "null-tokenizer-pad-id allow-ambiguous-pad-tokens"),
      others("checkpoints are whole or not there, have checksums, load into any layout and hold "
             "the tokenizer",
             "ckpt-format auto-detect-ckpt-format async-strategy use-persistent-ckpt-worker "
             "async-ckpt-cpu-priority async-ckpt-io-priority no-ckpt-fully-parallel-save "
             "ckpt-fully-parallel-load ckpt-fully-parallel-save-process-group "
             "ckpt-assume-constant-structure dist-ckpt-optim-fully-reshardable "
             "distrib-optim-fully-reshardable-mem-efficient dist-ckpt-save-pre-mcore-014 "
             "dist-ckpt-strictness no-ckpt-load-validate-sharding-integrity verify-integrity "
             "no-save-tokenizer-assets dist-ckpt-workers ckpt-convert-format ckpt-convert-save "
             "use-dist-ckpt dist-ckpt-format ckpt-fully-parallel-save"),
      others("with `init.from` the optimizer and the step are fresh, and what is missing is an "
             "error",
             "finetune no-load-optim no-load-rng exit-on-missing-checkpoint "
             "load-main-params-from-ckpt"),
      others("a run that goes on takes schedules from its train.yaml",
             "override-opt_param-scheduler use-checkpoint-opt_param-scheduler "
             "override-opt-param-scheduler use-checkpoint-opt-param-scheduler"),
      others("it is always logged, and `metrics.jsonl`, TensorBoard and the report have it",
             "log-throughput log-progress tensorboard-dir tensorboard-log-interval "
             "tensorboard-queue-size log-timers-to-tensorboard "
             "log-validation-ppl-to-tensorboard log-world-size-to-tensorboard "
             "no-log-loss-scale-to-tensorboard log-memory-to-tensorboard timing-log-level "
             "timing-log-option no-barrier-with-level-1-timing logging-level "
             "log-memory-interval log-device-memory-used moe-per-layer-logging"),
      others("numbers that are none stop a run, spikes and slow ranks are warned of (`health`)",
             "check-for-nan-in-loss-and-grad no-check-for-nan-in-loss-and-grad "
             "check-for-spiky-loss check-for-large-grads log-straggler straggler-ctrlr-port "
             "straggler-minmax-count disable-straggler-on-startup"),
      others("TERM and INT always stop a run with a checkpoint, USR1 writes one and goes on; the "
             "launcher watches the ranks",
             "exit-signal-handler exit-signal exit-signal-handler-for-dataloader "
             "exit-signal-handler-for-training enable-ft-package calc-ft-timeouts "
             "ft-num-warmup-iters inprocess-restart inprocess-max-iterations "
             "inprocess-granularity inprocess-heartbeat-interval inprocess-heartbeat-timeout "
             "inprocess-soft-timeout inprocess-hard-timeout inprocess-barrier-timeout "
             "inprocess-completion-timeout"),
  };
  return rows;
}

const std::vector<MegatronOthers>& megatron_left_out() {
  static const std::vector<MegatronOthers> rows = {
      others("every checkpoint has the optimizer", "no-save-optim no-save-rng"),
      others("norm weights are kept as they are, and not around 0; they have no weight decay, so "
             "that it is the same training",
             "apply-layernorm-1p"),
      others("shapes and layouts stand in the train.yaml; `mtl ckpt import` writes those of a "
             "checkpoint",
             "use-checkpoint-args use-mp-args-from-checkpoint-args ckpt-step "
             "override-ckpt-iteration"),
      others("a run ends at its length, `health.max_time` or a signal", "exit-interval"),
      others("there is no such setting",
             "skip-train start-eval-at-iter eval-global-batch-size eval-micro-batch-size "
             "test-mode iterations-to-skip phase-transition-iterations"),
      others("there is no such report",
             "log-params-norm log-num-zeros-in-grad log-max-attention-logit log-energy "
             "wandb-project wandb-entity wandb-exp-name wandb-save-dir otel-enabled "
             "otel-service-name profile profile-step-start profile-step-end profile-ranks "
             "use-pytorch-profiler nvtx-ranges record-memory-history memory-snapshot-path "
             "config-logger-dir dump-param-to-param-group-map result-rejected-tracker-filename"),
      others("there are no such trials of the machine within a run (`mtl test`, `mtl doctor`)",
             "rerun-mode error-injection-rate error-injection-type "
             "check-weight-hash-across-dp-replicas-interval gpu-sniff-test-interval "
             "fault-injector-ranks fault-injector-fault-types fault-injector-mtti-seconds"),
      others("checkpoints are on the file system of `run.dir`, and nowhere else",
             "non-persistent-ckpt-type non-persistent-save-interval "
             "non-persistent-global-ckpt-dir non-persistent-local-ckpt-dir "
             "non-persistent-local-ckpt-algo replication replication-jump replication-factor"),
      others("activations stay on the device (`recompute`), and moments are fp32",
             "cpu-offloading-num-layers fine-grained-activation-offloading offload-modules "
             "min-offloaded-tensor-size activation-offload-fraction moe-layer-recompute "
             "use-precision-aware-optimizer exp-avg-dtype exp-avg-sq-dtype"),
      others("linears in fp8 have one scale for a tensor, and weights travel in bf16",
             "fp8-recipe fp8-margin fp8-interval fp8-amax-history-len fp8-amax-compute-algo "
             "no-fp8-wgrad fp8-output-proj fp8-param-gather reuse-grad-buf-for-mxfp8-param-ag "
             "te-precision-config-file output-logit-dtype fp16-lm-cross-entropy "
             "fp32-residual-connection"),
      others("embedding and loss count as `parallel.stage_layout: balanced` weighs them",
             "account-for-embedding-in-pipeline-split account-for-loss-in-pipeline-split"),
      others("there is no such layout",
             "outer-dp-sharding-strategy tensor-parallel-num-weight-shards "
             "hybrid-context-parallel max-seqlen-per-dp-cp-rank fake-process-group "
             "decrease-batch-size-if-needed"),
  };
  return rows;
}

const std::vector<MegatronOthers>& megatron_refused() {
  static const std::vector<MegatronOthers> rows = {
      others("the activation is GELU, or a gate of SiLU or GELU", "squared-relu"),
      others("elements of the two halves of what is rotated are pairs", "rotary-interleaved"),
      others("norms stand before each block", "apply-residual-connection-post-layernorm"),
      others("what attention makes has no gate, and queries and keys have RMS norms alone",
             "qk-l2-norm qk-clip attention-output-gate"),
      others("layers differ in their experts alone, and there is one token to foresee",
             "mtp-num-layers mtp-loss-scaling-factor hybrid-layer-pattern spec "
             "is-hybrid-model"),
      others("a token's experts are the ones with the highest scores, and no token is dropped",
             "moe-input-jitter-eps moe-expert-capacity-factor moe-pad-expert-input-to-capacity "
             "moe-router-force-load-balancing moe-use-upcycling moe-upcycling-granularity"),
      others("the optimizers are AdamW, Adam, SGD, Lion and Muon, with one learning rate",
             "muon-no-split-qkv decoupled-lr decoupled-min-lr "
             "freeze-all-layers no-weight-decay-cond-type apply-wd-to-qk-layernorm"),
      others("initial weights are normal, with one deviation",
             "init-method-xavier-uniform embedding-init-method-std data-parallel-random-init "
             "use-mup mup-width-mult mup-base-hidden-size mup-embedding-mult mup-output-mult "
             "mup-base-head-dim mup-attn-scale-power"),
      others("the loss scale moves", "loss-scale"),
      others("there is no fp4", "fp4-format fp4-recipe fp4-param-gather"),
      others("conversations become a corpus first (`mtl data tokenize --chat FORMAT`), which "
             "`data.sampler: best_fit` takes whole",
             "sft sft-tokenizer-prompt-format"),
      others("data is a corpus, as it is", "mock-data fim-data fim-rate fim-spm-rate"),
      others("that tokenizer is not among those of `data.tokenizer.type`",
             "tokenizer-special-tokens tiktoken-pattern tiktoken-num-special-tokens"),
  };
  return rows;
}

}  // namespace mtl::spec
