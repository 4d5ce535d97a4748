/*
 * direct.c - bytes around the cache, through it at once, and contents that may change in flight
 *
 * The comment above a test names the case that it is, if it is one. An asynchronous direct call of a case is a synchronous one from a
 * thread of its own. Where a case refuses what is not aligned (C86), this library does it.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "call.h"
#include "rig.h"

#define DIRECT IOMAP_RWF_DIRECT
#define THROUGH IOMAP_RWF_WRITETHROUGH

static _Alignas(4096) unsigned char memory[4 * MIB + 8192];

static unsigned rounds(unsigned in_check, unsigned in_check_long)
{
	return t_run_is_long() ? in_check_long : in_check;
}

static ssize_t write_flags(struct iomap_file *file, uint64_t pos, size_t len, int byte, int flags)
{
	struct iovec iov = { memory, len };

	CHECK_LE(len, sizeof(memory));
	memset(memory, byte, len);
	return iomap_pwritev2(file, &iov, 1, (off_t)pos, flags);
}

static ssize_t read_flags(struct iomap_file *file, uint64_t pos, size_t len, int flags)
{
	struct iovec iov = { memory, len };

	CHECK_LE(len, sizeof(memory));
	memset(memory, 0xEE, len);
	return iomap_preadv2(file, &iov, 1, (off_t)pos, flags);
}

static void expect_direct(struct t_rig *rig, uint64_t pos, size_t len, int byte)
{
	CHECK_EQ(read_flags(rig->file, pos, len, DIRECT), (ssize_t)len);
	CHECK_BYTES(memory, len, byte);
}

static void up(struct t_rig *rig)
{
	t_rig_init(rig);
	t_rig_up(rig);
}

/* --- writing around the cache -------------------------------------------------------------------------------------- */

/* C21 */
static void a_sync_direct_write_that_grows_the_file_is_durable(void)
{
	const int flags[] = { IOMAP_RWF_SYNC, IOMAP_RWF_SYNC | DIRECT, IOMAP_RWF_DSYNC | DIRECT, IOMAP_RWF_DSYNC | THROUGH };

	for (unsigned i = 0; i < 4; i++) {
		struct t_rig rig;

		up(&rig);
		CHECK_EQ(write_flags(rig.file, 0, MIB, 0x5a, flags[i]), (ssize_t)MIB);
		t_rig_crash(&rig, 1);
		CHECK_EQ(iomap_size(rig.file), (off_t)MIB);
		t_rig_expect(&rig, 0, MIB, 0x5a);
		t_rig_down(&rig);
	}
}

/* C22 */
static void fsync_flushes_what_only_direct_writes_grew(void)
{
	for (unsigned synced = 0; synced < 2; synced++) {
		struct t_rig rig;
		uint64_t size;

		up(&rig);
		CHECK_EQ(write_flags(rig.file, 0, MIB, 'A', DIRECT), (ssize_t)MIB);
		CHECK_EQ(t_rig_stat(&rig).dirty_bytes, 0);
		CHECK_EQ(t_rig_stat(&rig).cached_bytes, 0);
		t_rig_reset(&rig);
		if (synced) {
			CHECK_EQ(iomap_fsync(rig.file), 0);
			CHECK_GE(t_rig_io(&rig).flushes, 1);
		}
		t_rig_crash(&rig, 7);
		size = (uint64_t)iomap_size(rig.file);
		CHECK_LE(size, MIB);
		CHECK(!synced || size == MIB);
		t_rig_expect(&rig, 0, size, 'A');
		t_rig_down(&rig);
	}
}

/* C23 */
static void the_size_shows_as_soon_as_a_growing_direct_write_returns(void)
{
	struct t_rig rig;
	struct stat st;

	up(&rig);
	for (unsigned i = 0; i < 1024; i++) {
		CHECK_EQ(write_flags(rig.file, i * 4096, 4096, 'A', DIRECT), 4096);
		CHECK_EQ(iomap_fstat(rig.file, &st), 0);
		CHECK_EQ(st.st_size, (i + 1) * 4096);
	}
	t_rig_expect_stored(&rig, 0, 1024 * 4096, 'A');
	t_rig_down(&rig);
}

struct loop { struct iomap_file *file; _Atomic bool *stop; _Atomic uint64_t bad, turns; uint64_t pos, len; int id; };

static void *read_only_A(void *arg)
{
	struct loop *loop = arg;
	static _Thread_local unsigned char buf[65536];
	ssize_t n;

	do {
		n = iomap_pread(loop->file, buf, sizeof(buf), 0);
		loop->bad += n < 0 || t_run_bytes_differ(buf, (size_t)n, 'A') != -1;
		loop->turns++;
	} while (n < (ssize_t)loop->len && !loop->bad && !atomic_load(loop->stop));
	return NULL;
}

/* C24 */
static void a_reader_beside_a_growing_direct_write_sees_no_zeros(void)
{
	const size_t sizes[] = { 65536, 512, 1024, 2048, 4096 };

	for (unsigned i = 0; i < rounds(40, 500); i++) {
		struct loop loop = { .len = sizes[i % 5] };
		_Atomic bool stop = false;
		struct t_rig rig;
		pthread_t reader;

		up(&rig);
		loop.file = rig.file;
		loop.stop = &stop;
		CHECK_EQ(pthread_create(&reader, NULL, read_only_A, &loop), 0);
		CHECK(T_WAIT(loop.turns > 1, 5000));
		CHECK_EQ(write_flags(rig.file, 0, loop.len, 'A', DIRECT), (ssize_t)loop.len);
		pthread_join(reader, NULL);
		CHECK_EQ(loop.bad, 0);
		t_rig_down(&rig);
	}
}

