#!/usr/bin/env bash
# A Docker engine of one's own, beside any other: for tests, and where no engine runs as a service. Needs root.
#
#   docker/private_engine.sh start DIR    start it; its socket is DIR/docker.sock; prints the DOCKER_HOST to use
#   docker/private_engine.sh base         make the image luthier-base:bookworm without a registry (mmdebstrap)
#   docker/private_engine.sh stop DIR     end it and its containers, and remove DIR
#
# All that it has lies in DIR: socket, data, pid file, log. Its network is a bridge of its own; it changes no
# firewall, so its containers reach nothing outside, and ports are published on this machine's addresses.
set -euo pipefail

fail() {
  echo "private_engine: $*" >&2
  exit 1
}

# Names of network devices have at most 15 characters.
bridge_of() { echo "lut$(echo "$1" | cksum | cut -d' ' -f1)" | cut -c1-15; }

start() {
  local dir=$1 bridge
  [ "$(id -u)" -eq 0 ] || fail "needs root"
  for program in dockerd containerd runc ip; do
    command -v "$program" >/dev/null || fail "$program is missing; on Debian: apt-get install docker.io iproute2"
  done
  mkdir -p "$dir"
  dir=$(cd "$dir" && pwd)
  [ ! -e "$dir/docker.pid" ] || ! kill -0 "$(cat "$dir/docker.pid")" 2>/dev/null || fail "one runs in $dir already"
  bridge=$(bridge_of "$dir")
  if ! ip link show "$bridge" >/dev/null 2>&1; then
    ip link add "$bridge" type bridge
    # Of 10.201.0.0/16, which a private network seldom has, a part of its own for each engine.
    ip address add "10.201.$(($(echo "$dir" | cksum | cut -d' ' -f1) % 250)).1/24" dev "$bridge"
    ip link set "$bridge" up
  fi
  setsid dockerd --host "unix://$dir/docker.sock" --data-root "$dir/data" --exec-root "$dir/exec" \
    --pidfile "$dir/docker.pid" --bridge "$bridge" --iptables=false --ip6tables=false \
    </dev/null >"$dir/dockerd.log" 2>&1 &
  local engine=$!
  for _ in $(seq 300); do
    if DOCKER_HOST="unix://$dir/docker.sock" docker version >/dev/null 2>&1; then
      echo "DOCKER_HOST=unix://$dir/docker.sock"
      return
    fi
    kill -0 "$engine" 2>/dev/null || break
    sleep 0.1
  done
  kill "$engine" 2>/dev/null || true
  ip link delete "$bridge" 2>/dev/null || true
  fail "the engine did not start; $dir/dockerd.log ends: $(tail -n 1 "$dir/dockerd.log")"
}

stop() {
  local dir=$1 engine
  [ -d "$dir" ] || fail "no folder $dir"
  dir=$(cd "$dir" && pwd)
  [ -e "$dir/dockerd.log" ] || fail "$dir is not an engine's folder"
  if [ -e "$dir/docker.pid" ]; then
    engine=$(cat "$dir/docker.pid")
    DOCKER_HOST="unix://$dir/docker.sock" docker ps --quiet |
      DOCKER_HOST="unix://$dir/docker.sock" xargs --no-run-if-empty docker kill >/dev/null || true
    kill "$engine" 2>/dev/null || true
    for _ in $(seq 300); do
      kill -0 "$engine" 2>/dev/null || break
      sleep 0.1
    done
    kill -9 "$engine" 2>/dev/null || true
  fi
  ip link delete "$(bridge_of "$dir")" 2>/dev/null || true
  # A killed engine leaves mounts.
  awk -v dir="$dir/" 'index($2, dir) == 1 { print $2 }' /proc/self/mounts | sort -r |
    xargs --no-run-if-empty -n 1 umount --lazy 2>/dev/null || true
  rm -rf "$dir"
}

base() {
  command -v mmdebstrap >/dev/null || fail "mmdebstrap is missing; on Debian: apt-get install mmdebstrap"
  mmdebstrap --quiet --variant=minbase --include=python3 bookworm - | docker import - luthier-base:bookworm
}

case "${1:-}:$#" in
  start:2) start "$2" ;;
  stop:2) stop "$2" ;;
  base:1) base ;;
  *) fail "expected start DIR, stop DIR or base; see the head of this file" ;;
esac
