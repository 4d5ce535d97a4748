#!/bin/bash
# check-kernel.sh - tests/kernel-twin.c on every file system there is to try
#
# usage, from `make check-kernel`: TWIN=PROGRAM tests/check-kernel.sh [--ops N] [--seeds N] [--seed N]
# First in TMPDIR. Then, where root may mount a loop device, on ext4 and on XFS in an image file below TMPDIR; what was mounted
# is unmounted however this ends. A file system that cannot be tried is named, and why. Fails if one differs, or if none could be tried.
set -uo pipefail
: "${TWIN:?}"

export TMPDIR=${TMPDIR:-/tmp}
seeds=(--seeds 10 --ops 5000)
tried=0 failed=0
top=$(mktemp -d -p "$TMPDIR" check-kernel.XXXXXX) || exit 1

clean_up() {
	local fs
	for fs in ext4 xfs; do
		if mountpoint -q "$top/$fs" 2> /dev/null; then
			umount "$top/$fs" || umount -l "$top/$fs"
		fi
	done
	rm -rf "$top"
}
trap clean_up EXIT
trap 'exit 130' INT TERM HUP

twin() {
	"$TWIN" --dir "$1" "${seeds[@]}" "${@:2}"
	case $? in
	0) tried=$((tried + 1)) ;;
	77) echo "skip $1" ;;
	*) tried=$((tried + 1)) failed=$((failed + 1)) ;;
	esac
}

mkdir "$top/plain"
twin "$top/plain" "$@"

for fs in ext4 xfs; do
	if [ "$(id -u)" != 0 ]; then
		echo "skip $fs: only root may mount an image"
		continue
	fi
	[ $fs = ext4 ] && package=e2fsprogs || package=xfsprogs
	if ! command -v mkfs.$fs > /dev/null && ! tools/deps.sh $package > /dev/null 2>&1; then
		echo "skip $fs: no mkfs.$fs ($package)"
		continue
	fi
	mkdir "$top/$fs"
	if ! { truncate -s 512M "$top/$fs.img" && "mkfs.$fs" -q "$top/$fs.img" &&
		mount -o loop "$top/$fs.img" "$top/$fs"; } > "$top/log" 2>&1; then
		echo "skip $fs: $(tail -n 1 "$top/log")"
		continue
	fi
	twin "$top/$fs" "$@"
	umount "$top/$fs"
done

[ $tried != 0 ] || echo "no file system here could be tried"
[ $failed = 0 ] && [ $tried != 0 ]
