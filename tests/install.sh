#!/usr/bin/env bash
# install.sh etcd|redis|logrotate|slurm|openmpi ...: the tests start real services. This installs them where that is possible
# without asking anybody: as root, with apt-get. Else it says what to install and ends well: `make test` goes on without
# these tests.
set -euo pipefail

wanted() { # Debian's packages of those programs of $1 that are not there
  local each
  for each in $1; do
    command -v "${each%%:*}" >/dev/null || echo "${each#*:}"
  done
}

install() { # NAME, "PROGRAM:PACKAGE ...", its services as "PACKAGE:UNIT ...", what happens without it
  local name=$1 programs=$2 units=$3 without=$4 packages advice policy output unit
  mapfile -t packages < <(wanted "$programs")
  ((${#packages[@]})) || return 0
  advice="Debian and Ubuntu: apt-get install ${packages[*]}; elsewhere: put ${programs//:+([^ ])/} on PATH"
  if [[ "$(id -u)" != 0 ]] || ! command -v apt-get >/dev/null; then
    echo "tests: no $name, so $without. To run them: $advice" >&2
    return 0
  fi

  # the package starts a service, which would hold its port: nothing of ours leaves a daemon behind
  policy="${POLICY_RC_D:-/usr/sbin/policy-rc.d}" # the test of this script may not touch the system's
  if [[ ! -e "$policy" ]]; then
    trap "rm -f '$policy'" EXIT
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
  fi

  echo "tests: installing $name: apt-get install ${packages[*]} ..." >&2
  export DEBIAN_FRONTEND=noninteractive
  if ! output="$(apt-get -qq update 2>&1 &&
    apt-get -qq install --yes --no-install-recommends "${packages[@]}" 2>&1)" || [[ -n "$(wanted "$programs")" ]]; then
    echo "${output##*$'\n'}" >&2
    echo "tests: $name could not be installed, so $without. To run them: $advice" >&2
  elif [[ -d /run/systemd/system ]]; then
    for unit in $units; do # of what was not there before; or the machine would start it with itself
      [[ " ${packages[*]} " != *" ${unit%%:*} "* ]] || systemctl disable --quiet "${unit#*:}" || true
    done
  fi
}

shopt -s extglob
for each; do
  case $each in
    etcd) install etcd "etcd:etcd-server etcdctl:etcd-client" etcd-server:etcd.service "its tests are skipped" ;;
    logrotate) install logrotate "logrotate:logrotate" logrotate:logrotate.timer "its test is skipped" ;;
    redis) install Redis "redis-server:redis-server redis-cli:redis-tools" redis-server:redis-server.service \
      "the tests of examples/rdzv-redis cannot run" ;;
    slurm) install Slurm "slurmctld:slurmctld slurmd:slurmd srun:slurm-client munged:munge" \
      "slurmctld:slurmctld.service slurmd:slurmd.service munge:munge.service" "its tests are skipped" ;;
    openmpi) install "Open MPI 4" "orted:openmpi-bin" "" "its tests are skipped" ;;
    *) echo "usage: $0 etcd|redis|logrotate|slurm|openmpi ..." >&2; exit 2 ;;
  esac
done
