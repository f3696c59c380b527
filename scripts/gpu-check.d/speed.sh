# Of scripts/gpu-check: the stages that measure. Nothing else runs beside them.
# shellcheck shell=bash

# Of the bars' models, in the order of what they are worth where time is short.
if [[ -z $small ]]; then
  models=(124m llama-8b 1.5b) more=(llama-8b-fp8 '--no-parts llama-8b-2k-fp8' '--no-parts llama-8b-2k')
  # With less kept for backward (recompute.mode: selective), for the bar of memory.
  less=(1.5b-norm llama-8b-norm-fp8 1.5b-norm-act llama-8b-act 1.5b-norm-act-b21) less_s=25
else
  models=(tiny tiny-llama) more=(tiny-fp8 '--no-parts tiny-llama-fp8')
  less=(tiny-norm-act1 tiny-llama-norm-act tiny-norm-act-b4) less_s=100
fi

stage_bench() {
  need_gpu
  take_settings
  need "$from/libmtl_cuda.so"
  need "$from/bench/train_gpu"
  local failed= row
  first_step first || failed=yes
  for row in "${models[@]}" "${more[@]}"; do train_row "$row" || failed=yes; done
  first_step second || failed=yes
  # The attention that `auto` may take.
  MTL_ATTENTION=cudnn MTL_DEVICE=cuda limited 30 "$from/bench/train_gpu" --no-parts \
    --json "$records/ours.jsonl" "${models[0]}" ||
    printf 'no row with cuDNN'"'"'s attention\n'
  [[ -z $failed ]]
}
# In $less_s all together, the first ones first; a measured step each.
less_rows() {
  local name end=$((SECONDS + less_s))
  for name in "${less[@]}"; do
    if ((end - SECONDS < 7)); then
      printf 'no time for a row of mtl: %s\n' "$name"
      continue
    fi
    MTL_DEVICE=cuda limited $((end - SECONDS)) "$from/bench/train_gpu" --no-parts --steps 1 \
      --json "$records/ours.jsonl" "$name" || printf 'no row of mtl: %s\n' "$name"
  done
}
# A process per row: one that crashes costs its own. The first that does is asked again with what may
# go round it, which the rows behind it then have, and op by op.
train_row() {  # train_row WORDS
  local words name switch log rows op=
  read -r -a words <<<"$1"
  name=${words[-1]}
  log=$records/row-$name.log
  rows=$(rows_of_ours)
  run_row 50 && return
  if [[ $(rows_of_ours) -gt $rows ]]; then
    printf 'wrong: %s: its parts could not be measured\n' "$name"
    return 1
  fi
  printf 'no row: %s\n' "$name"
  ! grep -q '^no time is left' "$log" || return 1
  if [[ -n ${asked:-} ]]; then
    printf 'wrong: %s fails: %s\n' "$name" "$(first_error "$log")"
    return 1
  fi
  asked=yes
  cp "$log" "$log.first"
  which_op "$name" 25
  words=(--no-parts "$name")
  for switch in MTL_CUDA_GRAPHS=off MTL_ATTENTION=mma; do
    printf '%s with %s:\n' "$name" "$switch"
    run_row 30 env "$switch" || continue
    printf 'wrong: %s fails, but not with %s: %s\n' "$name" "$switch" \
      "$(first_error "$log.first")${op:+, $op}"
    keep_setting "${switch%%=*}" "${switch#*=}"
    export "${switch?}"
    return 1
  done
  printf 'wrong: %s fails: %s\n' "$name" "$(first_error "$log.first")${op:+, $op}"
  return 1
}
rows_of_ours() { cat "$records/ours.jsonl" 2>/dev/null | wc -l; }
run_row() {  # run_row SECONDS [PREFIX...]
  local seconds=$1 code=0
  shift
  MTL_DEVICE=cuda limited "$seconds" "$@" "$from/bench/train_gpu" --json "$records/ours.jsonl" \
    "${words[@]}" >"$log" 2>&1 || code=$?
  cat "$log"
  return "$code"
}

stage_attention() {
  need_gpu
  need "$from/bench/attention_gpu"
  # A process each: one that hangs or crashes costs its own rows. cuDNN's compiles.
  local kernel failed=
  local -A seconds=([mma]=25 [cudnn]=45 [split]=20 [own]=20)
  for kernel in mma cudnn split own; do
    MTL_ATTENTION=$kernel MTL_DEVICE=cuda limited "${seconds[$kernel]}" \
      "$from/bench/attention_gpu" ${small:+--tiny} "$kernel" && continue
    printf 'not every row: %s\n' "$kernel"
    [[ $kernel == cudnn ]] || failed=yes
  done
  [[ -z $failed ]]
}

# Each product by itself; then the steps without and with what has been found to be faster. The file
# has what has been measured, also where time has ended that.
stage_products() {
  need_gpu
  take_settings
  need "$from/bench/products_gpu"
  need "$from/bench/train_gpu"
  local choices=$records/products.choices file name failed=
  local seconds=$(($(left_of_stage) * 3 / 5))
  limited "$seconds" "$from/bench/products_gpu" --choose "$choices" --seconds $((seconds - 5)) \
    "${models[@]}" "${more[0]}" || failed=yes
  [[ -s $choices ]] || return 1
  for name in "${models[@]}"; do
    for file in '' "$choices"; do
      MTL_PRODUCTS=$file MTL_DEVICE=cuda limited 30 "$from/bench/train_gpu" --no-parts \
        --json "$records/products.jsonl" "$name" || failed=yes
    done
  done
  gained_by_products "$records/products.jsonl" || failed=yes
  [[ -z $failed ]]
}