/* C48, on blocks that were written */
static void a_failed_direct_write_is_the_callers_error(void)
{
	struct t_rig rig;

	up(&rig);
	t_rig_write(&rig, 0, 4 * MIB, 0);
	t_rig_write(&rig, MIB, 1, 0x63);
	CHECK_EQ(iomap_fsync(rig.file), 0);
	t_hold_fail(rig.hold, T_HOLD_WRITE, 0, 0, EIO);
	CHECK_EQ(write_flags(rig.file, 0, 4 * MIB, 0x63, DIRECT), -EIO);
	t_hold_heal(rig.hold);
	CHECK_EQ(iomap_fsync(rig.file), 0);
	t_rig_remount(&rig);
	t_rig_expect(&rig, 0, MIB, 0);
	t_rig_expect(&rig, MIB, 1, 0x63);
	t_rig_expect(&rig, MIB + 1, 3 * MIB - 1, 0);
	t_rig_down(&rig);
}

static void a_growing_direct_write_that_fails_leaves_the_size(void)
{
	struct t_rig rig;

	up(&rig);
	t_rig_write(&rig, 0, 4096, 'A');
	t_hold_fail(rig.hold, T_HOLD_WRITE, 8192, 0, ENOSPC);
	CHECK_EQ(write_flags(rig.file, 8192, 8192, 'B', DIRECT), -ENOSPC);
	CHECK_EQ(iomap_size(rig.file), 4096);
	t_hold_heal(rig.hold);
	CHECK_EQ(iomap_fsync(rig.file), 0);
	CHECK_EQ(t_hold_size(rig.hold), 4096);
	CHECK_EQ(write_flags(rig.file, 4096, 4000, 'C', DIRECT), 4000);
	CHECK_EQ(write_flags(rig.file, 16384, 100, 'D', DIRECT), 100);          /* the end is inside a block: by the cache */
	CHECK_EQ(iomap_size(rig.file), 16484);
	CHECK_EQ(t_hold_size(rig.hold), 16484);
	t_rig_expect_stored(&rig, 0, 4096, 'A');
	t_rig_expect_stored(&rig, 4096, 4000, 'C');
	t_rig_expect_stored(&rig, 8096, 8288, 0);
	t_rig_expect_stored(&rig, 16384, 100, 'D');
	t_rig_down(&rig);
}

/* The step that fails is the second: the first is the count. */
static void a_direct_write_that_fails_later_is_short(void)
{
	struct t_rig rig;

	up(&rig);
	t_hold_fail(rig.hold, T_HOLD_WRITE, 2 * MIB, 0, EIO);
	CHECK_EQ(write_flags(rig.file, 0, 4 * MIB, 'A', DIRECT), (ssize_t)(2 * MIB));
	CHECK_EQ(iomap_size(rig.file), (off_t)(2 * MIB));
	t_hold_heal(rig.hold);
	t_rig_expect(&rig, 0, 2 * MIB, 'A');
	t_rig_down(&rig);
}

static void short_transfers_of_direct_calls_are_continued(void)
{
	struct t_hold_rule rule = { .ops = T_HOLD_READ | T_HOLD_WRITE, .action = T_HOLD_SHORT, .value = 1536 };
	struct t_rig rig;

	up(&rig);
	t_hold_rule(rig.hold, &rule);
	CHECK_EQ(write_flags(rig.file, 0, 40000, 'A', DIRECT), 40000);          /* grows */
	CHECK_EQ(write_flags(rig.file, 4096, 8192, 'B', DIRECT), 8192);
	expect_direct(&rig, 0, 4096, 'A');
	expect_direct(&rig, 4096, 8192, 'B');
	expect_direct(&rig, 12288, 40000 - 12288, 'A');
	t_hold_heal(rig.hold);
	CHECK_EQ(t_hold_size(rig.hold), 40000);
	t_rig_down(&rig);
}

/* C66 */
static void a_direct_write_replaces_a_pending_buffered_one(void)
{
	struct t_rig rig;

	up(&rig);
	t_rig_write(&rig, 0, 8192, 'A');
	CHECK_EQ(write_flags(rig.file, 0, 4096, 'N', DIRECT), 4096);
	CHECK_LE(t_rig_stat(&rig).dirty_bytes, 4096);
	t_rig_expect(&rig, 0, 4096, 'N');
	t_rig_expect(&rig, 4096, 4096, 'A');
	CHECK_EQ(iomap_fsync(rig.file), 0);
	t_rig_crash(&rig, 3);
	t_rig_expect(&rig, 0, 4096, 'N');
	t_rig_expect(&rig, 4096, 4096, 'A');
	t_rig_down(&rig);
}

/* What is dirty in a large folio beside the range is not lost when the folio goes. */
static void a_direct_write_into_a_dirty_folio_loses_nothing(void)
{
	struct t_rig rig;

	up(&rig);
	t_rig_write(&rig, 0, 65536, 'A');
	CHECK_EQ(iomap_fsync(rig.file), 0);
	t_rig_write(&rig, 0, 4096, 'B');
	t_rig_write(&rig, 61440, 4096, 'C');
	CHECK_EQ(write_flags(rig.file, 28672, 4096, 'D', DIRECT), 4096);
	CHECK_EQ(t_rig_stat(&rig).cached_bytes, 0);
	t_rig_expect_stored(&rig, 0, 4096, 'B');
	t_rig_expect_stored(&rig, 28672, 4096, 'D');
	t_rig_expect_stored(&rig, 61440, 4096, 'C');
	t_rig_down(&rig);
}

/* Rule K: the folio does not go, so the write goes through it, and the device's error is the writer's. */
static void where_the_cache_does_not_let_go_a_direct_write_goes_through_it(void)
{
	struct t_rig rig;

	up(&rig);
	t_rig_write(&rig, 0, 65536, 'A');
	CHECK_EQ(iomap_fsync(rig.file), 0);
	t_rig_write(&rig, 61440, 4096, 'C');
	t_hold_fail(rig.hold, T_HOLD_WRITE, 61440, 4096, EIO);
	CHECK_EQ(write_flags(rig.file, 0, 4096, 'D', DIRECT), 4096);            /* its own block can be written */
	t_rig_expect_stored(&rig, 0, 4096, 'D');
	CHECK_EQ(write_flags(rig.file, 61440, 4096, 'E', DIRECT), -EIO);
	t_rig_expect(&rig, 61440, 4096, 'E');
	expect_direct(&rig, 0, 4096, 'D');
	expect_direct(&rig, 61440, 4096, 'E');
	t_hold_heal(rig.hold);
	CHECK_EQ(iomap_fsync(rig.file), 0);
	t_rig_expect_stored(&rig, 61440, 4096, 'E');
	t_rig_down(&rig);
}

