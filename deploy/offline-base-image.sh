#!/usr/bin/env bash
# Makes a stand-in for the image python:3.11-slim, where none can be pulled: Debian with Python, from Debian's packages.
# Needs root, a Docker engine that answers (see engine.sh), and Debian's package debootstrap.
#
#   deploy/offline-base-image.sh paramserver-base:offline
#   BASE_IMAGE=paramserver-base:offline BUILD_NETWORK=host docker compose -f deploy/compose.yaml build
#
# This machine's certificates and pip's configuration go into it, so that pip reaches in a build what it reaches here. The
# configuration may have an index's password, and is in every image that is built on this one: do not push any of them
# to a registry. Root alone can read it.
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

# Not needed to run: packages as they were fetched, lists, documents.
rm -rf "$folder"/var/cache/apt/* "$folder"/var/lib/apt/lists/* "$folder"/var/log/* \
    "$folder"/usr/share/{doc,man,info,locale}/*

tar --directory "$folder" --create . | docker import --change 'CMD ["python3"]' - "$image" > /dev/null
echo "$image: Debian $suite, $(docker run --rm "$image" python3 --version)"
