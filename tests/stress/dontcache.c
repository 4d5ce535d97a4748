/*
 * dontcache.c - reads and writes that leave nothing in the cache, how they are flushed, and advice about use
 *
 * What is to go when it is clean goes "a little later": by the reclaim thread, once a completion has told it. So the tests wait for
 * it, with a bound; that something stays is looked at after a sync and a moment.
 */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include "call.h"
#include "rig.h"

static unsigned char page[4 * MIB];

static ssize_t write_with(struct iomap_file *file, uint64_t pos, uint64_t len, int byte, int flags)
{
	struct iovec iov = { page, len };

	memset(page, byte, len);
	return iomap_pwritev2(file, &iov, 1, (off_t)pos, flags);
}

static void dontcache_write(struct t_rig *rig, uint64_t pos, uint64_t len, int byte)
{
	CHECK_EQ(write_with(rig->file, pos, len, byte, IOMAP_RWF_DONTCACHE), len);
}

static void read_with(struct iomap_file *file, uint64_t pos, uint64_t len, int byte, int flags)
{
	struct iovec iov = { page, len };

	CHECK_EQ(iomap_preadv2(file, &iov, 1, (off_t)pos, flags), len);
	CHECK_BYTES(page, len, byte);
}

static uint64_t cached(struct t_rig *rig) { return t_rig_stat(rig).cached_bytes; }
static uint64_t behind(struct t_rig *rig) { return t_rig_stat(rig).dontcache_dirty_bytes; }
static bool comes_down_to(struct t_rig *rig, uint64_t bytes) { return T_WAIT(cached(rig) == bytes, 5000); }
static bool is_written(struct t_rig *rig)
{
	return T_WAIT(!t_rig_stat(rig).dirty_bytes && !t_rig_stat(rig).writeback_bytes, 5000);
}

static void a_moment(void)
{
	for (unsigned i = 0; i < 20; i++)
		t_run_nap();
}

static void up(struct t_rig *rig, enum iomap_dontcache policy, uint64_t size)
{
	rig->params.dontcache = policy;
	rig->device_params.size = size;
	t_rig_up(rig);
}

#define EACH_POLICY(p) for (enum iomap_dontcache p = IOMAP_DONTCACHE_KICK; p <= IOMAP_DONTCACHE_RATELIMIT; p++)

/* --- what goes and what stays -------------------------------------------------------------------------------------- */

static void what_a_dontcache_write_made_goes_once_it_is_written(void)
{
	EACH_POLICY(policy) {
		for (unsigned grows = 0; grows < 2; grows++) {
			struct t_rig rig;

			t_rig_init(&rig);
			up(&rig, policy, grows ? 0 : MIB);
			for (uint64_t pos = 0; pos < MIB; pos += 65536) {
				dontcache_write(&rig, pos, 65536, 'A' + (int)(pos / 65536));
				/* the third policy leaves the rest to others while something is in flight */
				CHECK(policy != IOMAP_DONTCACHE_RATELIMIT || is_written(&rig));
			}
			CHECK(is_written(&rig));
			CHECK(comes_down_to(&rig, 0));
			CHECK_EQ(behind(&rig), 0);
			for (uint64_t pos = 0; pos < MIB; pos += 65536)
				t_rig_expect(&rig, pos, 65536, 'A' + (int)(pos / 65536));
			CHECK_EQ(cached(&rig), MIB);            /* ordinary reads: it stays */
			t_rig_down(&rig);
		}
	}
}

/* B23 */
static void a_dontcache_write_over_another_leaves_it_to_be_dropped(void)
{
	EACH_POLICY(policy) {
		struct t_rig rig;

		t_rig_init(&rig);
		up(&rig, policy, 65536);
		t_hold_park(rig.hold, T_HOLD_WRITE, 0, 0);
		dontcache_write(&rig, 0, 65536, 'A');
		dontcache_write(&rig, 0, 65536, 'B');
		t_hold_release(rig.hold);
		CHECK_EQ(iomap_fsync(rig.file), 0);
		CHECK(comes_down_to(&rig, 0));
		t_rig_expect_stored(&rig, 0, 65536, 'B');
		t_rig_down(&rig);
	}
}

