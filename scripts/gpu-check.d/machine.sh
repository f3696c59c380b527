# Of scripts/gpu-check: what a stage finds on the machine (libraries, GPU, PyTorch), and how it starts
# mtl's programs there.
# shellcheck shell=bash

# The python that has PyTorch; it is not always python3 that does.
python_with_torch() {
  local candidate
  for candidate in python3 python /opt/conda/bin/python3 /opt/{venv,.venv,pytorch}/bin/python3 \
    /venv/bin/python3; do
    "$candidate" -c 'from importlib.util import find_spec as f; raise SystemExit(not f("torch"))' \
      >/dev/null 2>&1 || continue
    printf '%s' "$candidate"
    return
  done
  printf 'python3'
}

# Where the driver's library lies in containers, if it does.
driver_folder() {
  local folder
  for folder in /usr/local/nvidia/lib64 /usr/local/nvidia/lib; do
    [[ -e $folder/libcuda.so.1 ]] || continue
    printf '%s\n' "$folder"
    break
  done
}

# Folders with CUDA's libraries: of the toolkit, those that PyTorch brings, and the driver's where
# the loader may not know it.
cuda_folders() {
  local folder
  for folder in /usr/local/cuda/lib64 /usr/local/cuda/lib; do
    if [[ -d $folder ]]; then printf '%s\n' "$folder"; fi
  done
  "$python" - 2>/dev/null <<'END' || true
import glob, importlib.util, os
folders = []
torch = importlib.util.find_spec("torch")
if torch is not None:
    folders.append(os.path.join(os.path.dirname(torch.origin), "lib"))
nvidia = importlib.util.find_spec("nvidia")
for place in nvidia.submodule_search_locations or [] if nvidia is not None else []:
    folders += sorted(glob.glob(os.path.join(place, "*", "lib")))
for folder in folders:
    if os.path.isdir(folder):
        print(folder)
END
  driver_folder
}

# with_libraries COMMAND...: mtl's programs; not for PyTorch, which has its own.
with_libraries() {
  MTL_CUDA_LIBRARY=$from/libmtl_cuda.so \
    LD_LIBRARY_PATH=$library_path${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} "$@"
}

left_of_stage() { printf '%s' $((MTL_GPU_CHECK_LIMIT - SECONDS - 7)); }
# limited SECONDS COMMAND...: one of mtl's programs, ended before the stage's own time is over,
# which would take along what others have to say.
limited() {
  local seconds=$1 left code=0 words begin=$SECONDS
  left=$(left_of_stage)
  shift
  words=$*
  words=${words:0:160}
  # Without a GPU, and beside others, nothing can be expected to be fast.
  [[ -z $small ]] || seconds=$((4 * seconds))
  ((seconds < left)) || seconds=$left
  if ((seconds <= 0)); then
    printf 'no time is left for: %s\n' "$words"
    return 124
  fi
  with_libraries timeout --kill-after=5 "$seconds" "$@" || code=$?
  # Where memory is short the kernel kills as well, and before that time.
  case $code in
    124 | 137)
      if ((code == 124 || SECONDS - begin >= seconds)); then
        printf 'longer than %s s: %s\n' "$seconds" "$words"
      else
        printf 'ended by SIGKILL, as where memory is short: %s\n' "$words"
      fi ;;
    129 | 13? | 14? | 15?) printf 'ended by SIG%s: %s\n' "$(kill -l $((code - 128)))" "$words" ;;
  esac
  return "$code"
}

first_error() {  # first_error LOG
  grep -m1 -E 'error\[|what\(\):|not measured|longer than|ended by SIG|no time is left' "$1" ||
    tail -n 1 "$1"
}

# compute-sanitizer, if it is here.
sanitizer_program() {
  command -v compute-sanitizer || ls /usr/local/cuda/bin/compute-sanitizer 2>/dev/null
}
# Whether it has said that it cannot work: some virtual machines do not let it see the device, and
# then nothing in it runs.
sanitizer_is_blind() {  # sanitizer_is_blind LOG
  grep -qiE '^=+ *(error: *)?(device not supported|unable to find injection library)' "$1"
}

