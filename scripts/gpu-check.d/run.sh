# Of scripts/gpu-check: runs the stages, each in a process of its own, until its time is over.
# shellcheck shell=bash

declare -A outcome_of=() seconds_of=() reason_of=() process_of=() begin_of=() given=()
shown=() running=() all_passed=yes silent=

start_stage() {  # start_stage STAGE LIMIT
  local stage=$1
  shown+=("$stage")
  outcome_of[$stage]=running seconds_of[$stage]= reason_of[$stage]= given[$stage]=$2
  begin_of[$stage]=$SECONDS
  if [[ -n $silent ]]; then
    printf 'could not run: the GPU has not answered since the stage %s\n' "$silent"
  elif (($2 < 10)); then
    printf 'could not run: the %s s of all stages are over\n' "$seconds"
  else
    : >"$logs/$stage.log"
    mkdir -p "$stage_files/$stage"
    # A process of its own: `timeout` needs one, and a stage that ends the shell ends only itself.
    timeout --kill-after=5 "$2" env TMPDIR="$stage_files/$stage" MTL_GPU_CHECK_STAGE="$stage" \
      MTL_GPU_CHECK_FILES="$stage_files/$stage" MTL_GPU_CHECK_RECORDS="$logs" \
      MTL_GPU_CHECK_LIMIT="$2" "$root/scripts/gpu-check" --from "$from" --out "$out" $small \
      >"$logs/$stage.log" 2>&1 &
    process_of[$stage]=$!
    running+=("$stage")
    return
  fi >"$logs/$stage.log"
  record "$stage" 77 0 "$2"
}

# Of stages that run beside each other as each ends.
grace_s=15
await_stages() {
  local stage code left=() written=$SECONDS broken=
  while [[ ${#running[@]} -gt 0 ]]; do
    left=()
    for stage in "${running[@]}"; do
      if kill -0 "${process_of[$stage]}" 2>/dev/null; then
        if ((SECONDS - begin_of[$stage] < given[$stage] + grace_s)); then
          left+=("$stage")
          continue
        fi
        # Who was to end it has been stopped itself.
        kill -KILL "${process_of[$stage]}" 2>/dev/null || true
      fi
      code=0
      wait "${process_of[$stage]}" || code=$?
      end_leftovers "$stage"
      record "$stage" "$code" $((SECONDS - begin_of[$stage])) "${given[$stage]}"
      [[ $code -eq 0 || $code -eq 77 ]] || broken=$stage
    done
    if [[ ${#left[@]} -ne ${#running[@]} ]] || ((SECONDS - written >= 20)); then
      running=("${left[@]}")
      for stage in "${running[@]}"; do seconds_of[$stage]=$((SECONDS - begin_of[$stage])); done
      write_table "$out"
      written=$SECONDS
    fi
    sleep 0.1
  done
  if [[ -n $broken ]] && ! gpu_answers; then silent=$broken; fi
}

# Somebody ends the whole: what is known so far is written all the same.
stopped() {  # stopped SIGNAL NUMBER
  trap '' TERM INT HUP
  # In a trap a command that fails would end this before there is a table.
  set +e
  local stage item
  for stage in "${running[@]}"; do
    kill -KILL "${process_of[$stage]}" 2>/dev/null || true
    end_leftovers "$stage"
    record "$stage" "$((128 + $2)) (SIG$1 to gpu-check)" $((SECONDS - begin_of[$stage])) 0
  done
  for item in "${stages[@]}"; do
    for stage in ${item//+/ }; do
      [[ -z ${outcome_of[$stage]:-} ]] || continue
      shown+=("$stage")
      printf 'could not run: gpu-check was ended before (SIG%s)\n' "$1" >"$logs/$stage.log"
      record "$stage" 77 0 0
    done
  done
  write_table "$out"
  exit $((128 + $2))
}

# Stages beside each other: STAGE+STAGE. Each has until the sum of the limits of all before it and
# its own, so that what one does not need the next may have, and no more.
run_stages() {
  local item stage until=0 longest limit import
  trap 'stopped TERM 15' TERM
  trap 'stopped INT 2' INT
  trap 'stopped HUP 1' HUP
  # A GPU that nobody has open starts anew with every process, and the first import of PyTorch reads
  # gigabytes.
  nvidia-smi dmon -s pucv -d 1 -o T >"$logs/dmon.log" 2>&1 &
  beside+=("$!")
  timeout --kill-after=5 90 "$python" -c 'import torch, torch._dynamo, torch._inductor.compile_fx
import accelerate' >/dev/null 2>&1 &
  import=$!
  beside+=("$import")
  for item in "${stages[@]}"; do
    say "${item//+/ and }"
    longest=0
    for stage in ${item//+/ }; do
      ((longest >= limit_s[$stage])) || longest=${limit_s[$stage]}
    done
    until=$((until + longest))
    # It measures how long a start takes, and so on a quiet machine.
    [[ $item != *bench* ]] || wait "$import" || true
    limit=$(((until < seconds ? until : seconds) - SECONDS))
    for stage in ${item//+/ }; do start_stage "$stage" "$limit"; done
    write_table "$out"
    await_stages
  done
  write_table "$out"
  [[ -n $all_passed ]]
}
