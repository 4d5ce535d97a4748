/*
 * writeback.c - dirty blocks become requests: which, how many, in what order, and with which bytes
 */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include "call.h"
#include "file.h"
#include "rig.h"
#include "ioend.h"
#include "writeback.h"

Suite *suite_writeback(void);

static struct t_rig rig;
static struct t_hold_entry entries[1024];

static void init(uint32_t block, uint64_t max_folio)
{
	t_rig_init(&rig);
	rig.block_size = block;
	rig.params.max_folio_bytes = max_folio;
	rig.params.dirty_bytes = 32 * MIB;              /* a write's steps, and so its folios, are at most a 16th of it */
	rig.params.dirty_background_bytes = 24 * MIB;
	rig.device_params.capacity = 16 * MIB;
}

/* @size bytes of 's', clean and cached, the request log empty. */
static void up_stored(uint64_t size)
{
	t_rig_up(&rig);
	t_rig_write(&rig, 0, size, 's');
	ck_assert_int_eq(iomap_fsync(rig.file), 0);
	t_rig_reset(&rig);
	t_hold_log_clear(rig.hold);
}

/* Write requests since then, in the order of their completion. */
static unsigned writes(void)
{
	unsigned all = t_hold_log(rig.hold, entries, ARRAY_SIZE(entries)), nr = 0;

	ck_assert_uint_le(all, ARRAY_SIZE(entries));
	for (unsigned i = 0; i < all; i++)
		if (entries[i].op == IOMAP_REQ_WRITE)
			entries[nr++] = entries[i];
	return nr;
}

static int by_pos(const void *a, const void *b)
{
	const struct t_hold_entry *x = a, *y = b;

	return x->pos < y->pos ? -1 : x->pos > y->pos;
}

/* --- what is written ------------------------------------------------------------------------------------ */

START_TEST(requests_are_the_runs_of_dirty_blocks)
{
	uint64_t chance = (uint64_t)_i + 1;
	static const uint32_t blocks[] = { 512, 1024, 4096, 16384 };
	uint32_t block = blocks[_i % 4];

	init(block, 65536);
	rig.params.accounting = _i % 3 == 0 ? IOMAP_ACCT_BLOCK : _i % 3 == 1 ? IOMAP_ACCT_PAGE : IOMAP_ACCT_FOLIO;
	up_stored(262144);
	for (unsigned round = 0; round < 20; round++) {
		uint8_t dirty[262144 / 512] = { 0 };
		unsigned nr, runs = 0;

		for (unsigned i = 0; i < 1 + round; i++) {
			uint64_t pos = t_random_below(&chance, 262144 - 3 * block);
			uint64_t len = 1 + t_random_below(&chance, 3 * block);

			t_rig_write(&rig, pos, len, 'w');
			for (uint64_t b = pos / block; b <= (pos + len - 1) / block; b++)
				dirty[b] = 1;
		}
		t_hold_log_clear(rig.hold);
		ck_assert_int_eq(iomap_fsync(rig.file), 0);
		nr = writes();
		qsort(entries, nr, sizeof(entries[0]), by_pos);
		for (unsigned b = 0; b < 262144 / block; b++) {
			unsigned e = b;

			if (!dirty[b])
				continue;
			while (e < 262144 / block && dirty[e])
				e++;
			ck_assert_uint_lt(runs, nr);
			ck_assert_uint_eq(entries[runs].pos, (uint64_t)b * block);
			ck_assert_uint_eq(entries[runs].len, (uint64_t)(e - b) * block);
			runs++;
			b = e;
		}
		ck_assert_uint_eq(nr, runs);
		t_rig_check(&rig);
	}
	t_rig_down(&rig);
}
END_TEST

/* C09 */
START_TEST(one_dirty_byte_writes_its_block_once)
{
	init(4096, 65536);
	up_stored(65536);
	t_rig_write(&rig, 20487, 1, 'B');
	ck_assert_int_eq(iomap_fsync(rig.file), 0);
	ck_assert_uint_eq(writes(), 1);
	ck_assert_uint_eq(entries[0].pos, 20480);
	ck_assert_uint_eq(entries[0].len, 4096);
	ck_assert_uint_eq(t_rig_io(&rig).read_ios, 0);
	ck_assert_int_eq(iomap_fsync(rig.file), 0);
	ck_assert_uint_eq(writes(), 1);
	t_rig_expect_stored(&rig, 0, 20487, 's');
	t_rig_expect_stored(&rig, 20487, 1, 'B');
	t_rig_expect_stored(&rig, 20488, 65536 - 20488, 's');
	t_rig_down(&rig);
}
END_TEST

