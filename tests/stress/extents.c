/*
 * extents.c - the cache over a filesystem of extents (extfs.h): delayed, unwritten, shared, inline, stale
 *
 * The comment above a test names the bug of others (B), or the case (C), that it comes from. The rig's device is full of EXTFS_POISON
 * where nobody has written: a read from a wrong place shows. Whatever breaks the contract of <iomap/ops.h> fails the test, too.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "call.h"
#include "extfs.h"
#include "rig.h"

struct er {
	/* set before er_up() */
	struct iomap_cache_params params;
	struct extfs_params fs_params;
	/* valid while it is up */
	struct iomap_cache *cache;
	struct t_hold *hold;
	struct iomap_device *device;
	struct extfs *fs;
	struct extfs_file *inode;               /* "a" … */
	struct iomap_file *file;                /* … open */
	/* where the engine stops: the next call of that point that touches pos */
	enum extfs_point stop_at;
	uint64_t stop_pos;
	_Atomic bool armed, stopped, go_on;
};

static void poke(void *priv, uint64_t addr, const void *buf, uint64_t len)
{
	t_hold_poke(((struct er *)priv)->hold, buf, len, addr);
}

static void peek(void *priv, uint64_t addr, void *buf, uint64_t len)
{
	t_hold_peek(((struct er *)priv)->hold, buf, len, addr);
}

static void hook(void *priv, enum extfs_point point, struct extfs_file *file, uint64_t pos, uint64_t len)
{
	struct er *er = priv;

	if (!atomic_load(&er->armed) || point != er->stop_at || file != er->inode || er->stop_pos < pos || er->stop_pos >= pos + len)
		return;
	if (!atomic_exchange(&er->armed, false))
		return;
	atomic_store(&er->stopped, true);
	CHECK_MSG(T_WAIT(atomic_load(&er->go_on), 20000), "nobody lets the engine go on");
}

static void stop_at(struct er *er, enum extfs_point point, uint64_t pos)
{
	er->stop_at = point;
	er->stop_pos = pos;
	atomic_store(&er->stopped, false);
	atomic_store(&er->go_on, false);
	atomic_store(&er->armed, true);
}

static void wait_stopped(struct er *er) { CHECK(T_WAIT(atomic_load(&er->stopped), 10000)); }
static void go_on(struct er *er) { atomic_store(&er->go_on, true); }

static void er_init(struct er *er)
{
	memset(er, 0, sizeof(*er));
	er->params = (struct iomap_cache_params)IOMAP_CACHE_PARAMS_INIT;
	er->params.memory_bytes = 64 * MIB;
	er->params.max_folio_bytes = 65536;
	er->params.dirty_bytes = 16 * MIB;
	er->params.dirty_background_bytes = 8 * MIB;
	er->params.dirty_writeback_ms = IOMAP_NEVER;
	er->fs_params = (struct extfs_params){ .size = 16 * MIB, .block = 4096, .poke = poke, .peek = peek, .hook = hook, .priv = er };
}

static struct iomap_file *er_open(struct er *er, struct extfs_file *inode)
{
	struct iomap_file_params params = IOMAP_FILE_PARAMS_INIT;
	struct iomap_file *file = NULL;

	params.block_size = er->fs_params.block;
	params.device = er->device;
	params.ops = &extfs_ops;
	params.writeback_ops = &extfs_writeback_ops;
	params.ops_priv = inode;
	params.size = extfs_open_size(inode);
	CHECK_EQ(iomap_open_with(er->cache, extfs_name(inode), O_RDWR, 0, &params, &file), 0);
	return file;
}

static void er_up(struct er *er)
{
	struct t_hold_params params = { .size = er->fs_params.size, .capacity = er->fs_params.size, .fixed_size = true };

	er->hold = t_hold_create(&params);
	er->device = t_hold_device(er->hold);
	er->fs = extfs_create(&er->fs_params);
	CHECK(er->fs);
	er->inode = extfs_add(er->fs, "a");
	CHECK(er->inode);
	CHECK_EQ(iomap_cache_create(&er->cache, &er->params), 0);
	er->file = er_open(er, er->inode);
}

static void er_check(struct er *er, bool quiet)
{
	char why[400] = "";
	int ret = iomap_cache_check(er->cache, why, sizeof(why));

	CHECK_MSG(ret == 0, "iomap_cache_check: %d, %s", ret, why);
	CHECK_MSG(extfs_check(er->fs, quiet, why, sizeof(why)), "%s", why);
	CHECK_MSG(!t_hold_bad(er->hold), "the device says: %s", t_hold_bad(er->hold));
}

static void er_down(struct er *er)
{
	er_check(er, false);
	CHECK_EQ(iomap_close(er->file), 0);
	CHECK_EQ(iomap_cache_sync(er->cache), 0);
	er_check(er, true);
	CHECK_EQ(iomap_cache_destroy(er->cache), 0);
	extfs_free(er->fs);
	CHECK_EQ(iomap_device_close(er->device), 0);
	CHECK(T_WAIT(t_hold_devices(er->hold) == 0, 5000));
	t_hold_free(er->hold);
}

/* As another boot would find it. */
static void er_remount(struct er *er)
{
	CHECK_EQ(iomap_close(er->file), 0);
	CHECK_EQ(iomap_cache_sync(er->cache), 0);
	er_check(er, true);
	CHECK_EQ(iomap_cache_destroy(er->cache), 0);
	CHECK_EQ(iomap_device_close(er->device), 0);
	er->device = t_hold_device(er->hold);
	CHECK_EQ(iomap_cache_create(&er->cache, &er->params), 0);
	er->file = er_open(er, er->inode);
}

static ssize_t put(struct iomap_file *file, uint64_t pos, uint64_t len, int byte)
{
	unsigned char *buf = malloc(len + 1);
	ssize_t n;

	CHECK(buf);
	memset(buf, byte, len);
	n = iomap_pwrite(file, buf, len, (off_t)pos);
	free(buf);
	return n;
}

static void er_write(struct er *er, uint64_t pos, uint64_t len, int byte) { CHECK_EQ(put(er->file, pos, len, byte), (ssize_t)len); }

