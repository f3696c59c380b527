#!/usr/bin/env bash
# Kills `mtl data tokenize` (kill -9) at random instants, lets the same command go on, and compares
# the corpus with that of a command that nobody interrupted.
#   tests/bench/tokenize_kills.sh MTL [KILLS]
set -euo pipefail
mtl=$1 kills=${2:-50}
scratch=$(mktemp -d "${TMPDIR:-/tmp}/mtl-kills-XXXXXX")
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
awk 'BEGIN { for (i = 0; i < 400000; ++i) printf "{\"text\": \"document %d of many\"}\n", i * 7919 }' >a.jsonl
gzip -1 -c a.jsonl >b.jsonl.gz
zstd -q -c a.jsonl >c.jsonl.zst
head -c 8000000 a.jsonl >d.txt
tokenize() {
  exec "$mtl" data tokenize --tokenizer bytes --journal_every 0.02 --workers 2 -o "$1" a.jsonl b.jsonl.gz \
    c.jsonl.zst d.txt >/dev/null 2>err
}
start=$(date +%s%N)
(tokenize whole)
whole_ms=$((($(date +%s%N) - start) / 1000000))
killed=0 rounds=0 same=0
while ((killed < kills)); do
  while true; do
    tokenize parts &
    pid=$!
    sleep "$(awk -v ms="$whole_ms" -v seed="$RANDOM$killed" 'BEGIN { srand(seed); print rand() * ms / 1000 }')"
    if kill -9 "$pid" 2>/dev/null && ! wait "$pid" 2>/dev/null; then
      killed=$((killed + 1))
      [[ ! -e parts.idx || -e parts.bin ]] || { echo 'an .idx without its .bin'; exit 1; }
      ((killed < kills)) || { (tokenize parts) && break; }
    else
      wait "$pid" 2>/dev/null || true
      break
    fi
  done
  rounds=$((rounds + 1))
  ok=1
  for ending in bin idx tokenizer.json; do cmp -s "whole.$ending" "parts.$ending" || ok=0; done
  # It names the file beside it.
  sed 's/parts[.]/whole./' parts.meta.json | cmp -s - whole.meta.json || ok=0
  [[ ! -e parts.journal.json ]] || ok=0
  same=$((same + ok))
  rm -f parts*
done
printf '%d kills in %d corpora (%d ms each without one): %d of %d equal byte for byte\n' "$killed" \
  "$rounds" "$whole_ms" "$same" "$rounds"
((same == rounds))
