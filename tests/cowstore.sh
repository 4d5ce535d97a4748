#!/bin/bash
# cowstore.sh - examples/cowstore as its users see it: commands, errors, damage, kill -9
set -uo pipefail
: "${O:?}"

cow=$PWD/$O/examples/cowstore/cowstore
passed=0 failed=0
ok() { passed=$((passed + 1)); }
bad() {
	echo "FAILED: $*"
	failed=$((failed + 1))
}
# says WORDS COMMAND…: it fails and its error has WORDS in it
says() {
	local words=$1 text
	shift
	if text=$("$@" 2>&1 > /dev/null < /dev/null); then
		bad "$*: succeeds"
	elif [[ $text != *"$words"* ]]; then
		bad "$*: does not say \"$words\" but: $text"
	else
		ok
	fi
}
# same FILE NAME: the object has the file's bytes
same() { if cmp -s "$1" <("$cow" "${cache[@]}" "$store" get "$2"); then ok; else bad "$2 is not $1"; fi; }
clean() { if "$cow" "${cache[@]}" "$store" verify > /dev/null; then ok; else bad "verify: $1"; fi; }
cow() { "$cow" "${cache[@]}" "$store" "$@" || bad "cowstore $*: exit $?"; }

dir=${IOMAP_TEST_DIR:-$(mktemp -d -p "$O")}
cd "$dir" || exit 1
if ! dd if=/dev/zero of=probe bs=4096 count=1 oflag=direct 2> /dev/null; then
	echo "no O_DIRECT in $dir: set TEST_DIR to a directory on a disk"
	exit 77
fi
store=store cache=()

# --- commands ---------------------------------------------------------------------------------------------------
for size in 0 1 4095 4096 4097 1048576 1048577 3000001; do
	head -c $size /dev/urandom > "in.$size"
	cow put "size $size" "in.$size"
done
for size in 0 1 4095 4096 4097 1048576 1048577 3000001; do
	same "in.$size" "size $size"
done
clean "after put"
cow snapshot first
cow put "size 4097" - < in.4095
cow put new < in.4097
cow rm "size 4096"
cow rm "size 1048577"
same in.4095 "size 4097"
same in.4097 "size 4097@first"
same in.4096 "size 4096@first"
same in.1048577 "size 1048577@first"
says "No such file" "$cow" "$store" get "size 4096"
says "No such file" "$cow" "$store" get new@first
clean "after snapshot and rm"
[ "$("$cow" "$store" ls | grep -c size)" = 6 ] && ok || bad "ls: $("$cow" "$store" ls)"
[ "$("$cow" "$store" ls @first | grep -c size)" = 8 ] && ok || bad "ls @first"
"$cow" "$store" ls | grep -q ' @first$' && ok || bad "ls does not name the snapshot"

# space comes back: with everything removed, only the roots and the lists are left
free() { "$cow" "$store" stat | awk '$1 == "free_bytes" {print $2}'; }
before=$(free)
cow rm @first
[ "$(free)" -gt $((before + 1000000)) ] && ok || bad "rm @first frees $(($(free) - before)) bytes"
for name in "size 0" "size 1" "size 4095" "size 4097" "size 1048576" "size 3000001" new; do
	cow rm "$name"
done
used=$(("$("$cow" "$store" stat | awk '$1 == "size_bytes" {print $2}')" - $(free)))
[ "$used" -le $((8 * 4096)) ] && ok || bad "an empty store uses $used bytes"
clean "after rm"

# many objects, one after the other
for i in $(seq 50); do
	echo "$i" | "$cow" "$store" put "many $i" || bad "put many $i"
done
[ "$("$cow" "$store" ls | wc -l)" = 50 ] && [ "$("$cow" "$store" get "many 37")" = 37 ] && ok || bad "50 objects"
clean "50 objects"

# larger than the cache
cache=(-m 2m)
head -c 40000000 /dev/urandom > large
cow put large large
same large large
head -c 30000000 /dev/urandom > large2
cow snapshot large
cow put large large2
same large2 large
same large large@large
clean "large"
cache=()