static void all_are(const char *what, const unsigned char *buf, uint64_t pos, uint64_t len, int byte)
{
	ssize_t at = t_run_bytes_differ(buf, len, byte);

	CHECK_MSG(at < 0, "%s at %llu + %llu: byte %llu is %02x, expected %02x", what, (unsigned long long)pos,
		  (unsigned long long)len, (unsigned long long)(pos + (uint64_t)at), buf[at], (unsigned)byte);
}

static void expect_in(struct iomap_file *file, uint64_t pos, uint64_t len, int byte)
{
	unsigned char *buf = malloc(len + 1);

	CHECK(buf);
	CHECK_EQ(iomap_pread(file, buf, len, (off_t)pos), (ssize_t)len);
	all_are("read", buf, pos, len, byte);
	free(buf);
}

static void er_expect(struct er *er, uint64_t pos, uint64_t len, int byte) { expect_in(er->file, pos, len, byte); }

static void er_expect_stored(struct er *er, struct extfs_file *inode, uint64_t pos, uint64_t len, int byte)
{
	unsigned char *buf = malloc(len + 1);

	CHECK(buf);
	CHECK_GE(extfs_size(inode), pos + len);
	extfs_peek(inode, buf, len, pos);
	all_are("stored", buf, pos, len, byte);
	free(buf);
	(void)er;
}

static void fsync_and_drop(struct er *er)
{
	CHECK_EQ(iomap_fsync(er->file), 0);
	CHECK(t_drops_all(er->cache));
}

static void prealloc(struct er *er, uint64_t pos, uint64_t len)
{
	CHECK_EQ(iomap_fallocate(er->file, FALLOC_FL_KEEP_SIZE, (off_t)pos, (off_t)len), 0);
}

static struct extfs_stat fs_stat(struct er *er)
{
	struct extfs_stat st;

	extfs_stat(er->fs, &st);
	return st;
}

static uint64_t dirty(struct er *er)
{
	struct iomap_cache_stat st;

	CHECK_EQ(iomap_cache_stat(er->cache, &st, sizeof(st)), 0);
	return st.dirty_bytes;
}

static uint64_t in_flight(struct er *er)
{
	struct iomap_cache_stat st;

	CHECK_EQ(iomap_cache_stat(er->cache, &st, sizeof(st)), 0);
	return st.writeback_bytes;
}

static uint64_t device_writes(struct er *er)
{
	struct t_hold_count c;

	t_hold_counts(er->hold, &c);
	return c.writes;
}

/* --- delayed allocation ------------------------------------------------------------------------------------------- */

static void blocks_are_reserved_when_written_and_taken_at_writeback(void)
{
	struct extfs_stat before;
	struct er er;

	er_init(&er);
	er_up(&er);
	before = fs_stat(&er);
	er_write(&er, 4096, 40960, 'A');
	CHECK_EQ(fs_stat(&er).reserved, 40960);
	CHECK_EQ(dirty(&er), 40960);
	er_write(&er, 5000, 20000, 'B');        /* again: nothing more */
	CHECK_EQ(fs_stat(&er).reserved, 40960);
	CHECK_EQ(fs_stat(&er).free, before.free);
	CHECK_EQ(extfs_size(er.inode), 0);      /* what a crash would show */
	CHECK_EQ(iomap_fsync(er.file), 0);
	CHECK_EQ(fs_stat(&er).reserved, 0);
	CHECK_EQ(fs_stat(&er).free, before.free - 40960);
	CHECK_EQ(fs_stat(&er).mapped, 40960);
	CHECK_EQ(fs_stat(&er).unwritten, 0);
	CHECK_EQ(extfs_size(er.inode), 45056);
	er_expect_stored(&er, er.inode, 0, 4096, 0);
	er_expect_stored(&er, er.inode, 25000, 20056, 'A');
	er_down(&er);
}

static void what_is_cut_before_it_is_written_takes_no_space(void)
{
	struct extfs_stat before;
	struct er er;

	er_init(&er);
	er_up(&er);
	before = fs_stat(&er);
	er_write(&er, 0, 65536, 'A');
	CHECK_EQ(iomap_ftruncate(er.file, 10000), 0);
	CHECK_EQ(fs_stat(&er).reserved, 12288);
	CHECK_EQ(dirty(&er), 12288);
	CHECK_EQ(iomap_ftruncate(er.file, 0), 0);
	CHECK_EQ(fs_stat(&er).reserved, 0);
	CHECK_EQ(dirty(&er), 0);
	CHECK_EQ(iomap_fsync(er.file), 0);
	CHECK_EQ(fs_stat(&er).free, before.free);
	CHECK_EQ(device_writes(&er), 0);
	er_down(&er);
}

/* B2, B20: what is short gives back exactly what it did not write; at offsets that do not fit into 32 bits, too */
static void a_short_write_gives_back_what_it_did_not_write(void)
{
	static const uint64_t bases[] = { 0, 6ULL << 30, 1ULL << 40 };

	for (unsigned i = 0; i < 3; i++) {
		uint64_t base = bases[i];
		struct er er;

		er_init(&er);
		er_up(&er);
		er_write(&er, base + 5 * 4096, 4096, 'k');      /* inside what fails below */
		extfs_fail(er.fs, EXTFS_BEGIN, -ENOSPC, base + 3 * 4096, base + 5 * 4096, 0, 0);
		CHECK_EQ(put(er.file, base, 32768, 'A'), 3 * 4096);
		CHECK_EQ(fs_stat(&er).reserved, 4 * 4096);
		CHECK_EQ(dirty(&er), 4 * 4096);
		CHECK_EQ(put(er.file, base + 4 * 4096, 32768, 'A'), -ENOSPC);
		CHECK_EQ(fs_stat(&er).reserved, 4 * 4096);
		extfs_fail(er.fs, EXTFS_BEGIN, 0, 0, 0, 0, 0);
		CHECK_EQ(iomap_size(er.file), (off_t)(base + 6 * 4096));
		er_expect(&er, base, 3 * 4096, 'A');
		er_expect(&er, base + 3 * 4096, 2 * 4096, 0);
		er_expect(&er, base + 5 * 4096, 4096, 'k');
		fsync_and_drop(&er);
		er_expect(&er, base, 3 * 4096, 'A');
		er_expect(&er, base + 3 * 4096, 2 * 4096, 0);
		er_expect(&er, base + 5 * 4096, 4096, 'k');
		CHECK_EQ(fs_stat(&er).mapped, 4 * 4096);
		CHECK_EQ(fs_stat(&er).reserved, 0);
		er_down(&er);
	}
}

