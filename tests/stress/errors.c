/*
 * errors.c - the n-th write, flush, read or allocation fails, for every n; or all of them do, from the n-th on
 *
 * One short script of writes, cuts and syncs runs again and again beside a model of its bytes. What may fail is said
 * step by step; afterwards the file, the store and what would survive a power cut are compared with the model.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "call.h"
#include "rcu.h"           /* IOMAP_TSAN */
#include "rig.h"

enum { FILE_MAX = 512 << 10 };

/* --- the script -------------------------------------------------------------------------------------------------- */

struct script {
	struct t_rig *rig;
	unsigned char *bytes, *buf;     /* the model, zeros past size */
	uint64_t size;
	unsigned fills;
	int sync_error;                 /* what a sync may fail with, 0 = nothing may fail */
	bool sticky;                    /* … and all syncs after the first that failed must fail as well */
	unsigned failed_syncs;
	bool no_drop;                   /* nothing leaves the cache */
};

static void script_init(struct script *s, struct t_rig *rig)
{
	memset(s, 0, sizeof(*s));
	s->rig = rig;
	s->bytes = calloc(1, FILE_MAX);
	s->buf = malloc(FILE_MAX);
	CHECK(s->bytes && s->buf);
}

static void script_free(struct script *s)
{
	free(s->bytes);
	free(s->buf);
}

static void synced(struct script *s, const char *what, long long ret)
{
	if (s->sticky && s->failed_syncs)
		CHECK_MSG(ret == s->sync_error, "%s after a failed flush: %lld", what, ret);
	else
		CHECK_MSG(ret >= 0 || (s->sync_error && ret == s->sync_error), "%s: %lld", what, ret);
	s->failed_syncs += ret < 0;
}

static void script_write(struct script *s, uint64_t pos, uint64_t len, int flags)
{
	struct iovec iov = { s->buf, len };
	ssize_t n;

	if (flags & IOMAP_RWF_APPEND)
		pos = s->size;
	t_fill(s->buf, pos, len, ++s->fills);
	n = iomap_pwritev2(s->rig->file, &iov, 1, (off_t)pos, flags);
	if (flags & IOMAP_RWF_DSYNC) {
		synced(s, "DSYNC write", n);
		if (n < 0)      /* whether the bytes are in the cache is open; now they are */
			n = iomap_pwrite(s->rig->file, s->buf, len, (off_t)pos);
	}
	CHECK_EQ(n, (ssize_t)len);
	memcpy(s->bytes + pos, s->buf, len);
	if (pos + len > s->size)
		s->size = pos + len;
}

static void script_truncate(struct script *s, uint64_t size)
{
	CHECK_EQ(iomap_ftruncate(s->rig->file, (off_t)size), 0);
	if (size < s->size)
		memset(s->bytes + size, 0, s->size - size);
	s->size = size;
}

static void script_fsync(struct script *s)
{
	synced(s, "fsync", iomap_fsync(s->rig->file));
}

static void script_check_cache(struct script *s)
{
	CHECK_EQ(iomap_size(s->rig->file), (off_t)s->size);
	CHECK_EQ(iomap_pread(s->rig->file, s->buf, FILE_MAX, 0), (ssize_t)s->size);
	CHECK(memcmp(s->buf, s->bytes, s->size) == 0);
	t_rig_check(s->rig);
}

static void script_run(struct script *s)
{
	script_write(s, 0, 100000, 0);
	script_fsync(s);
	script_write(s, 50000, 3000, 0);
	script_write(s, 200000, 10000, 0);
	synced(s, "fdatasync", iomap_fdatasync(s->rig->file));
	script_truncate(s, 150000);
	script_write(s, 100, 8192, IOMAP_RWF_DSYNC);
	script_write(s, 0, 5000, IOMAP_RWF_APPEND);
	if (!s->no_drop)
		CHECK_EQ(iomap_fadvise(s->rig->file, 0, 0, POSIX_FADV_DONTNEED), 0);
	script_fsync(s);
	if (!s->no_drop)
		CHECK(t_drops_all(s->rig->cache));
	script_write(s, 70000, 70000, 0);
	script_truncate(s, 148321);
	script_write(s, 300000, 1, 0);
	synced(s, "cache sync", iomap_cache_sync(s->rig->cache));
	script_check_cache(s);
}

/* What survives a power cut now is what the model says. */
static void script_check_durable(struct script *s)
{
	struct t_hold *image = t_hold_crash_strict(s->rig->hold);

	CHECK_EQ(t_hold_size(image), s->size);
	t_hold_peek(image, s->buf, s->size, 0);
	for (uint64_t i = 0; i < s->size; i++)
		CHECK_MSG(s->buf[i] == s->bytes[i], "byte %llu of %llu is not durable", (unsigned long long)i,
			  (unsigned long long)s->size);
	t_hold_free(image);
}

/* All is written, nothing is owed. */
static void check_settled(struct t_rig *rig)
{
	struct iomap_cache_stat st = t_rig_stat(rig);

	CHECK_EQ(st.dirty_bytes, 0);
	CHECK_EQ(st.writeback_bytes, 0);
	CHECK_EQ(st.pinned_bytes, 0);
	CHECK_EQ(st.failed_bytes, 0);
	CHECK_EQ(st.dirtied_bytes + st.redirtied_bytes, st.written_bytes + st.write_failed_bytes + st.cancelled_bytes);
	CHECK_EQ(iomap_failed_ranges(rig->file, NULL, 0), 0);
}

static const struct { uint32_t block; enum iomap_accounting mode; } geometries[] = {
	{ 4096, IOMAP_ACCT_BLOCK }, { 512, IOMAP_ACCT_PAGE }, { 16384, IOMAP_ACCT_FOLIO }, { 1024, IOMAP_ACCT_BLOCK },
};
enum { NR_GEOMETRIES = sizeof(geometries) / sizeof(geometries[0]) };

static void small_rig(struct t_rig *rig, unsigned geometry)
{
	t_rig_init(rig);
	rig->params.memory_bytes = 4 * MIB;
	rig->params.dirty_bytes = rig->params.dirty_background_bytes = 0;
	rig->params.accounting = geometries[geometry].mode;
	rig->block_size = geometries[geometry].block;
}