/* C60, its second run; C61 */
static void *append_direct(void *arg)
{
	struct loop *loop = arg;
	_Alignas(512) unsigned char record[512];
	struct iovec iov = { record, sizeof(record) };

	for (unsigned i = 0; i < (unsigned)loop->len; i++) {
		memset(record, 0, sizeof(record));
		snprintf((char *)record, sizeof(record), "%d:%u", loop->id, i);
		loop->bad += iomap_pwritev2(loop->file, &iov, 1, 0, IOMAP_RWF_APPEND | DIRECT) != 512;
	}
	return NULL;
}

static void direct_appends_of_many_threads_are_whole_and_in_order(void)
{
	unsigned each = rounds(200, 1000), next[8] = { 0 };
	struct loop loops[8];
	struct t_rig rig;

	up(&rig);
	memset(loops, 0, sizeof(loops));
	for (int i = 0; i < 8; i++) {
		loops[i].file = t_rig_handle(&rig, O_RDWR);
		loops[i].id = i;
		loops[i].len = each;
	}
	t_call_all(append_direct, loops, sizeof(loops[0]), 8);
	CHECK_EQ(iomap_size(rig.file), 8 * each * 512);
	for (unsigned i = 0; i < 8 * each; i++) {
		char record[512];
		unsigned id, seq;

		CHECK_EQ(iomap_pread(rig.file, record, 512, i * 512), 512);
		CHECK_EQ(sscanf(record, "%u:%u", &id, &seq), 2);
		CHECK(id < 8);
		CHECK_EQ(seq, next[id]++);
	}
	for (int i = 0; i < 8; i++) {
		CHECK_EQ(loops[i].bad, 0);
		CHECK_EQ(iomap_close(loops[i].file), 0);
	}
	t_rig_down(&rig);
}

/* What a failed flush may have lost of a direct write is told until it is given up: it is nowhere else. */
static void a_direct_write_lost_by_a_flush_is_told(void)
{
	struct iomap_failed_range range;
	struct t_rig rig;

	up(&rig);
	CHECK_EQ(write_flags(rig.file, 4096, 8192, 'A', DIRECT), 8192);
	t_hold_fail(rig.hold, T_HOLD_FLUSH, 0, 0, EIO);
	CHECK_EQ(iomap_fsync(rig.file), -EIO);
	t_hold_heal(rig.hold);
	CHECK_EQ(iomap_fsync(rig.file), -EIO);
	CHECK_EQ(iomap_failed_ranges(rig.file, &range, 1), 1);
	CHECK_EQ(range.pos, 4096);
	CHECK_EQ(range.len, 8192);
	CHECK_EQ(range.flags, IOMAP_FAILED_FLUSH);
	CHECK_EQ(iomap_resolve(rig.file, 0, 0, IOMAP_RESOLVE_RETRY), -EIO);
	CHECK_EQ(iomap_resolve(rig.file, 0, 0, IOMAP_RESOLVE_DISCARD), 0);
	CHECK_EQ(iomap_fsync(rig.file), 0);
	t_rig_down(&rig);
}

/* --- reading around the cache -------------------------------------------------------------------------------------- */

/* C57 */
static void a_direct_read_of_the_unaligned_tail_is_short(void)
{
	struct t_hold_entry log[256];
	struct t_rig rig;
	unsigned nr, before;

	up(&rig);
	t_rig_write(&rig, 0, 1543276, 'A');
	CHECK_EQ(iomap_fsync(rig.file), 0);
	CHECK(t_drops_all(rig.cache));
	t_hold_log_clear(rig.hold);
	CHECK_EQ(iomap_pread(rig.file, memory, 2 * MIB, 0), 1543276);
	CHECK_BYTES(memory, 1543276, 'A');
	before = t_hold_log(rig.hold, log, 256);
	CHECK_EQ(iomap_pread(rig.file, memory, 4096, 1543276), 0);
	CHECK_EQ(t_hold_log(rig.hold, log, 256), before);
	CHECK_EQ(read_flags(rig.file, 1048576, 1048576, DIRECT), 494700);
	CHECK_BYTES(memory, 494700, 'A');
	nr = t_hold_log(rig.hold, log, 256);
	for (unsigned i = 0; i < nr && i < 256; i++)
		CHECK_EQ(log[i].pos % 512 + log[i].len % 512, 0);
	t_rig_down(&rig);
}

/* C67 */
static void a_direct_read_sees_dirty_data_and_leaves_the_cache_alone(void)
{
	struct t_rig rig;

	t_rig_init(&rig);
	rig.params.max_folio_bytes = 4096;
	t_rig_up(&rig);
	t_rig_write(&rig, 0, 8192, 'A');
	expect_direct(&rig, 0, 4096, 'A');
	CHECK_LE(t_rig_stat(&rig).dirty_bytes, 4096);
	CHECK_EQ(t_rig_stat(&rig).cached_bytes, 8192);
	t_rig_reset(&rig);
	t_rig_expect(&rig, 0, 8192, 'A');
	CHECK_EQ(t_rig_io(&rig).read_bytes, 0);
	t_rig_down(&rig);
}

/* C68 */
static void the_last_partial_block_read_direct(void)
{
	struct t_rig rig;

	up(&rig);
	CHECK_EQ(iomap_ftruncate(rig.file, 300), 0);
	expect_direct(&rig, 0, 300, 0);
	CHECK_EQ(read_flags(rig.file, 0, 4096, DIRECT), 300);
	CHECK_BYTES(memory, 300, 0);
	CHECK_EQ(read_flags(rig.file, 512, 4096, DIRECT), 0);
	CHECK_EQ(read_flags(rig.file, 4096, 4096, DIRECT), 0);
	t_rig_down(&rig);
}

