#!/bin/bash
# fio.sh - fio's own verification finds nothing wrong with what it wrote through libiomap, also after it was killed
#
# Uses examples/fio/verify.fio, as its README shows. IOMAP_TEST_LONG: a minute, and 20 kills.
set -uo pipefail
: "${O:?}"

engine=$PWD/$O/examples/fio/libiomap-fio.so
jobfile=$PWD/examples/fio/verify.fio
passed=0 failed=0
ok() {
	passed=$((passed + 1))
	echo "ok $*"
}
bad() {
	echo "FAILED: $*"
	cat errors log 2> /dev/null | head -n 40 | sed 's/^/    /'
	failed=$((failed + 1))
}

version=$(fio --version 2> /dev/null)
if [ "$version" != fio-3.33 ]; then
	echo "needs fio 3.33 ${version:+(here is $version)}"
	exit 77
fi
dir=${IOMAP_TEST_DIR:-$(mktemp -d -p "$O")}
dir=$(cd "$dir" && pwd)
cd "$dir" || exit 1
if ! dd if=/dev/zero of=probe bs=4096 count=1 oflag=direct 2> /dev/null; then
	echo "no O_DIRECT in $dir: set TEST_DIR to a directory on a disk"
	exit 77
fi

limit=$((${IOMAP_TEST_LONG:+600} + 120))
kills=3
[ -n "${IOMAP_TEST_LONG:-}" ] && kills=20
run() { timeout -k 5 "$limit" fio --thread --ioengine=external:"$engine" --output=log "$@" 2> errors; }
number() { awk -v name="$1" '$1 == name { print $2 }' "${2:-stat}"; }

# --- writes of 512 bytes to 256 KiB, read back and compared on the way and at the end, for blocks of every kind -----------
for iomap in memory=16m memory=16m,accounting=folio,dirty=2m memory=4m,max_folio=4k,accounting=page; do
	for block in 512 4k 64k; do
		[ -z "${IOMAP_TEST_LONG:-}" ] && [ $block != 4k ] && [ $iomap != memory=16m ] && continue
		rm -f verify.*.* stat
		time=2
		[ -n "${IOMAP_TEST_LONG:-}" ] && [ $block = 4k ] && [ $iomap = memory=16m ] && time=60
		if ! run --iomap=$iomap --iomap_block=$block --iomap_stat=stat --time_based --runtime=$time "$jobfile"; then
			bad "verify, $iomap, blocks of $block"
		elif [ "$(number written_bytes)" -lt $((16 << 20)) ] || [ "$(number write_failed_bytes)" != 0 ] || [ "$(number dirty_bytes)" != 0 ]; then
			bad "verify, $iomap, blocks of $block: the cache says $(grep -E '^(written|write_failed|dirty)_bytes' stat | tr '\n' ' ')"
		else
			ok "verify, $iomap, blocks of $block: $(($(number written_bytes) >> 20)) MiB written in $time s"
		fi
	done
done

# fio reads the same files through the kernel: what is durable is there for everybody.
rm -f verify.*.*
if run "$jobfile" && timeout "$limit" fio --thread --ioengine=psync --output=log --verify_only "$jobfile" 2> errors; then
	ok "verify through the kernel"
else
	bad "verify through the kernel"
fi

# --- killed while it writes: what had been written with DSYNC is there ------------------------------------------------------
round() {
	local state
	rm -f ./*.state kill.*.*
	run --name=kill "${kill_job[@]}" --randseed="$1" --verify_state_save=1 --do_verify=0 --trigger-timeout=1 --trigger='kill -9 $PPID'
	[ $? = 137 ] || return 1
	state=$(ls ./*-verify.state 2> /dev/null | wc -l)
	[ "$state" = 4 ] || return 1
	run --name=kill "${kill_job[@]}" --randseed="$1" --verify_state_load=1 --verify_only
}
kill_job=(--iomap=memory=16m --iomap_sync=dsync --rw=randwrite --bsrange=512-256k --size=256m --numjobs=4 --verify=crc32c)
verified=0
for i in $(seq $kills); do
	if round "$i"; then
		n=$(sed -nE 's/.*issued rwts: total=([0-9]+),.*/\1/p' log | awk '{ sum += $1 } END { print sum + 0 }')
		verified=$((verified + n))
		ok "kill $i: $n writes verified"
	else
		bad "kill $i"
	fi
done
[ $verified -gt 0 ] && ok "$verified writes verified" || bad "nothing was verified"
# The same must fail where a block is not what it was.
for f in kill.*.0; do dd if=/dev/zero of="$f" bs=1M count=256 conv=notrunc 2> /dev/null; done
run --name=kill "${kill_job[@]}" --randseed="$kills" --verify_state_load=1 --verify_only && bad "zeroed files verify" || ok "zeroed files do not verify"
rm -f kill.*.* ./*.state

# --- trims punch holes: half of a file's blocks go, and read as zeros -------------------------------------------------------
trim_job=(--name=trim --size=1m --bs=4k)
run "${trim_job[@]}" --rw=write --zero_buffers=0 --end_fsync=1 && run "${trim_job[@]}" --rw=randtrim --io_size=512k && ok "trims" || bad "trims"
holes=$(od -An -v -tx1 -w4096 trim.0.0 | grep -c '^\( 00\)*$')
kib=$(du -k --apparent-size trim.0.0 | cut -f 1)
[ "$holes $kib" = "128 1024" ] && ok "they leave $holes blocks of zeros in $kib KiB" || bad "trims left $holes blocks of zeros in $kib KiB"
rm -f trim.0.0

# --- errors are fio's errors ------------------------------------------------------------------------------------------------
small=(--name=small --size=1m --bs=4k --rw=randwrite)
refused() {
	local what=$1 why=$2
	shift 2
	if run "$@"; then
		bad "$what: exit status 0"
	elif ! cat errors log | grep -E "$why" > /dev/null; then
		bad "$what: not \"$why\""
	else
		ok "$what"
	fi
	rm -f small.*
}
run "${small[@]}" && ok "a small job" || bad "a small job"
refused "cache params that are none" "not cache params" --iomap=memory=much "${small[@]}"
refused "cache params that do not fit" "Invalid argument" --iomap=memory=1k "${small[@]}"
refused "a block size that is none" "power of two" --iomap_block=1000 "${small[@]}"
refused "two jobs, two caches" "one cache" --iomap=memory=4m "${small[@]}" --name=other --iomap=memory=5m "${small[@]}"
refused "processes" "run fio with --thread" --thread=0 "${small[@]}"
refused "a file that is a directory" "Is a directory" --name=small --filename="$dir" --nrfiles=1 --size=1m --rw=read
# a cache that holds the file, of another process
holder_job=(--name=holder --filename=held --size=1m --rw=read --bs=4k --runtime=60 --time_based --rate_iops=100)
fio --thread --ioengine=external:"$engine" --output=holder.log "${holder_job[@]}" 2> holder.errors &
holder=$!
for _ in $(seq 300); do
	grep "OFDLCK.*:$(stat -c %i held 2> /dev/null || echo none) " /proc/locks > /dev/null && break
	sleep 0.1
done
refused "a file of another cache" "Device or resource busy" --name=small --filename=held --size=1m --bs=4k --rw=randwrite
kill $holder
wait $holder
# no room
(
	trap '' XFSZ
	ulimit -f 512
	run --name=small --filename=full --size=1m --bs=4k --rw=write --create_on_open=1 --fallocate=none
) && bad "no room: exit status 0" || { grep "File too large" errors log > /dev/null && ok "no room" || bad "no room"; }

echo "$passed passed, $failed failed"
[ $failed = 0 ]