/* --- writes ------------------------------------------------------------------------------------------------------ */

static void eio_on_the_nth_write_loses_nothing(void)
{
	for (unsigned g = 0; g < NR_GEOMETRIES; g++) {
		for (unsigned n = 1; ; n++) {
			struct script s;
			struct t_rig rig;
			bool acted;

			small_rig(&rig, g);
			t_rig_up(&rig);
			script_init(&s, &rig);
			t_hold_fail_nth(rig.hold, T_HOLD_WRITE, n, EIO);
			s.sync_error = -EIO;
			script_run(&s);
			acted = t_hold_acted(rig.hold, 0);
			CHECK_LE(s.failed_syncs, acted);
			t_hold_heal(rig.hold);
			CHECK_EQ(iomap_fsync(rig.file), 0);
			script_check_durable(&s);
			check_settled(&rig);
			CHECK(t_drops_all(rig.cache));
			script_check_cache(&s);
			t_rig_down(&rig);
			script_free(&s);
			if (!acted) {
				CHECK_GE(n, 6);         /* it really was a run of several writes */
				break;
			}
		}
	}
}

static void short_nth_write_loses_nothing(void)
{
	for (unsigned n = 1; ; n++) {
		struct t_hold_rule rule = { .ops = T_HOLD_WRITE, .action = T_HOLD_SHORT, .value = 1536, .skip = n - 1,
					    .times = 1 };
		struct script s;
		struct t_rig rig;
		bool acted;

		small_rig(&rig, n % NR_GEOMETRIES);
		t_rig_up(&rig);
		script_init(&s, &rig);
		t_hold_rule(rig.hold, &rule);
		script_run(&s);         /* nothing fails */
		acted = t_hold_acted(rig.hold, 0);
		script_check_durable(&s);
		check_settled(&rig);
		t_rig_down(&rig);
		script_free(&s);
		if (!acted)
			break;
	}
}

static void submit_that_refuses_is_an_error_like_any_other(void)
{
	struct t_hold_rule refuse = { .ops = T_HOLD_WRITE, .action = T_HOLD_REFUSE, .value = EIO };
	struct script s;
	struct t_rig rig;

	small_rig(&rig, 0);
	t_rig_up(&rig);
	script_init(&s, &rig);
	t_hold_rule(rig.hold, &refuse);
	script_write(&s, 0, 100000, 0);
	CHECK_EQ(iomap_fsync(rig.file), -EIO);
	CHECK_EQ(iomap_fsync(rig.file), -EIO);
	CHECK(t_rig_stat(&rig).failed_bytes > 0);
	t_rig_check(&rig);
	t_hold_heal(rig.hold);
	CHECK_EQ(iomap_fsync(rig.file), 0);
	script_check_durable(&s);
	check_settled(&rig);
	t_rig_down(&rig);
	script_free(&s);
}

static void failed_blocks_are_listed_until_they_are_written(void)
{
	struct iomap_failed_range ranges[4];
	struct t_rig rig;

	small_rig(&rig, 0);
	t_rig_up(&rig);
	t_rig_write(&rig, 0, 4096, 'A');
	t_rig_write(&rig, 16384, 8192, 'A');
	t_rig_write(&rig, 40960, 4096, 'A');
	t_hold_fail(rig.hold, T_HOLD_WRITE, 0, 24576, EIO);
	CHECK_EQ(iomap_fsync(rig.file), -EIO);
	CHECK_EQ(iomap_failed_ranges(rig.file, ranges, 4), 2);
	CHECK_EQ(ranges[0].pos, 0);
	CHECK_EQ(ranges[0].len, 4096);
	CHECK_EQ(ranges[1].pos, 16384);
	CHECK_EQ(ranges[1].len, 8192);
	for (unsigned i = 0; i < 2; i++) {
		CHECK_EQ(ranges[i].error, -EIO);
		CHECK_GE(ranges[i].tries, 1);
		CHECK_EQ(ranges[i].flags & IOMAP_FAILED_FLUSH, 0);
	}
	CHECK_EQ(iomap_failed_ranges(rig.file, ranges, 1), 2);
	CHECK_EQ(iomap_failed_ranges(rig.file, NULL, 0), 2);
	CHECK_EQ(t_rig_stat(&rig).failed_bytes, 12288);
	CHECK_EQ(t_rig_stat(&rig).dirty_bytes, 12288);
	CHECK_EQ(iomap_fsync(rig.file), -EIO);
	CHECK_EQ(iomap_failed_ranges(rig.file, ranges, 4), 2);
	CHECK_GE(ranges[1].tries, 2);
	CHECK_EQ(iomap_resolve(rig.file, 16384, 8192, IOMAP_RESOLVE_RETRY), -EIO);
	t_hold_heal(rig.hold);
	CHECK_EQ(iomap_resolve(rig.file, 16384, 8192, IOMAP_RESOLVE_RETRY), 0);
	CHECK_EQ(iomap_failed_ranges(rig.file, ranges, 4), 1);
	CHECK_EQ(ranges[0].pos, 0);
	t_rig_expect_stored(&rig, 16384, 8192, 'A');
	CHECK_EQ(iomap_fsync(rig.file), 0);
	check_settled(&rig);
	t_rig_down(&rig);
}

static void failed_blocks_are_written_again_without_being_asked(void)
{
	struct t_rig rig;

	small_rig(&rig, 0);
	rig.params.dirty_writeback_ms = 20;
	rig.params.dirty_expire_ms = 20;
	t_rig_up(&rig);
	t_rig_write(&rig, 0, 20000, 'A');
	t_hold_fail(rig.hold, T_HOLD_WRITE, 0, 0, EIO);
	CHECK_EQ(iomap_fsync(rig.file), -EIO);
	CHECK(t_rig_stat(&rig).failed_bytes > 0);
	t_hold_heal(rig.hold);
	CHECK(T_WAIT(t_rig_stat(&rig).dirty_bytes == 0 && t_rig_stat(&rig).writeback_bytes == 0, 15000));
	t_rig_expect_stored(&rig, 0, 20000, 'A');
	CHECK_EQ(iomap_fsync(rig.file), 0);
	check_settled(&rig);
	t_rig_down(&rig);
}