/* B37: a write that fails over blocks that others dirtied leaves them their space */
static void a_failing_write_leaves_others_their_reservation(void)
{
	struct extfs_file *clone;
	struct er er;

	er_init(&er);
	er_up(&er);
	er_write(&er, 0, 8192, 'A');
	CHECK_EQ(iomap_fsync(er.file), 0);
	clone = extfs_add(er.fs, "b");
	CHECK_EQ(extfs_clone(er.inode, clone), 0);
	CHECK(t_drops_all(er.cache));
	er_write(&er, 0, 4096, 'B');                    /* its copy is reserved */
	CHECK_EQ(fs_stat(&er).reserved, 4096);
	t_hold_fail(er.hold, T_HOLD_READ, 0, 0, EIO);
	CHECK_EQ(put(er.file, 4096, 100, 'C'), -EIO);   /* needs the rest of its block */
	CHECK_EQ(fs_stat(&er).reserved, 4096);
	CHECK_EQ(put(er.file, 4000, 200, 'C'), 96);
	CHECK_EQ(fs_stat(&er).reserved, 4096);
	t_hold_heal(er.hold);
	CHECK_EQ(dirty(&er), 4096);
	fsync_and_drop(&er);
	er_expect(&er, 0, 4000, 'B');
	er_expect(&er, 4000, 96, 'C');
	er_expect(&er, 4096, 4096, 'A');
	er_expect_stored(&er, clone, 0, 8192, 'A');
	CHECK_EQ(fs_stat(&er).reserved, 0);
	er_down(&er);
}

/* The same for zeros: the last block needs its other bytes and cannot have them, those in front of it are dirty. */
static void zeroing_that_fails_keeps_what_it_has_done(void)
{
	struct extfs_file *clone;
	struct er er;

	er_init(&er);
	er.fs_params.block = 512;               /* all in one folio */
	er_up(&er);
	er_write(&er, 0, 4096, 'A');
	CHECK_EQ(iomap_fsync(er.file), 0);
	clone = extfs_add(er.fs, "b");
	CHECK_EQ(extfs_clone(er.inode, clone), 0);
	CHECK(t_drops_all(er.cache));
	t_hold_fail(er.hold, T_HOLD_READ, 0, 0, EIO);
	CHECK_EQ(iomap_fallocate(er.file, FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE, 0, 3 * 512 + 100), -EIO);
	t_hold_heal(er.hold);
	CHECK_EQ(dirty(&er), 3 * 512);
	CHECK_EQ(fs_stat(&er).reserved, 3 * 512);
	fsync_and_drop(&er);
	er_expect(&er, 0, 3 * 512, 0);
	er_expect(&er, 3 * 512, 5 * 512, 'A');
	er_expect_stored(&er, clone, 0, 4096, 'A');
	er_down(&er);
}

/* C46 */
static void no_room_behind_the_end_keeps_what_is_before_it(void)
{
	struct er er;

	er_init(&er);
	er.fs_params.block = 1024;
	er.params.max_folio_bytes = 4096;
	er_up(&er);
	er_write(&er, 0, 1024, 'A');
	extfs_fail(er.fs, EXTFS_BEGIN, -ENOSPC, 1024, UINT64_MAX, 0, 0);
	CHECK_EQ(put(er.file, 1024, 2048, 'N'), -ENOSPC);
	CHECK_EQ(iomap_size(er.file), 1024);
	CHECK_EQ(dirty(&er), 1024);
	CHECK_EQ(fs_stat(&er).reserved, 1024);
	extfs_fail(er.fs, EXTFS_BEGIN, 0, 0, 0, 0, 0);
	fsync_and_drop(&er);
	er_expect(&er, 0, 1024, 'A');
	CHECK_EQ(iomap_size(er.file), 1024);
	er_down(&er);
}

/* C47 */
static void a_full_filesystem_says_so_and_writes_what_it_promised(void)
{
	struct er er;

	er_init(&er);
	er.fs_params.size = 11 * 4096;          /* ten blocks */
	er_up(&er);
	CHECK_EQ(put(er.file, 0, 65536, 'A'), 40960);
	CHECK_EQ(fs_stat(&er).reserved, 40960);
	CHECK_EQ(put(er.file, 40960, 4096, 'B'), -ENOSPC);
	CHECK_EQ(put(er.file, 40960, 4096, 'B'), -ENOSPC);
	CHECK_EQ(put(er.file, 40960, 0, 'B'), 0);
	CHECK_EQ(iomap_size(er.file), 40960);
	er_write(&er, 100, 10000, 'C');         /* what is reserved may change */
	CHECK_EQ(iomap_fsync(er.file), 0);
	er_expect_stored(&er, er.inode, 100, 10000, 'C');
	er_expect_stored(&er, er.inode, 10100, 40960 - 10100, 'A');
	CHECK_EQ(iomap_ftruncate(er.file, 4096), 0);
	er_write(&er, 4096, 4096, 'D');
	er_down(&er);
}

/* B9: the size that a crash shows is that of the bytes that are on the device, not of a block */
static void the_engine_hears_of_the_size_of_what_was_written(void)
{
	struct er er;

	er_init(&er);
	er_up(&er);
	er_write(&er, 0, 100, 'A');
	t_hold_park(er.hold, T_HOLD_WRITE, 0, 0);
	CHECK_EQ(iomap_fadvise(er.file, 0, 0, POSIX_FADV_DONTNEED), 0);
	CHECK(t_hold_wait_parked(er.hold, 1));
	er_write(&er, 100, 100, 'B');
	CHECK_EQ(extfs_size(er.inode), 0);
	t_hold_release(er.hold);
	CHECK(T_WAIT(fs_stat(&er).end_ios == 1, 5000));
	CHECK_EQ(extfs_size(er.inode), 100);
	er_expect_stored(&er, er.inode, 0, 100, 'A');
	CHECK_EQ(iomap_fsync(er.file), 0);
	CHECK_EQ(extfs_size(er.inode), 200);
	er_expect_stored(&er, er.inode, 100, 100, 'B');
	er_down(&er);
}