/* C69 */
static void a_direct_read_of_a_hole_is_zeros(void)
{
	struct t_rig rig;

	up(&rig);
	CHECK_EQ(iomap_ftruncate(rig.file, MIB), 0);
	expect_direct(&rig, 65536, 65536, 0);
	t_rig_write(&rig, 131072, 4096, 'A');
	CHECK_EQ(read_flags(rig.file, 126976, 12288, DIRECT), 12288);
	CHECK_BYTES(memory, 4096, 0);
	CHECK_BYTES(memory + 4096, 4096, 'A');
	CHECK_BYTES(memory + 8192, 4096, 0);
	t_rig_down(&rig);
}

static void a_device_that_gives_less_than_its_size_is_eio(void)
{
	struct t_hold_rule rule = { .ops = T_HOLD_READ, .action = T_HOLD_SHORT, .value = 100 };
	struct t_rig rig;

	up(&rig);
	t_rig_write(&rig, 0, 8192, 'A');
	CHECK_EQ(iomap_fsync(rig.file), 0);
	t_hold_rule(rig.hold, &rule);
	CHECK_EQ(read_flags(rig.file, 0, 8192, DIRECT), -EIO);
	t_hold_heal(rig.hold);
	t_hold_fail(rig.hold, T_HOLD_READ, 4096, 4096, ENODATA);
	CHECK_EQ(read_flags(rig.file, 0, 8192, DIRECT), -ENODATA);
	expect_direct(&rig, 0, 4096, 'A');
	t_hold_heal(rig.hold);
	t_rig_down(&rig);
}

/* Under rule K what cannot be written can be read all the same. */
static void a_direct_read_of_what_cannot_be_written_comes_from_the_cache(void)
{
	struct t_rig rig;

	up(&rig);
	t_rig_write(&rig, 0, 8192, 'A');
	t_hold_fail(rig.hold, T_HOLD_WRITE, 0, 4096, EIO);
	expect_direct(&rig, 0, 8192, 'A');
	t_hold_heal(rig.hold);
	CHECK_EQ(iomap_fsync(rig.file), 0);
	t_rig_down(&rig);
}

/* --- both together ------------------------------------------------------------------------------------------------- */

/* C64; B30 with the region in between held: a buffered reader waits, and does not cache what was there before */
static void a_buffered_read_after_a_direct_write_sees_it(void)
{
	const size_t sizes[] = { 512, 1024, 2048, 4096, 8192 };

	for (unsigned written = 0; written < 2; written++) {
		struct t_rig rig;

		up(&rig);
		if (written)
			t_rig_write(&rig, 0, 65536, 'Z');
		else
			CHECK_EQ(iomap_ftruncate(rig.file, 65536), 0);
		for (unsigned k = 1; k < 100; k++) {
			size_t len = sizes[k % 5];

			CHECK_EQ(iomap_pread(rig.file, memory, 4096, 0), 4096);
			CHECK_EQ(write_flags(rig.file, 0, len, (int)k, DIRECT), (ssize_t)len);
			t_rig_expect(&rig, 0, len, (int)k);
		}
		t_rig_down(&rig);
	}
}

static int64_t write_4096_N(void *arg)
{
	static _Alignas(4096) unsigned char buf[4096];
	struct iovec iov = { buf, sizeof(buf) };

	memset(buf, 'N', sizeof(buf));
	return iomap_pwritev2(arg, &iov, 1, 0, DIRECT);
}

/* B30 */
static void a_reader_in_the_middle_of_a_direct_write_waits_for_it(void)
{
	for (unsigned written = 0; written < 2; written++) {
		struct t_call write, read;
		struct t_rig rig;

		up(&rig);
		if (written)
			t_rig_write(&rig, 0, 65536, 'Z');
		else
			CHECK_EQ(iomap_ftruncate(rig.file, 65536), 0);
		CHECK_EQ(iomap_fsync(rig.file), 0);
		t_hold_park(rig.hold, T_HOLD_WRITE, 0, 4096);
		t_call_fn(&write, write_4096_N, rig.file);
		CHECK(t_hold_wait_parked(rig.hold, 1));
		t_call_read(&read, rig.file, 4096, 0);
		CHECK(!T_WAIT(t_call_done(&read), 50));
		t_hold_release(rig.hold);
		CHECK_EQ(t_call_wait(&write), 4096);
		CHECK_EQ(t_call_wait(&read), 4096);
		CHECK_BYTES(read.buf, 4096, 'N');
		t_call_free(&write);
		t_call_free(&read);
		t_rig_expect(&rig, 0, 4096, 'N');
		t_rig_down(&rig);
	}
}

/* A block that tells whether it is whole: all its words are one number. */
static bool is_whole(const unsigned char *block, size_t len)
{
	return !memcmp(block, block + 8, len - 8);
}

struct mixer { struct iomap_file *file; _Atomic bool *stop; _Atomic uint64_t bad, turns; int flags; bool write; size_t len; };

static void *mix(void *arg)
{
	struct mixer *m = arg;
	static _Thread_local _Alignas(4096) unsigned char buf[65536];
	struct iovec iov = { buf, m->len };

	while (!atomic_load(m->stop)) {
		if (m->write) {
			uint64_t word = (uint64_t)(uintptr_t)m << 20 | m->turns;

			for (size_t i = 0; i < m->len; i += 8)
				memcpy(buf + i, &word, 8);
			m->bad += iomap_pwritev2(m->file, &iov, 1, 0, m->flags) != (ssize_t)m->len;
		} else {
			m->bad += iomap_preadv2(m->file, &iov, 1, 0, m->flags) != (ssize_t)m->len;
			for (size_t i = 0; i < m->len; i += 4096)
				m->bad += !is_whole(buf + i, 4096);
		}
		m->turns++;
	}
	return NULL;
}

static void *sync_and_drop(void *arg)
{
	struct mixer *m = arg;

	while (!atomic_load(m->stop)) {
		m->bad += m->flags ? iomap_fdatasync(m->file) != 0 : iomap_fadvise(m->file, 0, 0, POSIX_FADV_DONTNEED) != 0;
		m->turns++;
	}
	return NULL;
}