static void truncate_cancels_failed_blocks(void)
{
	struct t_rig rig;

	small_rig(&rig, 0);
	t_rig_up(&rig);
	t_rig_write(&rig, 0, 65536, 'A');
	t_hold_fail(rig.hold, T_HOLD_WRITE, 0, 0, EIO);
	CHECK_EQ(iomap_fsync(rig.file), -EIO);
	CHECK_EQ(t_rig_stat(&rig).failed_bytes, 65536);
	CHECK_EQ(iomap_ftruncate(rig.file, 0), 0);
	CHECK_EQ(t_rig_stat(&rig).failed_bytes, 0);
	CHECK_EQ(t_rig_stat(&rig).dirty_bytes, 0);
	CHECK_EQ(iomap_failed_ranges(rig.file, NULL, 0), 0);
	CHECK_EQ(iomap_fsync(rig.file), 0);     /* nothing is left to write, the flush works */
	check_settled(&rig);
	t_rig_down(&rig);
}

static void discard_gives_up_failed_blocks_and_reads_the_device(void)
{
	struct t_rig rig;

	small_rig(&rig, 0);
	t_rig_up(&rig);
	t_rig_write(&rig, 0, 65536, 'A');
	CHECK_EQ(iomap_fsync(rig.file), 0);
	t_rig_write(&rig, 8192, 8192, 'N');
	t_rig_write(&rig, 40960, 4096, 'N');
	t_hold_fail(rig.hold, T_HOLD_WRITE, 8192, 8192, EIO);
	CHECK_EQ(iomap_fsync(rig.file), -EIO);
	t_rig_expect(&rig, 8192, 8192, 'N');
	CHECK_EQ(iomap_resolve(rig.file, 8192, 8192, IOMAP_RESOLVE_DISCARD), 0);
	CHECK_EQ(iomap_failed_ranges(rig.file, NULL, 0), 0);
	CHECK_EQ(t_rig_stat(&rig).failed_bytes, 0);
	t_rig_expect(&rig, 0, 40960, 'A');
	t_rig_expect(&rig, 40960, 4096, 'N');
	CHECK_EQ(iomap_fsync(rig.file), 0);
	check_settled(&rig);
	t_rig_down(&rig);
}

static void close_reports_what_its_handle_has_not(void)
{
	struct iomap_file *other;
	struct t_rig rig;

	small_rig(&rig, 0);
	t_rig_up(&rig);
	other = t_rig_handle(&rig, O_RDWR);
	t_rig_write(&rig, 0, 4096, 'A');
	t_hold_fail(rig.hold, T_HOLD_WRITE, 0, 0, EIO);
	CHECK_EQ(iomap_fadvise(rig.file, 0, 0, POSIX_FADV_DONTNEED), 0);
	CHECK(T_WAIT(t_rig_stat(&rig).failed_bytes == 4096, 5000));
	CHECK_EQ(iomap_close(other), -EIO);
	CHECK_EQ(iomap_close(rig.file), -EIO);
	t_rig_open(&rig);                       /* the data is still there */
	t_rig_expect(&rig, 0, 4096, 'A');
	t_hold_heal(rig.hold);
	CHECK_EQ(iomap_fsync(rig.file), 0);
	t_rig_expect_stored(&rig, 0, 4096, 'A');
	check_settled(&rig);
	t_rig_down(&rig);
}

static void under_drop_failed_blocks_are_clean_and_still_readable(void)
{
	struct iomap_cache_stat st;
	struct t_rig rig;

	small_rig(&rig, 0);
	rig.params.error_policy = IOMAP_ERROR_DROP;
	t_rig_up(&rig);
	t_rig_write(&rig, 0, 65536, 'A');
	t_hold_fail(rig.hold, T_HOLD_WRITE, 0, 0, EIO);
	CHECK_EQ(iomap_fsync(rig.file), -EIO);
	st = t_rig_stat(&rig);
	CHECK_EQ(st.dirty_bytes, 0);
	CHECK_EQ(st.failed_bytes, 0);
	CHECK_EQ(st.write_failed_bytes, 65536);
	CHECK_EQ(st.redirtied_bytes, 0);
	t_rig_expect(&rig, 0, 65536, 'A');
	CHECK_EQ(iomap_fsync(rig.file), 0);
	t_hold_heal(rig.hold);
	CHECK_EQ(iomap_fsync(rig.file), 0);
	check_settled(&rig);
	t_rig_down(&rig);
}

/* --- flushes ----------------------------------------------------------------------------------------------------- */

/* Every fsync, by whatever handle, and sync of the cache say so. */
static void check_sticky(struct t_rig *rig)
{
	struct iomap_file *other = t_rig_handle(rig, O_RDWR);

	for (unsigned i = 0; i < 2; i++) {
		CHECK_EQ(iomap_fsync(rig->file), -EIO);
		CHECK_EQ(iomap_fdatasync(other), -EIO);
		CHECK_EQ(iomap_cache_sync(rig->cache), -EIO);
	}
	CHECK_GE(iomap_failed_ranges(rig->file, NULL, 0), 1);
	iomap_close(other);
}

static void a_failed_nth_flush_is_reported_until_retry_makes_all_durable(void)
{
	for (unsigned g = 0; g < NR_GEOMETRIES; g++) {
		for (unsigned n = 1; ; n++) {
			struct script s;
			struct t_rig rig;

			small_rig(&rig, g);
			t_rig_up(&rig);
			script_init(&s, &rig);
			s.sync_error = -EIO;
			s.sticky = s.no_drop = true;
			t_hold_fail_nth(rig.hold, T_HOLD_FLUSH, n, EIO);
			script_run(&s);
			if (!t_hold_acted(rig.hold, 0)) {
				CHECK_EQ(s.failed_syncs, 0);
				CHECK_GE(n, 5);
				t_rig_down(&rig);
				script_free(&s);
				break;
			}
			CHECK_GE(s.failed_syncs, 1);
			check_sticky(&rig);
			CHECK_EQ(iomap_resolve(rig.file, 0, 0, IOMAP_RESOLVE_RETRY), 0);
			script_check_durable(&s);
			CHECK_EQ(iomap_failed_ranges(rig.file, NULL, 0), 0);
			CHECK_EQ(iomap_fsync(rig.file), 0);
			CHECK_EQ(iomap_cache_sync(rig.cache), 0);
			script_check_cache(&s);
			check_settled(&rig);
			t_rig_down(&rig);
			script_free(&s);
		}
	}
}