/* --- mappings that go stale ---------------------------------------------------------------------------------------- */

/* B1, C05 */
static void a_long_write_sees_that_its_mapping_has_changed(void)
{
	struct t_call write;
	struct er er;

	er_init(&er);
	er_up(&er);
	prealloc(&er, 0, 40960);
	er_remount(&er);
	er_write(&er, 40959, 1, 'X');
	stop_at(&er, EXTFS_BEGIN, 0);
	t_call_write(&write, er.file, 'W', 36865, 0);
	wait_stopped(&er);
	fsync_and_drop(&er);                    /* the last block is converted, and not cached any more */
	go_on(&er);
	CHECK_EQ(t_call_wait(&write), 36865);
	t_call_free(&write);
	CHECK_GE(fs_stat(&er).stale, 1);
	for (unsigned pass = 0; pass < 2; pass++) {
		er_expect(&er, 0, 36865, 'W');
		er_expect(&er, 36865, 40959 - 36865, 0);
		er_expect(&er, 40959, 1, 'X');
		if (!pass)
			er_remount(&er);
	}
	er_down(&er);
}

/* B5 */
static void zeroing_over_unwritten_blocks_sees_what_is_dirty_there(void)
{
	for (unsigned round = 0; round < 2; round++) {
		struct er er;

		er_init(&er);
		er_up(&er);
		prealloc(&er, 0, 65536);
		er_write(&er, 0, 65536, 'A');
		if (round)
			CHECK_EQ(iomap_fadvise(er.file, 0, 0, POSIX_FADV_DONTNEED), 0);
		CHECK_EQ(iomap_ftruncate(er.file, 10001), 0);
		CHECK_EQ(iomap_ftruncate(er.file, 65536), 0);
		for (unsigned pass = 0; pass < 2; pass++) {
			er_expect(&er, 0, 10001, 'A');
			er_expect(&er, 10001, 65536 - 10001, 0);
			fsync_and_drop(&er);
		}
		er_down(&er);
	}
}

struct zero { struct iomap_file *file; off_t pos, len; };

static int64_t zero_range(void *arg)
{
	struct zero *zero = arg;

	return iomap_fallocate(zero->file, FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE, zero->pos, zero->len);
}

/* B5 and B1 in one: between the look at the mapping and the look for a folio what was dirty is written and gone */
static void zeroing_sees_that_its_mapping_has_changed(void)
{
	struct t_call cut;
	struct er er;

	er_init(&er);
	er_up(&er);
	prealloc(&er, 0, 65536);
	er_write(&er, 0, 65536, 'A');
	stop_at(&er, EXTFS_BEGIN, 10001);
	t_call_truncate(&cut, er.file, 10001);
	wait_stopped(&er);
	fsync_and_drop(&er);
	go_on(&er);
	CHECK_EQ(t_call_wait(&cut), 0);
	t_call_free(&cut);
	CHECK_EQ(iomap_ftruncate(er.file, 65536), 0);
	for (unsigned pass = 0; pass < 2; pass++) {
		er_expect(&er, 0, 10001, 'A');
		er_expect(&er, 10001, 65536 - 10001, 0);
		fsync_and_drop(&er);
	}
	er_down(&er);
}

/* … and with a range in the middle of the file, of which nothing is zeroed a second time */
static void a_zeroed_range_sees_that_its_mapping_has_changed(void)
{
	struct zero zero;
	struct t_call call;
	struct er er;

	er_init(&er);
	er_up(&er);
	prealloc(&er, 0, 65536);
	er_write(&er, 0, 65536, 'A');
	stop_at(&er, EXTFS_BEGIN, 10001);
	zero = (struct zero){ er.file, 10001, 30000 };
	t_call_fn(&call, zero_range, &zero);
	wait_stopped(&er);
	fsync_and_drop(&er);
	go_on(&er);
	CHECK_EQ(t_call_wait(&call), 0);
	t_call_free(&call);
	for (unsigned pass = 0; pass < 2; pass++) {
		er_expect(&er, 0, 10001, 'A');
		er_expect(&er, 10001, 30000, 0);
		er_expect(&er, 40001, 65536 - 40001, 'A');
		fsync_and_drop(&er);
	}
	er_down(&er);
}

/* B6: the file has a hole there; what is dirty is on its way to a copy */
/* … nor is it believed where what was in flight has left it, converted, since it was asked for: a request that fails leaves it as it was */
static void zeroing_sees_what_was_in_flight_when_the_mapping_was_asked_for(void)
{
	for (unsigned fails = 0; fails < 2; fails++) {
		struct zero zero;
		struct t_call call;
		struct er er;

		er_init(&er);
		er_up(&er);
		prealloc(&er, 0, 65536);
		er_write(&er, 8192, 4096, 'A');
		if (fails)
			t_hold_fail(er.hold, T_HOLD_WRITE, 0, 0, EIO);
		t_hold_park(er.hold, T_HOLD_WRITE, 0, 0);
		CHECK_EQ(iomap_sync_range(er.file, 8192, 4096, IOMAP_SYNC_WRITE), 0);
		CHECK(t_hold_wait_parked(er.hold, 1));
		stop_at(&er, EXTFS_VALID, 8192);
		zero = (struct zero){ er.file, 8192 + 100, 200 };
		t_call_fn(&call, zero_range, &zero);
		wait_stopped(&er);
		t_hold_release(er.hold);
		CHECK(T_WAIT(in_flight(&er) == 0, 5000));
		t_hold_heal(er.hold);
		go_on(&er);
		CHECK_EQ(t_call_wait(&call), 0);
		t_call_free(&call);
		for (unsigned pass = 0; pass < 2; pass++) {
			er_expect(&er, 8192, 100, 'A');
			er_expect(&er, 8192 + 100, 200, 0);
			er_expect(&er, 8192 + 300, 4096 - 300, 'A');
			fsync_and_drop(&er);
		}
		er_down(&er);
	}
}

