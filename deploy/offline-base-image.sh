#!/usr/bin/env bash
# Builds a substitute for the image python:3.11-slim where images cannot be pulled: Debian with Python, from Debian
# packages. Needs root, a running Docker engine (see engine.sh), and Debian's package debootstrap.
#
#   deploy/offline-base-image.sh paramserver-base:offline
#   BASE_IMAGE=paramserver-base:offline BUILD_NETWORK=host docker compose -f deploy/compose.yaml build
#
# The image contains the certificates and the pip configuration of this machine, so that pip can reach the same package
# index in a build. The configuration may contain a password, and is part of every image built on this one: do not push any
# of them to a registry. Only root can read it.
set -euo pipefail

image=${1:-paramserver-base:offline}
suite=${SUITE:-bookworm}

command -v debootstrap > /dev/null || { echo "offline-base-image.sh: debootstrap is missing (Debian's package debootstrap)" >&2; exit 69; }
[ "$(id -u)" = 0 ] || { echo "offline-base-image.sh: debootstrap needs root" >&2; exit 77; }

folder=$(mktemp --directory "${TMPDIR:-/tmp}/base-image.XXXXXX")
trap 'rm -rf --one-file-system "$folder" "$folder.log"' EXIT
chmod 755 "$folder"

debootstrap --variant=minbase --include=python3,python3-pip,python3-venv,ca-certificates "$suite" "$folder" \
    > "$folder.log" 2>&1 || { tail -n 5 "$folder.log" >&2; exit 1; }

copy() { [ ! -e "$2" ] || install -D --mode "$1" "$2" "$folder${3:-$2}"; }
copy 644 /etc/ssl/certs/ca-certificates.crt
copy 600 /etc/pip.conf
user=$(python3 -c 'import os; print(os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config"))')/pip/pip.conf
copy 600 "$user" /root/.config/pip/pip.conf

# Not needed at run time: downloaded packages, package lists, documentation.
rm -rf "$folder"/var/cache/apt/* "$folder"/var/lib/apt/lists/* "$folder"/var/log/* \
    "$folder"/usr/share/{doc,man,info,locale}/*

tar --directory "$folder" --create . | docker import --change 'CMD ["python3"]' - "$image" > /dev/null
echo "$image: Debian $suite, $(docker run --rm "$image" python3 --version)"