static void what_a_failed_flush_lost_and_is_not_cached_stays_listed_until_discard(void)
{
	struct iomap_failed_range ranges[8];
	struct t_rig rig;
	int nr;

	small_rig(&rig, 0);
	t_rig_up(&rig);
	t_rig_write(&rig, 0, 65536, 'A');
	t_rig_write(&rig, 131072, 65536, 'B');
	CHECK_EQ(iomap_fsync(rig.file), 0);
	t_rig_write(&rig, 0, 65536, 'N');
	t_rig_write(&rig, 131072, 65536, 'M');
	t_hold_fail_nth(rig.hold, T_HOLD_FLUSH, 1, EIO);
	CHECK_EQ(iomap_fsync(rig.file), -EIO);
	CHECK_EQ(iomap_fadvise(rig.file, 131072, 65536, POSIX_FADV_DONTNEED), 0);
	check_sticky(&rig);
	CHECK_EQ(iomap_resolve(rig.file, 0, 65536, IOMAP_RESOLVE_RETRY), 0);
	CHECK_EQ(iomap_fsync(rig.file), -EIO);          /* the rest is still unknown */
	CHECK_EQ(iomap_resolve(rig.file, 0, 0, IOMAP_RESOLVE_RETRY), -EIO);
	nr = iomap_failed_ranges(rig.file, ranges, 8);
	CHECK_GE(nr, 1);
	for (int i = 0; i < nr && i < 8; i++) {
		CHECK_GE(ranges[i].pos, 131072);
		CHECK_LE(ranges[i].pos + ranges[i].len, 196608);
		CHECK(ranges[i].flags & IOMAP_FAILED_FLUSH);
		CHECK_EQ(ranges[i].error, -EIO);
	}
	check_sticky(&rig);
	CHECK_EQ(iomap_resolve(rig.file, 131072, 65536, IOMAP_RESOLVE_DISCARD), 0);
	CHECK_EQ(iomap_failed_ranges(rig.file, NULL, 0), 0);
	CHECK_EQ(iomap_fsync(rig.file), 0);
	t_rig_expect(&rig, 0, 65536, 'N');
	t_rig_expect(&rig, 131072, 65536, 'B');         /* what the device has: the flush lost the rest */
	check_settled(&rig);
	t_rig_crash(&rig, 5);
	t_rig_expect(&rig, 0, 65536, 'N');
	t_rig_down(&rig);
}

static void a_flush_that_the_device_refuses_is_as_bad_as_one_that_fails(void)
{
	struct t_hold_rule refuse = { .ops = T_HOLD_FLUSH, .action = T_HOLD_REFUSE, .value = EIO, .times = 1 };
	struct script s;
	struct t_rig rig;

	small_rig(&rig, 0);
	t_rig_up(&rig);
	script_init(&s, &rig);
	script_write(&s, 0, 30000, 0);
	t_hold_rule(rig.hold, &refuse);
	CHECK_EQ(iomap_fsync(rig.file), -EIO);
	check_sticky(&rig);
	CHECK_EQ(iomap_resolve(rig.file, 0, 0, IOMAP_RESOLVE_RETRY), 0);
	CHECK_EQ(iomap_fsync(rig.file), 0);
	script_check_durable(&s);
	t_rig_down(&rig);
	script_free(&s);
}

static void a_flush_counts_only_for_writes_that_were_done_before_it(void)
{
	struct t_call first, second;
	struct t_rig rig;

	small_rig(&rig, 0);
	t_rig_up(&rig);
	t_rig_write(&rig, 0, 4096, 'A');
	t_hold_park(rig.hold, T_HOLD_FLUSH, 0, 0);
	t_call_fsync(&first, rig.file);
	CHECK(t_hold_wait_parked(rig.hold, 1));
	t_rig_write(&rig, 65536, 4096, 'B');            /* not covered by the flush on its way */
	t_call_fsync(&second, rig.file);
	CHECK(T_WAIT(t_rig_stat(&rig).dirty_bytes == 0, 5000));
	t_hold_release(rig.hold);
	CHECK_EQ(t_call_wait(&first), 0);
	CHECK_EQ(t_call_wait(&second), 0);
	CHECK_EQ(t_rig_io(&rig).flushes, 2);
	t_call_free(&first);
	t_call_free(&second);
	t_rig_crash(&rig, 9);
	t_rig_expect(&rig, 0, 4096, 'A');
	t_rig_expect(&rig, 65536, 4096, 'B');
	t_rig_down(&rig);
}

/* --- a device that fails for good -------------------------------------------------------------------------------- */

struct dead {
	unsigned n;
	unsigned ops;
	bool heal_at_the_end;
};

struct place {
	struct iomap_file *file;
	off_t pos;
};

static int64_t write_piece(void *arg)
{
	static const unsigned char piece[65536] = { [0 ... 65535] = 'P' };
	struct place *where = arg;

	return iomap_pwrite(where->file, piece, sizeof(piece), where->pos);
}

static int64_t do_fsync(void *arg)
{
	return iomap_fsync(arg);
}

static int64_t do_close(void *arg)
{
	return iomap_close(arg);
}

static int64_t do_sync(void *arg)
{
	return iomap_cache_sync(arg);
}

static int64_t do_destroy(void *arg)
{
	return iomap_cache_destroy(arg);
}

static int64_t do_truncate(void *arg)
{
	return iomap_ftruncate(arg, 100);
}

static int64_t do_abandon(void *arg)
{
	iomap_cache_abandon(arg);
	return 0;
}