/* C65, and all other ways at once: nobody sees half of a block */
static void no_block_is_torn_whoever_reads_and_writes_it(void)
{
	static const struct { int flags; bool write; } what[] = {
		{ DIRECT, true }, { 0, true }, { THROUGH, true }, { DIRECT, false }, { 0, false }, { DIRECT, false },
	};

	/* That contents change while the device reads them is what UNSTABLE asks for: to a race checker it is a race. */
	for (unsigned unstable = 0; unstable < (t_run_is_tsan() ? 1 : 2); unstable++) {
		struct mixer mixers[8];
		pthread_t threads[8];
		_Atomic bool stop = false;
		struct iomap_file_params params = IOMAP_FILE_PARAMS_INIT;
		struct t_rig rig;

		t_rig_init(&rig);
		rig.device_params.unstable = unstable;
		rig.device_params.direct_reads = true;
		rig.device_params.jitter_ns = 30000;
		rig.device_params.volatile_cache = false;
		t_rig_up(&rig);
		if (unstable) {
			t_rig_close(&rig);
			params.device = rig.device;
			params.block_size = 4096;
			params.flags = IOMAP_OPEN_UNSTABLE;
			CHECK_EQ(iomap_open_with(rig.cache, NULL, O_RDWR, 0, &params, &rig.file), 0);
		}
		t_rig_write(&rig, 0, 65536, 0);
		memset(mixers, 0, sizeof(mixers));
		for (unsigned i = 0; i < 8; i++) {
			mixers[i].file = rig.file;
			mixers[i].stop = &stop;
			mixers[i].len = 16384;
			mixers[i].flags = i < 6 ? what[i].flags : i == 6;
			mixers[i].write = i < 6 && what[i].write;
			CHECK_EQ(pthread_create(&threads[i], NULL, i < 6 ? mix : sync_and_drop, &mixers[i]), 0);
		}
		for (unsigned i = 0; i < 6; i++)
			CHECK_MSG(T_WAIT(mixers[i].turns >= rounds(100, 20000), 20000), "thread %u came %llu times", i,
				  (unsigned long long)mixers[i].turns);
		stop = true;
		for (unsigned i = 0; i < 8; i++) {
			pthread_join(threads[i], NULL);
			CHECK_MSG(!mixers[i].bad, "thread %u saw %llu torn blocks or errors", i, (unsigned long long)mixers[i].bad);
		}
		CHECK_EQ(iomap_fsync(rig.file), 0);
		t_rig_down(&rig);
	}
}

/* C71 */
static void a_read_right_after_a_direct_write_into_a_hole_sees_it(void)
{
	uint64_t r = 71;
	struct t_rig rig;

	up(&rig);
	for (unsigned i = 0; i < rounds(200, 1000); i++) {
		uint64_t k = t_random_below(&r, 256);

		CHECK_EQ(iomap_ftruncate(rig.file, 0), 0);
		CHECK_EQ(iomap_ftruncate(rig.file, MIB), 0);
		CHECK_EQ(write_flags(rig.file, k * 4096, 4096, 0xab, DIRECT), 4096);
		expect_direct(&rig, k * 4096, 4096, 0xab);
		t_rig_expect(&rig, k * 4096, 4096, 0xab);
	}
	t_rig_down(&rig);
}

/* B16: a read's last request may complete, and its folio go, inside submit() */
static void folios_that_go_while_their_read_is_submitted_are_not_touched(void)
{
	struct mixer mixers[4];
	pthread_t threads[4];
	_Atomic bool stop = false;
	struct t_rig rig;

	t_rig_init(&rig);
	rig.device_params.inline_done = true;
	t_rig_up(&rig);
	t_rig_write(&rig, 0, 65536, 0);
	CHECK_EQ(iomap_fsync(rig.file), 0);
	memset(mixers, 0, sizeof(mixers));
	for (unsigned i = 0; i < 4; i++) {
		mixers[i].file = rig.file;
		mixers[i].stop = &stop;
		mixers[i].len = 65536;
		mixers[i].flags = i == 2 ? DIRECT : 0;
		mixers[i].write = i == 2;
		CHECK_EQ(pthread_create(&threads[i], NULL, i < 3 ? mix : sync_and_drop, &mixers[i]), 0);
	}
	for (unsigned i = 0; i < 4; i++)
		CHECK(T_WAIT(mixers[i].turns >= rounds(300, 50000), 20000));
	stop = true;
	for (unsigned i = 0; i < 4; i++) {
		pthread_join(threads[i], NULL);
		CHECK_EQ(mixers[i].bad, 0);
	}
	t_rig_down(&rig);
}

/* --- alignment ----------------------------------------------------------------------------------------------------- */

