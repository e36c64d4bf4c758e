# Sourced by the benches whose peer is PyTorch: $TORCH_PYTHON is a private interpreter with the newest PyTorch from PyPI.
TORCH_ENV=${TUTTI_BENCH_ENV:-$ROOT/build/venv-bench}
TORCH_PYTHON=$TORCH_ENV/bin/python
if ! "$TORCH_PYTHON" -c 'import torch, numpy' 2>/dev/null; then
  "$ROOT/tools/setup.sh" python3-venv >/dev/null
  python3 -m venv "$TORCH_ENV"
  run_logged "$ROOT/build/venv-bench.log" "$TORCH_ENV/bin/pip" install --upgrade torch numpy
fi
"$TORCH_PYTHON" -c 'import torch; print("peer: PyTorch", torch.__version__)'