/* The call's result, in 5 s at most. */
static int64_t in_time(int64_t (*fn)(void *arg), void *arg, const char *what)
{
	struct t_call call;
	int64_t ret;

	t_call_fn(&call, fn, arg);
	CHECK_MSG(T_WAIT(t_call_done(&call), 5000), "%s does not return within 5 s", what);
	ret = t_call_wait(&call);
	t_call_free(&call);
	return ret;
}

static void *run_dead(void *arg)
{
	struct dead *d = arg;
	struct t_hold_rule rule = { .ops = d->ops, .action = T_HOLD_FAIL, .value = EIO, .skip = d->n - 1 };
	struct place where;
	unsigned errors = 0;
	struct t_rig rig;
	int64_t ret;

	small_rig(&rig, 0);
	rig.params.dirty_bytes = MIB;
	rig.params.dirty_background_bytes = 512 * KIB;
	rig.params.dirty_writeback_ms = 100;
	t_rig_up(&rig);
	t_hold_rule(rig.hold, &rule);
	for (unsigned i = 0; i < 64 && errors < 3; i++) {
		where.file = rig.file;
		where.pos = i * 65536;
		ret = in_time(write_piece, &where, "a write");
		CHECK_MSG(ret == -EIO || (ret > 0 && ret <= 65536), "write: %lld", (long long)ret);
		errors += ret != 65536;
		if (i % 16 == 15) {
			ret = in_time(do_fsync, rig.file, "fsync");
			CHECK_MSG(ret == 0 || ret == -EIO, "fsync: %lld", (long long)ret);
		}
	}
	t_hold_fail(rig.hold, d->ops, 0, 0, EIO);               /* however few requests there were so far */
	if (d->ops == T_HOLD_WRITE)                             /* what a flush lost may have left the cache */
		t_rig_expect(&rig, 0, 65536, 'P');
	where.pos = 0;
	ret = in_time(write_piece, &where, "a write");
	CHECK_MSG(ret == -EIO || (ret > 0 && ret <= 65536), "write: %lld", (long long)ret);
	for (unsigned i = 0; i < 2; i++) {
		CHECK_EQ(in_time(do_fsync, rig.file, "fsync"), -EIO);
		CHECK_EQ(in_time(do_sync, rig.cache, "sync of the cache"), -EIO);
	}
	t_rig_check(&rig);
	ret = in_time(do_close, rig.file, "close");
	CHECK_MSG(ret == 0 || ret == -EIO, "close: %lld", (long long)ret);
	CHECK_EQ(in_time(do_destroy, rig.cache, "destroy"), -EIO);
	t_rig_open(&rig);                                       /* the cache is still there, with its data */
	if (d->ops == T_HOLD_WRITE)
		t_rig_expect(&rig, 0, 65536, 'P');
	CHECK_EQ(in_time(do_fsync, rig.file, "fsync"), -EIO);
	t_rig_check(&rig);
	if (d->heal_at_the_end && d->ops == T_HOLD_WRITE) {
		t_hold_heal(rig.hold);
		CHECK_EQ(in_time(do_fsync, rig.file, "fsync"), 0);
		check_settled(&rig);
		t_rig_down(&rig);
		return NULL;
	}
	ret = in_time(do_truncate, rig.file, "truncate");
	CHECK_EQ(ret, 0);
	ret = in_time(do_close, rig.file, "close");
	CHECK_MSG(ret == 0 || ret == -EIO, "close: %lld", (long long)ret);
	CHECK_EQ(in_time(do_abandon, rig.cache, "abandon"), 0);
	CHECK_EQ(iomap_device_close(rig.device), 0);
	CHECK(T_WAIT(t_hold_devices(rig.hold) == 0, 5000));
	CHECK_MSG(!t_hold_bad(rig.hold), "the device says: %s", t_hold_bad(rig.hold));
	t_hold_free(rig.hold);
	return NULL;
}

static void a_device_that_fails_for_good_at_write_n_hangs_nobody(void)
{
	struct dead dead[8];

	for (unsigned i = 0; i < 8; i++)
		dead[i] = (struct dead) { i < 5 ? i + 1 : 3 * i, T_HOLD_WRITE, i % 2 };
	t_call_all(run_dead, dead, sizeof(dead[0]), 8);
}

static void a_device_that_never_flushes_again_hangs_nobody(void)
{
	struct dead dead[3];

	for (unsigned i = 0; i < 3; i++)
		dead[i] = (struct dead) { i + 1, T_HOLD_FLUSH, false };
	t_call_all(run_dead, dead, sizeof(dead[0]), 3);
}

static void a_dead_device_stops_no_writer_of_another(void)
{
	struct iomap_file_params params = IOMAP_FILE_PARAMS_INIT;
	struct place where;
	struct t_hold *good;
	struct t_rig rig;
	int64_t ret = 0;

	small_rig(&rig, 0);
	rig.params.dirty_bytes = MIB;
	rig.params.dirty_background_bytes = 512 * KIB;
	t_rig_up(&rig);
	good = t_hold_create(NULL);
	params.device = t_hold_device(good);
	t_hold_fail(rig.hold, T_HOLD_WRITE, 0, 0, EIO);
	where.file = rig.file;
	for (unsigned i = 0; i < 64 && ret >= 0; i++) {
		where.pos = i * 65536;
		ret = in_time(write_piece, &where, "a write to the dead device");
	}
	CHECK_EQ(ret, -EIO);
	CHECK_EQ(iomap_open_with(rig.cache, NULL, O_RDWR, 0, &params, &where.file), 0);
	for (unsigned i = 0; i < 128; i++) {
		where.pos = i * 65536;
		CHECK_EQ(in_time(write_piece, &where, "a write to the good device"), 65536);
	}
	CHECK_EQ(in_time(do_fsync, where.file, "fsync of the good device"), 0);
	CHECK_EQ(t_hold_size(good), 128 * 65536);
	CHECK_EQ(iomap_close(where.file), 0);
	CHECK_EQ(iomap_device_close(params.device), 0);
	t_rig_check(&rig);
	t_hold_heal(rig.hold);
	CHECK_EQ(iomap_fsync(rig.file), 0);
	check_settled(&rig);
	t_rig_down(&rig);
	t_hold_free(good);
}

