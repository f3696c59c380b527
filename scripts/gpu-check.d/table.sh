# Of scripts/gpu-check: the table of the stages with what each of them said, and the archive of all
# logs. Both are written again and again while stages run, so that they are there however it ends.
# shellcheck shell=bash

stage_rows() {
  local stage
  printf '| stage | outcome | seconds | |\n|---|---|---|---|\n'
  for stage in "${shown[@]}"; do
    printf '| %s | %s | %s | %s |\n' "$stage" "${outcome_of[$stage]}" "${seconds_of[$stage]}" \
      "${reason_of[$stage]}"
  done
}
unwritten=
# write_table FILE: from `shown` (stages) and what is known of each of them.
write_table() {
  local stage packed=0
  unwritten=
  {
    printf '# GPU check of %s\n\n' "$(date -u '+%Y-%m-%d %H:%M UTC')"
    printf 'Machine: %s\n\n' "$machine"
    printf 'Commit: %s\n\n' "$(tr '\n' ' ' <<<"$commit" | sed 's/ *$//')"
    printf 'Command: `%s`\n\n' "$command_line"
    clocks
    printf 'All logs and rows: %s\n\n' "${archive##*/}"
    stage_rows
    for stage in "${shown[@]}"; do
      printf '\n## %s\n\n```\n' "$stage"
      # Both ends: of a failure the beginning says more.
      awk '{ line[NR] = $0 }
        END { for (i = 1; i <= NR; ++i) {
          if (i <= 200 || i > NR - 200) print line[i]
          else if (i == 201) printf "... %d lines\n", NR - 400 } }' \
        "$logs/$stage.log" 2>/dev/null || true
      printf '```\n'
    done
  } 2>/dev/null >"$1.new" && mv "$1.new" "$1" || unwritten=yes
  # Of what is being written as much as there is.
  tar -C "$logs" -czf "$archive.new" . 2>/dev/null || packed=$?
  # 1: a file has grown meanwhile. Otherwise, as where the disk is full, the last one is better.
  if ((packed <= 1)); then mv "$archive.new" "$archive"; else unwritten=yes; fi
  rm -f "$1.new" "$archive.new"
}

# What a stage says of itself for the table: bars that were missed, and the first that is wrong.
told_by() {  # told_by LOG
  local wrong missed
  wrong=$(sed -nE "s/^(wrong: |FAILED +)//p" "$1" 2>/dev/null | head -n 4 | paste -sd ";")
  missed=$(sed -n 's/^missed: //p' "$1" 2>/dev/null | paste -sd ';')
  printf '%s' "${wrong:+WRONG: ${wrong//;/; }}${wrong:+${missed:+; }}${missed:+MISSED: ${missed//;/; }}"
}

# record STAGE CODE SECONDS LIMIT
record() {
  local log=$logs/$1.log outcome reason told
  case $2 in
    0) outcome=passed reason= ;;
    77) outcome='not run' reason=$(grep '^could not run: ' "$log" | tail -n 1) ;;
    124 | 137) outcome=FAILED reason="longer than $4 s" ;;
    *) outcome=FAILED reason="exit code $2" ;;
  esac
  reason=${reason#could not run: }
  told=$(told_by "$log")
  reason+="${told:+${reason:+; }$told}"
  outcome_of[$1]=$outcome seconds_of[$1]=$3 reason_of[$1]=${reason//|//}
  [[ $outcome == passed ]] || all_passed=
  printf '    %s: %s%s\n' "$1" "$outcome" "${reason:+: $reason}"
}

# What the GPU's clock was, and what held it back. dmon names its columns in lines that begin with
# #, in some versions apart from the first name.
clocks() {
  awk '/pclk/ { sub(/^# */, ""); for (i = 1; i <= NF; ++i) at[$i] = i; next }
    /^#/ || !at["pclk"] || $at["sm"] < 50 { next }
    { clock = $at["pclk"]; if (!busy++ || clock < low) low = clock; if (clock > high) high = clock
      power += at["pviol"] && $at["pviol"] > 0; heat += at["tviol"] && $at["tviol"] > 0 }
    END { if (busy) printf "Clock of the GPU: %d to %d MHz in %d busy seconds; held back by " \
      "power in %d of them, by heat in %d\n\n", low, high, busy, power, heat }' \
    "$logs/dmon.log" 2>/dev/null || true
}
machine_words() {
  local gpu
  gpu=$(timeout 20 nvidia-smi --query-gpu=name,driver_version --format=csv,noheader 2>/dev/null |
    head -n 1) || true
  printf '%s, %s cores, %s' "${gpu:-no NVIDIA GPU}" "$(env -u OMP_NUM_THREADS nproc)" "$(uname -sr)"
}
