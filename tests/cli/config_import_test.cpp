// mtl config import: accelerate's file, and scripts of Megatron-LM's.
#include <filesystem>

#include <doctest/doctest.h>

#include "cli/program.h"

using namespace mtl;
using namespace mtl::test;

TEST_CASE("import reads accelerate's file and Megatron's scripts") {
  Shell shell;
  shell.write("theirs.yaml", "distributed_type: MULTI_GPU\nnum_processes: 4\nfp16: true\n");
  CHECK(shell.mtl({"config", "import", "theirs.yaml"}).code == 0);
  CHECK(file_text(shell.dir() / kDefaultConfig).find("mixed_precision: fp16") != std::string::npos);
  shell.write("train.sh", R"(#!/bin/bash
# a script as they are
GPUS_PER_NODE=8
NUM_NODES=2
MASTER_ADDR=${MASTER_ADDR:-node0}
DISTRIBUTED_ARGS=(
    --nproc_per_node $GPUS_PER_NODE
    --nnodes $NUM_NODES   # two
    --node_rank 1
    --master_addr $MASTER_ADDR
)
TP=$(( $GPUS_PER_NODE / 2 ))
PP=$((TP - 2))
MODEL_PARALLEL_ARGS="--tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP"
echo start
torchrun ${DISTRIBUTED_ARGS[@]} pretrain_gpt.py \
    $MODEL_PARALLEL_ARGS --sequence-parallel --use-distributed-optimizer \
    --num-layers 96 --bf16 --clip-grad 1.0
)");
  const Outcome outcome = shell.mtl({"config", "import", "--force", "train.sh"});
  CAPTURE(outcome.err);
  CHECK(outcome.code == 0);
  const std::string text = file_text(shell.dir() / kDefaultConfig);
  CAPTURE(text);
  for (const char* line :
       {"distributed_type: MEGATRON_LM", "num_processes: 16", "num_machines: 2", "machine_rank: 1",
        "main_process_ip: node0", "megatron_lm_tp_degree: 4", "megatron_lm_pp_degree: 2",
        "megatron_lm_sequence_parallelism: true", "mixed_precision: bf16",
        "megatron_lm_gradient_clipping: 1.0", "megatron_lm_use_distributed_optimizer: true"}) {
    CAPTURE(line);
    CHECK(text.find(line) != std::string::npos);
  }
  CHECK(outcome.err.find("--num-layers") != std::string::npos);
  // A variable that the script does not set is not left out of a word.
  shell.write("slurm.sh", R"(HOST=$(scontrol show hostnames | head -1)
torchrun --nproc_per_node 4 --rdzv_id $SLURM_JOB_ID --rdzv_endpoint $HOST:29500 \
    pretrain_gpt.py "$@" --tensor-model-parallel-size 2 --data-path 0.5 ${DATA}/a 0.5 $DATA/b
)");
  Outcome variables = shell.mtl({"config", "import", "--force", "slurm.sh"});
  CAPTURE(variables.err);
  CHECK(variables.code == 0);
  CHECK(variables.err.find("--rdzv_endpoint is left out: the script does not say what "
                           "$HOST:29500 is") != std::string::npos);
  CHECK(
      variables.err.find("--rdzv_id is left out: the script does not say what $SLURM_JOB_ID is") !=
      std::string::npos);
  CHECK(file_text(shell.dir() / kDefaultConfig).find("mtl_rdzv") == std::string::npos);
  variables = shell.mtl({"config", "import", "--train", "slurm.yaml", "slurm.sh"});
  CHECK(variables.code == 0);
  CHECK(file_text(shell.dir() / "slurm.yaml").find("\"0.5 ${DATA}/a 0.5 $DATA/b\"") !=
        std::string::npos);
  CHECK(variables.err.find("--data-path has a variable of the script in it") != std::string::npos);
  // Which machine this is, a script for all of them does not say, and the file is for all.
  REQUIRE(shell
              .mtl({"config", "import", "--force", "--", "torchrun", "--nnodes", "4",
                    "--nproc_per_node", "8", "--master_addr", "node0", "x.py"})
              .code == 0);
  CHECK(file_text(shell.dir() / kDefaultConfig).find("num_machines: 4") != std::string::npos);
  CHECK(file_text(shell.dir() / kDefaultConfig).find("machine_rank") == std::string::npos);
  // Nor does it always say where they meet: the rest is taken over, and that is said.
  shell.write("nodes.sh",
              "torchrun --nnodes=2 --nproc_per_node=8 --node_rank=$1 "
              "--master_addr=$MASTER_ADDR train.py\n");
  const Outcome nowhere = shell.mtl({"config", "import", "--force", "nodes.sh"});
  CAPTURE(nowhere.err);
  CHECK(nowhere.code == 0);
  CHECK(nowhere.err.find("warning[launch.address]: 2 machines, and nobody says where they meet") !=
        std::string::npos);
  CHECK(file_text(shell.dir() / kDefaultConfig).find("num_machines: 2") != std::string::npos);
  CHECK(shell.mtl({"config", "set", "main_process_ip=node0"}).code == 0);
}