static void zeroing_over_a_hole_sees_what_is_dirty_there(void)
{
	struct er er;

	er_init(&er);
	er.fs_params.flags = EXTFS_ALWAYS_COW;
	er_up(&er);
	er_write(&er, 0, 65536, 'A');
	CHECK_EQ(iomap_ftruncate(er.file, 10001), 0);
	CHECK_EQ(iomap_ftruncate(er.file, 65536), 0);
	for (unsigned pass = 0; pass < 2; pass++) {
		er_expect(&er, 0, 10001, 'A');
		er_expect(&er, 10001, 65536 - 10001, 0);
		fsync_and_drop(&er);
	}
	er_down(&er);
}

/* B7: the old end's block is zeroed, though the write that wanted it fails */
static void zeroing_beyond_the_end_does_not_move_it(void)
{
	struct er er;

	er_init(&er);
	er_up(&er);
	er_write(&er, 0, 100, 'A');
	CHECK_EQ(iomap_fsync(er.file), 0);
	extfs_fail(er.fs, EXTFS_BEGIN, -ENOSPC, 4096, UINT64_MAX, 0, 0);
	CHECK_EQ(put(er.file, 9000, 100, 'B'), -ENOSPC);
	CHECK_EQ(iomap_size(er.file), 100);
	CHECK_EQ(iomap_fsync(er.file), 0);
	CHECK_EQ(extfs_size(er.inode), 100);
	extfs_fail(er.fs, EXTFS_BEGIN, 0, 0, 0, 0, 0);
	er_write(&er, 9000, 100, 'B');
	fsync_and_drop(&er);
	er_expect(&er, 0, 100, 'A');
	er_expect(&er, 100, 8900, 0);
	er_expect(&er, 9000, 100, 'B');
	er_down(&er);
}

/* --- unwritten blocks ----------------------------------------------------------------------------------------------- */

struct syncer { struct iomap_cache *cache; _Atomic bool stop; int bad; };

static void *sync_all(void *arg)
{
	struct syncer *s = arg;

	while (!atomic_load(&s->stop))
		if (iomap_cache_sync(s->cache))
			s->bad++;
	return NULL;
}

/* C04 */
static void syncs_beside_the_writer_leave_nothing_unwritten(void)
{
	struct syncer syncer = { 0 };
	pthread_t thread;
	struct er er;

	er_init(&er);
	er_up(&er);
	syncer.cache = er.cache;
	CHECK_EQ(pthread_create(&thread, NULL, sync_all, &syncer), 0);
	for (unsigned i = 0; i < (t_run_is_long() ? 100u : 20u); i++) {
		for (unsigned k = 0; k < 16; k++)
			er_write(&er, k * 4096 + 3072, 1, 'A');
		prealloc(&er, 0, 65536);
		er_write(&er, 0, 1048576, 'C');
		CHECK_EQ(iomap_fsync(er.file), 0);
		CHECK_EQ(fs_stat(&er).unwritten, 0);
		CHECK(t_drops_all(er.cache));
		er_expect(&er, 0, 1048576, 'C');
		CHECK_EQ(iomap_ftruncate(er.file, 0), 0);
	}
	atomic_store(&syncer.stop, true);
	pthread_join(thread, NULL);
	CHECK_EQ(syncer.bad, 0);
	er_down(&er);
}

/* C08 */
static void the_second_half_of_a_block_joins_the_first(void)
{
	struct er er;

	er_init(&er);
	er_up(&er);
	prealloc(&er, 0, 131072);
	CHECK_EQ(iomap_ftruncate(er.file, 131072), 0);
	er_write(&er, 65536, 2048, 'A');
	fsync_and_drop(&er);
	er_write(&er, 67584, 2048, 'B');
	fsync_and_drop(&er);
	er_expect(&er, 61440, 4096, 0);
	er_expect(&er, 65536, 2048, 'A');
	er_expect(&er, 67584, 2048, 'B');
	er_expect(&er, 69632, 4096, 0);
	CHECK_EQ(fs_stat(&er).mapped, 4096);
	er_down(&er);
}

/* C07 */
static void holes_are_found_between_dirty_blocks_over_unwritten_ones(void)
{
	static const struct { int whence; off_t pos, want; } seeks[] = {
		{ SEEK_DATA, 0, 16384 }, { SEEK_HOLE, 16384, 20480 }, { SEEK_DATA, 20480, 49152 }, { SEEK_HOLE, 49152, 53248 },
		{ SEEK_DATA, 53248, -ENXIO },
	};
	struct er er;

	er_init(&er);
	er_up(&er);
	CHECK_EQ(iomap_fallocate(er.file, 0, 0, 65536), 0);
	CHECK_EQ(iomap_lseek(er.file, 0, SEEK_DATA), -ENXIO);
	er_write(&er, 16384, 4096, 'A');
	er_write(&er, 49152, 1, 'B');
	for (unsigned pass = 0; pass < 2; pass++) {
		for (unsigned i = 0; i < sizeof(seeks) / sizeof(seeks[0]); i++)
			CHECK_EQ(iomap_lseek(er.file, seeks[i].pos, seeks[i].whence), seeks[i].want);
		CHECK_EQ(iomap_fsync(er.file), 0);
	}
	er_down(&er);
}

/* C19 */
static void a_cut_into_what_is_dirty_over_unwritten_blocks_and_a_punch_behind_it(void)
{
	for (unsigned synced = 0; synced < 2; synced++) {
		unsigned char buf[4096];
		struct er er;

		er_init(&er);
		er_up(&er);
		prealloc(&er, 0, 4096);
		er_write(&er, 0, 4096, 'W');
		if (synced)
			CHECK_EQ(iomap_fsync(er.file), 0);
		CHECK_EQ(iomap_ftruncate(er.file, 16), 0);
		CHECK_EQ(iomap_fallocate(er.file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 16, 16), 0);
		CHECK_EQ(iomap_cache_drop(er.cache), 0);
		CHECK_EQ(iomap_pread(er.file, buf, 4096, 0), 16);
		CHECK_BYTES(buf, 16, 'W');
		CHECK_EQ(iomap_ftruncate(er.file, 4096), 0);
		for (unsigned pass = 0; pass < 2; pass++) {
			er_expect(&er, 0, 16, 'W');
			er_expect(&er, 16, 4080, 0);
			CHECK_EQ(iomap_fsync(er.file), 0);
			er_remount(&er);
		}
		CHECK_EQ(iomap_ftruncate(er.file, 0), 0);
		prealloc(&er, 0x35870, 0xa790);
		er_write(&er, 0x2aa50, 0xc37f, 'W');
		if (synced)
			CHECK_EQ(iomap_fsync(er.file), 0);
		CHECK_EQ(iomap_ftruncate(er.file, 0x36dcd), 0);
		CHECK_EQ(iomap_fallocate(er.file, FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE, 0x35849, 0x1584), 0);
		CHECK_EQ(iomap_size(er.file), 0x36dcd);
		er_expect(&er, 0x361c8, 0xc05, 0);
		fsync_and_drop(&er);
		er_expect(&er, 0x361c8, 0xc05, 0);
		er_expect(&er, 0x2aa50, 0x35849 - 0x2aa50, 'W');
		er_down(&er);
	}
}

