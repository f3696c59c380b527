# Of scripts/gpu-check: why our kernels take as long as they do, by the GPU's own counters.
# shellcheck shell=bash

# Nsight Compute, if it is here.
profiler_program() {
  command -v ncu || ls /usr/local/cuda/bin/ncu /opt/nvidia/nsight-compute/*/ncu 2>/dev/null |
    tail -n 1 | grep .
}

# Each kernel runs some dozen times, with what it has written put back in between, so one launch of
# each is enough. Clocks stay as they are: nobody may change them on a machine that is lent.
counted() {  # counted NAME SECONDS OPTION... -- COMMAND...
  local name=$1 seconds=$2 report=$MTL_GPU_CHECK_FILES/$1.ncu-rep log=$records/$1.log code=0 page
  local options=() wanted section
  shift 2
  while [[ $1 != -- ]]; do options+=("$1"); shift; done
  shift
  for section in SpeedOfLight ComputeWorkloadAnalysis MemoryWorkloadAnalysis SchedulerStats \
    MemoryWorkloadAnalysis_Tables WarpStateStats LaunchStats Occupancy SourceCounters; do
    options+=(--section "$section")
  done
  printf '\n%s: %s\n' "$name" "${*##*/}"
  MTL_DEVICE=cuda limited "$seconds" "$profiler" --clock-control none --force-overwrite \
    --export "$report" "${options[@]}" "$@" >"$log" 2>&1 || code=$?
  # A virtual machine may not show its counters.
  wanted=$(grep -m1 -iE '==ERROR==.*(ERR_NVGPUCTRPERM|LibraryNotLoaded|not supported|permission)' \
    "$log") && cannot "Nsight Compute counts nothing on this machine: ${wanted#==ERROR== }"
  if [[ ! -s $report ]]; then
    tail -n 12 "$log"
    printf 'nothing was counted, exit code %s\n' "$code"
    return 1
  fi
  for page in raw source; do
    timeout --kill-after=5 60 "$profiler" --import "$report" --page "$page" --csv \
      >"$records/$name.$page.csv" 2>"$records/$name.$page.log" || true
  done
  "$python" "$root/tests/reference/gpu_counters.py" "$records/$name".{raw,source}.csv || return 1
}

stage_counters() {
  need_gpu
  need "$from/bench/attention_gpu"
  need "$from/bench/train_gpu"
  local profiler kernel failed=
  profiler=$(profiler_program) || cannot 'there is no Nsight Compute (ncu) here'
  # One launch of each form, of a step that waits after every op, the second of them; but for those
  # that a start is full of.
  counted step-1.5b 60 --kernel-name 'regex:^(?!copy_|write_|fill_)[a-z_]+_kernel$' \
    --filter-mode per-launch-config --launch-skip 1 --launch-count 1 -- \
    "$from/bench/train_gpu" --ops 1.5b-b4 || failed=yes
  for kernel in own cudnn; do
    MTL_ATTENTION=$kernel counted "attention-$kernel" 40 --kernel-name 'regex:attention_|sdpa|flash' \
      -- "$from/bench/attention_gpu" --once "$kernel" || failed=yes
  done
  [[ -z $failed ]]
}
