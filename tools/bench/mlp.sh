#!/usr/bin/env bash
# Called by tools/bench/run mlp: see train_speed.py. Arguments: --rounds N, --steps N.
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"
"$ROOT/tools/setup.sh" >/dev/null
build tutti tutti-coordinator tutti-worker tutti-shim tutti-rank
source "$ROOT/tools/bench/torch_env.sh"
exec python3 "$ROOT/tools/bench/train_speed.py" mlp "$BUILD/bin" "$TORCH_PYTHON" "$@"
