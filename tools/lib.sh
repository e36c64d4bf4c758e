# Shared by the scripts of this folder: sourced, not run.
set -euo pipefail
ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
PRESET=${TUTTI_PRESET:-release}
BUILD="$ROOT/build/$PRESET"

die() {
  printf '%s: %s\n' "$(basename "$0")" "$*" >&2
  exit 1
}

# step NUMBER NAME MESSAGE: one line of progress.
step() { printf '[%s] %-13s %s\n' "$1" "$2" "$3"; }

duration() { # seconds -> 6m12s
  if [ "$1" -ge 60 ]; then printf '%dm%02ds' $(($1 / 60)) $(($1 % 60)); else printf '%ds' "$1"; fi
}

# run_logged LOG COMMAND...: quiet while it works; where it fails, the end of its output and the log's path.
run_logged() {
  local log=$1
  shift
  mkdir -p "$(dirname "$log")"
  if ! "$@" >"$log" 2>&1; then
    tail -n 40 "$log" >&2
    die "failed: $* (whole output: $log)"
  fi
}

# build [TARGET...]: configures where needed and builds; prints nothing when it works.
build() {
  local jobs
  jobs=$(nproc)
  # A gigabyte a compiler process, so that a small machine builds slowly instead of being killed.
  local memory_gib
  memory_gib=$(($(awk '/MemAvailable/ {print $2}' /proc/meminfo) / 1048576))
  [ "$memory_gib" -ge "$jobs" ] || jobs=$((memory_gib > 0 ? memory_gib : 1))
  if [ ! -f "$BUILD/build.ninja" ]; then
    (cd "$ROOT" && run_logged "$BUILD/configure.log" cmake --preset "$PRESET")
  fi
  run_logged "$BUILD/build.log" cmake --build "$BUILD" -j "$jobs" ${1:+--target "$@"}
}
