#!/usr/bin/env bash
# Called by tools/bench/run allreduce: all-reduce between two ranks of this host, Tutti's shared memory and OpenMPI by turns.
# Microseconds per call, medians over ROUNDS (default 7). Both reduce plain private memory in place, each rank bound to a core.
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"

"$ROOT/tools/setup.sh" >/dev/null
if ! command -v mpicxx >/dev/null || ! command -v mpirun >/dev/null; then
  sudo=$([ "$(id -u)" -eq 0 ] || echo sudo)
  DEBIAN_FRONTEND=noninteractive run_logged "$BUILD/openmpi.log" $sudo apt-get install -y --no-install-recommends openmpi-bin libopenmpi-dev
fi
build allreduce_tutti
run_logged "$BUILD/allreduce_mpi.log" mpicxx -O2 -std=c++17 -o "$BUILD/bin/allreduce_mpi" "$ROOT/tools/bench/allreduce_mpi.cc"

rounds=${ROUNDS:-7}
tutti() { "$BUILD/bin/allreduce_tutti" 2 "$@"; }
peer() {
  OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 mpirun -np 2 --bind-to core "$BUILD/bin/allreduce_mpi" "$@" 2>/dev/null
}

measure() { # CASE BYTES ITERATIONS
  local results
  results=$(for _ in $(seq "$rounds"); do
    echo "$(tutti "$2" "$3") $(peer "$2" "$3") $(tutti "$2" "$3" window)"
  done)
  python3 - "$1" <<PY
import statistics, sys
rows = [list(map(float, line.split())) for line in """$results""".splitlines()]
tutti, peer, window = (statistics.median(column) for column in zip(*rows))
print(f"# {sys.argv[1]}: rounds tutti/peer/window us: " + " ".join("/".join(f"{x:.1f}" for x in row) for row in rows), file=sys.stderr)
print(f"# {sys.argv[1]} inside the shared window: {window:.2f}us", file=sys.stderr)
print(f"allreduce {sys.argv[1]} tutti={tutti:.2f}us peer={peer:.2f}us ratio={peer / tutti:.2f}")
PY
}

mpirun --version | head -n 1
large=$(measure 64MiB $((64 << 20)) 10)
small=$(measure 4KiB 4096 20000)
echo "$large"
echo "$small"