/* C48: what the device held before is not seen where a direct write failed; under the rule that keeps dirty bytes, once they are given up */
static void old_contents_of_blocks_are_never_seen(void)
{
	unsigned char *buf = aligned_alloc(4096, 1048576);
	struct iovec iov = { buf, 1048576 };

	CHECK(buf);
	for (enum iomap_error_policy policy = IOMAP_ERROR_KEEP_DIRTY; policy <= IOMAP_ERROR_DROP; policy++) {
		struct er er;

		er_init(&er);
		er.params.error_policy = policy;
		er_up(&er);
		CHECK_EQ(iomap_fallocate(er.file, 0, 0, 1048576), 0);
		er_write(&er, 262144, 1, 'c');
		CHECK_EQ(iomap_fsync(er.file), 0);
		t_hold_fail(er.hold, T_HOLD_WRITE, 0, 0, EIO);
		memset(buf, 'c', 1048576);
		CHECK_EQ(iomap_pwritev2(er.file, &iov, 1, 0, IOMAP_RWF_DIRECT), -EIO);
		t_hold_heal(er.hold);
		CHECK_EQ(iomap_resolve(er.file, 0, 0, IOMAP_RESOLVE_DISCARD), 0);
		CHECK_EQ(iomap_fsync(er.file), policy == IOMAP_ERROR_DROP ? -EIO : 0);
		CHECK(t_drops_all(er.cache));
		for (unsigned pass = 0; pass < 2; pass++) {
			er_expect(&er, 0, 262144, 0);
			er_expect(&er, 262144, 1, 'c');
			er_expect(&er, 262145, 1048576 - 262145, 0);
			if (!pass)
				er_remount(&er);
		}
		er_down(&er);
	}
	free(buf);
}

static void a_fresh_block_is_zeros_but_for_what_was_written(void)
{
	static const unsigned ways[] = { 0, EXTFS_EARLY, EXTFS_EARLY_NEW, EXTFS_ALWAYS_COW, EXTFS_ALWAYS_COW | EXTFS_COW_UNWRITTEN };

	for (unsigned i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
		struct er er;

		er_init(&er);
		er.fs_params.flags = ways[i];
		er_up(&er);
		CHECK_EQ(iomap_ftruncate(er.file, 20000), 0);
		er_write(&er, 5000, 100, 'A');
		for (unsigned pass = 0; pass < 2; pass++) {
			er_expect(&er, 0, 5000, 0);
			er_expect(&er, 5000, 100, 'A');
			er_expect(&er, 5100, 14900, 0);
			fsync_and_drop(&er);
		}
		er_expect_stored(&er, er.inode, 5100, 14900, 0);
		er_down(&er);
	}
}

/* B30: nobody can cache the zeros that were there before a direct write had converted its blocks */
static void a_direct_write_into_unwritten_blocks_is_seen_at_once(void)
{
	struct iovec iov;
	unsigned char *buf = aligned_alloc(4096, 65536);
	struct er er;

	CHECK(buf);
	er_init(&er);
	er_up(&er);
	CHECK_EQ(iomap_fallocate(er.file, 0, 0, 131072), 0);
	er_expect(&er, 0, 131072, 0);
	memset(buf, 'D', 65536);
	iov = (struct iovec){ buf, 65536 };
	CHECK_EQ(iomap_pwritev2(er.file, &iov, 1, 32768, IOMAP_RWF_DIRECT), 65536);
	er_expect_stored(&er, er.inode, 32768, 65536, 'D');
	CHECK_EQ(fs_stat(&er).mapped, 65536);
	for (unsigned pass = 0; pass < 2; pass++) {
		memset(buf, 0, 65536);
		CHECK_EQ(iomap_preadv2(er.file, &iov, 1, 32768, IOMAP_RWF_DIRECT), 65536);
		all_are("read around the cache", buf, 32768, 65536, 'D');
		er_expect(&er, 0, 32768, 0);
		er_expect(&er, 32768, 65536, 'D');
		er_expect(&er, 98304, 32768, 0);
		fsync_and_drop(&er);
	}
	er_down(&er);
	free(buf);
}

/* An fsync, and a reader that looks past the cache, find the blocks converted. */
static void blocks_are_in_flight_until_the_engine_has_settled_them(void)
{
	struct t_call sync;
	struct er er;

	er_init(&er);
	er_up(&er);
	er_write(&er, 0, 8192, 'A');
	stop_at(&er, EXTFS_END_IO, 0);
	t_call_fsync(&sync, er.file);
	wait_stopped(&er);
	CHECK(!T_WAIT(t_call_done(&sync), 50));
	CHECK_EQ(iomap_cache_drop(er.cache), 0);
	CHECK_EQ(fs_stat(&er).unwritten, 8192);
	er_expect(&er, 0, 8192, 'A');
	go_on(&er);
	CHECK_EQ(t_call_wait(&sync), 0);
	t_call_free(&sync);
	CHECK_EQ(fs_stat(&er).unwritten, 0);
	CHECK(t_drops_all(er.cache));
	er_expect(&er, 0, 8192, 'A');
	er_down(&er);
}

/* --- shared blocks ------------------------------------------------------------------------------------------------ */