TEST_CASE("import reads exported, appended and quoted variables, and no redirections") {
  Shell shell;
  shell.write("train.sh", R"(#!/bin/bash
CHECKPOINTS=<specify a folder>
export HIDDEN=64
MODEL=(--num-layers 2 --hidden-size "$HIDDEN")
MODEL+=(--num-attention-heads 4)
OTHERS="--seq-length 16 --tensor-model-parallel-size $TP"
OTHERS+=" --min-lr 1e-5"
RATES=(1e-3 2e-3)
torchrun pretrain_gpt.py "${MODEL[@]}" $OTHERS --train-iters "$1" --micro-batch-size 1 \
    --lr ${RATES[1]} --log-interval ${EVERY:-${HIDDEN:-7}} ${HIDDEN:+--swiglu} --seed ${SEED%x} \
    --save $CHECKPOINTS --data-path corpus --split 98,1,1 2>&1 >> log.txt
)");
  const Outcome outcome = shell.mtl({"config", "import", "--train", "train.yaml", "train.sh"});
  CAPTURE(outcome.err);
  REQUIRE(outcome.code == 0);
  const std::string text = file_text(shell.dir() / "train.yaml");
  CAPTURE(text);
  for (const char* line : {"hidden: 64", "heads: 4", "min: 1e-5", "train: corpus",
                           "split: [98, 1, 1]", "# --save has no value", "# --train-iters has no",
                           "# --tensor-model-parallel-size has no value", "every: 64",
                           "activation: swiglu", "# --lr has no value", "# --seed has no value"}) {
    CAPTURE(line);
    CHECK(text.find(line) != std::string::npos);
  }
  for (const char* part : {"tp:", "dir:", "$", "is required"}) {
    CAPTURE(part);
    CHECK(text.find(part) == std::string::npos);
  }
}

TEST_CASE("import says what a script computes, and takes no branch of a condition") {
  Shell shell;
  shell.write("train.sh", R"(#!/bin/bash
SIZE=7
RAMP="2 2 100"
LAYERS=4
SEQ=16
LR=5e-4
NOTHING=
NONE=()
if [ -n "$A" ]; then OTHERS=(--bf16); else OTHERS=(--fp16); fi
OTHERS+=(--use-flash-attn)
command -v gpus || CLIP=2
if [ $SIZE = 7 ]; then HIDDEN=64;  HEADS=4
elif [ $SIZE = 13 ]; then
  HIDDEN=128
  if [ -n "$DEEP" ]; then LAYERS=8; fi
else HIDDEN=96
fi
case $SIZE in
  7) LR=1e-3 ;;
  *) LR=2e-3 ;;
esac
[ "$DEBUG" = 1 ] && STEPS=5
cat > notes <<END
SEQ=513
END
for RUN in 1 2; do
  MODEL=(--num-layers $LAYERS --hidden-size $HIDDEN --num-attention-heads $HEADS)
  if [ -n "$GATE" ]; then MODEL+=(--swiglu); fi
  torchrun $NODES pretrain_gpt.py "${MODEL[@]}" $MORE --bf16 ${EXTRA[0]} --seq-length $SEQ \
      $NOTHING "${NONE[@]}" "${OTHERS[@]}" $LATER --clip-grad $CLIP \
      --max-position-embeddings 16 --micro-batch-size 1 --global-batch-size 8 --lr $LR \
      --train-iters $STEPS --rampup-batch-size $RAMP --seed `date +%s` --data-path corpus
