# What the scripts share: where things are, how they speak, packages, configure and build.
# Sourced by bash with `set -euo pipefail`; needs nothing but what a bare Debian 12 has.
# shellcheck shell=bash

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
package_list=$root/packaging/debian-packages.txt
export HOME=${HOME:-/root}  # ccache and git want one, and a CI runner may have none

if [[ -t 1 && -z ${NO_COLOR:-} ]]; then
  bold=$'\e[1m' plain=$'\e[0m'
else
  bold='' plain=''
fi

say() { printf '%s==>%s %s\n' "$bold" "$plain" "$*"; }

# die WHAT HELP [EXIT CODE]: in the form of the program's own errors.
die() {
  printf 'error: %s\n  help: %s\n' "$1" "$2" >&2
  exit "${3:-4}"
}

# logged LOG HELP COMMAND...: runs quietly; shows what matters of the log when the command fails.
logged() {
  local log=$1 help=$2
  shift 2
  mkdir -p "$(dirname "$log")"
  printf '# %s\n' "$*" >"$log"
  "$@" </dev/null >>"$log" 2>&1 && return
  # The first error explains the others; without one, the end has to do.
  { grep -m 1 -A 20 -iE '(^|[^a-z])error\b' "$log" || tail -n 25 "$log"; } | sed 's/^/  | /' >&2
  die "$(printf 'this failed: %s (log: %s)' "$*" "$log")" "$help"
}

# Packages of the given uses ("build", "test", ...), one per line; of all uses when none is given.
packages_for() {
  awk -v uses=" $* " '
    /^[ \t]*(#|$)/ { next }
    NF != 2 { printf "%s:%d: not \"<use> <package>\": %s\n", FILENAME, FNR, $0 > "/dev/stderr"
              bad = 1; exit 1 }
    (uses ~ /^ *$/ || index(uses, " " $1 " ")) && !seen[$2]++ { print $2 }
    END { exit bad }' "$package_list"
}

# Of the packages named on the command line, those that are not installed, one per line.
missing_packages() {
  local installed
  # dpkg-query fails when one of them is unknown to it; what it prints of the others is right.
  # shellcheck disable=SC2016  # ${...} is dpkg-query's own
  installed=$(dpkg-query -W -f '${db:Status-Status} ${Package}\n' "$@" 2>/dev/null || true)
  local package
  for package in "$@"; do
    grep -qxF "installed $package" <<<"$installed" || printf '%s\n' "$package"
  done
}

as_root() {
  if [[ $(id -u) == 0 ]]; then
    "$@"
  else
    sudo "$@"
  fi
}

# Installs what is missing of the given uses; costs a fraction of a second when nothing is.
install_packages() {
  local wanted missing names
  names=$(packages_for "$@") || die "$package_list cannot be read" "restore it from the repository"
  mapfile -t wanted <<<"$names"
  if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    die "this is not a Debian system (no apt-get)" \
      "use Debian 12, or install the counterparts of: ${wanted[*]}"
  fi
  names=$(missing_packages "${wanted[@]}")
  [[ -n $names ]] || return 0
  mapfile -t missing <<<"$names"

  if [[ $(id -u) != 0 ]]; then
    local by_hand="as root, run: apt-get install --no-install-recommends ${missing[*]}"
    command -v sudo >/dev/null || die "packages are missing and this is neither root nor sudo" \
      "$by_hand"
    if [[ ! -t 0 ]] && ! sudo -n true 2>/dev/null; then
      die "packages are missing and sudo asks for a password" "$by_hand"
    fi
    sudo true || die "packages are missing and sudo refuses" "$by_hand"
  fi

  say "installing ${#missing[@]} Debian packages (log: build/logs/apt.log)"
  local log=$root/build/logs/apt.log
  local apt=(env DEBIAN_FRONTEND=noninteractive apt-get -q -y -o Acquire::Retries=3
    -o DPkg::Lock::Timeout=300)
  # An unreachable mirror is only a warning to `update`; the install that follows is the judge.
  mkdir -p "$(dirname "$log")"
  as_root "${apt[@]}" update </dev/null >>"$log" 2>&1 || true
  local attempt
  for attempt in 1 2 3; do
    if as_root "${apt[@]}" install --no-install-recommends "${missing[@]}" </dev/null \
      >>"$log" 2>&1; then
      return 0
    fi
    # A package that the mirror does not have will not appear by waiting.
    if tail -n 20 "$log" | grep -qE '^E: (Unable to locate|Package .* has no installation)'; then
      break
    fi
    if [[ $attempt != 3 ]]; then
      sleep $((attempt * 5))
      as_root "${apt[@]}" update </dev/null >>"$log" 2>&1 || true
    fi
  done
  grep -E '^(E|W|Err):? ?' "$log" | tail -n 8 | sed 's/^/  | /' >&2 || true
  die "the Debian packages could not be installed (log: $log)" \
    "check that this machine reaches its Debian mirror (/etc/apt/sources.list*): apt-get update"
}

# How many compilers fit: one per core, and 1.5 GB of memory each.
build_jobs() {
  local cores memory_kb jobs
  cores=$(nproc)
  memory_kb=$(awk '/^MemAvailable:/ { print $2 }' /proc/meminfo)
  jobs=$((memory_kb / 1500000))
  ((jobs < cores)) || jobs=$cores
  ((jobs > 0)) || jobs=1
  printf '%d\n' "$jobs"
}

# build_into DIR TARGET CMAKE_ARGUMENT...: configures and builds; what is up to date costs nothing.
# MTL_UNITY=ON or OFF says how to compile (CMakeLists.txt); without it a folder keeps its choice.
build_into() {
  local dir=$1 targets
  read -ra targets <<<"$2"
  shift 2
  # A folder that somebody configured with another generator keeps it.
  local generator=(-G Ninja)
  [[ ! -e $dir/CMakeCache.txt ]] || generator=()
  local unity=()
  [[ -z ${MTL_UNITY:-} ]] || unity=("-DMTL_UNITY=$MTL_UNITY")
  logged "$dir/logs/configure.log" "if $dir is stale, remove it and run this again" \
    cmake -S "$root" -B "$dir" "${generator[@]}" "${unity[@]}" "$@"
  cmake --build "$dir" --target "${targets[@]}" --parallel "$(build_jobs)" </dev/null ||
    die "the build failed (see above)" "fix the error and run this again; only what changed is built" 1
}

# clock SECONDS: "1 min 05 s"
clock() {
  if (($1 < 60)); then printf '%d s' "$1"; else printf '%d min %02d s' $(($1 / 60)) $(($1 % 60)); fi
}
