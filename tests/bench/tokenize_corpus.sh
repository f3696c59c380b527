#!/usr/bin/env bash
# Throughput and memory of `mtl data tokenize` on generated JSON Lines, plain, gzip and zstd, with the
# GPT-2 vocabulary; and of a Python process in the shape of Megatron's preprocess_data.py (a pool of
# encoders, one writer) with Hugging Face's tokenizers on the same files.
#   tests/bench/tokenize_corpus.sh MTL GPT2_FOLDER TEXT [MEGABYTES] [PYTHON MEGATRON]
# GPT2_FOLDER has gpt2-vocab.json and gpt2-merges.txt; TEXT is what the lines are made of.
set -euo pipefail
mtl=$1 gpt2=$2 text=$3 megabytes=${4:-1000} python=${5:-} megatron=${6:-}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
scratch=$(mktemp -d "${TMPDIR:-/tmp}/mtl-bench-XXXXXX")
trap 'rm -rf "$scratch"' EXIT

# Lines of 200 to 4,000 characters, each with a number so that no two are the same.
awk -v bytes=$((megabytes * 1000000)) '
  { gsub(/\\/, "\\\\"); gsub(/"/, "\\\""); gsub(/\t/, "\\t"); gsub(/\r/, ""); source[NR] = $0 }
  END {
    srand(1)
    while (done < bytes) {
      text = "document " ++number; wanted = 200 + int(rand() * 3800); line = 1 + int(rand() * NR)
      while (length(text) < wanted) text = text "\\n" source[1 + (line++ % NR)]
      text = "{\"text\": \"" text "\"}"; print text; done += length(text) + 1
    }
  }' "$text" >"$scratch/in.jsonl"
gzip -1 -k "$scratch/in.jsonl"
zstd -q -k "$scratch/in.jsonl"

measure() {  # measure NAME WORKERS COMMAND...
  local name=$1 workers=$2
  shift 2
  /usr/bin/time -f '%e %U %S %M' -o "$scratch/time" "$@" >/dev/null 2>"$scratch/err" ||
    { cat "$scratch/err"; exit 1; }
  awk -v name="$name" -v workers="$workers" -v bytes="$(stat -c %s "$scratch/in.jsonl")" '
    { printf "%-28s %7d %8.1f s %8.1f MB/s %8.1f MB/s of CPU time %6d MB\n", name, workers, $1,
        bytes / 1e6 / $1, bytes / 1e6 / ($2 + $3), $4 / 1024 }' "$scratch/time"
}

printf '%-28s %7s\n' command workers
for workers in 1 $(nproc); do
  for ending in jsonl jsonl.gz jsonl.zst; do
    measure "mtl $ending" "$workers" "$mtl" data tokenize --tokenizer_vocab "$gpt2/gpt2-vocab.json" \
      --tokenizer_merges "$gpt2/gpt2-merges.txt" --append_eod --fresh --workers "$workers" \
      -o "$scratch/ours" "$scratch/in.$ending"
  done
  [[ -n $python ]] || continue
  measure "python pool, tokenizers" "$workers" "$python" "$here/peers/preprocess.py" "$megatron" \
    "$gpt2" "$scratch/in.jsonl" "$scratch/theirs" "$workers"
  cmp "$scratch/ours.bin" "$scratch/theirs.bin" && cmp "$scratch/ours.idx" "$scratch/theirs.idx" &&
    echo 'the corpora are the same, byte for byte'
done
# One line of a gigabyte, and one document of a gigabyte.
tr -d '\n' <"$scratch/in.jsonl" >"$scratch/line.txt"
measure "mtl, one line" "$(nproc)" "$mtl" data tokenize --tokenizer bytes --fresh --document line \
  -o "$scratch/ours" "$scratch/line.txt"
{ printf '{"text": "'; tr -d '\n"\\' <"$scratch/in.jsonl"; printf '"}\n{"text": "x"}\n'; } \
  >"$scratch/line.jsonl"
measure "mtl, one line of JSON (bad)" "$(nproc)" "$mtl" data tokenize --tokenizer bytes --fresh \
  --skip_bad -o "$scratch/ours" "$scratch/line.jsonl"
