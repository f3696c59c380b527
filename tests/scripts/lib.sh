# What the tests of scripts/ share: a folder of their own, and what is checked and counted.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
failures=0

check() {  # check NAME EXPECTED ACTUAL
  [[ $2 == "$3" ]] && return
  printf 'FAILED: %s\n  expected: %q\n  actual:   %q\n' "$1" "$2" "$3"
  failures=$((failures + 1))
}
contains() {  # contains NAME PART WHOLE
  [[ $3 == *"$2"* ]] && return
  printf 'FAILED: %s\n  expected a part: %q\n  actual: %q\n' "$1" "$2" "$3"
  failures=$((failures + 1))
}
# stub FILE: a program of what stands on stdin.
stub() { cat >"$1"; chmod +x "$1"; }
status() { local code=0; "$@" >/dev/null 2>&1 || code=$?; printf '%d' "$code"; }
all_checked() {  # the last line of every one of them
  [[ $failures == 0 ]] || { echo "$failures checks failed"; exit 1; }
  echo 'all checks passed'
}
