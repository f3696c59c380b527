# Of scripts/gpu-check: the stages that ask whether the engine is right.
# shellcheck shell=bash

stage_info() {
  need_gpu
  timeout 20 nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm,power.limit \
    --format=csv,noheader || true
  # What keeps a second process off the GPU, and what NCCL's sockets between ranks may go by.
  timeout 20 nvidia-smi --query-gpu=compute_mode,mig.mode.current,persistence_mode \
    --format=csv || true
  printf 'network interfaces: %s\n' "$(cd /sys/class/net 2>/dev/null && echo *)"
  awk '/^(MemTotal|MemAvailable):/' /proc/meminfo
  df -h /tmp /dev/shm || true
  with_libraries "$from/mtl" version
  with_libraries "$from/mtl" env
  # Not imported: the first time that takes longer than this stage has.
  "$python" -c 'from importlib.metadata import version; print("PyTorch", version("torch"))' || true
  # What torch.compile needs of a machine.
  "$python" -c 'import os, shutil, sysconfig
header = os.path.join(sysconfig.get_paths()["include"], "Python.h")
compiler = os.environ.get("CC") or shutil.which("gcc") or shutil.which("clang")
print("C compiler:", compiler or "none", header if os.path.exists(header) else "no Python.h")' || true
  need "$from/libmtl_cuda.so"
  with_libraries ldd "$from/libmtl_cuda.so" 2>&1 | grep -i 'cu\|nccl\|not found' || true
}

# What needs no GPU, or the build directory: it has passed where the programs were built.
host_tests="emulator:*,replays:*,device:*,nvml:*,attention choice:*,attention trial:*,\
cuda: dropout's element numbers*,cuda: offsets beyond*,cuda: gelu and its*,cuda: bits depend*,\
cuda device:*,cuda matmul:*,cuda refusals:*,cuda library:*,cuDNN:*,cuDNN's graph:*,results are the same bits*,\
the thread count*,the description names*,calibration measures*,attention: blocks take*,attention: the order*,\
attention: which of*,*every number of threads*,*Philox*words*,cuda products:*,alibi_slope:*,FP8 is there*,\
memory is aligned*,memory that the*,kernel scratch:*,dropout keys*,matmul: operands that the CPU*,\
attention: tensor cores of a GPU with little*"
broken='CRASHED|illegal (memory|address|instruction)|misaligned address|launch failure'
broken+='|launch timed out|invalid program counter|hardware stack error|device-side assert'