/* C86: those calls are refused there. Here they are carried out, and the device never sees what it cannot do (its own check). */
static void any_alignment_of_place_length_and_memory_is_right(void)
{
	static const uint64_t places[] = { 0, 1, 101, 511, 512, 513, 4095, 4096, 4097, 8191, 8704, 65536, 65537 };
	static const size_t lengths[] = { 1, 100, 511, 512, 513, 4096, 5000, 8192, 70000 };
	static const size_t offsets[] = { 0, 1, 256, 512 };
	static const struct { uint32_t block, align, file; uint64_t max; } devices[] = {
		{ 512, 512, 4096, 0 }, { 4096, 4096, 4096, 0 }, { 512, 4, 512, 4096 }, { 4096, 512, 16384, 8192 }, { 512, 512, 65536, 512 },
	};
	unsigned char *model = malloc(200000), *got = malloc(200000);

	CHECK(model && got);
	for (unsigned d = 0; d < 5; d++) {
		struct t_rig rig;
		uint64_t size = 100000, seed = 0;

		t_rig_init(&rig);
		rig.block_size = devices[d].file;
		rig.device_params.block = devices[d].block;
		rig.device_params.mem_align = devices[d].align;
		rig.device_params.max_bytes = devices[d].max;
		t_rig_up(&rig);
		t_fill(model, 0, size, ++seed);
		CHECK_EQ(iomap_pwrite(rig.file, model, size, 0), (ssize_t)size);
		CHECK_EQ(iomap_fsync(rig.file), 0);
		for (unsigned i = 0; i < 13 * 9 * 4; i++) {
			uint64_t pos = places[i % 13];
			size_t len = lengths[i / 13 % 9];
			unsigned char *buf = memory + offsets[i / 13 / 9];
			struct iovec iov[3] = { { buf, len / 3 }, { buf + len / 3, len / 2 }, { 0 } };

			iov[2] = (struct iovec){ buf + len / 3 + len / 2, len - len / 3 - len / 2 };
			if (i % 3 == 0 && pos == 65536)
				pos = size;     /* at the end, wherever that is */
			if (pos + len > 190000)
				continue;
			t_fill(buf, pos, len, ++seed);
			if (pos + len > size) {
				memset(model + size, 0, pos > size ? pos - size : 0);
				size = pos + len;
			}
			memcpy(model + pos, buf, len);
			CHECK_EQ(iomap_pwritev2(rig.file, iov, i % 2 ? 3 : 2 + (len != len / 3 + len / 2), (off_t)pos, DIRECT), (ssize_t)len);
			CHECK_EQ(iomap_size(rig.file), (off_t)size);
			t_hold_peek(rig.hold, got, len, pos);
			CHECK(!memcmp(got, model + pos, len));
			CHECK_EQ(t_hold_size(rig.hold), size);
			memset(buf, 0xEE, len);
			CHECK_EQ(iomap_preadv2(rig.file, iov, 3, (off_t)pos, DIRECT), (ssize_t)len);
			CHECK(!memcmp(buf, model + pos, len));
			if (i % 16 == 0) {
				CHECK_EQ(iomap_pread(rig.file, got, 200000, 0), (ssize_t)size);
				CHECK(!memcmp(got, model, size));
			}
		}
		CHECK_EQ(iomap_pread(rig.file, got, 200000, 0), (ssize_t)size);
		CHECK(!memcmp(got, model, size));
		t_rig_down(&rig);
	}
	free(model);
	free(got);
}

/* The same on a file with O_DIRECT, looked at through the kernel. */
static void direct_calls_on_a_real_file_are_right(void)
{
	struct iomap_cache_params params = IOMAP_CACHE_PARAMS_INIT;
	struct iomap_cache *cache;
	unsigned char *model = calloc(1, 600000), *got = malloc(600000);
	struct iomap_file *file;
	char path[PATH_MAX];
	uint64_t r = 5, size = 0;
	int fd;

	if (!t_direct_io())
		t_run_skip("no O_DIRECT there");
	CHECK(model && got);
	t_run_path(path, sizeof(path), "file");
	params.memory_bytes = MIB;
	CHECK_EQ(iomap_cache_create(&cache, &params), 0);
	CHECK_EQ(iomap_open(cache, path, O_RDWR | O_CREAT, 0600, &file), 0);
	fd = open(path, O_RDONLY);
	CHECK(fd >= 0);
	for (unsigned i = 0; i < rounds(400, 5000); i++) {
		bool aligned = t_random_below(&r, 2);
		uint64_t pos = t_random_below(&r, 300000), len = 1 + t_random_below(&r, t_random_below(&r, 4) ? 9000 : 200000);
		unsigned char *buf = memory + (aligned ? 0 : t_random_below(&r, 1000));
		int flags = i % 4 == 0 ? THROUGH : i % 4 == 1 ? 0 : DIRECT;
		struct iovec iov = { buf, 0 };

		if (aligned) {
			pos = pos / 4096 * 4096;
			len = (len + 4095) / 4096 * 4096;
		}
		iov.iov_len = len;
		t_fill(buf, pos, len, i & 0xffff);
		if (pos + len > size)
			size = pos + len;
		memcpy(model + pos, buf, len);
		CHECK_EQ(iomap_pwritev2(file, &iov, 1, (off_t)pos, flags), (ssize_t)len);
		CHECK_EQ(iomap_size(file), (off_t)size);
		if (flags) {
			CHECK_EQ(pread(fd, got, len, (off_t)pos), (ssize_t)len);
			CHECK(!memcmp(got, model + pos, len));
		}
		pos = t_random_below(&r, size);
		iov.iov_len = 1 + t_random_below(&r, 20000);
		len = pos + iov.iov_len > size ? size - pos : iov.iov_len;
		CHECK_EQ(iomap_preadv2(file, &iov, 1, (off_t)pos, i % 3 ? DIRECT : 0), (ssize_t)len);
		CHECK(!memcmp(buf, model + pos, len));
	}
	CHECK_EQ(iomap_fsync(file), 0);
	CHECK_EQ(pread(fd, got, 600000, 0), (ssize_t)size);
	CHECK(!memcmp(got, model, size));
	CHECK_EQ(iomap_cache_check(cache, NULL, 0), 0);
	CHECK_EQ(iomap_close(file), 0);
	CHECK_EQ(iomap_cache_destroy(cache), 0);
	close(fd);
	free(model);
	free(got);
}

static void a_device_of_fixed_size_takes_direct_writes_up_to_its_end(void)
{
	struct t_rig rig;

	t_rig_init(&rig);
	rig.device_params.size = 16384;
	rig.device_params.fixed_size = true;
	t_rig_up(&rig);
	CHECK_EQ(write_flags(rig.file, 8192, 8192, 'A', DIRECT), 8192);
	CHECK_EQ(write_flags(rig.file, 12288, 8192, 'B', DIRECT), 4096);
	CHECK_EQ(write_flags(rig.file, 16384, 10, 'B', DIRECT), -ENOSPC);
	CHECK_EQ(write_flags(rig.file, 16284, 100, 'C', DIRECT), 100);
	CHECK_EQ(read_flags(rig.file, 8192, 16384, DIRECT), 8192);
	CHECK_BYTES(memory, 4096, 'A');
	CHECK_BYTES(memory + 4096, 3996, 'B');
	CHECK_BYTES(memory + 8092, 100, 'C');
	t_rig_down(&rig);
}

/* --- NOWAIT ---------------------------------------------------------------------------------------------------------- */

