/*
 * accounting.c - what is charged, by the public counters: the sequences of the paper (T44-T48, T50) in each mode
 *
 * T49 is a split and stands in mapping.c. Of the paper's columns, (d) is BLOCK mode and (a), whole folios, FOLIO mode.
 */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <iomap/iomap.h>
#include "cache.h"
#include "call.h"
#include "device-mem.h"
#include "file.h"
#include "hold-device.h"
#include "run.h"

Suite *suite_accounting(void);

#define MIB2 UINT64_C(2097152)

static const enum iomap_accounting modes[] = { IOMAP_ACCT_BLOCK, IOMAP_ACCT_PAGE, IOMAP_ACCT_FOLIO };
enum { MODES = 3 };

static struct iomap_cache *cache;
static struct iomap_device *dev;
static struct iomap_file *file;
static struct iomap_cache_stat base;
static unsigned char buf[MIB2];

static struct iomap_cache_stat now(void)
{
	struct iomap_cache_stat s;

	ck_assert_int_eq(iomap_cache_stat(cache, &s, sizeof(s)), 0);
	return s;
}

/* Totals since start() or mark(); levels as they are. */
static struct iomap_cache_stat diff(void)
{
	struct iomap_cache_stat s = now();

	s.dirtied_bytes -= base.dirtied_bytes;
	s.redirtied_bytes -= base.redirtied_bytes;
	s.submitted_bytes -= base.submitted_bytes;
	s.written_bytes -= base.written_bytes;
	s.write_failed_bytes -= base.write_failed_bytes;
	s.cancelled_bytes -= base.cancelled_bytes;
	s.pin_acquired_bytes -= base.pin_acquired_bytes;
	s.pin_released_bytes -= base.pin_released_bytes;
	s.pin_dropped_bytes -= base.pin_dropped_bytes;
	return s;
}

/* D2, D3, D5, D6 and D9 from the counters, and the cache's own recount (D1, D8). */
static void check(void)
{
	struct iomap_cache_stat s = now();
	char why[400] = "";

	if (iomap_cache_check(cache, why, sizeof(why)))
		ck_abort_msg("%s", why);
	ck_assert_uint_eq(s.dirtied_bytes + s.redirtied_bytes, s.dirty_bytes + s.submitted_bytes + s.cancelled_bytes);
	ck_assert_uint_eq(s.submitted_bytes, s.writeback_bytes + s.written_bytes + s.write_failed_bytes);
	ck_assert_uint_eq(s.pin_acquired_bytes - s.pin_released_bytes - s.pin_dropped_bytes, s.pinned_bytes);
	ck_assert_uint_le(s.dirty_bytes, s.pinned_bytes);
	ck_assert_uint_le(s.writeback_bytes, s.pinned_bytes);
	ck_assert_uint_eq(s.pin_hard_bytes + s.pin_soft_bytes, s.pinned_bytes);
	ck_assert_uint_eq(cache_task_sum(cache, TASK_DIRTIED_BYTES), s.dirtied_bytes);
}

static void write_at(uint64_t pos, size_t len)
{
	memset(buf, 'w', len);
	ck_assert_int_eq(iomap_pwrite(file, buf, len, (off_t)pos), (ssize_t)len);
	check();
}

static void expect_levels(uint64_t dirty, uint64_t writeback, uint64_t pinned)
{
	struct iomap_cache_stat s = now();

	ck_assert_uint_eq(s.dirty_bytes, dirty);
	ck_assert_uint_eq(s.writeback_bytes, writeback);
	ck_assert_uint_eq(s.pinned_bytes, pinned);
}

static void sync_file(void)
{
	ck_assert_int_eq(iomap_fsync(file), 0);
	check();
	expect_levels(0, 0, 0);                 /* D7 */
}

static void open_cache(enum iomap_accounting mode, uint32_t block, uint64_t folio)
{
	struct iomap_cache_params p = IOMAP_CACHE_PARAMS_INIT;
	struct iomap_file_params fp = IOMAP_FILE_PARAMS_INIT;

	p.memory_bytes = UINT64_C(64) << 20;
	p.max_folio_bytes = folio;
	p.dirty_bytes = UINT64_C(32) << 20;     /* a write's steps, and so its folios, are at most a 16th of it */
	p.accounting = mode;
	p.dirty_writeback_ms = IOMAP_NEVER;
	ck_assert_int_eq(iomap_cache_create(&cache, &p), 0);
	fp.block_size = block;
	fp.device = dev;
	ck_assert_int_eq(iomap_open_with(cache, NULL, O_RDWR, 0, &fp, &file), 0);
}