/* B22; the drop itself is tried at this moment by the unit test of reclaim and by the simulator */
static void a_folio_dirtied_again_before_it_is_dropped_stays(void)
{
	for (unsigned ordinary = 0; ordinary < 2; ordinary++) {
		struct t_rig rig;

		t_rig_init(&rig);
		up(&rig, IOMAP_DONTCACHE_RATELIMIT, 65536);
		t_hold_park(rig.hold, T_HOLD_WRITE, 0, 0);
		dontcache_write(&rig, 0, 4096, 'A');
		CHECK(t_hold_wait_parked(rig.hold, 1));
		CHECK_EQ(write_with(rig.file, 100, 10, 'B', ordinary ? 0 : IOMAP_RWF_DONTCACHE), 10);
		t_hold_release(rig.hold);
		CHECK(T_WAIT(!t_rig_stat(&rig).writeback_bytes, 5000));
		a_moment();
		CHECK_EQ(t_rig_stat(&rig).dirty_bytes, 4096);
		CHECK_EQ(behind(&rig), ordinary ? 0 : 4096);
		CHECK_EQ(cached(&rig), 4096);
		t_rig_expect(&rig, 0, 100, 'A');
		t_rig_expect(&rig, 100, 10, 'B');
		CHECK_EQ(iomap_fsync(rig.file), 0);
		if (!ordinary)
			CHECK(comes_down_to(&rig, 0));
		a_moment();
		CHECK_EQ(cached(&rig), ordinary ? 4096 : 0);
		t_rig_expect_stored(&rig, 0, 100, 'A');
		t_rig_expect_stored(&rig, 100, 10, 'B');
		t_rig_expect_stored(&rig, 110, 3986, 'A');
		t_rig_down(&rig);
	}
}

static struct iomap_file *ordinary_writer;

static int64_t write_m(void *unused)
{
	char m[4096];

	(void)unused;
	memset(m, 'M', sizeof(m));
	return iomap_pwrite(ordinary_writer, m, sizeof(m), 8192);
}

/* C81 */
static void drop_behind_takes_nothing_that_others_cached(void)
{
	EACH_POLICY(policy) {
		struct t_rig rig;
		struct t_call c;

		t_rig_init(&rig);
		rig.params.max_folio_bytes = 4096;
		rig.params.readahead_bytes = IOMAP_READAHEAD_OFF;
		up(&rig, policy, 0);
		t_rig_write(&rig, 0, 16384, 'A');
		CHECK_EQ(iomap_fsync(rig.file), 0);
		CHECK_EQ(iomap_cache_drop(rig.cache), 0);
		t_rig_expect(&rig, 0, 4096, 'A');
		dontcache_write(&rig, 0, 8192, 'N');
		CHECK(is_written(&rig));
		CHECK(comes_down_to(&rig, 4096));               /* block 0 stays, block 1 goes */
		a_moment();
		CHECK_EQ(cached(&rig), 4096);
		t_rig_reset(&rig);
		t_rig_expect(&rig, 4096, 4096, 'N');
		CHECK_EQ(t_rig_io(&rig).read_bytes, 4096);
		t_rig_expect(&rig, 0, 4096, 'N');
		CHECK_EQ(t_rig_io(&rig).read_bytes, 4096);

		CHECK_EQ(iomap_cache_drop(rig.cache), 0);
		t_hold_park(rig.hold, T_HOLD_WRITE, 0, 0);
		dontcache_write(&rig, 8192, 4096, 'M');
		CHECK(t_hold_wait_parked(rig.hold, 1));
		ordinary_writer = rig.file;
		t_call_fn(&c, write_m, NULL);
		a_moment();
		t_hold_release(rig.hold);
		CHECK_EQ(t_call_wait(&c), 4096);
		t_call_free(&c);
		CHECK_EQ(iomap_fsync(rig.file), 0);
		a_moment();
		CHECK_EQ(cached(&rig), 4096);
		t_rig_expect_stored(&rig, 0, 8192, 'N');
		t_rig_expect_stored(&rig, 8192, 4096, 'M');
		t_rig_expect_stored(&rig, 12288, 4096, 'A');
		t_rig_down(&rig);
	}
}

static void a_dontcache_read_leaves_only_what_was_cached_before(void)
{
	struct t_rig rig;

	t_rig_init(&rig);
	up(&rig, IOMAP_DONTCACHE_KICK, 0);
	t_rig_write(&rig, 0, 4 * MIB, 'A');
	CHECK_EQ(iomap_fsync(rig.file), 0);
	CHECK_EQ(iomap_cache_drop(rig.cache), 0);
	read_with(rig.file, 0, 4 * MIB, 'A', IOMAP_RWF_DONTCACHE);
	CHECK(comes_down_to(&rig, 0));
	t_rig_reset(&rig);
	read_with(rig.file, 65536, 65536, 'A', 0);
	CHECK_GE(cached(&rig), 65536);
	CHECK_EQ(iomap_fadvise(rig.file, 0, 65536, POSIX_FADV_DONTNEED), 0);
	CHECK_EQ(iomap_fadvise(rig.file, 131072, 0, POSIX_FADV_DONTNEED), 0);
	CHECK_EQ(cached(&rig), 65536);
	read_with(rig.file, 0, 4 * MIB, 'A', IOMAP_RWF_DONTCACHE);
	CHECK(comes_down_to(&rig, 65536));
	a_moment();
	CHECK_EQ(cached(&rig), 65536);
	t_rig_reset(&rig);
	read_with(rig.file, 65536, 65536, 'A', 0);
	CHECK_EQ(t_rig_io(&rig).read_bytes, 0);
	t_rig_down(&rig);
}