static void abandon_does_not_wait_for_ever(void)
{
	struct t_rig rig;
	uint64_t start;

#ifdef IOMAP_TSAN
	t_run_skip("its threads are left behind on purpose, which ThreadSanitizer calls a leak");
#endif
	small_rig(&rig, 0);
	t_rig_up(&rig);
	t_rig_write(&rig, 0, 400000, 'A');
	t_hold_park(rig.hold, T_HOLD_WRITE, 0, 0);
	CHECK_EQ(iomap_fadvise(rig.file, 0, 0, POSIX_FADV_DONTNEED), 0);
	CHECK(t_hold_wait_parked(rig.hold, 1));
	start = t_run_now_ns();
	iomap_cache_abandon(rig.cache);
	CHECK_LE(t_run_now_ns() - start, 15000000000ULL * t_run_slow());
	CHECK_EQ(iomap_close(rig.file), -EBADF);
	_exit(0);                               /* the memory is leaked, on purpose */
}

/* --- reads ------------------------------------------------------------------------------------------------------- */

static void a_failed_nth_read_changes_nothing_and_can_be_repeated(void)
{
	for (unsigned g = 0; g < NR_GEOMETRIES; g++) {
		for (unsigned n = 1; ; n++) {
			unsigned char *buf = malloc(FILE_MAX), *model = malloc(FILE_MAX);
			struct t_rig rig;
			bool acted;
			ssize_t got;

			small_rig(&rig, g);
			rig.params.readahead_bytes = 16384;
			t_rig_up(&rig);
			t_fill(model, 0, 200000, 1);
			CHECK_EQ(iomap_pwrite(rig.file, model, 200000, 0), 200000);
			CHECK_EQ(iomap_fsync(rig.file), 0);
			CHECK(t_drops_all(rig.cache));
			t_hold_fail_nth(rig.hold, T_HOLD_READ, n, EIO);
			for (uint64_t pos = 0; pos < 200000; pos += 50000) {
				got = iomap_pread(rig.file, buf, 30000, (off_t)pos);
				CHECK_MSG(got == -EIO || (got > 0 && got <= 30000), "read: %zd", got);
				if (got > 0)
					CHECK(memcmp(buf, model + pos, (size_t)got) == 0);
				/* a part of a block: the rest of it has to be read */
				t_fill(buf, pos + 40001, 9, 2);
				got = iomap_pwrite(rig.file, buf, 9, (off_t)pos + 40001);
				if (got == -EIO)
					got = iomap_pwrite(rig.file, buf, 9, (off_t)pos + 40001);
				CHECK_EQ(got, 9);
				memcpy(model + pos + 40001, buf, 9);
			}
			acted = t_hold_acted(rig.hold, 0);
			t_hold_heal(rig.hold);
			CHECK_EQ(iomap_pread(rig.file, buf, FILE_MAX, 0), 200000);
			CHECK(memcmp(buf, model, 200000) == 0);
			CHECK_EQ(iomap_fsync(rig.file), 0);
			check_settled(&rig);
			t_rig_down(&rig);
			free(buf);
			free(model);
			if (!acted)
				break;
		}
	}
}

static void a_write_that_cannot_read_the_rest_of_its_block_changes_nothing(void)
{
	struct t_rig rig;

	small_rig(&rig, 0);
	t_rig_up(&rig);
	t_rig_write(&rig, 0, 16384, 'A');
	CHECK_EQ(iomap_fsync(rig.file), 0);
	CHECK(t_drops_all(rig.cache));
	t_hold_fail(rig.hold, T_HOLD_READ, 0, 0, EIO);
	CHECK_EQ(iomap_pwrite(rig.file, "xyz", 3, 5000), -EIO);
	CHECK_EQ(t_rig_stat(&rig).dirty_bytes, 0);
	CHECK_EQ(iomap_size(rig.file), 16384);
	t_rig_check(&rig);
	t_hold_heal(rig.hold);
	t_rig_expect(&rig, 0, 16384, 'A');
	CHECK_EQ(iomap_pwrite(rig.file, "xyz", 3, 5000), 3);
	CHECK_EQ(iomap_fsync(rig.file), 0);
	t_rig_down(&rig);
}

/* --- allocations ------------------------------------------------------------------------------------------------- */

static struct {
	_Atomic uint64_t calls, live, bytes, wrong;
	_Atomic uint64_t fail_at;       /* this call fails, 0 = none */
	_Atomic bool from_there_on;     /* … and all after it */
} memory;

struct header {
	uint64_t magic, size, front;
};

static void *counted_alloc(void *priv, size_t size, size_t align)
{
	uint64_t nr = ++memory.calls, at = memory.fail_at;
	size_t front = align > 64 ? align : 64;
	struct header *header;
	void *p;

	(void)priv;
	if (align & (align - 1))
		memory.wrong++;
	if (at && (nr == at || (memory.from_there_on && nr > at)))
		return NULL;
	if (posix_memalign(&p, front, front + size) != 0)
		return NULL;
	header = (struct header *)((char *)p + front) - 1;
	*header = (struct header) { 0x600dull, size, front };
	memory.live++;
	memory.bytes += size;
	return (char *)p + front;
}

static void counted_free(void *priv, void *p, size_t size)
{
	struct header *header = (struct header *)p - 1;

	(void)priv;
	if (!p || header->magic != 0x600d || header->size != size) {
		memory.wrong++;
		return;
	}
	header->magic = 0xdead;
	memory.live--;
	memory.bytes -= size;
	free((char *)p - header->front);
}

static const struct iomap_allocator counted = { counted_alloc, counted_free, NULL };

static unsigned refused;
static const char *refused_in = "none";

/* The result of a call that may fail for lack of memory once; then memory is there, and it works. */
#define AGAIN(call) __extension__({								\
	long long t_ret_ = (call);								\
	if (t_ret_ == -ENOMEM || t_ret_ == -EAGAIN) {						\
		refused++;									\
		refused_in = #call;								\
		memory.fail_at = 0;								\
		t_ret_ = (call);								\
	}											\
	t_ret_; })