static void mark(void)
{
	base = now();
}

/* A file of one folio of @folio bytes, clean and up to date: written whole, synced. */
static void start(enum iomap_accounting mode, uint32_t block, uint64_t folio)
{
	unsigned order = 0;

	ck_assert_int_eq(iomap_device_open_mem(NULL, &dev), 0);
	open_cache(mode, block, folio);
	write_at(0, folio);
	sync_file();
	while (4096ULL << order < folio)
		order++;
	ck_assert_uint_eq(now().folios[order], 1);
	mark();
}

static void close_all(void)
{
	check();
	ck_assert_int_eq(iomap_close(file), 0);
	ck_assert_int_eq(iomap_cache_destroy(cache), 0);
	ck_assert_int_eq(iomap_device_close(dev), 0);
}

static void expect_totals(uint64_t dirtied, uint64_t written, uint64_t cancelled)
{
	struct iomap_cache_stat s = diff();

	ck_assert_uint_eq(s.dirtied_bytes, dirtied);
	ck_assert_uint_eq(s.written_bytes, written);
	ck_assert_uint_eq(s.cancelled_bytes, cancelled);
	ck_assert_uint_eq(s.redirtied_bytes, 0);
	ck_assert_uint_eq(s.write_failed_bytes, 0);
}

/* The device's own count: whatever is charged, only dirty blocks are sent. */
static uint64_t sent(void)
{
	struct iomap_device_stat s;

	ck_assert_int_eq(iomap_device_stat(dev, &s, sizeof(s)), 0);
	return s.written_bytes;
}

START_TEST(t44_two_blocks_of_a_2_mib_folio)
{
	static const struct { uint64_t one, two; } want[MODES] = { { 4096, 8192 }, { 4096, 8192 }, { MIB2, MIB2 } };
	uint64_t before;

	start(modes[_i], 4096, MIB2);
	before = sent();
	write_at(0, 4096);
	expect_levels(want[_i].one, 0, MIB2);
	expect_totals(want[_i].one, 0, 0);
	write_at(8192, 4096);
	expect_levels(want[_i].two, 0, MIB2);
	expect_totals(want[_i].two, 0, 0);
	ck_assert_uint_eq(now().pin_hard_bytes, 8192);
	ck_assert_uint_eq(now().pin_soft_bytes, MIB2 - 8192);
	write_at(0, 4096);
	expect_levels(want[_i].two, 0, MIB2);
	expect_totals(want[_i].two, 0, 0);
	sync_file();
	expect_totals(want[_i].two, want[_i].two, 0);
	ck_assert_uint_eq(diff().pin_acquired_bytes, MIB2);
	ck_assert_uint_eq(diff().pin_released_bytes, MIB2);
	ck_assert_uint_eq(sent() - before, 8192);
	close_all();
}
END_TEST

START_TEST(t45_single_bytes_in_blocks_of_1_kib)
{
	static const uint64_t want[MODES][3] = { { 1024, 2048, 3072 }, { 4096, 4096, 8192 }, { 65536, 65536, 65536 } };
	static const uint64_t at[3] = { 0, 1024, 4096 };
	uint64_t before;

	start(modes[_i], 1024, 65536);
	before = sent();
	for (unsigned k = 0; k < 3; k++) {
		write_at(at[k], 1);
		expect_levels(want[_i][k], 0, 65536);
		expect_totals(want[_i][k], 0, 0);
	}
	sync_file();
	expect_totals(want[_i][2], want[_i][2], 0);
	ck_assert_uint_eq(sent() - before, 3072);
	close_all();
}
END_TEST

START_TEST(t46_single_bytes_in_blocks_of_16_kib)
{
	static const uint64_t want[MODES][2] = { { 16384, 32768 }, { 16384, 32768 }, { 65536, 65536 } };
	uint64_t before;

	start(modes[_i], 16384, 65536);
	before = sent();
	write_at(0, 1);
	expect_levels(want[_i][0], 0, 65536);
	write_at(20000, 1);
	expect_levels(want[_i][1], 0, 65536);
	sync_file();
	expect_totals(want[_i][1], want[_i][1], 0);
	ck_assert_uint_eq(sent() - before, 32768);
	close_all();
}
END_TEST