static void one_dontcache_read_of_a_part_leaves_nothing(void)
{
	struct t_rig rig;

	t_rig_init(&rig);
	rig.params.readahead_bytes = IOMAP_READAHEAD_OFF;
	up(&rig, IOMAP_DONTCACHE_KICK, 0);
	t_rig_write(&rig, 0, 100000, 'A');
	CHECK_EQ(iomap_fsync(rig.file), 0);
	CHECK_EQ(iomap_cache_drop(rig.cache), 0);
	read_with(rig.file, 0, 10000, 'A', IOMAP_RWF_DONTCACHE);
	CHECK(comes_down_to(&rig, 0));
	read_with(rig.file, 50000, 1, 'A', IOMAP_RWF_DONTCACHE);
	CHECK(comes_down_to(&rig, 0));
	read_with(rig.file, 90000, 10000, 'A', IOMAP_RWF_DONTCACHE);
	CHECK(comes_down_to(&rig, 0));
	t_rig_down(&rig);
}

/* Small reads one after the other: the folio they are in waits for the reader to pass it, or to go elsewhere. */
static void small_dontcache_reads_read_each_byte_about_once(void)
{
	struct t_rig rig;
	uint64_t peak = 0;

	t_rig_init(&rig);
	up(&rig, IOMAP_DONTCACHE_KICK, 0);
	t_rig_write(&rig, 0, 2 * MIB, 'A');
	CHECK_EQ(iomap_fsync(rig.file), 0);
	CHECK_EQ(iomap_cache_drop(rig.cache), 0);
	t_rig_reset(&rig);
	for (uint64_t pos = 0; pos < MIB; pos += 1000) {
		read_with(rig.file, pos, 1000, 'A', IOMAP_RWF_DONTCACHE);
		peak = cached(&rig) > peak ? cached(&rig) : peak;
	}
	CHECK_LE(t_rig_io(&rig).read_bytes, MIB + 3 * 131072);
	CHECK_LE(peak, 5 * 131072);
	CHECK(t_drops_all(rig.cache));                                 /* what was read ahead and not used */
	read_with(rig.file, MIB + 500, 1000, 'A', IOMAP_RWF_DONTCACHE);
	read_with(rig.file, MIB + 1500, 1000, 'A', IOMAP_RWF_DONTCACHE);
	CHECK_GE(cached(&rig), 4096);
	t_rig_close(&rig);
	t_rig_open(&rig);
	CHECK(t_drops_all(rig.cache));
	t_rig_down(&rig);
}

/* The folio in the hands of another when it should go is not forgotten: here those of an fsync that waits for it. */
static void a_folio_that_somebody_waits_for_goes_afterwards(void)
{
	struct t_rig rig;

	t_rig_init(&rig);
	up(&rig, IOMAP_DONTCACHE_RATELIMIT, 4 * MIB);
	for (unsigned round = 0; round < 50; round++) {
		struct t_call c[2];

		t_hold_park(rig.hold, T_HOLD_WRITE, 0, 0);
		dontcache_write(&rig, round * 65536, 65536, 'A');
		t_call_fsync(&c[0], rig.file);
		t_call_fsync(&c[1], rig.file);
		CHECK(t_hold_wait_parked(rig.hold, 1));
		t_hold_release(rig.hold);
		CHECK_EQ(t_call_wait(&c[0]), 0);
		CHECK_EQ(t_call_wait(&c[1]), 0);
		t_call_free(&c[0]);
		t_call_free(&c[1]);
		CHECK(comes_down_to(&rig, 0));
	}
	t_rig_down(&rig);
}

/* --- what is counted ------------------------------------------------------------------------------------------------- */

static void each_accounting_counts_what_dontcache_left_dirty(void)
{
	for (enum iomap_accounting acct = IOMAP_ACCT_BLOCK; acct <= IOMAP_ACCT_FOLIO; acct++) {
		struct t_rig rig;


		t_rig_init(&rig);
		rig.params.accounting = acct;
		rig.block_size = 512;
		up(&rig, IOMAP_DONTCACHE_RATELIMIT, MIB);
		t_hold_park(rig.hold, T_HOLD_WRITE, 0, 0);
		dontcache_write(&rig, 16 * 65536 - 512, 512, 'Z');              /* keeps the file in flight */
		CHECK(t_hold_wait_parked(rig.hold, 1));
		CHECK_EQ(behind(&rig), 0);
		dontcache_write(&rig, 0, 65536, 'A');
		CHECK_EQ(behind(&rig), 65536);
		dontcache_write(&rig, 65536, 65536, 'A');
		t_rig_write(&rig, 131072, 65536, 'B');
		CHECK_EQ(behind(&rig), 131072);
		CHECK_EQ(t_rig_stat(&rig).dirty_bytes, 196608);
		t_rig_write(&rig, 5, 1, 'C');                                   /* wanted by others now */
		CHECK_EQ(behind(&rig), 65536);
		CHECK_EQ(t_rig_stat(&rig).dirty_bytes, 196608);
		dontcache_write(&rig, 5, 1, 'D');                               /* and stays wanted */
		dontcache_write(&rig, 131072, 5, 'D');
		CHECK_EQ(behind(&rig), 65536);
		t_rig_check(&rig);
		t_hold_release(rig.hold);
		CHECK_EQ(iomap_fsync(rig.file), 0);
		CHECK_EQ(behind(&rig), 0);
		/* one block of a clean, cached folio of each kind */
		CHECK_EQ(iomap_cache_drop(rig.cache), 0);
		t_rig_expect(&rig, 5, 1, 'D');
		t_hold_park(rig.hold, T_HOLD_WRITE, 0, 0);
		dontcache_write(&rig, 10 * 65536, 512, 'Z');
		CHECK(t_hold_wait_parked(rig.hold, 1));
		dontcache_write(&rig, 2000, 1, 'E');
		CHECK_EQ(behind(&rig), 0);
		t_rig_check(&rig);
		t_hold_release(rig.hold);
		t_rig_down(&rig);
	}
}