static void nowait_does_not_flush_or_invalidate(void)
{
	const int flags = DIRECT | IOMAP_RWF_NOWAIT;
	struct t_rig rig;

	up(&rig);
	t_rig_write(&rig, 0, 16384, 'A');
	CHECK_EQ(read_flags(rig.file, 0, 4096, flags), -EAGAIN);                /* dirty */
	CHECK_EQ(write_flags(rig.file, 0, 4096, 'B', flags), -EAGAIN);
	CHECK_EQ(t_rig_stat(&rig).dirty_bytes, 16384);
	CHECK_EQ(t_rig_io(&rig).write_ios, 0);
	CHECK_EQ(iomap_fsync(rig.file), 0);
	CHECK_EQ(read_flags(rig.file, 0, 4096, flags), 4096);
	CHECK_BYTES(memory, 4096, 'A');
	CHECK_EQ(write_flags(rig.file, 0, 4096, 'B', flags), -EAGAIN);          /* cached */
	CHECK(t_drops_all(rig.cache));
	CHECK_EQ(write_flags(rig.file, 0, 4096, 'B', flags), 4096);
	CHECK_EQ(write_flags(rig.file, 100, 100, 'B', flags), -EAGAIN);         /* through the cache, and to the device */
	CHECK_EQ(write_flags(rig.file, 16384, 4096, 'C', flags), 4096);
	CHECK_EQ(iomap_size(rig.file), 20480);
	t_rig_expect_stored(&rig, 0, 4096, 'B');
	t_rig_expect_stored(&rig, 4096, 12288, 'A');
	t_rig_expect_stored(&rig, 16384, 4096, 'C');
	t_rig_down(&rig);
}

/* --- write-through --------------------------------------------------------------------------------------------------- */

static void write_through_writes_its_own_blocks_alone(void)
{
	struct t_rig rig;

	up(&rig);
	t_rig_write(&rig, 0, 65536, 'A');
	CHECK_EQ(iomap_fsync(rig.file), 0);
	t_rig_write(&rig, 8192, 4096, 'D');             /* dirty, in the same folio */
	t_rig_reset(&rig);
	CHECK_EQ(write_flags(rig.file, 20480 + 100, 5000, 'W', THROUGH), 5000);
	CHECK_EQ(t_rig_io(&rig).written_bytes, 8192);
	CHECK_EQ(t_rig_io(&rig).read_bytes, 0);
	CHECK_EQ(t_rig_stat(&rig).dirty_bytes, 4096);
	CHECK_EQ(t_rig_stat(&rig).writeback_bytes, 0);
	t_rig_expect_stored(&rig, 20480, 100, 'A');
	t_rig_expect_stored(&rig, 20580, 5000, 'W');
	t_rig_expect_stored(&rig, 8192, 4096, 'A');
	t_rig_expect(&rig, 8192, 4096, 'D');            /* and cached all of it */
	t_rig_expect(&rig, 20580, 5000, 'W');
	CHECK_EQ(t_rig_io(&rig).read_bytes, 0);
	CHECK_EQ(t_rig_io(&rig).flushes, 0);
	CHECK_EQ(write_flags(rig.file, 24576, 10, 'X', THROUGH | IOMAP_RWF_DSYNC), 10);
	CHECK_EQ(t_rig_io(&rig).flushes, 1);
	CHECK_EQ(t_rig_stat(&rig).dirty_bytes, 4096);
	t_rig_down(&rig);
}

static void write_through_tells_the_writer_of_the_error(void)
{
	for (unsigned drop = 0; drop < 2; drop++) {
		struct t_rig rig;

		t_rig_init(&rig);
		rig.params.error_policy = drop ? IOMAP_ERROR_DROP : IOMAP_ERROR_KEEP_DIRTY;
		t_rig_up(&rig);
		t_rig_write(&rig, 0, 65536, 'A');
		CHECK_EQ(iomap_fsync(rig.file), 0);
		t_hold_fail(rig.hold, T_HOLD_WRITE, 4096, 4096, ENODATA);
		CHECK_EQ(write_flags(rig.file, 4096, 4096, 'W', THROUGH), -ENODATA);
		CHECK_EQ(t_rig_stat(&rig).dirty_bytes, drop ? 0 : 4096);
		CHECK_EQ(t_rig_stat(&rig).failed_bytes, drop ? 0 : 4096);
		t_rig_expect(&rig, 4096, 4096, 'W');
		/* a neighbour that failed is none of its business */
		CHECK_EQ(write_flags(rig.file, 0, 4096, 'X', THROUGH), 4096);
		CHECK_EQ(write_flags(rig.file, 8192, 4096, 'Y', THROUGH), 4096);
		CHECK_EQ(t_rig_stat(&rig).failed_bytes, drop ? 0 : 4096);
		/* beyond the end: and again nothing of a block that failed before it */
		CHECK_EQ(write_flags(rig.file, 65536, 100, 'Z', THROUGH), 100);
		CHECK_EQ(t_hold_size(rig.hold), 65636);
		t_rig_expect_stored(&rig, 65536, 100, 'Z');
		t_hold_heal(rig.hold);
		CHECK_EQ(iomap_fsync(rig.file), drop ? -ENODATA : 0);
		t_rig_expect_stored(&rig, 4096, 4096, drop ? 'A' : 'W');
		t_rig_down(&rig);
	}
}

static int64_t through_16384(void *arg)
{
	struct iovec iov = { memory, 4096 };

	memset(memory, 'W', 4096);
	return iomap_pwritev2(arg, &iov, 1, 16384, THROUGH);
}

static void write_through_does_not_wait_for_its_neighbours(void)
{
	struct t_call write;
	struct t_rig rig;

	up(&rig);
	t_rig_write(&rig, 0, 65536, 'A');
	CHECK_EQ(iomap_fsync(rig.file), 0);
	t_rig_write(&rig, 0, 4096, 'D');
	t_hold_park(rig.hold, T_HOLD_WRITE, 0, 4096);
	CHECK_EQ(iomap_fadvise(rig.file, 0, 0, POSIX_FADV_DONTNEED), 0);
	CHECK(t_hold_wait_parked(rig.hold, 1));
	t_call_fn(&write, through_16384, rig.file);
	CHECK_EQ(t_call_wait(&write), 4096);            /* same folio, other block */
	CHECK_EQ(t_hold_parked(rig.hold), 1);
	t_rig_expect_stored(&rig, 16384, 4096, 'W');
	t_hold_park(rig.hold, T_HOLD_WRITE, 16384, 4096);
	t_call_free(&write);
	t_call_fn(&write, through_16384, rig.file);
	CHECK(t_hold_wait_parked(rig.hold, 2));
	CHECK(!T_WAIT(t_call_done(&write), 30));        /* its own it waits for */
	t_hold_release(rig.hold);
	CHECK_EQ(t_call_wait(&write), 4096);
	t_call_free(&write);
	t_rig_down(&rig);
}