START_TEST(t47_a_whole_folio)
{
	start(modes[_i], 4096, 65536);
	write_at(0, 65536);
	expect_levels(65536, 0, 65536);
	sync_file();
	expect_totals(65536, 65536, 0);
	close_all();
}
END_TEST

START_TEST(t48_truncate_inside_a_dirty_folio)
{
	start(modes[_i], 4096, 65536);
	write_at(0, 65536);
	ck_assert_int_eq(iomap_ftruncate(file, 10000), 0);
	check();
	expect_levels(12288, 0, 12288);         /* split: what is left pins no more than itself */
	expect_totals(65536, 0, 53248);
	sync_file();
	expect_totals(65536, 12288, 53248);
	ck_assert_uint_eq(diff().pin_dropped_bytes, 53248);
	ck_assert_uint_eq(diff().pin_released_bytes, 12288);
	ck_assert_int_eq(iomap_size(file), 10000);
	close_all();
}
END_TEST

/* 1.7: the file shrinks inside a block between charge and writeback; nothing is counted anew. */
START_TEST(last_block_counts_whole_however_little_of_it_is_sent)
{
	uint64_t before;

	ck_assert_int_eq(iomap_device_open_mem(NULL, &dev), 0);
	open_cache(modes[_i], 4096, 65536);
	mark();
	before = sent();
	write_at(0, 4000);
	expect_totals(4096, 0, 0);
	ck_assert_int_eq(iomap_ftruncate(file, 100), 0);
	check();
	expect_totals(4096, 0, 0);
	sync_file();
	expect_totals(4096, 4096, 0);
	ck_assert_uint_eq(sent() - before, 100);
	/* … and to nothing: cancelled, not written. */
	write_at(0, 50);
	ck_assert_int_eq(iomap_ftruncate(file, 0), 0);
	sync_file();
	expect_totals(8192, 4096, 4096);
	ck_assert_uint_eq(sent() - before, 100);
	close_all();
}
END_TEST

/* T50 and row "start" of the worked sequence. */
START_TEST(t50_block_dirtied_again_in_flight)
{
	uint64_t g = modes[_i] == IOMAP_ACCT_FOLIO ? 65536 : 4096;
	struct t_hold *hold = t_hold_create(NULL);
	struct t_call call;

	dev = t_hold_device(hold);
	open_cache(modes[_i], 4096, 65536);
	write_at(0, 65536);
	sync_file();
	mark();
	write_at(8192, 4096);
	t_hold_park(hold, T_HOLD_WRITE, 0, 0);
	t_call_fsync(&call, file);
	ck_assert(t_hold_wait_parked(hold, 1));
	expect_levels(0, g, 65536);
	ck_assert_uint_eq(diff().submitted_bytes, g);
	expect_totals(g, 0, 0);
	memset(buf, 'x', 4096);
	ck_assert_int_eq(iomap_pwrite(file, buf, 4096, 8192), 4096);    /* small requests are copied: no wait */
	expect_levels(g, g, 65536);
	expect_totals(2 * g, 0, 0);
	ck_assert_uint_eq(diff().pin_acquired_bytes, 65536);            /* once */
	t_hold_release(hold);
	ck_assert_int_eq(t_call_wait(&call), 0);
	t_call_free(&call);
	sync_file();
	expect_totals(2 * g, 2 * g, 0);
	ck_assert_uint_eq(diff().pin_acquired_bytes, 65536);
	ck_assert_uint_eq(diff().pin_released_bytes, 65536);
	t_hold_peek(hold, buf, 4096, 8192);
	ck_assert_int_eq(buf[0], 'x');
	close_all();
	ck_assert(T_WAIT(!t_hold_devices(hold), 5000));
	ck_assert_msg(!t_hold_bad(hold), "%s", t_hold_bad(hold));
	t_hold_free(hold);
}
END_TEST