static void a_truncate_takes_its_part_of_the_count(void)
{
	struct t_rig rig;

	t_rig_init(&rig);
	rig.params.max_folio_bytes = 65536;
	up(&rig, IOMAP_DONTCACHE_RATELIMIT, 2 * MIB);
	t_hold_park(rig.hold, T_HOLD_WRITE, 0, 0);
	dontcache_write(&rig, 0, 4096, 'Z');
	CHECK(t_hold_wait_parked(rig.hold, 1));
	dontcache_write(&rig, 65536, 4 * 65536, 'A');
	CHECK_EQ(behind(&rig), 4 * 65536);
	CHECK_EQ(iomap_ftruncate(rig.file, 4 * 65536), 0);
	CHECK_EQ(behind(&rig), 3 * 65536);
	CHECK_EQ(iomap_ftruncate(rig.file, 3 * 65536 + 5000), 0);               /* the folio across the cut stays for good */
	CHECK_EQ(behind(&rig), 2 * 65536);
	t_rig_check(&rig);
	CHECK_EQ(t_rig_stat(&rig).dirty_bytes, 2 * 65536 + 8192);
	t_hold_release(rig.hold);
	CHECK_EQ(iomap_fsync(rig.file), 0);
	CHECK(comes_down_to(&rig, 8192));
	t_rig_expect(&rig, 65536, 2 * 65536 + 5000, 'A');
	t_rig_down(&rig);
}

static void a_failed_dontcache_write_counts_again_and_loses_nothing(void)
{
	for (enum iomap_error_policy rule = IOMAP_ERROR_KEEP_DIRTY; rule <= IOMAP_ERROR_DROP; rule++) {
		struct t_rig rig;

		t_rig_init(&rig);
		rig.params.error_policy = rule;
		up(&rig, IOMAP_DONTCACHE_KICK, MIB);
		t_hold_fail(rig.hold, T_HOLD_WRITE, 0, 0, EIO);
		dontcache_write(&rig, 0, 65536, 'A');
		CHECK_EQ(iomap_fsync(rig.file), -EIO);
		a_moment();
		CHECK_EQ(behind(&rig), rule == IOMAP_ERROR_KEEP_DIRTY ? 65536 : 0);
		CHECK_EQ(cached(&rig), 65536);
		t_rig_expect(&rig, 0, 65536, 'A');
		t_rig_check(&rig);
		t_hold_heal(rig.hold);
		CHECK_EQ(iomap_fsync(rig.file), 0);
		if (rule == IOMAP_ERROR_KEEP_DIRTY) {
			CHECK(comes_down_to(&rig, 0));
			t_rig_expect_stored(&rig, 0, 65536, 'A');
		}
		t_rig_down(&rig);
	}
}

/* --- policies -------------------------------------------------------------------------------------------------------- */

#define NR_WRITES 64

/* Device writes for NR_WRITES calls of one block, all while the device answers nothing; and the most that was dirty of them. */
static uint64_t writes_while_parked(enum iomap_dontcache policy, uint64_t *peak, uint64_t *in_flight)
{
	struct t_rig rig;
	struct t_hold_count before, after;

	t_rig_init(&rig);
	rig.params.max_folio_bytes = 4096;
	rig.params.dirty_expire_ms = 1000000;
	up(&rig, policy, MIB);
	t_hold_counts(rig.hold, &before);
	t_hold_park(rig.hold, T_HOLD_WRITE, 0, 0);
	*peak = 0;
	for (unsigned i = 0; i < NR_WRITES; i++) {
		uint64_t now;

		dontcache_write(&rig, i * 8192, 4096, 'A');     /* returns, though nothing completes */
		now = behind(&rig);
		*peak = now > *peak ? now : *peak;
		if (policy == IOMAP_DONTCACHE_KICK)
			CHECK(T_WAIT(behind(&rig) == 0, 5000));
	}
	*in_flight = t_rig_stat(&rig).writeback_bytes;
	if (policy == IOMAP_DONTCACHE_KICK)     /* what the flusher has claimed is on its way to the device */
		CHECK(t_hold_wait_parked(rig.hold, NR_WRITES));
	t_hold_counts(rig.hold, &after);
	t_hold_release(rig.hold);
	CHECK_EQ(iomap_fsync(rig.file), 0);
	CHECK(comes_down_to(&rig, 0));
	t_rig_down(&rig);
	return after.submitted - before.submitted;
}

