#!/bin/bash
# deps.sh - see that these Debian packages (or what they bring) are there
#
# usage: tools/deps.sh [--optional] PACKAGE…
# Installs what is missing where it can (root and apt), else prints the one line to type and fails; what is optional is only
# spoken of.
set -euo pipefail

optional=
[ "${1:-}" = --optional ] && optional=1 && shift

there() {
	case $1 in
	gcc | g++ | make | clang | pkg-config | fio) command -v "$1" ;;
	gnuplot-nox) command -v gnuplot ;;
	llvm) command -v llvm-symbolizer ;;
	libc6-dev) test -e /usr/include/stdio.h ;;
	liburcu-dev) header urcu-bp.h ;;
	libaio-dev) header libaio.h ;;
	libjemalloc-dev) header jemalloc/jemalloc.h ;;
	libjansson-dev) header jansson.h ;;
	libxxhash-dev) header xxhash.h ;;
	check) header check.h ;;
	*) dpkg-query -W -f='${Status}' "$1" | grep -q 'ok installed' ;;
	esac > /dev/null 2>&1
}

header() { echo "#include <$1>" | ${CC:-gcc} -E - -o /dev/null; }

missing=()
for package in "$@"; do
	there "$package" || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

install="apt-get update && apt-get install -y --no-install-recommends ${missing[*]}"
if [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null; then
	echo "installing: ${missing[*]}"
	export DEBIAN_FRONTEND=noninteractive
	apt-get update -q && apt-get install -qy --no-install-recommends "${missing[@]}" || [ -n "$optional" ]
elif [ -n "$optional" ]; then
	echo "missing, some tests will be skipped: ${missing[*]}"
else
	echo "missing: ${missing[*]}. On Debian or Ubuntu type:" >&2
	echo "    sudo sh -c '$install'" >&2
	exit 1
fi