static void write_through_appends_and_grows_in_order(void)
{
	struct t_rig rig;

	up(&rig);
	t_rig_write(&rig, 0, 10000, 'A');               /* dirty beyond the device's size: it must come first */
	CHECK_EQ(write_flags(rig.file, 0, 5000, 'B', THROUGH | IOMAP_RWF_APPEND), 5000);
	CHECK_EQ(t_hold_size(rig.hold), 15000);
	t_rig_expect_stored(&rig, 0, 10000, 'A');
	t_rig_expect_stored(&rig, 10000, 5000, 'B');
	CHECK_EQ(write_flags(rig.file, 40000, 3 * MIB, 'C', THROUGH), (ssize_t)(3 * MIB));
	t_rig_expect_stored(&rig, 15000, 25000, 0);
	t_rig_expect_stored(&rig, 40000, 3 * MIB, 'C');
	t_rig_down(&rig);
}

/* --- contents that may change ---------------------------------------------------------------------------------------- */

static int64_t write_A(void *arg)
{
	static unsigned char buf[4096];

	memset(buf, 'N', sizeof(buf));
	return iomap_pwrite(arg, buf, sizeof(buf), 0);
}

/* A request of more than 64 KiB is never copied: with stable contents a writer waits for it. */
static void a_writer_of_an_unstable_file_does_not_wait_for_the_device(void)
{
	for (unsigned unstable = 0; unstable < 2; unstable++) {
		struct iomap_file_params params = IOMAP_FILE_PARAMS_INIT;
		struct t_call write;
		struct t_rig rig;

		t_rig_init(&rig);
		rig.params.max_folio_bytes = 262144;
		rig.device_params.unstable = unstable;
		t_rig_up(&rig);
		t_rig_close(&rig);
		params.device = rig.device;
		params.flags = unstable ? IOMAP_OPEN_UNSTABLE : 0;
		CHECK_EQ(iomap_open_with(rig.cache, NULL, O_RDWR, 0, &params, &rig.file), 0);
		CHECK_EQ(iomap_ftruncate(rig.file, MIB), 0);
		t_rig_write(&rig, 0, 262144, 'A');
		t_hold_park(rig.hold, T_HOLD_WRITE, 0, 0);
		CHECK_EQ(iomap_fadvise(rig.file, 0, 0, POSIX_FADV_DONTNEED), 0);
		CHECK(t_hold_wait_parked(rig.hold, 1));
		t_call_fn(&write, write_A, rig.file);
		CHECK_EQ(T_WAIT(t_call_done(&write), unstable ? 5000 : 50), unstable);
		t_hold_release(rig.hold);
		CHECK_EQ(t_call_wait(&write), 4096);
		t_call_free(&write);
		CHECK_EQ(iomap_fsync(rig.file), 0);
		t_rig_expect_stored(&rig, 0, 4096, 'N');
		t_rig_expect_stored(&rig, 4096, 262144 - 4096, 'A');
		t_rig_down(&rig);
	}
}

static const struct t_run_case cases[] = {
	T_RUN(a_sync_direct_write_that_grows_the_file_is_durable),
	T_RUN(fsync_flushes_what_only_direct_writes_grew),
	T_RUN(the_size_shows_as_soon_as_a_growing_direct_write_returns),
	T_RUN(a_reader_beside_a_growing_direct_write_sees_no_zeros),
	T_RUN(a_failed_direct_write_is_the_callers_error),
	T_RUN(a_growing_direct_write_that_fails_leaves_the_size),
	T_RUN(a_direct_write_that_fails_later_is_short),
	T_RUN(short_transfers_of_direct_calls_are_continued),
	T_RUN(a_direct_write_replaces_a_pending_buffered_one),
	T_RUN(a_direct_write_into_a_dirty_folio_loses_nothing),
	T_RUN(where_the_cache_does_not_let_go_a_direct_write_goes_through_it),
	T_RUN(direct_appends_of_many_threads_are_whole_and_in_order),
	T_RUN(a_direct_write_lost_by_a_flush_is_told),
	T_RUN(a_direct_read_of_the_unaligned_tail_is_short),
	T_RUN(a_direct_read_sees_dirty_data_and_leaves_the_cache_alone),
	T_RUN(the_last_partial_block_read_direct),
	T_RUN(a_direct_read_of_a_hole_is_zeros),
	T_RUN(a_device_that_gives_less_than_its_size_is_eio),
	T_RUN(a_direct_read_of_what_cannot_be_written_comes_from_the_cache),
	T_RUN(a_buffered_read_after_a_direct_write_sees_it),
	T_RUN(a_reader_in_the_middle_of_a_direct_write_waits_for_it),
	T_RUN_FOR(no_block_is_torn_whoever_reads_and_writes_it, 60),
	T_RUN(a_read_right_after_a_direct_write_into_a_hole_sees_it),
	T_RUN(folios_that_go_while_their_read_is_submitted_are_not_touched),
	T_RUN(any_alignment_of_place_length_and_memory_is_right),
	T_RUN(direct_calls_on_a_real_file_are_right),
	T_RUN(a_device_of_fixed_size_takes_direct_writes_up_to_its_end),
	T_RUN(nowait_does_not_flush_or_invalidate),
	T_RUN(write_through_writes_its_own_blocks_alone),
	T_RUN(write_through_tells_the_writer_of_the_error),
	T_RUN(write_through_does_not_wait_for_its_neighbours),
	T_RUN(write_through_appends_and_grows_in_order),
	T_RUN(a_writer_of_an_unstable_file_does_not_wait_for_the_device),
};

int main(int argc, char **argv)
{
	return t_run_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