static void write_again(struct iomap_file *file, const unsigned char *buf, size_t len, off_t pos)
{
	ssize_t n = iomap_pwrite(file, buf, len, pos);

	CHECK_MSG(n == -ENOMEM || (n > 0 && n <= (ssize_t)len), "write: %zd", n);
	if (n == (ssize_t)len)
		return;
	refused++;
	memory.fail_at = 0;
	if (n < 0)
		n = 0;
	CHECK_EQ(iomap_pwrite(file, buf + n, len - (size_t)n, pos + n), (ssize_t)len - n);
}

static void read_again(struct iomap_file *file, const unsigned char *model, size_t len, off_t pos)
{
	unsigned char *buf = malloc(len);
	ssize_t n = iomap_pread(file, buf, len, pos);

	CHECK_MSG(n == -ENOMEM || (n > 0 && n <= (ssize_t)len), "read: %zd", n);
	if (n > 0)
		CHECK(memcmp(buf, model + pos, (size_t)n) == 0);
	if (n != (ssize_t)len) {
		refused++;
		memory.fail_at = 0;
		CHECK_EQ(iomap_pread(file, buf, len, pos), (ssize_t)len);
		CHECK(memcmp(buf, model + pos, len) == 0);
	}
	free(buf);
}

/* Returns whether the n-th allocation was reached. */
static bool run_with_failing_allocation(uint64_t n, bool from_there_on)
{
	struct iomap_cache_params params = IOMAP_CACHE_PARAMS_INIT;
	struct iomap_file_params file_params = IOMAP_FILE_PARAMS_INIT;
	struct t_hold *hold = t_hold_create(NULL);
	unsigned char *model = malloc(FILE_MAX), *buf = malloc(FILE_MAX);
	struct iomap_cache *cache = NULL;
	struct iomap_file *file = NULL;
	char why[400];
	bool reached;

	refused = 0;
	refused_in = "none";
	memory.calls = 0;
	memory.from_there_on = from_there_on;
	memory.fail_at = n;
	params.memory_bytes = MIB;
	params.dirty_writeback_ms = IOMAP_NEVER;
	params.allocator = &counted;
	CHECK_EQ(AGAIN(iomap_cache_create(&cache, &params)), 0);
	file_params.block_size = 1024;
	file_params.device = t_hold_device(hold);
	CHECK_EQ(AGAIN(iomap_open_with(cache, NULL, O_RDWR, 0, &file_params, &file)), 0);
	t_fill(model, 0, 300000, 3);
	write_again(file, model, 300000, 0);
	CHECK_EQ(AGAIN(iomap_fsync(file)), 0);
	t_fill(model + 100001, 100001, 2000, 4);
	write_again(file, model + 100001, 2000, 100001);
	CHECK_EQ(AGAIN(iomap_cache_drop(cache)), 0);
	t_fill(model + 7000, 7000, 5, 5);
	write_again(file, model + 7000, 5, 7000);
	read_again(file, model, 300000, 0);
	CHECK_EQ(AGAIN(iomap_ftruncate(file, 250001)), 0);
	CHECK_EQ(AGAIN(iomap_ftruncate(file, 300000)), 0);
	memset(model + 250001, 0, 300000 - 250001);
	CHECK_EQ(AGAIN(iomap_fadvise(file, 0, 0, POSIX_FADV_DONTNEED)), 0);
	read_again(file, model, 300000, 0);
	CHECK_EQ(AGAIN(iomap_cache_check(cache, why, sizeof(why))), 0);
	CHECK_EQ(AGAIN(iomap_cache_sync(cache)), 0);
	t_hold_peek(hold, buf, 300000, 0);
	CHECK(memcmp(buf, model, 300000) == 0);
	CHECK_EQ(t_hold_size(hold), 300000);
	CHECK_EQ(iomap_close(file), 0);
	CHECK_EQ(AGAIN(iomap_cache_destroy(cache)), 0);
	reached = memory.calls >= n;
	memory.fail_at = 0;
	CHECK_EQ(iomap_device_close(file_params.device), 0);
	CHECK_MSG(T_WAIT(t_hold_devices(hold) == 0, 5000), "allocation %llu%s failed, in %s: the device is never destroyed",
		  (unsigned long long)n, from_there_on ? " and all after it" : "", refused_in);
	CHECK_MSG(!t_hold_bad(hold), "the device says: %s", t_hold_bad(hold));
	CHECK_MSG(memory.live == 0, "allocation %llu%s failed: %llu allocations of %llu bytes leaked", (unsigned long long)n,
		  from_there_on ? " and all after it" : "", (unsigned long long)memory.live,
		  (unsigned long long)memory.bytes);
	CHECK_EQ(memory.wrong, 0);
	t_hold_free(hold);
	free(model);
	free(buf);
	return reached;
}

static void run_all_failing_allocations(bool from_there_on)
{
	uint64_t start = t_run_now_ns(), step = 1, nr_refused = 0;

	for (uint64_t n = 1; run_with_failing_allocation(n, from_there_on); n += step) {
		nr_refused += refused;
		/* where there are very many, not each of them */
		if (!t_run_is_long() && t_run_now_ns() - start > 4000000000ULL)
			step++;
	}
	CHECK_GE(nr_refused, 3);
}

static void a_failed_nth_allocation_is_enomem_or_not_noticed(void)
{
	run_all_failing_allocations(false);
}

static void all_allocations_failing_from_the_nth_on_is_enomem(void)
{
	run_all_failing_allocations(true);
}

/* --- space ------------------------------------------------------------------------------------------------------- */