static void a_write_to_shared_blocks_leaves_the_others_theirs(void)
{
	for (unsigned unwritten = 0; unwritten < 2; unwritten++) {
		struct extfs_file *clone;
		struct iomap_file *other;
		struct er er;

		er_init(&er);
		er.fs_params.flags = unwritten ? EXTFS_COW_UNWRITTEN : 0;
		er_up(&er);
		er_write(&er, 0, 65536, 'A');
		CHECK_EQ(iomap_fsync(er.file), 0);
		clone = extfs_add(er.fs, "b");
		CHECK_EQ(extfs_clone(er.inode, clone), 0);
		CHECK_EQ(fs_stat(&er).shared, 2 * 65536);
		CHECK(t_drops_all(er.cache));
		other = er_open(&er, clone);
		CHECK_EQ(put(other, 5000, 10000, 'B'), 10000);          /* parts of blocks, nothing of them cached */
		expect_in(other, 0, 5000, 'A');
		expect_in(other, 5000, 10000, 'B');
		expect_in(other, 15000, 65536 - 15000, 'A');
		er_expect(&er, 0, 65536, 'A');
		CHECK_EQ(iomap_fsync(other), 0);
		CHECK(t_drops_all(er.cache));
		expect_in(other, 0, 5000, 'A');
		expect_in(other, 5000, 10000, 'B');
		expect_in(other, 15000, 65536 - 15000, 'A');
		er_expect(&er, 0, 65536, 'A');
		CHECK_EQ(fs_stat(&er).shared, 2 * (65536 - 3 * 4096));
		CHECK_EQ(iomap_ftruncate(er.file, 7001), 0);            /* zeros in a shared block are a write, too */
		CHECK_EQ(iomap_fsync(er.file), 0);
		expect_in(other, 5000, 10000, 'B');
		CHECK_EQ(iomap_ftruncate(other, 50001), 0);
		CHECK_EQ(iomap_ftruncate(other, 65536), 0);
		CHECK_EQ(iomap_fsync(other), 0);
		er_expect_stored(&er, clone, 50001, 65536 - 50001, 0);
		CHECK_EQ(iomap_close(other), 0);
		er_down(&er);
	}
}

/* --- writeback ---------------------------------------------------------------------------------------------------- */

/* B35 */
static void only_the_block_that_finds_no_place_fails(void)
{
	struct er er;

	er_init(&er);
	er_up(&er);
	er_write(&er, 0, 16 * 4096, 'A');
	extfs_fail(er.fs, EXTFS_MAP, -EIO, 10 * 4096, 11 * 4096, 0, 0);
	CHECK_EQ(iomap_fsync(er.file), -EIO);
	extfs_fail(er.fs, EXTFS_MAP, 0, 0, 0, 0, 0);
	er_expect_stored(&er, er.inode, 0, 10 * 4096, 'A');
	er_expect_stored(&er, er.inode, 10 * 4096, 4096, 0);
	er_expect_stored(&er, er.inode, 11 * 4096, 5 * 4096, 'A');
	CHECK_EQ(dirty(&er), 4096);
	CHECK_EQ(iomap_resolve(er.file, 0, 0, IOMAP_RESOLVE_RETRY), 0);
	er_expect_stored(&er, er.inode, 0, 16 * 4096, 'A');
	CHECK_EQ(fs_stat(&er).reserved, 0);
	er_down(&er);
}

/* B40 */
static void a_delayed_mapping_at_writeback_is_an_error_and_writes_nothing(void)
{
	struct er er;

	er_init(&er);
	er_up(&er);
	er_write(&er, 0, 4096, 'A');
	extfs_fail(er.fs, EXTFS_BAD_MAP, 1, 0, UINT64_MAX, 0, 0);
	CHECK_EQ(iomap_fsync(er.file), -EIO);
	CHECK_EQ(device_writes(&er), 0);
	CHECK_EQ(extfs_size(er.inode), 0);
	extfs_fail(er.fs, EXTFS_BAD_MAP, 0, 0, 0, 0, 0);
	er_expect(&er, 0, 4096, 'A');
	CHECK_EQ(iomap_resolve(er.file, 0, 0, IOMAP_RESOLVE_RETRY), 0);
	er_expect_stored(&er, er.inode, 0, 4096, 'A');
	er_down(&er);
}

static void what_the_engine_refuses_or_cannot_settle_stays_dirty(void)
{
	static const enum extfs_point points[] = { EXTFS_SUBMIT, EXTFS_END_IO };

	for (unsigned i = 0; i < 2; i++) {
		struct er er;

		er_init(&er);
		er_up(&er);
		er_write(&er, 0, 8192, 'A');
		extfs_fail(er.fs, points[i], -EIO, 0, UINT64_MAX, 0, 0);
		CHECK_EQ(iomap_fsync(er.file), -EIO);
		CHECK_EQ(fs_stat(&er).submits, fs_stat(&er).end_ios);
		CHECK_EQ(extfs_size(er.inode), 0);
		CHECK_EQ(dirty(&er), 8192);
		CHECK_EQ(iomap_cache_drop(er.cache), 0);
		er_expect(&er, 0, 8192, 'A');
		extfs_fail(er.fs, points[i], 0, 0, 0, 0, 0);
		CHECK_EQ(iomap_resolve(er.file, 0, 0, IOMAP_RESOLVE_RETRY), 0);
		CHECK_EQ(iomap_fsync(er.file), 0);
		er_expect_stored(&er, er.inode, 0, 8192, 'A');
		er_down(&er);
	}
}

static void a_commit_that_fails_fails_the_fsync(void)
{
	struct er er;

	er_init(&er);
	er_up(&er);
	er_write(&er, 0, 4096, 'A');
	extfs_fail(er.fs, EXTFS_COMMIT, -EIO, 0, UINT64_MAX, 0, 1);
	CHECK_EQ(iomap_fsync(er.file), -EIO);
	CHECK_EQ(iomap_fsync(er.file), 0);
	CHECK_EQ(fs_stat(&er).commits, 2);
	er_down(&er);
}

static void requests_end_at_boundaries_and_where_extents_do(void)
{
	struct er er;

	er_init(&er);
	er.fs_params.boundary = 4;
	er_up(&er);
	er_write(&er, 0, 64 * 4096, 'A');
	CHECK_EQ(iomap_fsync(er.file), 0);
	CHECK_GE(device_writes(&er), 16);
	CHECK_EQ(fs_stat(&er).submits, device_writes(&er));
	er_expect_stored(&er, er.inode, 0, 64 * 4096, 'A');
	CHECK(t_drops_all(er.cache));
	er_expect(&er, 0, 64 * 4096, 'A');
	er_down(&er);
}