static void naive_writes_each_time_ratelimit_once_and_kick_by_the_flusher(void)
{
	uint64_t peak, in_flight;

	CHECK_EQ(writes_while_parked(IOMAP_DONTCACHE_NAIVE, &peak, &in_flight), NR_WRITES);
	CHECK_EQ(peak, 0);
	CHECK_EQ(in_flight, NR_WRITES * 4096);
	CHECK_EQ(writes_while_parked(IOMAP_DONTCACHE_RATELIMIT, &peak, &in_flight), 1);
	CHECK_EQ(peak, (NR_WRITES - 1) * 4096);
	CHECK_EQ(in_flight, 4096);
	CHECK_EQ(writes_while_parked(IOMAP_DONTCACHE_KICK, &peak, &in_flight), NR_WRITES);
	CHECK_EQ(in_flight, NR_WRITES * 4096);
	CHECK_LE(peak, 4096);
}

/* Neighbouring small writes: the writer that flushes each makes a request of each; the flusher finds several at once. */
static uint64_t requests_of_a_stream(enum iomap_dontcache policy, uint64_t *peak)
{
	struct t_rig rig;
	uint64_t nr;

	t_rig_init(&rig);
	rig.params.queue_depth = 1;             /* while it is away others gather */
	rig.device_params.latency_ns = 2000000;
	up(&rig, policy, 2 * MIB);
	t_rig_reset(&rig);
	*peak = 0;
	for (unsigned i = 0; i < 256; i++) {
		uint64_t now;

		dontcache_write(&rig, i * 4096, 4096, 'A');
		now = behind(&rig);
		*peak = now > *peak ? now : *peak;
	}
	CHECK_EQ(iomap_fsync(rig.file), 0);
	nr = t_rig_io(&rig).write_ios;
	CHECK_EQ(t_rig_io(&rig).written_bytes, MIB);
	CHECK(comes_down_to(&rig, 0));
	t_rig_down(&rig);
	return nr;
}

static void the_policies_trade_requests_for_dirty_bytes(void)
{
	uint64_t peak[3], nr[3];

	EACH_POLICY(policy)
		nr[policy] = requests_of_a_stream(policy, &peak[policy]);
	CHECK_GE(nr[IOMAP_DONTCACHE_NAIVE], 250);
	CHECK_LE(nr[IOMAP_DONTCACHE_KICK], 128);
	CHECK_LE(nr[IOMAP_DONTCACHE_RATELIMIT], 128);
	CHECK_LE(peak[IOMAP_DONTCACHE_NAIVE], 8192);
	CHECK_GE(peak[IOMAP_DONTCACHE_KICK], peak[IOMAP_DONTCACHE_NAIVE]);
	CHECK_GE(peak[IOMAP_DONTCACHE_RATELIMIT], 8192);
}

/* The kick is for files with such data: what others have dirtied elsewhere stays dirty. */
static void a_kick_writes_what_dontcache_left_dirty_and_not_the_rest(void)
{
	struct iomap_cache_params cp = IOMAP_CACHE_PARAMS_INIT;
	struct iomap_cache *cache;
	struct iomap_cache_stat st;
	struct iomap_file *plain[2];
	char path[2][400];

	cp.memory_bytes = 16 * MIB;
	cp.dirty_writeback_ms = IOMAP_NEVER;
	CHECK_EQ(iomap_cache_create(&cache, &cp), 0);
	for (unsigned i = 0; i < 2; i++) {
		int ret;

		t_run_path(path[i], sizeof(path[i]), i ? "b" : "a");
		ret = iomap_open(cache, path[i], O_RDWR | O_CREAT, 0600, &plain[i]);
		if (ret == -EOPNOTSUPP)
			t_run_skip("no O_DIRECT here");
		CHECK_EQ(ret, 0);
	}
	CHECK_EQ(write_with(plain[0], 0, 65536, 'A', 0), 65536);
	CHECK_EQ(write_with(plain[1], 0, 65536, 'B', IOMAP_RWF_DONTCACHE), 65536);
	CHECK(T_WAIT(!iomap_cache_stat(cache, &st, sizeof(st)) && !st.dontcache_dirty_bytes && !st.writeback_bytes, 5000));
	for (unsigned i = 0; i < 20; i++)
		t_run_nap();
	CHECK_EQ(iomap_cache_stat(cache, &st, sizeof(st)), 0);
	CHECK_EQ(st.dirty_bytes, 65536);
	CHECK(T_WAIT(!iomap_cache_stat(cache, &st, sizeof(st)) && st.cached_bytes == 65536, 5000));
	CHECK_EQ(iomap_close(plain[0]), 0);
	CHECK_EQ(iomap_close(plain[1]), 0);
	CHECK_EQ(iomap_cache_destroy(cache), 0);
}

