#!/usr/bin/env bash
# Runs a command with a Docker engine: the running one, or else a temporary one that ends with the command. For machines
# without a service manager, such as those of CI; a temporary engine needs root and Debian's package docker.io.
#
#   deploy/engine.sh make compose-test
#   deploy/engine.sh bash                       # an interactive shell with an engine
#
# The exit code is that of the command, or 69 if there is no engine and none can be started. Ctrl-C and SIGTERM go to the
# command; the engine runs until it has ended. Changes of an engine to the machine's packet filter (its chains, and the
# forwarding policy) persist.
set -euo pipefail

[ $# -gt 0 ] || { sed -n '2,10s/^# \{0,1\}//p' "$0" >&2; exit 64; }

no_engine() { echo "engine.sh: no Docker engine is running, and none can be started: $1" >&2; exit 69; }

command -v docker > /dev/null || no_engine "the command docker is missing"
docker version > /dev/null 2>&1 && exec "$@"
[ "$(id -u)" = 0 ] || no_engine "root is required"
command -v dockerd > /dev/null || no_engine "dockerd is missing (Debian's package docker.io)"

engine="" folder="" bridge=""
[ ! -e /sys/class/net/docker0 ] || bridge=kept

# shellcheck disable=SC2317 # the trap calls it
stop() {
    trap '' HUP INT QUIT TERM # short, and must complete
    if [ "$engine" ]; then
        kill "$engine" 2> /dev/null || true
        # The engine gives its containers 15 s to end.
        timeout 60 tail --pid="$engine" --sleep-interval=0.1 --follow /dev/null || kill -KILL "$engine" || true
        wait "$engine" || true
        [ "$bridge" ] || ip link delete docker0 2> /dev/null || true
    fi
    umount "$folder"/exec/netns/* "$folder/data" 2> /dev/null || true
    rm -rf --one-file-system "$folder" || true
}
trap 'exit 129' HUP
trap 'exit 130' INT
trap 'exit 143' TERM
folder=$(mktemp --directory "${TMPDIR:-/tmp}/engine.XXXXXX")
trap stop EXIT

# In a separate session, which Ctrl-C in a terminal does not reach.
setsid dockerd --data-root "$folder/data" --exec-root "$folder/exec" --pidfile "$folder/pid" \
    --host "unix://$folder/docker.sock" < /dev/null > "$folder/log" 2>&1 &
engine=$!

export DOCKER_HOST="unix://$folder/docker.sock"
for _ in $(seq 120); do # 30 s: the first start creates the folders and the bridge
    docker version > /dev/null 2>&1 && { answers=yes; break; }
    kill -0 "$engine" 2> /dev/null || break
    sleep 0.25
done
[ "${answers:-}" ] || { tail -n 5 "$folder/log" >&2; no_engine "dockerd ended, or did not respond within 30 s"; }

# A terminal sends signals to all foreground processes: the command receives them directly, and this shell ignores them.
# SIGTERM reaches this shell only, which forwards it. The loop polls, because a `wait` interrupted by a signal sometimes
# hangs when it is repeated (bash 5.2).
trap '' HUP INT QUIT
( trap - HUP INT QUIT; exec "$@" ) <&0 &
command=$!
trap 'kill "$command" 2> /dev/null || true' TERM
while kill -0 "$command" 2> /dev/null; do sleep 0.2 || true; done
code=0
wait "$command" || code=$?
exit "$code"