/* --- inline data -------------------------------------------------------------------------------------------------- */

static void a_small_file_stays_with_the_metadata_until_it_grows(void)
{
	struct er er;

	er_init(&er);
	er.fs_params.inline_max = 1000;
	er_up(&er);
	er_write(&er, 0, 100, 'A');
	er_write(&er, 300, 50, 'B');
	CHECK_EQ(dirty(&er), 0);
	CHECK_EQ(extfs_size(er.inode), 350);
	CHECK_EQ(fs_stat(&er).inline_files, 1);
	er_expect_stored(&er, er.inode, 100, 200, 0);
	CHECK(t_drops_all(er.cache));
	er_expect(&er, 0, 100, 'A');
	er_expect(&er, 100, 200, 0);
	er_expect(&er, 300, 50, 'B');
	CHECK_EQ(iomap_fsync(er.file), 0);
	CHECK_EQ(device_writes(&er), 0);
	er_write(&er, 900, 500, 'C');           /* does not fit any more */
	CHECK_EQ(fs_stat(&er).inline_files, 0);
	for (unsigned pass = 0; pass < 2; pass++) {
		er_expect(&er, 0, 100, 'A');
		er_expect(&er, 100, 200, 0);
		er_expect(&er, 300, 50, 'B');
		er_expect(&er, 350, 550, 0);
		er_expect(&er, 900, 500, 'C');
		fsync_and_drop(&er);
	}
	er_down(&er);
}

static void cutting_inline_data_needs_no_block(void)
{
	struct er er;

	er_init(&er);
	er.fs_params.inline_max = 1000;
	er_up(&er);
	er_write(&er, 0, 500, 'A');
	CHECK_EQ(iomap_ftruncate(er.file, 200), 0);
	CHECK_EQ(dirty(&er), 0);
	CHECK_EQ(iomap_ftruncate(er.file, 400), 0);
	CHECK_EQ(dirty(&er), 0);
	for (unsigned pass = 0; pass < 2; pass++) {
		er_expect(&er, 0, 200, 'A');
		er_expect(&er, 200, 200, 0);
		CHECK_EQ(iomap_size(er.file), 400);
		fsync_and_drop(&er);
	}
	er_write(&er, 450, 10, 'B');
	CHECK(t_drops_all(er.cache));
	er_expect(&er, 200, 250, 0);
	er_expect(&er, 450, 10, 'B');
	CHECK_EQ(fs_stat(&er).inline_files, 1);
	CHECK_EQ(device_writes(&er), 0);
	er_down(&er);
}

/* --- the engine may forget ------------------------------------------------------------------------------------------ */

/* After a sync behind the last close nothing of the file is left in the cache: the next open is a first one. */
static void a_file_closed_and_synced_is_the_engines_alone(void)
{
	struct extfs_file *old;
	struct er er;

	er_init(&er);
	er.params.dirty_writeback_ms = 1;
	er.params.dirty_expire_ms = 1;
	er_up(&er);
	old = extfs_add(er.fs, "old");
	for (unsigned i = 0; i < (t_run_is_long() ? 2000u : 200u); i++) {
		er_write(&er, i * 100, 4096, 'A' + (int)(i % 26));
		CHECK_EQ(iomap_close(er.file), 0);
		CHECK_EQ(iomap_cache_sync(er.cache), 0);
		CHECK_EQ(extfs_clone(old, er.inode), 0);        /* behind the cache's back */
		er.file = er_open(&er, er.inode);
		CHECK_EQ(iomap_size(er.file), 0);
	}
	er_down(&er);
}

static const struct t_run_case cases[] = {
	T_RUN(blocks_are_reserved_when_written_and_taken_at_writeback),
	T_RUN(what_is_cut_before_it_is_written_takes_no_space),
	T_RUN(a_short_write_gives_back_what_it_did_not_write),
	T_RUN(a_failing_write_leaves_others_their_reservation),
	T_RUN(zeroing_that_fails_keeps_what_it_has_done),
	T_RUN(no_room_behind_the_end_keeps_what_is_before_it),
	T_RUN(a_full_filesystem_says_so_and_writes_what_it_promised),
	T_RUN(the_engine_hears_of_the_size_of_what_was_written),
	T_RUN(a_long_write_sees_that_its_mapping_has_changed),
	T_RUN(zeroing_over_unwritten_blocks_sees_what_is_dirty_there),
	T_RUN(zeroing_sees_that_its_mapping_has_changed),
	T_RUN(a_zeroed_range_sees_that_its_mapping_has_changed),
	T_RUN(zeroing_sees_what_was_in_flight_when_the_mapping_was_asked_for),
	T_RUN(zeroing_over_a_hole_sees_what_is_dirty_there),
	T_RUN(zeroing_beyond_the_end_does_not_move_it),
	T_RUN(syncs_beside_the_writer_leave_nothing_unwritten),
	T_RUN(the_second_half_of_a_block_joins_the_first),
	T_RUN(holes_are_found_between_dirty_blocks_over_unwritten_ones),
	T_RUN(a_cut_into_what_is_dirty_over_unwritten_blocks_and_a_punch_behind_it),
	T_RUN(old_contents_of_blocks_are_never_seen),
	T_RUN(a_fresh_block_is_zeros_but_for_what_was_written),
	T_RUN(a_direct_write_into_unwritten_blocks_is_seen_at_once),
	T_RUN(blocks_are_in_flight_until_the_engine_has_settled_them),
	T_RUN(a_write_to_shared_blocks_leaves_the_others_theirs),
	T_RUN(only_the_block_that_finds_no_place_fails),
	T_RUN(a_delayed_mapping_at_writeback_is_an_error_and_writes_nothing),
	T_RUN(what_the_engine_refuses_or_cannot_settle_stays_dirty),
	T_RUN(a_commit_that_fails_fails_the_fsync),
	T_RUN(requests_end_at_boundaries_and_where_extents_do),
	T_RUN(a_small_file_stays_with_the_metadata_until_it_grows),
	T_RUN(cutting_inline_data_needs_no_block),
	T_RUN(a_file_closed_and_synced_is_the_engines_alone),
};

int main(int argc, char **argv)
{
	return t_run_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