static void the_policy_is_a_tunable(void)
{
	struct t_rig rig;
	struct iomap_cache_params p = IOMAP_CACHE_PARAMS_INIT;

	t_rig_init(&rig);
	up(&rig, IOMAP_DONTCACHE_RATELIMIT, MIB);
	t_hold_park(rig.hold, T_HOLD_WRITE, 0, 0);
	dontcache_write(&rig, 0, 4096, 'A');
	CHECK(t_hold_wait_parked(rig.hold, 1));
	dontcache_write(&rig, 65536, 4096, 'A');
	CHECK_EQ(behind(&rig), 4096);
	CHECK_EQ(iomap_cache_set(rig.cache, IOMAP_TUNE_DONTCACHE, IOMAP_DONTCACHE_NAIVE), 0);
	dontcache_write(&rig, 131072, 4096, 'A');
	CHECK_EQ(iomap_cache_set(rig.cache, IOMAP_TUNE_DONTCACHE, 0), 0);
	dontcache_write(&rig, 196608, 4096, 'A');
	CHECK(T_WAIT(behind(&rig) == 0, 5000));
	t_hold_release(rig.hold);
	CHECK(comes_down_to(&rig, 0));
	t_rig_down(&rig);
	CHECK_EQ(iomap_cache_params_parse(&p, "dontcache=naive"), 0);
	CHECK_EQ(p.dontcache, IOMAP_DONTCACHE_NAIVE);
}

/* --- with other flags ------------------------------------------------------------------------------------------------- */

static void dontcache_goes_with_every_other_flag(void)
{
	EACH_POLICY(policy) {
		struct t_rig rig;

		t_rig_init(&rig);
		up(&rig, policy, 0);
		CHECK_EQ(write_with(rig.file, 0, 10000, 'A', IOMAP_RWF_DONTCACHE | IOMAP_RWF_DSYNC), 10000);
		t_rig_expect_stored(&rig, 0, 10000, 'A');
		CHECK_EQ(t_hold_durable_size(rig.hold), 10000);
		CHECK_EQ(write_with(rig.file, 0, 100, 'B', IOMAP_RWF_DONTCACHE | IOMAP_RWF_SYNC), 100);
		CHECK_EQ(write_with(rig.file, 0, 5000, 'C', IOMAP_RWF_DONTCACHE | IOMAP_RWF_APPEND), 5000);
		CHECK_EQ(iomap_size(rig.file), 15000);
		CHECK_EQ(write_with(rig.file, 12288, 1000, 'D', IOMAP_RWF_DONTCACHE), 1000);
		CHECK_EQ(iomap_fsync(rig.file), 0);
		CHECK(comes_down_to(&rig, 0));
		read_with(rig.file, 0, 100, 'B', IOMAP_RWF_DONTCACHE | IOMAP_RWF_DSYNC | IOMAP_RWF_SYNC | IOMAP_RWF_APPEND);
		CHECK(t_drops_all(rig.cache));                         /* what was read ahead */
		/* NOWAIT: neither the device, nor its queue, is waited for */
		t_hold_park(rig.hold, T_HOLD_WRITE | T_HOLD_READ, 0, 0);
		CHECK_EQ(write_with(rig.file, 4096, 4096, 'E', IOMAP_RWF_DONTCACHE | IOMAP_RWF_NOWAIT), 4096);
		CHECK(t_hold_wait_parked(rig.hold, 1));
		read_with(rig.file, 4096, 4096, 'E', IOMAP_RWF_DONTCACHE | IOMAP_RWF_NOWAIT);
		CHECK_EQ(iomap_preadv2(rig.file, &(struct iovec){ page, 10 }, 1, 0, IOMAP_RWF_DONTCACHE | IOMAP_RWF_NOWAIT), -EAGAIN);
		t_hold_release(rig.hold);
		CHECK(is_written(&rig));
		CHECK(comes_down_to(&rig, 0));
		read_with(rig.file, 0, 100, 'B', 0);
		read_with(rig.file, 100, 3996, 'A', 0);
		read_with(rig.file, 4096, 4096, 'E', 0);
		read_with(rig.file, 8192, 1808, 'A', 0);
		read_with(rig.file, 10000, 2288, 'C', 0);
		read_with(rig.file, 12288, 1000, 'D', 0);
		read_with(rig.file, 13288, 1712, 'C', 0);
		t_rig_down(&rig);
	}
}

/* --- advice ----------------------------------------------------------------------------------------------------------- */