START_TEST(neighbours_in_different_folios_share_a_request)
{
	struct iomap_device_stat io;

	init(4096, 2 * MIB);
	t_rig_up(&rig);
	t_rig_write(&rig, 4096, MIB, 's');              /* nine folios, orders 0 … 7 and 0 */
	ck_assert_int_eq(iomap_fsync(rig.file), 0);
	t_rig_reset(&rig);
	t_hold_log_clear(rig.hold);
	t_rig_write(&rig, 4096, MIB, 'w');
	ck_assert_int_eq(iomap_fsync(rig.file), 0);
	io = t_rig_io(&rig);
	ck_assert_uint_eq(io.write_ios, 1);
	ck_assert_uint_eq(io.io_merged, 8);
	ck_assert_uint_eq(io.written_bytes, MIB);
	/* A clean block between them: two. */
	t_rig_reset(&rig);
	t_rig_write(&rig, 4096, 8192, 'x');
	t_rig_write(&rig, 16384, 8192, 'x');
	ck_assert_int_eq(iomap_fsync(rig.file), 0);
	io = t_rig_io(&rig);
	ck_assert_uint_eq(io.write_ios, 2);
	ck_assert_uint_eq(io.io_merged, 1);             /* pages 1 and 2; 4 and 5 are one folio */
	t_rig_down(&rig);
}
END_TEST

START_TEST(requests_keep_to_the_devices_largest)
{
	init(4096, 2 * MIB);
	rig.device_params.max_bytes = 20480;
	up_stored(MIB);
	t_rig_write(&rig, 0, 102400, 'w');
	ck_assert_int_eq(iomap_fsync(rig.file), 0);
	ck_assert_uint_eq(t_rig_io(&rig).write_ios, 5);
	t_rig_expect_stored(&rig, 0, 102400, 'w');
	t_rig_down(&rig);
}
END_TEST

START_TEST(a_range_is_written_and_no_more)
{
	struct inode *inode;

	init(4096, 65536);
	up_stored(262144);
	inode = rig.file->inode;
	for (uint64_t pos = 0; pos < 262144; pos += 8192)
		t_rig_write(&rig, pos, 4096, 'w');
	ck_assert_int_eq(writeback_range_sync(inode, 0, 0), 0);
	ck_assert_uint_eq(writes(), 0);
	ck_assert_int_eq(writeback_range_sync(inode, 70000, 90000), 0);
	ck_assert_uint_eq(writes(), 2);         /* of blocks 17 … 21 the dirty ones */
	qsort(entries, 2, sizeof(entries[0]), by_pos);
	ck_assert_uint_eq(entries[0].pos, 18 * 4096);
	ck_assert_uint_eq(entries[1].pos, 20 * 4096);
	ck_assert_int_eq(writeback_range_sync(inode, 65536 + 4095, 65536 + 4096), 0);  /* one byte */
	ck_assert_uint_eq(writes(), 3);
	ck_assert_uint_eq(t_rig_stat(&rig).dirty_bytes, 29 * 4096);
	t_rig_down(&rig);
}
END_TEST

START_TEST(background_pass_keeps_to_its_quota_and_goes_on_behind)
{
	struct inode *inode;
	uint64_t done = 0;

	init(4096, 65536);
	up_stored(MIB);
	inode = rig.file->inode;
	t_rig_write(&rig, 0, MIB, 'w');
	while (done < MIB) {
		uint64_t n = writeback_some(inode, 100000, false);

		ck_assert_uint_gt(n, 0);
		ck_assert_uint_le(n, 100000 + 65536);   /* whole folios */
		done += n;
		ioend_wait_idle(inode);
		ck_assert_uint_eq(t_rig_stat(&rig).dirty_bytes, MIB - done);
	}
	ck_assert_uint_eq(done, MIB);
	ck_assert_uint_eq(writeback_some(inode, UINT64_MAX, false), 0);
	ck_assert_int_eq(iomap_fsync(rig.file), 0);
	t_rig_expect_stored(&rig, 0, MIB, 'w');
	t_rig_down(&rig);
}
END_TEST

/* --- the end of the file -------------------------------------------------------------------------------- */