done
)");
  const Outcome outcome = shell.mtl({"config", "import", "--train", "train.yaml", "train.sh"});
  CAPTURE(outcome.err);
  REQUIRE(outcome.code == 0);
  const std::string text = file_text(shell.dir() / "train.yaml");
  CAPTURE(text);
  for (const char* line :
       {"# --num-layers has no value", "# --hidden-size has no value", "# --lr has no value",
        "# --num-attention-heads has no value", "# --train-iters has no value",
        "# --seed has no value", "# --clip-grad has no value", "# $MORE is computed",
        "# ${MODEL+=} is computed by the script", "# ${EXTRA[0]} is computed",
        "# ${OTHERS} is computed", "# $LATER is computed", "seq_len: 16", "global_batch: 8"}) {
    CAPTURE(line);
    CHECK(text.find(line) != std::string::npos);
  }
  for (const char* part : {"513", "swiglu", "\n  hidden:", "heads:", "layers:", "steps: 5",
                           "NOTHING", "NONE", "5e-4", "fp16"}) {
    CAPTURE(part);
    CHECK(text.find(part) == std::string::npos);
  }
  const Outcome where = shell.mtl({"config", "import", "--force", "train.sh"});
  CAPTURE(where.err);
  CHECK(where.err.find("$NODES is left out") != std::string::npos);
}

TEST_CASE("import --train writes what a Megatron script trains, and a run of it starts") {
  Shell shell;
  shell.write("text.txt", std::string(4000, 'a') + "b");
  shell.write("train.sh", R"(#!/bin/bash
DATA=$1
MODEL=(
    --num-layers 2 --hidden-size 32 --num-attention-heads 2 # small
    --seq-length 8 --max-position-embeddings 8
)
python pretrain_gpt.py ${MODEL[@]} --micro-batch-size 1 --global-batch-size 2 \
    --train-iters 3 --lr 1e-3 --data-path $DATA --dataloader-type cyclic --wandb-project x
)");
  const std::vector<std::string> import = {"config", "import", "--train", "train.yaml", "train.sh"};
  Outcome outcome = shell.mtl(import);
  CAPTURE(outcome.err);
  REQUIRE(outcome.code == 0);
  CHECK(outcome.out == "train.yaml\n");
  CHECK(outcome.err.find("--data-path has no value in this command") != std::string::npos);
  CHECK(outcome.err.find("--wandb-project is left out") != std::string::npos);
  CHECK(outcome.err.find("data.train is required") == std::string::npos);  // said already
  CHECK_FALSE(std::filesystem::exists(shell.dir() / kDefaultConfig));
  const std::string text = file_text(shell.dir() / "train.yaml");
  CHECK(text.starts_with("# From train.sh.\n# --"));
  CHECK(text.find("\nmodel:\n  layers: 2\n  hidden: 32\n") != std::string::npos);
  outcome = shell.mtl({"launch", "--dry-run", "train.yaml", "data.train=text.txt",
                       "data.sampler=random", "run.name=small"});
  CAPTURE(outcome.err);
  CHECK(outcome.code == 0);
  outcome = shell.mtl(import);
  CHECK(outcome.code == 3);
  CHECK(outcome.err.find("error[config.exists]: train.yaml is there already") == 0);
  outcome = shell.mtl({"config", "import", "--force", "--train", "train.yaml", "--",
                       "pretrain_gpt.py", "--num-layers", "2", "--attention-output-gate"});
  CHECK(outcome.code == 3);
  CHECK(outcome.err.find("error[config.import]: --attention-output-gate is not available") == 0);
  CHECK(file_text(shell.dir() / "train.yaml") == text);
  shell.write("theirs.yaml", "num_processes: 4\n");
  outcome = shell.mtl({"config", "import", "--train", "t.yaml", "theirs.yaml"});
  CHECK(outcome.code == 3);
  CHECK(outcome.err.find("theirs.yaml has no command of Megatron-LM") != std::string::npos);
}