static void dontneed_writes_the_range_and_no_more(void)
{
	struct t_rig rig;

	t_rig_init(&rig);
	rig.params.max_folio_bytes = 4096;
	up(&rig, IOMAP_DONTCACHE_KICK, MIB);
	t_rig_write(&rig, 0, MIB, 'A');
	CHECK_EQ(iomap_fadvise(rig.file, 65536, 65536, POSIX_FADV_DONTNEED), 0);
	CHECK(T_WAIT(t_rig_stat(&rig).dirty_bytes == MIB - 65536 && !t_rig_stat(&rig).writeback_bytes, 5000));
	a_moment();
	CHECK_EQ(t_rig_stat(&rig).dirty_bytes, MIB - 65536);
	CHECK_GE(cached(&rig), MIB - 65536);
	CHECK_EQ(iomap_fadvise(rig.file, 65536, 65536, POSIX_FADV_DONTNEED), 0);
	CHECK_EQ(cached(&rig), MIB - 65536);
	CHECK_EQ(iomap_fadvise(rig.file, 512 * KIB, 0, POSIX_FADV_DONTNEED), 0);        /* to the end */
	CHECK(T_WAIT(t_rig_stat(&rig).dirty_bytes == 512 * KIB - 65536 && !t_rig_stat(&rig).writeback_bytes, 5000));
	CHECK_EQ(iomap_fadvise(rig.file, 512 * KIB, 0, POSIX_FADV_DONTNEED), 0);
	CHECK_EQ(cached(&rig), 512 * KIB - 65536);
	t_rig_expect(&rig, 0, MIB, 'A');
	t_rig_down(&rig);
}

/* Also where blocks must be written in order, because they make the device grow, and where the device answers nothing for now. */
static void dontneed_of_a_growing_file_never_waits(void)
{
	struct t_rig rig;

	t_rig_init(&rig);
	up(&rig, IOMAP_DONTCACHE_KICK, 0);
	t_rig_write(&rig, 0, MIB, 'A');
	t_hold_park(rig.hold, T_HOLD_WRITE, 0, 0);
	CHECK_EQ(iomap_fadvise(rig.file, 0, 0, POSIX_FADV_DONTNEED), 0);
	CHECK(t_hold_wait_parked(rig.hold, 1));
	CHECK_EQ(iomap_fadvise(rig.file, 0, 0, POSIX_FADV_DONTNEED), 0);
	t_rig_expect(&rig, 0, MIB, 'A');
	t_hold_release(rig.hold);
	CHECK(is_written(&rig));
	t_rig_expect_stored(&rig, 0, MIB, 'A');
	t_rig_down(&rig);
}

/* Reads the hot part five times, then all of a file that is four times the cache: bytes read for the hot part afterwards. */
static uint64_t read_again(int advice, int flags, bool then_normal)
{
	struct t_rig rig;
	struct iomap_file *other;
	uint64_t again;

	t_rig_init(&rig);
	rig.params.memory_bytes = 4 * MIB;
	rig.params.dirty_bytes = MIB;
	rig.params.max_folio_bytes = 4096;
	rig.params.readahead_bytes = IOMAP_READAHEAD_OFF;
	rig.device_params.size = 16 * MIB;
	rig.device_params.volatile_cache = false;
	t_rig_up(&rig);
	other = t_rig_handle(&rig, O_RDONLY);
	CHECK_EQ(iomap_fadvise(other, 0, 0, advice), 0);
	if (then_normal)
		CHECK_EQ(iomap_fadvise(other, 0, 0, POSIX_FADV_NORMAL), 0);
	for (unsigned i = 0; i < 5; i++)
		for (uint64_t pos = 0; pos < 256 * KIB; pos += 4096)
			read_with(other, pos, 4096, 0, flags);
	for (uint64_t pos = MIB; pos < 16 * MIB; pos += 65536)
		read_with(rig.file, pos, 65536, 0, 0);
	t_rig_reset(&rig);
	read_with(other, 0, 256 * KIB, 0, 0);
	again = t_rig_io(&rig).read_bytes;
	CHECK_EQ(iomap_close(other), 0);
	t_rig_down(&rig);
	return again;
}

static void noreuse_reads_do_not_make_a_folio_worth_keeping(void)
{
	CHECK_LE(read_again(POSIX_FADV_RANDOM, 0, false), 16 * KIB);
	CHECK_EQ(read_again(POSIX_FADV_NOREUSE, 0, false), 256 * KIB);
	CHECK_LE(read_again(POSIX_FADV_NOREUSE, 0, true), 16 * KIB);      /* NORMAL takes it back */
	CHECK_EQ(read_again(POSIX_FADV_NORMAL, IOMAP_RWF_DONTCACHE, false), 256 * KIB);
}

static uint64_t read_for(struct t_rig *rig, struct iomap_file *file, uint64_t pos)
{
	CHECK_EQ(iomap_cache_drop(rig->cache), 0);
	t_rig_reset(rig);
	read_with(file, pos, 4096, 0, 0);
	a_moment();
	return t_rig_io(rig).read_bytes;
}

