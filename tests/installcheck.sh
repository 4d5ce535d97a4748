#!/bin/bash
# installcheck.sh - what `make install` puts down is enough to build programs with pkg-config, and `make uninstall` takes it away
#
# usage, from `make installcheck`: tests/installcheck.sh
# Installs twice below a directory of its own: with the default paths, and with every path set. In each the program of README.md
# is compiled with what pkg-config says and nothing of this tree, three times: shared, with the static library, all static.
set -uo pipefail
: "${O:?}"
unset MAKEFLAGS MFLAGS MAKELEVEL MAKEOVERRIDES PREFIX DESTDIR LIBDIR INCLUDEDIR PKGCONFIGDIR

passed=0 failed=0
check() {
	local what=$1
	shift
	if "$@" > "$dir/log" 2>&1; then
		passed=$((passed + 1))
		echo "ok $what"
	else
		echo "FAILED: $what: $*"
		sed 's/^/    /' "$dir/log"
		failed=$((failed + 1))
	fi
}
# Passes where nothing is found.
none() {
	if [ -z "$2" ]; then
		passed=$((passed + 1))
		echo "ok $1"
	else
		printf 'FAILED: %s:\n%s\n' "$1" "$2"
		failed=$((failed + 1))
	fi
}

dir=${IOMAP_TEST_DIR:-$(mktemp -d -p "$O")}
dir=$(cd "$dir" && pwd)
[ -n "${IOMAP_TEST_DIR:-}" ] || trap 'rm -rf "$dir"' EXIT
if ! dd if=/dev/zero of="$dir/probe" bs=4096 count=1 oflag=direct 2> /dev/null; then
	echo "no O_DIRECT in $dir: set TEST_DIR to a directory on a disk"
	exit 77
fi
rm -f "$dir/probe"
mkdir "$dir/try"
awk '/^```c$/ {on = 1; n++; next} /^```/ {on = 0} on && n == 1' README.md > "$dir/try/hello.c"

run_in() { (cd "$dir/try" && rm -f hello.bin && "$@" && [ "$(head -c 4 hello.bin)" = kept ]); }
packages() { PKG_CONFIG_SYSROOT_DIR=$root PKG_CONFIG_PATH=$root$pkgconfigdir pkg-config "$@" libiomap; }
compile() { (cd "$dir/try" && ${CC:-gcc} -std=c11 -Wall -Wextra -Werror -o "$@"); }

# one set of paths: $1 a name, the rest variables for make; libdir, includedir, pkgconfigdir say where that must lead
try() {
	local name=$1
	shift
	root=$dir/$name
	# the directories that other software is in, too
	mkdir -p "$root$libdir" "$root$includedir" "$root$pkgconfigdir"
	echo other > "$root$libdir/libother.so"
	find "$root" | sort > "$dir/before"
	check "$name: install" make BUILD="${BUILD:-release}" O="$O" DESTDIR="$root" "$@" install
	check "$name: install again, over it" make BUILD="${BUILD:-release}" O="$O" DESTDIR="$root" "$@" install

	none "$name: installed, and nothing else" "$(diff <({
		echo ".$libdir/libother.so"
		for f in libiomap.a libiomap.so libiomap.so.0 "libiomap.so.$(packages --modversion)"; do
			echo ".$libdir/$f"
		done
		echo ".$pkgconfigdir/libiomap.pc"
		for f in include/iomap/*.h; do echo ".$includedir/${f#include/}"; done
	} | sort) <(cd "$root" && find . ! -type d | sort))"
	none "$name: a path of the build in what is installed" "$(grep -rlF -e "$PWD" -e "$root" "$root$pkgconfigdir" "$root$includedir")"
	[ "$(readelf -d "$root$libdir/libiomap.so" | sed -nE 's/.*SONAME.*\[(.*)\]/\1/p')" = libiomap.so.0 ]
	check "$name: SONAME" test $? = 0
	none "$name: shared libraries that a program must name itself" "$(packages --libs | tr ' ' '\n' | grep '^-l' | grep -vx -- '-liomap')"

	rm -f "$dir"/try/{shared,archive,static}
	check "$name: compile, shared" compile shared hello.c $(packages --cflags --libs)
	check "$name: run, shared" run_in env LD_LIBRARY_PATH="$root$libdir" ./shared
	LD_LIBRARY_PATH=$root$libdir ldd "$dir/try/shared" | grep -F "libiomap.so.0 => $root$libdir/libiomap.so.0" > /dev/null
	check "$name: the shared program has the installed library" test $? = 0
	check "$name: compile, static library" compile archive hello.c $(packages --cflags --static --libs | sed 's/-liomap/-l:libiomap.a/')
	check "$name: run, static library" run_in ./archive
	none "$name: libiomap.so in a program with the static library" "$(ldd "$dir/try/archive" | grep libiomap)"
	check "$name: compile, all static" compile static -static hello.c $(packages --cflags --static --libs)
	check "$name: run, all static" run_in ./static
	none "$name: dynamic section in a static program" "$(readelf -d "$dir/try/static" | grep NEEDED)"

	check "$name: uninstall" make BUILD="${BUILD:-release}" O="$O" DESTDIR="$root" "$@" uninstall
	none "$name: left behind or taken too much" "$(find "$root" | sort | diff "$dir/before" -)"
	check "$name: uninstall where nothing is" make BUILD="${BUILD:-release}" O="$O" DESTDIR="$root" "$@" uninstall
}

libdir=/usr/local/lib includedir=/usr/local/include pkgconfigdir=/usr/local/lib/pkgconfig
try default
libdir=/opt/io/lib64 includedir=/opt/headers pkgconfigdir=/opt/io/share/pkgconfig
try elsewhere PREFIX=/opt/io LIBDIR=$libdir INCLUDEDIR=$includedir PKGCONFIGDIR=$pkgconfigdir

echo "$passed passed, $failed failed"
[ $failed = 0 ]
