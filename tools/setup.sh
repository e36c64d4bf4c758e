#!/usr/bin/env bash
# Installs the Debian packages of tools/packages.txt that are missing. Quiet when nothing is.
# Usage: tools/setup.sh [EXTRA_PACKAGE...]
source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

command -v apt-get >/dev/null && command -v dpkg-query >/dev/null ||
  die "this script needs Debian's package manager (apt-get); elsewhere, install what tools/packages.txt lists"
mapfile -t wanted < <(sed 's/#.*//' "$ROOT/tools/packages.txt" | grep -v '^ *$')
wanted+=("$@")
missing=()
for package in "${wanted[@]}"; do
  [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || missing+=("$package")
done
present=$((${#wanted[@]} - ${#missing[@]}))
if [ ${#missing[@]} -gt 0 ]; then
  as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || die "root is needed to install: ${missing[*]}"
    as_root=(sudo)
  fi
  log=$(mktemp -t tutti-setup-XXXXXX.log)
  # A stale package list names files that are gone: refresh it and try once more before giving up.
  run_logged "$log" "${as_root[@]}" apt-get update
  run_logged "$log" "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}"
  rm -f "$log"
fi
echo "$present present, ${#missing[@]} installed"
