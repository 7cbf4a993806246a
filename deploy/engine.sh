#!/usr/bin/env bash
# Runs a command with a Docker engine: with the one that answers, or else with one of its own for as long as the command
# takes. For machines without a service manager, such as those of CI; it needs root and Debian's package docker.io.
#
#   deploy/engine.sh make compose-test
#   deploy/engine.sh bash                       # an engine to try things with
#
# The exit code is the command's, or 69 when there is no engine and none can be started. Ctrl-C and SIGTERM are for the
# command: the engine stays until it has ended. What an engine has changed in the machine's packet filter (its chains,
# and that the machine does not forward for others) stays.
set -euo pipefail

[ $# -gt 0 ] || { sed -n '2,10s/^# \{0,1\}//p' "$0" >&2; exit 64; }

no_engine() { echo "engine.sh: no Docker engine answers, and none can be started: $1" >&2; exit 69; }

command -v docker > /dev/null || no_engine "the command docker is missing"
docker version > /dev/null 2>&1 && exec "$@"
[ "$(id -u)" = 0 ] || no_engine "this is not root"
command -v dockerd > /dev/null || no_engine "dockerd is missing (Debian's package docker.io)"

engine="" folder="" bridge=""
[ ! -e /sys/class/net/docker0 ] || bridge=kept

# shellcheck disable=SC2317 # the trap calls it
stop() {
    trap '' HUP INT QUIT TERM # it is short, and must not be left undone
    if [ "$engine" ]; then
        kill "$engine" 2> /dev/null || true
        # It gives its containers 15 s to end.
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

# In a session of its own, which a terminal's Ctrl-C does not reach.
setsid dockerd --data-root "$folder/data" --exec-root "$folder/exec" --pidfile "$folder/pid" \
    --host "unix://$folder/docker.sock" < /dev/null > "$folder/log" 2>&1 &
engine=$!

export DOCKER_HOST="unix://$folder/docker.sock"
for _ in $(seq 120); do # half a minute: the first start makes the folders and the bridge
    docker version > /dev/null 2>&1 && { answers=yes; break; }
    kill -0 "$engine" 2> /dev/null || break
    sleep 0.25
done
[ "${answers:-}" ] || { tail -n 5 "$folder/log" >&2; no_engine "dockerd ended, or did not answer within 30 s"; }

# Signals of a terminal go to all processes in its foreground: the command gets them by itself, and this shell must only
# not end of them. SIGTERM comes to this shell alone. It looks whether the command is there, since a `wait` that a signal
# interrupts sometimes hangs when it is begun again (bash 5.2).
trap '' HUP INT QUIT
( trap - HUP INT QUIT; exec "$@" ) <&0 &
command=$!
trap 'kill "$command" 2> /dev/null || true' TERM
while kill -0 "$command" 2> /dev/null; do sleep 0.2 || true; done
code=0
wait "$command" || code=$?
exit "$code"