START_TEST(last_request_ends_at_the_size)
{
	static const uint64_t sizes[] = { 1, 511, 512, 513, 4095, 4096, 4097, 65535, 65537, 100000 };

	for (unsigned i = 0; i < ARRAY_SIZE(sizes); i++) {
		uint64_t end = 0;
		unsigned nr;

		init(4096, 65536);
		t_rig_up(&rig);
		t_rig_write(&rig, 0, sizes[i], 'w');
		ck_assert_int_eq(iomap_fsync(rig.file), 0);
		nr = writes();
		for (unsigned k = 0; k < nr; k++)
			end = max_u64(end, entries[k].pos + entries[k].len);
		ck_assert_uint_eq(end, sizes[i]);
		ck_assert_uint_eq(t_hold_size(rig.hold), sizes[i]);
		ck_assert_uint_eq(t_rig_io(&rig).written_bytes, sizes[i]);
		/* Written again in place: the same length. */
		t_hold_log_clear(rig.hold);
		t_rig_write(&rig, sizes[i] - 1, 1, 'x');
		ck_assert_int_eq(iomap_fsync(rig.file), 0);
		ck_assert_uint_eq(writes(), 1);
		ck_assert_uint_eq(entries[0].pos + entries[0].len, sizes[i]);
		ck_assert_uint_eq(entries[0].pos, (sizes[i] - 1) / 4096 * 4096);
		t_rig_down(&rig);
	}
}
END_TEST

/* At most one request that makes the file longer is at the device; none leaves bytes behind unwritten. */
static void expect_alone_and_ascending(uint64_t size)
{
	struct t_hold_count count;
	uint64_t end = 0;
	unsigned nr = writes();

	ck_assert_uint_gt(nr, 1);
	for (unsigned i = 0; i < nr; i++) {
		if (entries[i].pos + entries[i].len <= end)
			continue;
		ck_assert_msg(entries[i].pos <= end, "request %u begins at %llu, the device ended at %llu", i,
			      (unsigned long long)entries[i].pos, (unsigned long long)end);
		end = entries[i].pos + entries[i].len;
	}
	ck_assert_uint_eq(end, size);
	t_hold_counts(rig.hold, &count);
	ck_assert_uint_eq(count.inflight_peak, 1);
}

/* _i: what the device says is its largest request */
START_TEST(extending_requests_go_alone_and_in_order)
{
	static const uint64_t max[] = { 0, 4096, 65536, 262144 };
	static const uint64_t starts[] = { 0, 4096, 65536 };

	for (unsigned i = 0; i < ARRAY_SIZE(starts); i++) {
		uint64_t len = max[_i] == 4096 ? 200000 : 5 * MIB + 1000;

		init(4096, 2 * MIB);
		rig.device_params.max_bytes = max[_i];
		rig.device_params.shuffle = true;
		rig.device_params.seed = i + 1;
		t_rig_up(&rig);
		t_rig_write(&rig, 0, starts[i], 'a');
		ck_assert_int_eq(iomap_fsync(rig.file), 0);
		t_rig_write(&rig, starts[i], len, 'w');
		ck_assert_int_eq(iomap_fsync(rig.file), 0);
		expect_alone_and_ascending(starts[i] + len);
		t_rig_expect_stored(&rig, starts[i], len, 'w');
		t_rig_down(&rig);
	}
}
END_TEST

START_TEST(extending_requests_of_a_split_device_go_alone_in_folio_mode)
{
	init(4096, 65536);
	rig.params.accounting = IOMAP_ACCT_FOLIO;
	rig.device_params.max_bytes = 4096;
	t_rig_up(&rig);
	t_rig_write(&rig, 0, 200000, 'w');
	ck_assert_int_eq(iomap_fsync(rig.file), 0);
	expect_alone_and_ascending(200000);
	t_rig_down(&rig);
}
END_TEST

START_TEST(size_without_data_is_written_too)
{
	init(4096, 65536);
	up_stored(5000);
	ck_assert_int_eq(iomap_ftruncate(rig.file, 100000), 0);
	ck_assert_int_eq(iomap_fsync(rig.file), 0);
	ck_assert_uint_eq(t_hold_size(rig.hold), 100000);
	t_rig_expect_stored(&rig, 5000, 95000, 0);
	t_rig_crash(&rig, 3);
	ck_assert_int_eq(iomap_size(rig.file), 100000);
	t_rig_down(&rig);
}
END_TEST

/* --- in flight ------------------------------------------------------------------------------------------ */