static void a_full_disk_is_reported_by_the_write_that_needs_the_space(void)
{
	for (unsigned g = 0; g < NR_GEOMETRIES; g++) {
		uint64_t space = 1000 * KIB;
		struct script s;
		struct t_rig rig;
		ssize_t n;

		small_rig(&rig, g);
		t_rig_up(&rig);
		script_init(&s, &rig);
		t_hold_set_space(rig.hold, space);
		for (uint64_t pos = 0; ; pos += (uint64_t)n) {
			t_fill(s.buf, pos, 50000, 1);
			n = iomap_pwrite(rig.file, s.buf, 50000, (off_t)pos);
			if (n == -ENOSPC) {
				s.size = pos;
				break;
			}
			CHECK_MSG(n > 0 && n <= 50000, "write: %zd", n);
			CHECK_LE(pos + (uint64_t)n, space);
		}
		CHECK_GE(s.size + 50000 + 2 * rig.block_size, space);
		CHECK_EQ(iomap_size(rig.file), (off_t)s.size);
		CHECK_EQ(iomap_fsync(rig.file), 0);             /* never by fsync */
		t_rig_check(&rig);
		check_settled(&rig);
		CHECK_EQ(t_hold_size(rig.hold), s.size);
		for (uint64_t pos = 0; pos < s.size; pos += 65536) {
			uint64_t len = s.size - pos < 65536 ? s.size - pos : 65536;

			t_hold_peek(rig.hold, s.buf, len, pos);
			CHECK(t_check_fill(s.buf, pos, len, 1));
		}
		t_rig_write(&rig, 0, 50000, 'A');               /* what is allocated can be overwritten */
		CHECK_EQ(iomap_ftruncate(rig.file, 65536), 0);  /* and gives its space back */
		CHECK_EQ(iomap_fsync(rig.file), 0);
		t_rig_write(&rig, 65536, 100000, 'B');
		CHECK_EQ(iomap_fsync(rig.file), 0);
		t_rig_expect_stored(&rig, 65536, 100000, 'B');
		t_rig_down(&rig);
		script_free(&s);
	}
}

static void a_hole_needs_space_when_it_is_written(void)
{
	unsigned char buf[4096] = { 1 };
	struct t_rig rig;

	small_rig(&rig, 0);
	t_rig_up(&rig);
	CHECK_EQ(iomap_ftruncate(rig.file, MIB), 0);
	t_hold_set_space(rig.hold, 8192);
	CHECK_EQ(iomap_pwrite(rig.file, buf, 4096, 65536), 4096);
	CHECK_EQ(iomap_pwrite(rig.file, buf, 4096, 131072), 4096);
	CHECK_EQ(iomap_pwrite(rig.file, buf, 4096, 262144), -ENOSPC);
	CHECK_EQ(iomap_pwrite(rig.file, buf, 4096, 65536), 4096);
	CHECK_EQ(iomap_size(rig.file), (off_t)MIB);
	t_rig_expect(&rig, 262144, 4096, 0);
	CHECK_EQ(iomap_fsync(rig.file), 0);
	CHECK_EQ(t_hold_allocated(rig.hold), 8192);     /* exactly its blocks */
	t_rig_down(&rig);
}

static void without_reservation_a_full_disk_is_a_failed_block(void)
{
	struct iomap_failed_range range;
	struct t_rig rig;

	small_rig(&rig, 0);
	rig.device_params.no_allocate = true;
	t_rig_up(&rig);
	t_rig_write(&rig, 0, 8192, 'A');
	CHECK_EQ(iomap_fsync(rig.file), 0);
	t_hold_set_space(rig.hold, 8192);
	t_rig_write(&rig, 8192, 8192, 'B');
	CHECK_EQ(iomap_fsync(rig.file), -ENOSPC);
	CHECK_EQ(iomap_fsync(rig.file), -ENOSPC);
	CHECK_EQ(iomap_failed_ranges(rig.file, &range, 1), 1);
	CHECK_EQ(range.error, -ENOSPC);
	CHECK_EQ(range.pos, 8192);
	CHECK_EQ(range.len, 8192);
	t_rig_expect(&rig, 8192, 8192, 'B');
	t_hold_set_space(rig.hold, UINT64_MAX);
	CHECK_EQ(iomap_fsync(rig.file), 0);
	t_rig_expect_stored(&rig, 8192, 8192, 'B');
	check_settled(&rig);
	t_rig_down(&rig);
}

static const struct t_run_case cases[] = {
	T_RUN_FOR(eio_on_the_nth_write_loses_nothing, 60),
	T_RUN(short_nth_write_loses_nothing),
	T_RUN(submit_that_refuses_is_an_error_like_any_other),
	T_RUN(failed_blocks_are_listed_until_they_are_written),
	T_RUN(failed_blocks_are_written_again_without_being_asked),
	T_RUN(truncate_cancels_failed_blocks),
	T_RUN(discard_gives_up_failed_blocks_and_reads_the_device),
	T_RUN(close_reports_what_its_handle_has_not),
	T_RUN(under_drop_failed_blocks_are_clean_and_still_readable),
	T_RUN_FOR(a_failed_nth_flush_is_reported_until_retry_makes_all_durable, 60),
	T_RUN(what_a_failed_flush_lost_and_is_not_cached_stays_listed_until_discard),
	T_RUN(a_flush_that_the_device_refuses_is_as_bad_as_one_that_fails),
	T_RUN(a_flush_counts_only_for_writes_that_were_done_before_it),
	T_RUN_FOR(a_device_that_fails_for_good_at_write_n_hangs_nobody, 60),
	T_RUN_FOR(a_device_that_never_flushes_again_hangs_nobody, 60),
	T_RUN_FOR(a_dead_device_stops_no_writer_of_another, 60),
	T_RUN_FOR(abandon_does_not_wait_for_ever, 60),
	T_RUN_FOR(a_failed_nth_read_changes_nothing_and_can_be_repeated, 60),
	T_RUN(a_write_that_cannot_read_the_rest_of_its_block_changes_nothing),
	T_RUN_FOR(a_failed_nth_allocation_is_enomem_or_not_noticed, 60),
	T_RUN_FOR(all_allocations_failing_from_the_nth_on_is_enomem, 60),
	T_RUN(a_full_disk_is_reported_by_the_write_that_needs_the_space),
	T_RUN(a_hole_needs_space_when_it_is_written),
	T_RUN(without_reservation_a_full_disk_is_a_failed_block),
};

int main(int argc, char **argv)
{
	return t_run_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
