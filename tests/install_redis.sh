#!/usr/bin/env bash
# The tests of examples/rdzv-redis start a real Redis. This installs it where that is possible without asking anybody: as
# root, with apt-get. Else it says what to install and ends well: those tests cannot run then.
set -euo pipefail

present() {
  command -v redis-server >/dev/null && command -v redis-cli >/dev/null
}

present && exit 0

advice="Debian and Ubuntu: apt-get install redis-server redis-tools; elsewhere: put redis-server and redis-cli on PATH"
if [[ "$(id -u)" != 0 ]] || ! command -v apt-get >/dev/null; then
  echo "tests: no Redis, so the tests of examples/rdzv-redis cannot run. To run them: $advice" >&2
  exit 0
fi

# the package starts a service, which would hold port 6379: nothing of ours leaves a daemon behind
policy="${POLICY_RC_D:-/usr/sbin/policy-rc.d}" # the test of this script may not touch the system's
if [[ ! -e "$policy" ]]; then
  trap 'rm -f "$policy"' EXIT
  printf '#!/bin/sh\nexit 101\n' >"$policy"
  chmod 755 "$policy"
fi

echo "tests: installing Redis: apt-get install redis-server redis-tools ..." >&2
export DEBIAN_FRONTEND=noninteractive
if ! output="$(apt-get -qq update 2>&1 &&
  apt-get -qq install --yes --no-install-recommends redis-server redis-tools 2>&1)" || ! present; then
  echo "${output##*$'\n'}" >&2
  echo "tests: Redis could not be installed, so the tests of examples/rdzv-redis cannot run. To run them: $advice" >&2
elif [[ -d /run/systemd/system ]]; then
  systemctl disable --quiet redis-server.service || true # or the machine would start it with itself
fi
