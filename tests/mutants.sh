#!/bin/bash
# mutants.sh - plants the bugs of tests/mutants.txt one at a time, and sees that the tests find each
#
# usage: tests/mutants.sh [NUMBER…]             all of the table without arguments
# A mutant is given to the simulator, then, if that does not find it, to the model and the unit tests; where the table says that
# unit tests find it, to those first (not with SEEDS set). Each line says
# what found it, after how many seeds and seconds. Ends with "N of M mutants caught"; exit status 0 if N = M, else 1.
# Environment: SEEDS (50000), JOBS (mutants at a time), SIM_TIMEOUT and TEST_TIMEOUT (seconds a step). Logs are below
# build/mutants/NUMBER/.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2
unset MAKEFLAGS MFLAGS MAKELEVEL O BUILD CFLAGS

table=tests/mutants.txt
top=build/mutants
seeds=${SEEDS:-50000}
jobs=${JOBS:-$(nproc)}
sim_limit=${SIM_TIMEOUT:-1200} test_limit=${TEST_TIMEOUT:-600} build_limit=600
export CK_DEFAULT_TIMEOUT=${CK_DEFAULT_TIMEOUT:-30}

field() { awk -F ' *[|] *' -v k="$1" -v i="$2" '!/^#/ && $1 + 0 == k { print $i }' "$table"; }
limited() { timeout -k 5 "$@" < /dev/null; }

# Builds $2… (paths below the directory) for BUILD=$1 without a mutant, for the others to start from.
build_plain() {
	local build=$1 dir=$top/plain-$1 targets=("${@:2}")
	mkdir -p "$top"
	limited $build_limit make -j "$jobs" O="$dir" BUILD="$build" "${targets[@]/#/$dir/}" > "$dir.log" 2>&1
}

# Builds mutant $1 in directory $2 with BUILD=$3: the plain objects, but for those the mutant is in.
build_mutant() {
	local k=$1 dir=$2 build=$3 targets=("${@:4}") name f
	name=$(field "$k" 2)
	rm -rf "$dir"
	cp -a "$top/plain-$build" "$dir" || return
	for f in $(grep -l "MUTANT($name)" libiomap/*.c); do
		rm -f "$dir/${f%.c}.o"
	done
	rm -f "$dir"/*.a "${targets[@]/#/$dir/}"
	limited $build_limit make O="$dir" BUILD="$build" CFLAGS=-DIOMAP_MUTANT="$k" "${targets[@]/#/$dir/}" \
		> "$top/$k/build-$build.log" 2>&1
}

# The decision on mutant $1: kept for the end, and a line for who watches.
decide() {
	local k=$1 verdict=$2 text=$3 n
	echo "$verdict" > "$top/$k/verdict"
	n=$(cat "${selected[@]/%//verdict}" 2> /dev/null | wc -l)
	printf '[%2d of %d] %2d %-24s %s, %d s\n' "$n" ${#selected[@]} "$k" "$(field "$k" 2)" "$text" \
		$((SECONDS - start))
}

# Runs one of the later tests: $1 its name for people, then the command. True: it found something.
found_by() {
	local k=$1 what=$2 status log
	log=$top/$k/${what// /-}.log
	shift 2
	rm -rf "$top/$k/tmp"
	mkdir -p "$top/$k/tmp"
	IOMAP_TEST_DIR=$PWD/$top/$k/tmp TMPDIR=$PWD/$top/$k/tmp limited "$test_limit" "$@" > "$log" 2>&1
	status=$?
	rm -rf "$top/$k/tmp"
	[ $status = 0 ] && return 1
	[ $status = 124 ] && what+=" (time-out)"
	decide "$k" caught "caught by the $what$([ "$used" = 0 ] || echo ", not in $used seeds")"
}

try() {
	local k=$1 start=$SECONDS status used=0 sim debug
	sim=$top/$k/sim debug=$top/$k/debug
	rm -rf "${top:?}/$k"
	mkdir -p "$top/$k"
	# What no simulated run has found, and unit tests have, is not looked for there again.
	if [ "$(field "$k" 5)" = 'unit tests' ] && [ -z "${SEEDS:-}" ]; then
		build_mutant "$k" "$debug" debug unit-tests && found_by "$k" 'unit tests' "$debug/unit-tests" && return
		rm -rf "$debug"
	fi
	if ! build_mutant "$k" "$sim" sim iomap-sim; then
		decide "$k" broken "NOT BUILT, see $top/$k/build-sim.log"
		return
	fi
	# caught: status 1; a signal means that it did not even live to say so
	limited "$sim_limit" "$sim/iomap-sim" --seed 1 --count "$seeds" --stop > "$top/$k/sim.log" 2>&1
	status=$?
	used=$(grep '^{' "$top/$k/sim.log" | tail -n 1 | sed -nE 's/.*"seeds": *([0-9]+).*/\1/p')
	used=${used:-?}
	case $status in
	0) ;;
	1)
		decide "$k" caught "caught by the simulator in $used seeds"
		rm -rf "$sim/libiomap" "$sim/tests"
		return ;;
	124 | 137) used="$used (time-out)" ;;
	12[89] | 1[3-9]?)
		decide "$k" caught "caught by the simulator, which died by signal $((status - 128))"
		return ;;
	*)
		decide "$k" broken "the simulator FAILED with status $status, see $top/$k/sim.log"
		return ;;
	esac
	printf '           %2d %-24s not found in %s seeds, %d s; trying the others\n' "$k" "$(field "$k" 2)" \
		"$used" $((SECONDS - start))
	if ! build_mutant "$k" "$debug" debug tests/model/model unit-tests; then
		decide "$k" broken "NOT BUILT, see $top/$k/build-debug.log"
		return
	fi
	found_by "$k" model "$debug/tests/model/model" --seed 1 && return
	found_by "$k" 'unit tests' "$debug/unit-tests" && return
	decide "$k" missed "NOT CAUGHT, $used seeds"
}

numbers=("$@")
[ $# = 0 ] && mapfile -t numbers < <(awk -F '|' '!/^#/ && NF { print $1 + 0 }' "$table")
selected=()
for k in "${numbers[@]}"; do
	name=$(field "$k" 2)
	if [ -z "$name" ] || ! grep -qE "^[[:space:]]$name += $k," libiomap/mutant.h; then
		echo "mutant $k: $table and libiomap/mutant.h do not agree on it" >&2
		exit 2
	fi
	selected+=("$top/$k")
	rm -f "$top/$k/verdict"
done

trap 'kill $(jobs -p) 2> /dev/null; wait; exit 130' INT TERM
echo "${#selected[@]} mutants, $jobs at a time, up to $seeds seeds each"
build_plain sim iomap-sim && build_plain debug tests/model/model unit-tests || {
	echo "the library without a mutant does not build: see $top/plain-*.log" >&2
	exit 2
}
for k in "${numbers[@]}"; do
	while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do
		wait -n
	done
	try "$k" &
done
wait

caught=$(cat "${selected[@]/%//verdict}" 2> /dev/null | grep -cx caught)
echo "$caught of ${#selected[@]} mutants caught"
[ "$caught" = ${#selected[@]} ]