static void readahead_advice_changes_how_much_is_read(void)
{
	struct t_rig rig;
	struct iomap_file *h;
	uint64_t normal, twice;

	t_rig_init(&rig);
	up(&rig, IOMAP_DONTCACHE_KICK, 16 * MIB);
	h = t_rig_handle(&rig, O_RDONLY);
	normal = read_for(&rig, h, 0);
	CHECK_GE(normal, 8192);
	CHECK_EQ(iomap_fadvise(h, 12345, 1, POSIX_FADV_RANDOM), 0);             /* of the whole handle, whatever the range */
	CHECK_EQ(read_for(&rig, h, 0), 4096);
	CHECK_EQ(read_for(&rig, rig.file, 0), normal);                         /* and of no other */
	CHECK_EQ(iomap_fadvise(h, 0, 0, POSIX_FADV_NOREUSE), 0);                /* changes nothing about that */
	CHECK_EQ(read_for(&rig, h, 0), 4096);
	CHECK_EQ(iomap_fadvise(h, 0, 0, POSIX_FADV_SEQUENTIAL), 0);
	twice = 0;
	for (uint64_t pos = 0; pos < MIB; pos += 4096)
		read_with(h, pos, 4096, 0, 0);
	a_moment();
	twice = cached(&rig) - MIB;
	CHECK_EQ(iomap_close(h), 0);
	h = t_rig_handle(&rig, O_RDONLY);
	CHECK_EQ(iomap_cache_drop(rig.cache), 0);
	CHECK_EQ(iomap_fadvise(h, 0, 0, POSIX_FADV_RANDOM), 0);
	CHECK_EQ(iomap_fadvise(h, 0, 0, POSIX_FADV_NORMAL), 0);
	for (uint64_t pos = 0; pos < MIB; pos += 4096)
		read_with(h, pos, 4096, 0, 0);
	a_moment();
	CHECK_GE(twice, cached(&rig) - MIB + 65536);
	CHECK_EQ(iomap_close(h), 0);
	t_rig_down(&rig);
}

static void willneed_reads_the_range_before_it_is_asked_for(void)
{
	struct t_rig rig;

	t_rig_init(&rig);
	up(&rig, IOMAP_DONTCACHE_KICK, 4 * MIB);
	CHECK_EQ(iomap_fadvise(rig.file, MIB + 100, 40000, POSIX_FADV_WILLNEED), 0);
	CHECK(T_WAIT(t_rig_io(&rig).read_bytes == 40960 + 0, 5000));
	CHECK_EQ(cached(&rig), 40960);
	read_with(rig.file, MIB, 40960, 0, 0);
	CHECK_EQ(t_rig_io(&rig).read_bytes, 40960);
	CHECK_EQ(iomap_fadvise(rig.file, 4 * MIB - 5000, 0, POSIX_FADV_WILLNEED), 0);   /* to the end */
	CHECK(T_WAIT(t_rig_io(&rig).read_bytes == 40960 + 8192, 5000));
	CHECK_EQ(iomap_fadvise(rig.file, 0, 0, 6), -EINVAL);
	CHECK_EQ(iomap_fadvise(rig.file, 0, -1, POSIX_FADV_WILLNEED), -EINVAL);
	t_rig_down(&rig);
}

static const struct t_run_case cases[] = {
	T_RUN(what_a_dontcache_write_made_goes_once_it_is_written),
	T_RUN(a_dontcache_write_over_another_leaves_it_to_be_dropped),
	T_RUN(a_folio_dirtied_again_before_it_is_dropped_stays),
	T_RUN(drop_behind_takes_nothing_that_others_cached),
	T_RUN(a_dontcache_read_leaves_only_what_was_cached_before),
	T_RUN(one_dontcache_read_of_a_part_leaves_nothing),
	T_RUN(small_dontcache_reads_read_each_byte_about_once),
	T_RUN(a_folio_that_somebody_waits_for_goes_afterwards),
	T_RUN(each_accounting_counts_what_dontcache_left_dirty),
	T_RUN(a_truncate_takes_its_part_of_the_count),
	T_RUN(a_failed_dontcache_write_counts_again_and_loses_nothing),
	T_RUN(naive_writes_each_time_ratelimit_once_and_kick_by_the_flusher),
	T_RUN(the_policies_trade_requests_for_dirty_bytes),
	T_RUN(a_kick_writes_what_dontcache_left_dirty_and_not_the_rest),
	T_RUN(the_policy_is_a_tunable),
	T_RUN(dontcache_goes_with_every_other_flag),
	T_RUN(dontneed_writes_the_range_and_no_more),
	T_RUN(dontneed_of_a_growing_file_never_waits),
	T_RUN(noreuse_reads_do_not_make_a_folio_worth_keeping),
	T_RUN(readahead_advice_changes_how_much_is_read),
	T_RUN(willneed_reads_the_range_before_it_is_asked_for),
};

int main(int argc, char **argv)
{
	return t_run_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