# Rows come in twos, without and with. The loss says whether other algorithms compute the same.
gained_by_products() {  # gained_by_products ROWS
  [[ -s $1 ]] || return 0
  awk '
    function value(key) {
      if (!match($0, "\"" key "\":[^,}]*")) return ""
      return substr($0, RSTART + length(key) + 3, RLENGTH - length(key) - 3)
    }
    { shape = value("shape"); loss = value("loss"); rate = value("tokens_per_s") }
    { gsub("\"", "", shape) }
    shape != before { before = shape; loss_before = loss; rate_before = rate; next }
    { printf "%s: %+.1f %% tokens/s by the products chosen\n", shape, 100 * (rate / rate_before - 1)
      apart = loss - loss_before; if (apart < 0) apart = -apart
      if (!(apart <= 0.01 * loss_before)) {
        printf "wrong: %s: loss %s by the products chosen, %s without\n", shape, loss, loss_before
        wrong = 1
      } }
    END { exit wrong }' "$1"
}

# From `mtl launch` of GPT-2 124M to the end of its first step, in seconds. The first time reads
# programs and libraries from the disk.
first_step() {  # first_step WHICH
  local begin line seconds found= code=0 log=$records/launch-$1.log sizes=() bytes=4000000
  if [[ -n $small ]]; then
    sizes=(model.layers=2 model.hidden=64 model.heads=2 train.seq_len=16 train.global_batch=2
      train.micro_batch=2 train.steps=1)
    bytes=400
  fi
  yes 'some tokens' | head -c "$bytes" >"$scratch/tokens.bin" || true
  begin=$EPOCHREALTIME
  seconds=$(timeout --kill-after=5 40 \
    "$launcher" launch --num_processes 1 "$root/templates/recipes/gpt2-124m.yaml" \
    data.train="$scratch/tokens.bin" data.valid="$scratch/tokens.bin" run.dir="$scratch/runs-$1" \
    train.global_batch=32 train.micro_batch=32 train.steps=2 train.eval.every=0 log.every=1 \
    checkpoint.every=0 lr.warmup=0 "${sizes[@]}" 2>&1 | tee "$log" | while IFS= read -r line; do
      [[ $line == *' step=1 '* && -z $found ]] || continue
      found=yes
      awk -v a="$begin" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.2f", b - a }'
    done) || code=$?
  if [[ -z $seconds || $code -ne 0 ]]; then
    tail -n 20 "$log"
    printf 'mtl launch (%s time): step 1 after %s s, exit code %s\n' "$1" "${seconds:-no}" "$code"
    return 1
  fi
  printf 'mtl launch, GPT-2 124M, %s time: end of step 1 after %s s (to be 5 s at most)\n' "$1" \
    "$seconds"
  if awk -v s="$seconds" 'BEGIN { exit !(s > 5) }'; then
    printf 'missed: %s launch, %s s to step 1 (bar 5 s)\n' "$1" "$seconds"
  fi
}

# The same models in PyTorch, and both in one table. Ours are measured on this very machine: where
# bench was not part of this command, here.
stage_baseline() {
  need_gpu
  take_settings
  local name folder
  if [[ ! -s $records/ours.jsonl ]]; then
    need "$from/bench/train_gpu"
    for name in "${models[@]}"; do
      MTL_DEVICE=cuda limited 30 "$from/bench/train_gpu" --no-parts --json "$records/ours.jsonl" \
        "$name" || printf 'no row of mtl: %s\n' "$name"
    done
  fi
  less_rows
  # Behind ours: the first import reads gigabytes, and has begun with the command.
  need_torch
  local ours=() device=()
  if [[ -s $records/ours.jsonl ]]; then ours=(--ours "$records/ours.jsonl"); fi
  if [[ -n $small ]]; then device=(--device cpu --tiny --compiled); fi
  # What torch.compile makes serves the next command on this machine.
  folder=$root/build/torch-compile
  if [[ -z ${TORCHINDUCTOR_CACHE_DIR:-} ]] && runs_programs "$folder"; then
    export TORCHINDUCTOR_CACHE_DIR=$folder
  fi
  # Where the loader does not know the driver's library, Triton does not find it.
  folder=$(driver_folder)
  if [[ -n $folder ]] && ! grep -q 'libcuda\.so\.1' <<<"$(/sbin/ldconfig -p 2>/dev/null)"; then
    export TRITON_LIBCUDA_PATH=${TRITON_LIBCUDA_PATH:-$folder}
  fi
  local failed=
  "$python" -u "$root/tests/reference/gpu_baseline.py" "${device[@]}" "${ours[@]}" \
    --seconds "$(left_of_stage)" --json "$records/theirs.jsonl" || failed=yes
  [[ ${#ours[@]} -gt 0 ]] || printf 'mtl has no rows to compare with\n'
  [[ -z $failed ]]
}
# Whether there can be such a folder, with programs: a mount may forbid the one or the other.
runs_programs() {  # runs_programs FOLDER
  mkdir -p "$1" 2>/dev/null && printf '#!/bin/sh\n' 2>/dev/null >"$1/program.$$" &&
    chmod +x "$1/program.$$" && "$1/program.$$" 2>/dev/null && rm "$1/program.$$"
}