/* A write that fails: dirty again, nobody's debt, no leak; then it succeeds. */
START_TEST(failed_write_is_charged_again_and_not_paid_again)
{
	uint64_t g = modes[_i] == IOMAP_ACCT_FOLIO ? 65536 : 4096;
	struct t_hold *hold = t_hold_create(NULL);
	struct iomap_cache_stat s;

	dev = t_hold_device(hold);
	open_cache(modes[_i], 4096, 65536);
	write_at(0, 65536);
	sync_file();
	mark();
	write_at(4096, 4096);
	t_hold_fail(hold, T_HOLD_WRITE, 0, 0, EIO);
	ck_assert_int_eq(iomap_fsync(file), -EIO);
	check();
	expect_levels(g, 0, 65536);
	s = diff();
	ck_assert_uint_eq(s.failed_bytes, g);
	ck_assert_uint_eq(s.dirtied_bytes, g);
	ck_assert_uint_ge(s.redirtied_bytes, g);
	ck_assert_uint_eq(s.redirtied_bytes, s.write_failed_bytes);
	ck_assert_uint_eq(s.written_bytes, 0);
	t_hold_heal(hold);
	sync_file();
	ck_assert_uint_eq(diff().written_bytes, g);
	ck_assert_uint_eq(now().failed_bytes, 0);
	close_all();
	ck_assert(T_WAIT(!t_hold_devices(hold), 5000));
	t_hold_free(hold);
}
END_TEST

/* Folios that reading made, of every size readahead chooses; then every 7th block written. */
START_TEST(folios_made_by_readahead_are_charged_alike)
{
	struct iomap_mem_params mp = { .size = 4 << 20 };
	uint64_t want = 0;

	ck_assert_int_eq(iomap_device_open_mem(&mp, &dev), 0);
	open_cache(modes[_i], 4096, MIB2);
	for (uint64_t pos = 0; pos < mp.size; pos += 65536)
		ck_assert_int_eq(iomap_pread(file, buf, 65536, (off_t)pos), 65536);
	mark();
	for (unsigned b = 0; b < mp.size / 4096; b += 7) {
		struct iomap_folio *f;
		bool was;

		f = mapping_get(&file->inode->mapping, b);
		ck_assert_ptr_nonnull(f);
		was = folio_is_dirty(f);
		write_at((uint64_t)b * 4096 + 5, 10);
		if (modes[_i] != IOMAP_ACCT_FOLIO)
			want += 4096;
		else if (!was)
			want += folio_bytes(f);
		folio_put(&cache->zone, f);
		expect_totals(want, 0, 0);
	}
	ck_assert_uint_eq(now().dirty_bytes, want);
	sync_file();
	expect_totals(want, want, 0);
	close_all();
}
END_TEST

START_TEST(peaks_stay_when_levels_go)
{
	start(IOMAP_ACCT_BLOCK, 4096, 65536);
	ck_assert_uint_eq(now().dirty_peak_bytes, 65536);
	ck_assert_uint_eq(now().pinned_peak_bytes, 65536);
	ck_assert_uint_eq(now().max_dirty_folio_bytes, 65536);
	write_at(0, 4096);
	write_at(65536, 8192);
	ck_assert_uint_eq(now().dirty_peak_bytes, 65536);
	ck_assert_uint_eq(now().pinned_peak_bytes, 65536 + 8192);
	sync_file();
	ck_assert_uint_eq(now().pinned_peak_bytes, 65536 + 8192);
	close_all();
}
END_TEST

Suite *suite_accounting(void)
{
	Suite *s = suite_create("accounting");
	TCase *tc = tcase_create("accounting");

	suite_add_tcase(s, tc);
	tcase_set_timeout(tc, 60);
	tcase_add_loop_test(tc, t44_two_blocks_of_a_2_mib_folio, 0, MODES);
	tcase_add_loop_test(tc, t45_single_bytes_in_blocks_of_1_kib, 0, MODES);
	tcase_add_loop_test(tc, t46_single_bytes_in_blocks_of_16_kib, 0, MODES);
	tcase_add_loop_test(tc, t47_a_whole_folio, 0, MODES);
	tcase_add_loop_test(tc, t48_truncate_inside_a_dirty_folio, 0, MODES);
	tcase_add_loop_test(tc, last_block_counts_whole_however_little_of_it_is_sent, 0, MODES);
	tcase_add_loop_test(tc, t50_block_dirtied_again_in_flight, 0, MODES);
	tcase_add_loop_test(tc, failed_write_is_charged_again_and_not_paid_again, 0, MODES);
	tcase_add_loop_test(tc, folios_made_by_readahead_are_charged_alike, 0, MODES);
	tcase_add_test(tc, peaks_stay_when_levels_go);
	return s;
}
