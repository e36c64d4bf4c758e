#!/usr/bin/env bash
# Installs what is missing, builds everything and runs every test.
# Usage: tools/test.sh [CTEST OPTIONS...]      e.g. tools/test.sh -R engine      TUTTI_PRESET=asan tools/test.sh
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

case "${1:-}" in -h | --help)
  sed -n '2,3s/^# //p' "${BASH_SOURCE[0]}"
  exit 0
  ;;
esac
step 1/3 packages "$("$ROOT/tools/setup.sh")"
started=$SECONDS
build
step 2/3 build "$PRESET, $(nproc) cores, $(duration $((SECONDS - started)))"
step 3/3 tests "ctest, preset $PRESET"
started=$SECONDS
cd "$BUILD"
status=0
ctest --output-on-failure "$@" || status=$?
printf 'tests took %s\n' "$(duration $((SECONDS - started)))"
summary=$("$ROOT/tools/test_summary.py" "$BUILD/Testing/Temporary/LastTest.log")
printf '%s\n' "$summary"
exit $status
