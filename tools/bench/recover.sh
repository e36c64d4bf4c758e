#!/usr/bin/env bash
# Called by tools/bench/run recover: see lifecycle.py (a rank is killed) and restart.py (the coordinator is).
source "$(dirname "${BASH_SOURCE[0]}")/../lib.sh"
"$ROOT/tools/setup.sh" >/dev/null
build tutti tutti-coordinator tutti-worker tutti-shim tutti-rank
source "$ROOT/tools/bench/torch_env.sh"
python3 "$ROOT/tools/bench/lifecycle.py" recover "$BUILD/bin" "$TORCH_ENV/bin" "$@"
python3 "$ROOT/tools/api_stubs.py" "$BUILD/api_stubs"
PYTHONPATH="$BUILD/api_stubs" /usr/bin/python3 "$ROOT/tools/bench/restart.py" "$BUILD/bin"  # Debian's python3-grpcio is its
