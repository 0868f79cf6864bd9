# SPDX-License-Identifier: Apache-2.0
# Sourced by the scripts in tools/: where the project is, and one way to speak and to fail.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cd "$root"
jobs=${JOBS:-$(nproc)}
say() { printf '==> %s\n' "$*"; }
die() { printf '%s: %s\n' "$(basename "$0")" "$*" >&2; exit 1; }

# The system's Python first: that is the one for which the distribution packages NumPy and pip.
find_python() {
  local candidate
  for candidate in ${HEED_PYTHON:-} /usr/bin/python3 python3; do
    if "$candidate" -c "$1" >/dev/null 2>&1; then echo "$candidate"; return; fi
  done
  die "no Python 3 that can run: $1"
}