START_TEST(block_dirtied_in_flight_is_written_again_by_the_next_fsync)
{
	struct t_call first, second;

	init(4096, 65536);
	up_stored(65536);
	t_rig_write(&rig, 4096, 4096, 'A');
	t_hold_park(rig.hold, T_HOLD_WRITE, 0, 0);
	t_call_fsync(&first, rig.file);
	ck_assert(t_hold_wait_parked(rig.hold, 1));
	t_rig_write(&rig, 4096, 4096, 'B');
	t_call_fsync(&second, rig.file);
	ck_assert(!t_call_done(&first));
	t_hold_release(rig.hold);
	ck_assert_int_eq(t_call_wait(&first), 0);
	ck_assert_int_eq(t_call_wait(&second), 0);
	t_call_free(&first);
	t_call_free(&second);
	t_rig_expect_stored(&rig, 4096, 4096, 'B');
	ck_assert_uint_eq(t_rig_stat(&rig).dirty_bytes, 0);
	ck_assert_uint_eq(writes(), 2);
	ck_assert_int_eq(memcmp(&entries[0].first_word, "AAAAAAAA", 8), 0);     /* as it was when claimed */
	ck_assert_int_eq(memcmp(&entries[1].first_word, "BBBBBBBB", 8), 0);
	t_rig_crash(&rig, 1);
	t_rig_expect(&rig, 4096, 4096, 'B');
	t_rig_down(&rig);
}
END_TEST

/* In each mode, also where the granule is larger than the block: its other blocks are not lost, and not sent twice. */
START_TEST(neighbour_in_the_granule_dirtied_in_flight_is_written_next)
{
	static const enum iomap_accounting modes[] = { IOMAP_ACCT_BLOCK, IOMAP_ACCT_PAGE, IOMAP_ACCT_FOLIO };
	struct t_call call;

	init(1024, 65536);
	rig.params.accounting = modes[_i];
	up_stored(65536);
	t_rig_write(&rig, 4096, 1024, 'A');
	t_hold_park(rig.hold, T_HOLD_WRITE, 0, 0);
	t_call_fsync(&call, rig.file);
	ck_assert(t_hold_wait_parked(rig.hold, 1));
	t_rig_write(&rig, 5120, 1024, 'B');
	t_hold_release(rig.hold);
	ck_assert_int_eq(t_call_wait(&call), 0);
	t_call_free(&call);
	ck_assert_int_eq(iomap_fsync(rig.file), 0);
	ck_assert_uint_eq(writes(), 2);
	ck_assert_uint_eq(entries[1].pos, 5120);
	ck_assert_uint_eq(entries[1].len, 1024);
	t_rig_expect_stored(&rig, 4096, 1024, 'A');
	t_rig_expect_stored(&rig, 5120, 1024, 'B');
	t_rig_down(&rig);
}
END_TEST

/* A request of more than 64 KiB reads the folio: whoever wants to change these bytes waits for its end. */
START_TEST(bytes_in_flight_do_not_change)
{
	struct t_call fsync_call, write_call;

	init(4096, 2 * MIB);
	up_stored(MIB);
	t_rig_write(&rig, 0, 262144, 'A');
	t_hold_park(rig.hold, T_HOLD_WRITE, 0, 0);
	t_call_fsync(&fsync_call, rig.file);
	ck_assert(t_hold_wait_parked(rig.hold, 1));
	t_call_write(&write_call, rig.file, 'B', 8192, 4096);
	t_rig_expect(&rig, 0, 262144, 'A');             /* readers do not wait, nor do they see any of it */
	t_hold_release(rig.hold);
	ck_assert_int_eq(t_call_wait(&write_call), 8192);
	ck_assert_int_eq(t_call_wait(&fsync_call), 0);
	t_call_free(&write_call);
	t_call_free(&fsync_call);
	t_rig_expect(&rig, 4096, 8192, 'B');
	ck_assert_int_eq(iomap_fsync(rig.file), 0);
	t_rig_expect_stored(&rig, 0, 4096, 'A');
	t_rig_expect_stored(&rig, 4096, 8192, 'B');
	t_rig_expect_stored(&rig, 12288, 262144 - 12288, 'A');
	t_rig_down(&rig);                               /* the device compares memory at both ends of a request */
}
END_TEST

START_TEST(small_requests_go_without_copies_when_there_is_no_room)
{
	init(4096, 65536);
	rig.params.memory_bytes = 2 * MIB;              /* 128 KiB of copies: two requests of 64 KiB */
	up_stored(MIB);
	t_hold_park(rig.hold, T_HOLD_WRITE, 0, 0);
	for (uint64_t pos = 0; pos < MIB; pos += 131072)
		t_rig_write(&rig, pos, 65536, 'w');
	while (writeback_some(rig.file->inode, UINT64_MAX, false))
		;
	ck_assert(t_hold_wait_parked(rig.hold, 8));
	t_hold_release(rig.hold);
	ck_assert_int_eq(iomap_fsync(rig.file), 0);
	for (uint64_t pos = 0; pos < MIB; pos += 131072)
		t_rig_expect_stored(&rig, pos, 65536, 'w');
	t_rig_down(&rig);
}
END_TEST