# wrong_tests LOG: the tests with an error, each with the first line of it; | between the two.
wrong_tests() {
  awk '/^TEST CASE: / { name = $0; sub(/^TEST CASE: +/, "", name); next }
    / (FATAL )?ERROR: / && name != "" && !seen[name]++ {
      line = $0; sub(/^.*\//, "", line); print name "|" line }' "$1"
}

# The op table. MTL_TEST_DEVICE=cuda makes the program test the GPU's device and say its name; a
# program that does not know the variable would test the CPU and prove nothing.
op_tests() {  # op_tests LOG SECONDS TESTS EXCLUDED PREFIX...
  local log=$1 seconds=$2 tests=$3 without=$4 lines=()
  shift 4
  # Line by line, so that of tests that hang the last one that did not is seen.
  if command -v stdbuf >/dev/null; then lines=(stdbuf -oL); fi
  # Of what it refuses cuBLASLt says why.
  MTL_TEST_DEVICE=cuda CUDA_LAUNCH_BLOCKING=1 CUBLASLT_LOG_LEVEL=${CUBLASLT_LOG_LEVEL:-1} \
    limited "$seconds" "${lines[@]}" "$@" \
    "$from/tests/test_runtime_device" --duration=true --test-case="$tests" \
    --test-case-exclude="$host_tests${without:+,$without}" >"$log" 2>&1
}
# A GPU that has failed fails in every test behind the one that broke it: then again without that.
# A test that hangs or crashes is asked once more by itself, under compute-sanitizer if it is here.
op_table() {  # [excluded=TESTS] op_table LOG SECONDS TESTS [PREFIX...]; 2: not come to its end
  local log=$records/$1.log seconds=$2 tests=$3 code=0 name what round until=$((SECONDS + $2))
  local without=${excluded:-} verdict=0
  shift 3
  for round in 1 2 3 4; do
    code=0
    op_tests "$log" $((until - SECONDS)) "$tests" "$without" "$@" || code=$?
    printf '\n%s, MTL_ATTENTION=%s: exit code %s\n' "${log##*/}" "${MTL_ATTENTION:-}" "$code"
    [[ $code -ne 0 ]] || break
    # First what is wrong, also of compute-sanitizer's: behind it, and before, there are lines for
    # each of the tests that pass.
    grep -nE -B3 -A12 -m8 'ERROR|CRASHED|^=========( |$)' "$log" || true
    printf '... its end:\n'
    tail -n 30 "$log"
    while IFS='|' read -r name what; do
      printf 'wrong: %s: %s (%s)\n' "${log##*/}" "$name" "$what"
    done < <(wrong_tests "$log")
    ((verdict > 0)) || verdict=1
    # 1 is a check that does not hold. Of a signal or the end of its time the program says a status
    # as well, and of a broken GPU that a check does not hold.
    if [[ $code -eq 1 ]] && ! grep -qiE "$broken" "$log"; then return "$verdict"; fi
    verdict=2
    name=$(wrong_tests "$log" | grep -m1 -iE "$broken" | cut -d '|' -f 1) || true
    [[ -n $name && $round -lt 4 ]] || return 2
    # In filters a comma stands between tests.
    name=${name//,/?}
    by_itself "$name" "${log%.log}-$round"
    ((until - SECONDS > 5)) || return 2
    printf 'once more without it\n'
    without+="${without:+,}$name"
    cp "$log" "${log%.log}-$round.log"
  done
  tail -n 12 "$log"
  grep -qi 'device under test: cuda' "$log" ||
    cannot 'test_runtime_device has not tested the GPU (no line "device under test: cuda")'
  return "$verdict"
}
by_itself() {  # by_itself TEST LOG-WITHOUT-ENDING
  local sanitizer=() program code=0
  program=$(sanitizer_program) || true
  if [[ -n $program ]]; then
    sanitizer=("$program" --tool memcheck --report-api-errors no --error-exitcode 9)
  fi
  printf 'by itself%s: %s\n' "${sanitizer:+, under compute-sanitizer}" "$1"
  op_tests "$2-alone.log" 25 "$1" '' "${sanitizer[@]}" || code=$?
  if [[ -n $program ]] && sanitizer_is_blind "$2-alone.log"; then
    printf 'compute-sanitizer does not work on this machine: without it\n'
    code=0
    op_tests "$2-alone.log" 25 "$1" '' || code=$?
  fi
  grep -nE -A20 -m1 '^========= (Invalid|Error|Uninit|.*exception|Program hit)' "$2-alone.log" ||
    tail -n 30 "$2-alone.log"
  printf 'by itself: exit code %s (%s)\n' "$code" "${2##*/}-alone.log"
}

# Hopper's own attention apart from the rest: should it hang, the rest is proven; the backward whose
# blocks wait for one another last.
stage_ops() {
  need_gpu
  need "$from/libmtl_cuda.so"
  need "$from/tests/test_runtime_device"
  local failed= group kernel code others=3 groups=(fp8 matmul attention rest) pids=()
  export MTL_ATTENTION=mma
  keep_setting MTL_ATTENTION mma
  # At once: most of their time goes to the host's references, in one thread. What hangs leaves Hopper's
  # kernels their time.
  local seconds=$(($(left_of_stage) * 55 / 100))
  for group in fp8 matmul attention; do
    op_table "ops-$group" "$seconds" "$group:*" >"$scratch/$group" 2>&1 &
    pids+=("$!")
  done
  excluded='fp8:*,matmul:*,attention:*' op_table ops-rest "$seconds" "$rest" >"$scratch/rest" 2>&1 &
  pids+=("$!")
  for group in "${!groups[@]}"; do
    code=0
    wait "${pids[group]}" || code=$?
    cat "$scratch/${groups[group]}"
    [[ $code -ne 77 ]] || exit 77
    [[ $code -eq 0 ]] || failed=yes
  done
  # cuDNN compiles for each shape, two thirds of a second forward and as long backward. It is
  # somebody else's: what it refuses is worth knowing, and no failure of ours.
  MTL_ATTENTION=cudnn op_table ops-cudnn $(($(left_of_stage) - 2)) 'attention: forward and backward*' \
    >"$scratch/cudnn" 2>&1 &
  pids=("$!")
  for kernel in split own; do
    code=0
    MTL_ATTENTION=$kernel op_table "ops-$kernel" $(($(left_of_stage) / others)) \
      'attention:*' || code=$?
    others=$((others - 1))
    [[ $code -eq 0 ]] || failed=yes
    [[ $code -eq 2 ]] || keep_setting MTL_ATTENTION "$kernel"
  done
  wait "${pids[0]}" || true
  sed 's/^wrong: //' "$scratch/cudnn"
  printf "cuDNN's attention: see above, it does not count\n"
  [[ -z $failed ]]
}

# A few steps of tiny models on the CPU and on the GPU, with all that a step has (graphs, our newest
# attention, FP8, Muon, adapters, targets that do not count). Where they fail: which switch goes round it, and which op it is.
stage_smoke() {
  need_gpu
  need "$from/libmtl_cuda.so"
  need "$from/bench/train_gpu"
  local failed= shape switch healed why words asked= op
  local shapes=(tiny tiny-llama tiny-fp8 tiny-asks tiny-llama-muon tiny-lora)
  take_settings
  MTL_DEVICE=cpu limited 15 "$from/bench/train_gpu" --no-parts --json "$records/smoke-cpu.jsonl" \
    "${shapes[@]}" >"$records/smoke-cpu.log" 2>&1 || tail -n 5 "$records/smoke-cpu.log"
  for shape in "${shapes[@]}"; do
    smoke_holds "$shape" '' && continue
    failed=yes
    healed= words= op=
    why=$(<"$scratch/why")
    # What does not fail every time, or was only slow, needs no switch. What no switch has gone round
    # is not asked again: that takes its time where something hangs.
    if smoke_holds "$shape" ''; then
      words='not the second time'
    elif [[ -z $asked ]]; then
      asked=yes words='whatever is switched off'
      for switch in MTL_CUDA_GRAPHS=off MTL_ATTENTION=mma 'MTL_CUDA_GRAPHS=off MTL_ATTENTION=mma'; do
        smoke_holds "$shape" "$switch" || continue
        healed=$switch words="not with $switch"
        break
      done
      [[ -n $healed || $(left_of_stage) -gt 0 ]] || words=
      which_op "$shape"
    fi
    [[ $why != 'no time is left'* ]] || continue
    printf 'wrong: smoke %s: %s%s\n' "$shape" "${words:+$words: }" "$why${op:+, $op}"
    # For the stages behind: else they would show the same once more, and nothing else.
    for switch in $healed; do
      keep_setting "${switch%%=*}" "${switch#*=}"
      export "${switch?}"
    done
  done
  [[ -z $failed ]]
}
smoke_holds() {  # smoke_holds SHAPE SETTINGS
  local code=0 log=$records/smoke-$1.log
  rm -f "$scratch/row"
  # shellcheck disable=SC2086  # of several settings each is a word
  MTL_DEVICE=cuda limited 12 env $2 "$from/bench/train_gpu" --no-parts --json "$scratch/row" "$1" \
    >"$log" 2>&1 || code=$?
  if [[ $code -ne 0 || ! -s $scratch/row ]]; then
    grep -q 'multiplies no FP8' "$log" && return
    printf '%s%s: exit code %s\n' "$1" "${2:+ with $2}" "$code"
    first_error "$log" >"$scratch/why"
    tail -n 12 "$log"
    return 1
  fi
  # A line of JSON each, keys in order.
  sed -nE 's/.*"loss":([^,]*),.*"shape":"([^"]*)".*"variant":"([a-z0-9+]*).*/\2 \3 \1/p' \
    "$records/smoke-cpu.jsonl" "$scratch/row" |
    awk -v words="$1${2:+ with $2}" '{ name = $1 " " $2; last = name; mine = $3
        if (!(name in cpu)) { cpu[name] = $3; alone[name] = 1 } else alone[name] = 0 }
      END { far = mine / cpu[last] - 1; if (far < 0) far = -far
        holds = !alone[last] && mine + 0 == mine && far <= 0.01
        printf "%s: loss %s, on the CPU %s%s\n", words, mine, alone[last] ? "none" : cpu[last],
          holds ? "" : ": too far"
        exit !holds }' | tee "$scratch/why"
}
# which_op SHAPE [SECONDS]: its step op by op; `op` is the one that fails or takes long, with its tensors.
which_op() {
  printf '%s op by op:\n' "$1"
  MTL_DEVICE=cuda CUDA_LAUNCH_BLOCKING=1 CUBLASLT_LOG_LEVEL=${CUBLASLT_LOG_LEVEL:-1} \
    limited "${2:-20}" "$from/bench/train_gpu" --ops "$1" >"$records/op-$1.log" 2>&1 || true
  tail -n 12 "$records/op-$1.log"
  op=$(grep -m1 -oE 'note: in .*|takes long: .*' "$records/op-$1.log") ||
    op=$(grep -q ' step 2: ' "$records/op-$1.log" && echo 'op by op it runs') || true
}

# Each part by itself and all of them at once, for a memory checker's time goes to instructions that
# it has put in. What does not come to its end is clean as far as it came.
stage_sanitizer() {
  need_gpu
  need "$from/libmtl_cuda.so"
  need "$from/tests/test_runtime_device"
  local sanitizer failed= part code parts=() pids=()
  sanitizer=$(sanitizer_program) || cannot 'there is no compute-sanitizer here'
  take_settings
  local memory=("$sanitizer" --tool memcheck --report-api-errors no --error-exitcode 9)
  local races=("$sanitizer" --tool racecheck --error-exitcode 9)
  sanitized() {  # sanitized NAME TESTS EXCLUDED COMMAND...
    local name=$1 tests=$2 without=$3
    shift 3
    parts+=("$name")
    op_tests "$records/$name.log" 900 "$tests" "$without" "$@" &
    pids+=("$!")
  }
  # Products are cuBLASLt's kernels, a thousand of them. What libraries ask of CUDA in vain is theirs.
  sanitized memcheck-attention 'attention:*' '' "${memory[@]}"
  sanitized memcheck-fp8 'fp8:*' 'fp8: products*,fp8: a scale*' "${memory[@]}"
  sanitized memcheck-experts '*expert*' '' "${memory[@]}"
  sanitized memcheck "$rest" 'matmul:*,fp8:*,attention:*,*expert*' "${memory[@]}"
  MTL_ATTENTION=mma sanitized racecheck 'attention:*,*embedding*,bias_grad*,*norm*,*sum*' '' \
    "${races[@]}"
  # The copy engine writes by another way than threads do, which the tool may not follow.
  sanitized racecheck-hopper 'attention: stages*' '' "${races[@]}"
  for part in "${!parts[@]}"; do
    code=0
    wait "${pids[part]}" || code=$?
    sanitized_says "${parts[part]}" "$code" || failed=yes
  done
  [[ -z $failed ]]
}
sanitized_says() {  # sanitized_says NAME CODE
  local log=$records/$1.log
  ! sanitizer_is_blind "$log" ||
    cannot "compute-sanitizer does not work on this machine ($1.log)"
  printf '\n%s, MTL_ATTENTION=%s: exit code %s, %s tests done\n' "$1" "${MTL_ATTENTION:-}" "$2" \
    "$(grep -cE '^[0-9.]+ s: ' "$log" || true)"
  [[ $2 -ne 0 ]] || { tail -n 6 "$log"; return 0; }
  if [[ $2 -eq 124 || $2 -eq 137 ]] &&
    ! grep -qE '^========= (Invalid|Error|Uninit|Race|.*hazard|Program hit)' "$log"; then
    printf 'missed: %s has not come to its end, clean as far as it came\n' "$1"
    return 0
  fi
  grep -nE -A24 -m2 '^========= (Invalid|Error|Uninit|Race|.*hazard|Program hit)|ERROR: ' "$log" ||
    tail -n 30 "$log"
  if [[ $1 == racecheck-hopper ]]; then
    printf 'racecheck of the kernels for Hopper: see above, it does not count\n'
    return 0
  fi
  printf 'wrong: %s: %s\n' "$1" \
    "$(grep -m1 -E '^========= (Invalid|Error|Race|Program hit)|ERROR: ' "$log" || echo "exit code $2")"
  return 1
}

# PyTorch's start, files and the host's part of tiny steps are most of it: both at once.
stage_parity() {
  need_gpu
  take_settings
  need "$from/libmtl_cuda.so"
  need_torch
  local failed= part pids=()
  # Into the log as they come: each line says what it is of.
  "$python" -u "$root/tests/reference/gpu_parity.py" "$launcher" --device "$torch_device" $small &
  pids+=("$!")
  "$python" -u "$root/tests/reference/gpu_parity.py" "$launcher" --fp8 $small &
  pids+=("$!")
  for part in "${pids[@]}"; do wait "$part" || failed=yes; done
  [[ -z $failed ]]
}
# Under NCCL; ranks on one GPU pretend to be of different hosts (MTL_SHARE_GPU).
stage_ranks() {
  need_gpu
  take_settings
  need "$from/libmtl_cuda.so"
  need_torch
  # Who waits for another in vain says so, and with what, while there is time to hear it.
  export MTL_COMM_TIMEOUT_S=20
  # An error of NCCL is one word; what led to it are its warnings.
  export NCCL_DEBUG=${NCCL_DEBUG:-WARN}
  MTL_SHARE_GPU=1 "$python" -u "$root/tests/reference/gpu_parity.py" "$launcher" --ranks
}
