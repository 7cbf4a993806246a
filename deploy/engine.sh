#!/usr/bin/env bash
# Runs a command with a Docker engine: with the one that answers, or else with one of its own for as long as the command
# takes. For machines without a service manager, such as those of CI; it needs root and Debian's package docker.io.
#
#   deploy/engine.sh make compose-test
#   deploy/engine.sh bash                       # an engine to try things with
#
# The exit code is the command's, or 69 when there is no engine and none can be started. What an engine has changed in
# the machine's packet filter (its chains, and that the machine does not forward for others) stays.
set -euo pipefail

[ $# -gt 0 ] || { sed -n '2,9s/^# \{0,1\}//p' "$0" >&2; exit 64; }

no_engine() { echo "engine.sh: no Docker engine answers, and none can be started: $1" >&2; exit 69; }

command -v docker > /dev/null || no_engine "the command docker is missing"
docker version > /dev/null 2>&1 && exec "$@"
[ "$(id -u)" = 0 ] || no_engine "this is not root"
command -v dockerd > /dev/null || no_engine "dockerd is missing (Debian's package docker.io)"

folder=$(mktemp --directory "${TMPDIR:-/tmp}/engine.XXXXXX")
bridge=""
[ ! -e /sys/class/net/docker0 ] || bridge=kept
dockerd --data-root "$folder/data" --exec-root "$folder/exec" --pidfile "$folder/pid" \
    --host "unix://$folder/docker.sock" > "$folder/log" 2>&1 &
engine=$!

stop() {
    kill "$engine" 2> /dev/null || true
    wait "$engine" || true
    [ "$bridge" ] || ip link delete docker0 2> /dev/null || true
    umount "$folder"/exec/netns/* 2> /dev/null || true
    rm -rf --one-file-system "$folder"
}
trap stop EXIT

export DOCKER_HOST="unix://$folder/docker.sock"
for _ in $(seq 120); do # half a minute: the first start makes the folders and the bridge
    docker version > /dev/null 2>&1 && { answers=yes; break; }
    kill -0 "$engine" 2> /dev/null || break
    sleep 0.25
done
[ "${answers:-}" ] || { tail -n 5 "$folder/log" >&2; no_engine "dockerd ended, or did not answer within 30 s"; }

"$@"