/* --- failures ------------------------------------------------------------------------------------------- */

START_TEST(neighbours_of_a_failed_block_are_written)
{
	struct iomap_failed_range r[2];

	init(4096, 65536);
	rig.device_params.max_bytes = 4096;
	up_stored(65536);
	t_rig_write(&rig, 0, 65536, 'w');
	t_hold_fail(rig.hold, T_HOLD_WRITE, 20480, 4096, EIO);
	ck_assert_int_eq(iomap_fsync(rig.file), -EIO);
	ck_assert_int_eq(iomap_failed_ranges(rig.file, r, 2), 1);
	ck_assert_uint_eq(r[0].pos, 20480);
	ck_assert_uint_eq(r[0].len, 4096);
	ck_assert_uint_eq(t_rig_stat(&rig).dirty_bytes, 4096);
	ck_assert_int_eq(iomap_fsync(rig.file), -EIO);          /* still true */
	t_rig_expect_stored(&rig, 0, 20480, 'w');
	t_rig_expect_stored(&rig, 20480, 4096, 's');
	t_rig_expect_stored(&rig, 24576, 40960, 'w');
	t_hold_heal(rig.hold);
	ck_assert_int_eq(iomap_fsync(rig.file), 0);
	t_rig_expect_stored(&rig, 20480, 4096, 'w');
	t_rig_down(&rig);
}
END_TEST

START_TEST(background_passes_over_what_failed)
{
	init(4096, 65536);
	up_stored(65536);
	t_rig_write(&rig, 0, 4096, 'w');
	t_hold_fail(rig.hold, T_HOLD_WRITE, 0, 0, EIO);
	ck_assert_int_eq(iomap_fsync(rig.file), -EIO);
	t_hold_heal(rig.hold);
	t_hold_log_clear(rig.hold);
	t_rig_write(&rig, 8192, 4096, 'v');
	ck_assert_uint_eq(writeback_some(rig.file->inode, UINT64_MAX, false), 4096);
	ioend_wait_idle(rig.file->inode);
	ck_assert_uint_eq(t_rig_stat(&rig).failed_bytes, 4096);
	ck_assert_uint_eq(writeback_some(rig.file->inode, UINT64_MAX, true), 4096);
	ioend_wait_idle(rig.file->inode);
	ck_assert_uint_eq(t_rig_stat(&rig).failed_bytes, 0);
	t_rig_expect_stored(&rig, 0, 4096, 'w');
	t_rig_down(&rig);
}
END_TEST

Suite *suite_writeback(void)
{
	Suite *s = suite_create("writeback");
	TCase *tc = tcase_create("writeback");

	suite_add_tcase(s, tc);
	tcase_set_timeout(tc, 120);
	tcase_add_loop_test(tc, requests_are_the_runs_of_dirty_blocks, 0, 12);
	tcase_add_test(tc, one_dirty_byte_writes_its_block_once);
	tcase_add_test(tc, neighbours_in_different_folios_share_a_request);
	tcase_add_test(tc, requests_keep_to_the_devices_largest);
	tcase_add_test(tc, a_range_is_written_and_no_more);
	tcase_add_test(tc, background_pass_keeps_to_its_quota_and_goes_on_behind);
	tcase_add_test(tc, last_request_ends_at_the_size);
	tcase_add_loop_test(tc, extending_requests_go_alone_and_in_order, 0, 4);
	tcase_add_test(tc, extending_requests_of_a_split_device_go_alone_in_folio_mode);
	tcase_add_test(tc, size_without_data_is_written_too);
	tcase_add_test(tc, block_dirtied_in_flight_is_written_again_by_the_next_fsync);
	tcase_add_loop_test(tc, neighbour_in_the_granule_dirtied_in_flight_is_written_next, 0, 3);
	tcase_add_test(tc, bytes_in_flight_do_not_change);
	tcase_add_test(tc, small_requests_go_without_copies_when_there_is_no_room);
	tcase_add_test(tc, neighbours_of_a_failed_block_are_written);
	tcase_add_test(tc, background_passes_over_what_failed);
	return s;
}
