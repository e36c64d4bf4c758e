#!/usr/bin/env bash
# Called by tools/bench/run start: see lifecycle.py.
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"
"$ROOT/tools/setup.sh" >/dev/null
build tutti tutti-coordinator tutti-worker tutti-shim tutti-rank
source "$ROOT/tools/bench/torch_env.sh"
exec python3 "$ROOT/tools/bench/lifecycle.py" start "$BUILD/bin" "$TORCH_ENV/bin" "$@"