# --- errors -----------------------------------------------------------------------------------------------------
says "No such file" "$cow" none get x
says "not a store" "$cow" large get x
says "exists already" "$cow" store create
says "not a size" "$cow" other create 10q
says "not a name" "$cow" store put "a@b"
says "not a name" "$cow" store put ""
says "not a name" "$cow" store put "$(printf '%0201d' 0)"
says "File exists" "$cow" store snapshot large
says "No such file" "$cow" store rm nothing
says "No such file" "$cow" store rm @nothing
says "no such command" "$cow" store frobnicate
says "usage" "$cow" store get
says "No such file" "$cow" store put x no-such-file
exec 9< store
flock 9
says "another process" "$cow" store ls
exec 9<&-
[ ! -e other ] && ok || bad "a store that could not be made was left"

# a full store: nothing changes, and after rm there is room again
store=small
cow create 8m
head -c 5000000 large > five
cow put five five
says "no space" "$cow" small put another five
says "no space" "$cow" small put five five
same five five
clean "full"
cow rm five
cow put another five
same five another
clean "after full"

# --- damage: it is told, and hurts nobody else ----------------------------------------------------------------------
cow put text < <(yes "these are the contents of an object" | head -c 9000)
cp small broken
offset=$(LC_ALL=C grep -obUa -m1 "these are the contents of an object" broken | head -n1 | cut -d: -f1)
printf 'X' | dd of=broken bs=1 seek=$((offset + 5000)) conv=notrunc 2> /dev/null
says "checksum" "$cow" broken verify
says "checksum" "$cow" broken get text
[ "$("$cow" broken get another | cmp - five && echo same)" = same ] && ok || bad "damage of one object hurts another"
# a root slot lost: the other one still opens
cp small broken
generation=$("$cow" broken stat | awk '$1 == "commits" {print $2}')
dd if=/dev/zero of=broken bs=4096 seek=$(((generation + 1) % 2)) count=1 conv=notrunc 2> /dev/null
"$cow" broken verify > /dev/null && ok || bad "the older root is missed"
dd if=/dev/zero of=broken bs=4096 count=2 conv=notrunc 2> /dev/null
says "not a store" "$cow" broken verify

# --- kill -9 ----------------------------------------------------------------------------------------------------
# Objects a and b are put again and again, with a snapshot now and then, until somebody kills the program: whatever the
# moment, each is whole, old or new, and what was there at a snapshot still is.
store=killed cache=(-m 2m)
cow create 256m
for v in 0 1 2 3; do
	head -c $((3000000 + v * 777777)) /dev/urandom > "v.$v"
done
sha256sum v.* | cut -d' ' -f1 > sums
cow put a v.0
cow put b v.1
cow snapshot kept
rounds=12
[ -n "${IOMAP_TEST_LONG:-}" ] && rounds=500
kills=0
set -m          # a job is a process group, so that the program it runs is killed with it
for round in $(seq $rounds); do
	(
		for v in 0 1 2 3 0 1 2 3; do
			"$cow" "${cache[@]}" $store put a v.$v 2> /dev/null
			"$cow" "${cache[@]}" $store put b v.$((3 - v)) 2> /dev/null
			"$cow" "${cache[@]}" $store snapshot "s $round $v" 2> /dev/null
			"$cow" "${cache[@]}" $store rm "@s $round $v" 2> /dev/null
		done
	) &
	child=$!
	sleep "0.$((RANDOM % 40 + 10))"
	kill -9 -- -$child 2> /dev/null && kills=$((kills + 1))
	{ wait $child; } 2> /dev/null
	flock $store true       # until nobody is left in it
	for name in a b; do
		sum=$("$cow" "${cache[@]}" $store get $name | sha256sum | cut -d' ' -f1)
		grep -q "$sum" sums && ok || bad "round $round: $name is none of the versions"
	done
	[ "$(sha256sum < v.0)" = "$("$cow" "${cache[@]}" $store get a@kept | sha256sum)" ] && ok || bad "round $round: a@kept"
	clean "round $round"
done
[ $kills -gt 0 ] && ok || bad "nothing was killed"

echo "$passed passed, $failed failed"
[ $failed = 0 ]
