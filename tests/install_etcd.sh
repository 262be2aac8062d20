#!/usr/bin/env bash
# The tests of the backend `etcd` start a real etcd. This installs it where that is possible without asking anybody: as
# root, with apt-get. Else it says what to install and ends well: the tests are skipped then (with CI=true they fail).
set -euo pipefail

wanted() { # Debian's packages of what is not there
  command -v etcd >/dev/null || echo etcd-server
  command -v etcdctl >/dev/null || echo etcd-client
}

mapfile -t packages < <(wanted)
((${#packages[@]})) || exit 0

advice="Debian and Ubuntu: apt-get install etcd-server etcd-client; elsewhere: put etcd and etcdctl of a release on PATH"
if [[ "$(id -u)" != 0 ]] || ! command -v apt-get >/dev/null; then
  echo "tests: no etcd, so its tests are skipped. To run them: $advice" >&2
  exit 0
fi

# the package starts a service, which would hold port 2379: nothing of ours leaves a daemon behind
policy="${POLICY_RC_D:-/usr/sbin/policy-rc.d}" # the test of this script may not touch the system's
if [[ ! -e "$policy" ]]; then
  trap 'rm -f "$policy"' EXIT
  printf '#!/bin/sh\nexit 101\n' >"$policy"
  chmod 755 "$policy"
fi

echo "tests: installing etcd: apt-get install ${packages[*]} ..." >&2
export DEBIAN_FRONTEND=noninteractive
if ! output="$(apt-get -qq update 2>&1 &&
  apt-get -qq install --yes --no-install-recommends "${packages[@]}" 2>&1)" || [[ -n "$(wanted)" ]]; then
  echo "${output##*$'\n'}" >&2
  echo "tests: etcd could not be installed, so its tests are skipped. To run them: $advice" >&2
elif [[ -d /run/systemd/system && " ${packages[*]} " == *" etcd-server "* ]]; then
  systemctl disable --quiet etcd.service || true # or the machine would start it with itself
fi
