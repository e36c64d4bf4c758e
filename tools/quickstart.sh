#!/usr/bin/env bash
# From a fresh clone to a trained network: installs what is missing, builds, trains the quickstart job on this machine.
# Usage: tools/quickstart.sh [OPTIONS OF tutti run...]      e.g. tools/quickstart.sh --set train.epochs=1
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

case "${1:-}" in -h | --help)
  sed -n '2,3s/^# //p' "${BASH_SOURCE[0]}"
  exit 0
  ;;
esac
step 1/3 packages "$("$ROOT/tools/setup.sh")"
started=$SECONDS
build tutti tutti-coordinator tutti-worker tutti-shim tutti-rank
step 2/3 build "$PRESET, $(nproc) cores, $(duration $((SECONDS - started)))"
job=configs/jobs/fashion_mnist_cnn.yaml
step 3/3 training "$job on this machine"
echo
cd "$ROOT"
exec "$BUILD/bin/tutti" run "$job" "$@"