# Each stage prints what it does; 0 = passed, 77 = could not run (the last line says why).
cannot() {
  printf 'could not run: %s\n' "$1"
  exit 77
}
# Only what says for sure that there is none ends a stage: the programs themselves say more.
need_gpu() {
  if ! command -v nvidia-smi >/dev/null; then
    [[ -e /dev/nvidiactl ]] || cannot 'no nvidia-smi and no /dev/nvidiactl: there is no NVIDIA driver here'
    printf 'no nvidia-smi here\n'
  elif [[ $(nvidia-smi -L 2>/dev/null) != GPU* ]]; then
    cannot 'nvidia-smi shows no GPU'
  fi
}
need() {
  local missing
  [[ -e $1 ]] || cannot "there is no $1 (not built, or not packed)"
  command -v ldd >/dev/null || return 0
  # The loader's own words, of which a program that does not start leaves one.
  missing=$(with_libraries ldd "$1" 2>&1 | grep 'not found' | sed 's/^[[:space:]]*//' | sort -u |
    head -n 4 | paste -sd ';') || true
  [[ -z $missing ]] || cannot "${1##*/} does not find its libraries here: $missing"
}
# With --small PyTorch computes on the CPU.
need_torch() {
  local test='import torch; raise SystemExit(not torch.cuda.is_available())' said code=0
  if [[ -n $small ]]; then test='import torch'; fi
  said=$("$python" -c "$test" 2>&1) || code=$?
  [[ $code -ne 0 ]] || return 0
  cannot "$python has no PyTorch that sees a GPU${said:+: $(tail -n 1 <<<"$said")}"
}

# What earlier stages, of this command or one before, have found to go round what hangs or crashes:
# a line NAME=VALUE each. What the environment says goes before.
take_settings() {
  local name value
  [[ -s $settings ]] || return 0
  while IFS='=' read -r name value; do
    [[ -z ${!name:-} ]] || continue
    [[ $name != MTL_ATTENTION || $value != own ]] || continue
    export "$name=$value"
    printf '%s=%s: what is without it has failed before (%s)\n' "$name" "$value" "$settings"
  done <"$settings"
}
keep_setting() {  # keep_setting NAME VALUE
  { { grep -v "^$1=" "$settings" || true; printf '%s=%s\n' "$1" "$2"; } >"$settings.new" &&
    mv "$settings.new" "$settings"; } 2>/dev/null ||
    printf 'later commands will not know %s=%s (is there room for %s?)\n' "$1" "$2" "$settings"
}

# What a stage that was ended has left: processes in sessions of their own, which would take the next
# one's GPU, and files.
end_leftovers() {  # end_leftovers STAGE
  local found round
  # Again, for what one of them has started meanwhile.
  for round in 1 2 3 4 5; do
    found=$(grep -lszxF "MTL_GPU_CHECK_FILES=$stage_files/$1" /proc/[0-9]*/environ | cut -d/ -f3) ||
      true
    [[ -n $found ]] || break
    xargs kill -KILL <<<"$found" 2>/dev/null || true
  done
  rm -rf "${stage_files:?}/$1"
}

# Whether the GPU still does what it is asked. Behind a kernel that hangs for good every stage would
# wait for its limit. A process that not even SIGKILL ends is not waited for.
answer_s=20
gpu_answers() {
  [[ -x $from/tests/test_runtime_device && -e $from/libmtl_cuda.so ]] || return 0
  local wait_s=$((seconds - SECONDS)) until probe
  ((wait_s > 5)) || wait_s=5
  ((wait_s < answer_s)) || wait_s=$answer_s
  until=$((SECONDS + wait_s))
  MTL_TEST_DEVICE=cuda MTL_ATTENTION=mma with_libraries exec "$from/tests/test_runtime_device" \
    --test-case='copy keeps every bit' >"$logs/answer.log" 2>&1 &
  probe=$!
  disown "$probe"
  while kill -0 "$probe" 2>/dev/null; do
    if ((SECONDS >= until)); then
      kill -KILL "$probe" 2>/dev/null || true
      return 1
    fi
    sleep 0.1
  done
}
