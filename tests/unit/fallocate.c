/*
 * fallocate.c - space asked for, given back, made zeros: what is read, what is charged, what a device hears that cannot or will not
 */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/falloc.h>
#include <stdlib.h>
#include <string.h>
#include "call.h"
#include "file.h"
#include "rig.h"

Suite *suite_fallocate(void);

enum { BYTES = 262144, FAR = 32 << 20, PUNCH = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, ZERO = FALLOC_FL_ZERO_RANGE };

static const enum iomap_accounting modes[] = { IOMAP_ACCT_BLOCK, IOMAP_ACCT_PAGE, IOMAP_ACCT_FOLIO };
static const uint32_t blocks[] = { 512, 4096, 16384 };

static struct t_rig rig;
static unsigned char buf[2 * BYTES], want[2 * BYTES];

static void init(enum iomap_accounting mode, uint32_t block)
{
	t_rig_init(&rig);
	rig.params.accounting = mode;
	rig.block_size = block;
}

static void write_byte(uint64_t pos, uint64_t len, int byte)
{
	t_rig_write(&rig, pos, len, byte);
	memset(want + pos, byte, len);
}

static int call(int mode, uint64_t pos, uint64_t len) { return iomap_fallocate(rig.file, mode, (off_t)pos, (off_t)len); }

static void clear_range(int mode, uint64_t pos, uint64_t len)
{
	ck_assert_int_eq(call(mode, pos, len), 0);
	memset(want + pos, 0, len);
}

static void expect_contents(uint64_t size)
{
	ck_assert_int_eq(iomap_size(rig.file), (off_t)size);
	ck_assert_int_eq(iomap_pread(rig.file, buf, sizeof(buf), 0), (ssize_t)size);
	for (uint64_t i = 0; i < size; i++)
		if (buf[i] != want[i])
			ck_abort_msg("byte %llu of %llu is %02x, expected %02x", (unsigned long long)i, (unsigned long long)size,
				     buf[i], want[i]);
}

static bool is_dirty(uint64_t pos)
{
	struct mapping *m = &rig.file->inode->mapping;
	struct iomap_folio *f = mapping_get(m, pos >> PAGE_SHIFT);
	bool dirty;

	if (!f)
		return false;
	dirty = ifs_block_set(f, &m->geom, IFS_DIRTY, (unsigned)((pos - folio_pos(f)) >> m->geom.block_shift));
	folio_put(m->zone, f);
	return dirty;
}

/* --- exactly the range ---------------------------------------------------------------------------------- */

START_TEST(whole_blocks_go_and_all_others_keep_their_state)
{
	uint32_t block = blocks[_i % 3];
	bool dirty[BYTES / 512], was[BYTES / 512];
	uint64_t random = (uint64_t)_i + 1;

	init(modes[_i / 3 % 3], block);
	t_rig_up(&rig);
	write_byte(0, BYTES, 'a');
	ck_assert_int_eq(iomap_fsync(rig.file), 0);
	for (unsigned round = 0; round < 60; round++) {
		uint64_t pos = t_random_below(&random, BYTES - 1), len = 1 + t_random_below(&random, round % 2 ? 3 * block : BYTES - pos);
		int mode = _i / 9 ? ZERO : PUNCH;

		for (unsigned i = 0; i < 20; i++) {
			uint64_t b = t_random_below(&random, BYTES / block);

			write_byte(b * block, block, 'b' + (int)(round % 20));
		}
		for (uint64_t b = 0; b < BYTES / block; b++)
			was[b] = is_dirty(b * block);
		if (pos + len > BYTES)
			len = BYTES - pos;
		clear_range(mode, pos, len);
		for (uint64_t b = 0; b < BYTES / block; b++) {
			uint64_t start = b * block, end = start + block;

			dirty[b] = is_dirty(start);
			if (start >= pos && end <= pos + len)
				ck_assert_msg(!dirty[b], "block %u inside the range is dirty", (unsigned)b);
			else if (end <= pos || start >= pos + len)
				ck_assert_msg(dirty[b] == was[b], "block %u outside the range", (unsigned)b);
			else if (was[b])
				ck_assert_msg(dirty[b], "block %u at the edge of the range is not dirty any more", (unsigned)b);
		}
		t_rig_check(&rig);
		expect_contents(BYTES);
		if (round % 7 == 0)
			ck_assert_int_eq(iomap_fsync(rig.file), 0);
		if (round % 13 == 0)
			ck_assert_int_eq(iomap_cache_drop(rig.cache), 0);
	}
	ck_assert_int_eq(iomap_fsync(rig.file), 0);
	t_hold_peek(rig.hold, buf, BYTES, 0);
	ck_assert_mem_eq(buf, want, BYTES);
	ck_assert_uint_eq(t_rig_stat(&rig).pinned_bytes, 0);
	t_rig_down(&rig);
}
END_TEST

START_TEST(a_dirty_folio_pins_only_what_is_left_of_it)
{
	struct iomap_cache_stat st;

	init(IOMAP_ACCT_FOLIO, 4096);
	t_rig_up(&rig);
	write_byte(0, 65536, 'a');
	ck_assert_uint_eq(t_rig_stat(&rig).folios[4], 1);
	clear_range(PUNCH, 4096, 57344);
	st = t_rig_stat(&rig);
	ck_assert_uint_eq(st.dirty_bytes, 8192);        /* the first and the last block, each in a folio of its own */
	ck_assert_uint_eq(st.pinned_bytes, 8192);
	ck_assert_uint_eq(st.cached_bytes, 8192);
	ck_assert_uint_eq(st.cancelled_bytes, 57344);
	expect_contents(65536);
	t_rig_down(&rig);
}
END_TEST

START_TEST(nothing_is_written_for_a_range_that_goes)
{
	init(IOMAP_ACCT_BLOCK, 4096);
	t_rig_up(&rig);
	ck_assert_int_eq(iomap_ftruncate(rig.file, 65536), 0);  /* no append, so nothing is reserved ahead */
	write_byte(0, 65536, 'a');
	clear_range(_i ? ZERO : PUNCH, 0, 65536);
	ck_assert_uint_eq(t_rig_stat(&rig).dirty_bytes, 0);
	ck_assert_int_eq(iomap_fsync(rig.file), 0);
	ck_assert_uint_eq(t_rig_io(&rig).written_bytes, 0);
	ck_assert_uint_eq(t_hold_size(rig.hold), 65536);
	ck_assert_uint_eq(t_hold_allocated(rig.hold), _i ? 65536 : 0);
	expect_contents(65536);
	t_rig_down(&rig);
}
END_TEST

START_TEST(the_edge_of_a_hole_stays_a_hole)
{
	init(IOMAP_ACCT_BLOCK, 4096);
	t_rig_up(&rig);
	ck_assert_int_eq(iomap_ftruncate(rig.file, 65536), 0);
	clear_range(PUNCH, 100, 20000);
	ck_assert_uint_eq(t_rig_stat(&rig).dirty_bytes, 0);
	ck_assert_int_eq(iomap_lseek(rig.file, 0, SEEK_DATA), -ENXIO);
	t_rig_down(&rig);
}
END_TEST

/* --- devices that will not or cannot -------------------------------------------------------------------- */

START_TEST(a_device_that_refuses_changes_nothing)
{
	static const int all[] = { PUNCH, ZERO, ZERO | FALLOC_FL_KEEP_SIZE };
	struct iomap_cache_stat before, after;

	init(modes[_i], 4096);
	t_rig_up(&rig);
	write_byte(0, BYTES, 'a');
	ck_assert_int_eq(iomap_fsync(rig.file), 0);
	for (unsigned i = 0; i < 10; i++)
		write_byte(i * 20480, 5000, 'b');
	before = t_rig_stat(&rig);
	t_hold_fail_allocate(rig.hold, EIO);
	for (unsigned i = 0; i < ARRAY_SIZE(all); i++)
		ck_assert_int_eq(call(all[i], 1000, BYTES - 2000), -EIO);
	ck_assert_int_eq(call(0, 0, FAR), -EIO);
	ck_assert_int_eq(call(FALLOC_FL_KEEP_SIZE, FAR, BYTES), -EIO);
	after = t_rig_stat(&rig);
	ck_assert_uint_eq(after.dirty_bytes, before.dirty_bytes);
	ck_assert_uint_eq(after.cached_bytes, before.cached_bytes);
	expect_contents(BYTES);
	t_hold_fail_allocate(rig.hold, 0);
	clear_range(PUNCH, 1000, BYTES - 2000);
	expect_contents(BYTES);
	t_rig_down(&rig);
}
END_TEST

START_TEST(what_a_file_system_cannot_do_is_eopnotsupp_or_zeros_written)
{
	init(IOMAP_ACCT_BLOCK, 4096);
	t_rig_up(&rig);
	write_byte(0, BYTES, 'a');
	t_hold_fail_allocate(rig.hold, EOPNOTSUPP);
	ck_assert_int_eq(call(PUNCH, 0, BYTES), -EOPNOTSUPP);
	ck_assert_int_eq(call(0, FAR, 4096), -EOPNOTSUPP);
	ck_assert_int_eq(call(FALLOC_FL_KEEP_SIZE, FAR, 4096), -EOPNOTSUPP);
	expect_contents(BYTES);
	clear_range(ZERO | FALLOC_FL_KEEP_SIZE, 5000, 2 * BYTES - 5000);
	expect_contents(BYTES);
	clear_range(ZERO, BYTES - 100, 10000);
	expect_contents(BYTES + 9900);
	ck_assert_int_eq(iomap_fsync(rig.file), 0);
	ck_assert_uint_eq(t_hold_size(rig.hold), BYTES + 9900);
	t_rig_remount(&rig);
	expect_contents(BYTES + 9900);
	t_rig_down(&rig);
}
END_TEST

START_TEST(a_device_of_fixed_size_or_without_allocate_gets_zeros)
{
	bool fixed = _i & 1, allocates = _i & 2;

	init(IOMAP_ACCT_BLOCK, 4096);
	rig.device_params.fixed_size = fixed;
	rig.device_params.no_allocate = !allocates;
	rig.device_params.size = BYTES;
	t_rig_up(&rig);
	if (fixed && allocates)
		t_hold_fail_allocate(rig.hold, EOPNOTSUPP);     /* as a block device that cannot discard */
	memset(want, 0, sizeof(want));
	write_byte(0, BYTES, 'a');
	clear_range(PUNCH, 3000, 100000);
	clear_range(ZERO, 150000, 10000);
	clear_range(PUNCH, BYTES - 100, BYTES);
	expect_contents(BYTES);
	if (fixed) {
		ck_assert_int_eq(call(0, 0, BYTES), 0);
		ck_assert_int_eq(call(FALLOC_FL_KEEP_SIZE, 100, 100), 0);
		ck_assert_int_eq(call(0, 0, BYTES + 1), -ENOSPC);
		ck_assert_int_eq(call(FALLOC_FL_KEEP_SIZE, BYTES, 1), -ENOSPC);
		ck_assert_int_eq(call(ZERO, BYTES - 1, 2), -ENOSPC);
		clear_range(ZERO | FALLOC_FL_KEEP_SIZE, BYTES - 1, 2);
	} else if (!allocates) {
		ck_assert_int_eq(call(0, 0, BYTES), -EOPNOTSUPP);
		ck_assert_int_eq(call(FALLOC_FL_KEEP_SIZE, 0, 2 * BYTES), -EOPNOTSUPP);
	}
	expect_contents(BYTES);
	ck_assert_int_eq(iomap_fsync(rig.file), 0);
	t_hold_peek(rig.hold, buf, BYTES, 0);
	ck_assert_mem_eq(buf, want, BYTES);
	t_rig_down(&rig);
}
END_TEST

START_TEST(a_failing_write_is_forgotten_with_its_range)
{
	init(IOMAP_ACCT_BLOCK, 4096);
	t_rig_up(&rig);
	write_byte(0, 65536, 'a');
	ck_assert_int_eq(iomap_fsync(rig.file), 0);
	write_byte(8192, 4096, 'b');
	t_hold_fail(rig.hold, T_HOLD_WRITE, 8192, 4096, EIO);
	ck_assert_int_eq(iomap_fsync(rig.file), -EIO);
	ck_assert_uint_eq(t_rig_stat(&rig).failed_bytes, 4096);
	clear_range(PUNCH, 4096, 8192);
	ck_assert_uint_eq(t_rig_stat(&rig).failed_bytes, 0);
	ck_assert_int_eq(iomap_fsync(rig.file), 0);
	expect_contents(65536);
	t_rig_down(&rig);
}
END_TEST

START_TEST(an_edge_that_cannot_be_read_is_the_error_and_keeps_its_bytes)
{
	init(IOMAP_ACCT_BLOCK, 4096);
	t_rig_up(&rig);
	write_byte(0, 65536, 'a');
	ck_assert_int_eq(iomap_fsync(rig.file), 0);
	ck_assert(t_drops_all(rig.cache));
	t_hold_fail(rig.hold, T_HOLD_READ, 0, 4096, EIO);
	ck_assert_int_eq(call(PUNCH, 100, 20000), -EIO);
	t_hold_heal(rig.hold);
	t_rig_expect(&rig, 0, 4096, 'a');
	clear_range(PUNCH, 100, 20000);
	expect_contents(65536);
	t_rig_down(&rig);
}
END_TEST

/* --- space and size ------------------------------------------------------------------------------------- */

START_TEST(a_punched_block_needs_space_again)
{
	init(IOMAP_ACCT_BLOCK, 4096);
	t_rig_up(&rig);
	ck_assert_int_eq(iomap_ftruncate(rig.file, 65536), 0);
	write_byte(0, 65536, 'a');
	ck_assert_int_eq(iomap_fsync(rig.file), 0);
	clear_range(PUNCH, 0, 16384);
	ck_assert_uint_eq(t_hold_allocated(rig.hold), 49152);
	t_hold_set_space(rig.hold, 49152 + 4096);
	write_byte(4096, 4096, 'b');
	ck_assert_int_eq(iomap_pwrite(rig.file, want, 4096, 0), -ENOSPC);       /* told by the write, not by fsync */
	ck_assert_int_eq(iomap_fsync(rig.file), 0);
	expect_contents(65536);
	ck_assert_int_eq(call(0, 0, 65536), -ENOSPC);
	t_hold_set_space(rig.hold, UINT64_MAX);
	ck_assert_int_eq(call(0, 0, 65536), 0);
	t_hold_set_space(rig.hold, 65536);
	write_byte(0, 16384, 'c');
	ck_assert_int_eq(iomap_fsync(rig.file), 0);
	clear_range(ZERO, 0, 65536);    /* its space stays */
	write_byte(0, 65536, 'd');
	ck_assert_int_eq(iomap_fsync(rig.file), 0);
	expect_contents(65536);
	t_rig_down(&rig);
}
END_TEST

START_TEST(space_asked_for_beyond_the_size_survives_the_last_close)
{
	init(IOMAP_ACCT_BLOCK, 4096);
	t_rig_up(&rig);
	write_byte(0, 10000, 'a');
	ck_assert_int_eq(call(_i ? ZERO | FALLOC_FL_KEEP_SIZE : FALLOC_FL_KEEP_SIZE, 0, 1048576), 0);
	if (_i)
		memset(want, 0, 10000);
	ck_assert_int_eq(iomap_size(rig.file), 10000);
	ck_assert_int_eq(iomap_fsync(rig.file), 0);
	t_rig_remount(&rig);
	ck_assert_uint_eq(t_hold_allocated(rig.hold), 1048576);
	expect_contents(10000);
	ck_assert_int_eq(iomap_ftruncate(rig.file, 5000), 0);
	ck_assert_uint_lt(t_hold_allocated(rig.hold), 10000);
	t_rig_down(&rig);
}
END_TEST

START_TEST(a_size_that_grows_covers_what_was_written_before)
{
	init(IOMAP_ACCT_BLOCK, 4096);
	rig.device_params.volatile_cache = true;
	t_rig_up(&rig);
	memset(want, 0, sizeof(want));
	write_byte(0, 5000, 'a');
	ck_assert_int_eq(call(_i ? ZERO : 0, 6000, 20000), 0);
	expect_contents(26000);
	ck_assert_uint_eq(t_hold_size(rig.hold), 26000);
	t_rig_expect_stored(&rig, 0, 5000, 'a');        /* else a crash could show zeros there */
	ck_assert_int_eq(iomap_fsync(rig.file), 0);
	ck_assert_uint_eq(t_hold_durable_size(rig.hold), 26000);
	t_rig_crash(&rig, 1);
	expect_contents(26000);
	t_rig_down(&rig);
}
END_TEST

START_TEST(old_data_that_cannot_be_written_keeps_the_device_short)
{
	init(IOMAP_ACCT_BLOCK, 4096);
	t_rig_up(&rig);
	memset(want, 0, sizeof(want));
	write_byte(0, 5000, 'a');
	t_hold_fail(rig.hold, T_HOLD_WRITE, 0, 0, EIO);
	ck_assert_int_eq(call(0, 0, 20000), 0);
	expect_contents(20000);
	ck_assert_uint_eq(t_hold_size(rig.hold), 0);
	ck_assert_int_eq(iomap_fsync(rig.file), -EIO);
	t_hold_heal(rig.hold);
	ck_assert_int_eq(iomap_fsync(rig.file), 0);
	ck_assert_uint_eq(t_hold_size(rig.hold), 20000);
	expect_contents(20000);
	t_rig_down(&rig);
}
END_TEST

START_TEST(a_handle_that_may_not_write_is_ebadf)
{
	struct iomap_file *reader;

	init(IOMAP_ACCT_BLOCK, 4096);
	t_rig_up(&rig);
	write_byte(0, 8192, 'a');
	reader = t_rig_handle(&rig, O_RDONLY);
	ck_assert_int_eq(iomap_fallocate(reader, PUNCH, 0, 4096), -EBADF);
	ck_assert_int_eq(iomap_fallocate(reader, 0, 0, 4096), -EBADF);
	ck_assert_int_eq(iomap_fallocate(reader, FALLOC_FL_COLLAPSE_RANGE, 0, 4096), -EOPNOTSUPP);
	ck_assert_int_eq(iomap_fallocate(reader, PUNCH, 0, 0), -EINVAL);
	ck_assert_int_eq(iomap_fallocate(NULL, PUNCH, 0, 1), -EINVAL);
	ck_assert_int_eq(iomap_close(reader), 0);
	expect_contents(8192);
	t_rig_down(&rig);
}
END_TEST

START_TEST(on_a_handle_with_o_dsync_it_is_durable_at_once)
{
	struct iomap_file *dsync;

	init(IOMAP_ACCT_BLOCK, 4096);
	rig.device_params.volatile_cache = true;
	t_rig_up(&rig);
	memset(want, 0, sizeof(want));
	write_byte(0, 65536, 'a');
	ck_assert_int_eq(iomap_fsync(rig.file), 0);
	dsync = t_rig_handle(&rig, O_RDWR | (_i ? O_SYNC : O_DSYNC));
	ck_assert_int_eq(iomap_fallocate(dsync, PUNCH, 1000, 30000), 0);
	memset(want + 1000, 0, 30000);
	t_hold_peek_durable(rig.hold, buf, 65536, 0);
	ck_assert_mem_eq(buf, want, 65536);
	ck_assert_int_eq(iomap_fallocate(dsync, 0, 0, 100000), 0);
	ck_assert_uint_eq(t_hold_durable_size(rig.hold), 100000);
	ck_assert_int_eq(iomap_close(dsync), 0);
	t_rig_down(&rig);
}
END_TEST

/* --- while others work ---------------------------------------------------------------------------------- */

static int64_t punch_all(void *arg) { return iomap_fallocate(arg, PUNCH, 0, BYTES); }

START_TEST(a_punch_waits_for_what_is_in_flight_and_keeps_the_rest_from_it)
{
	struct t_call c;

	init(IOMAP_ACCT_BLOCK, 4096);
	t_rig_up(&rig);
	ck_assert_int_eq(iomap_ftruncate(rig.file, BYTES), 0);
	write_byte(0, 65536, 'a');
	t_hold_park(rig.hold, T_HOLD_WRITE, 0, 0);
	ck_assert_int_eq(iomap_sync_range(rig.file, 0, 0, IOMAP_SYNC_WRITE), 0);
	ck_assert(t_hold_wait_parked(rig.hold, 1));
	write_byte(131072, 65536, 'b');         /* dirty, not in flight */
	t_call_fn(&c, punch_all, rig.file);
	T_WAIT(t_call_done(&c), 50);
	ck_assert(!t_call_done(&c));
	t_hold_release(rig.hold);
	ck_assert_int_eq(t_call_wait(&c), 0);
	t_call_free(&c);
	memset(want, 0, BYTES);
	ck_assert_int_eq(iomap_fsync(rig.file), 0);
	t_hold_peek(rig.hold, buf, BYTES, 0);
	ck_assert_mem_eq(buf, want, BYTES);
	ck_assert_uint_eq(t_rig_stat(&rig).dirty_bytes, 0);
	expect_contents(BYTES);
	t_rig_down(&rig);
}
END_TEST

Suite *suite_fallocate(void)
{
	Suite *s = suite_create("fallocate");
	TCase *tc = tcase_create("fallocate");

	suite_add_tcase(s, tc);
	tcase_set_timeout(tc, 120);
	tcase_add_loop_test(tc, whole_blocks_go_and_all_others_keep_their_state, 0, 18);
	tcase_add_test(tc, a_dirty_folio_pins_only_what_is_left_of_it);
	tcase_add_loop_test(tc, nothing_is_written_for_a_range_that_goes, 0, 2);
	tcase_add_test(tc, the_edge_of_a_hole_stays_a_hole);
	tcase_add_loop_test(tc, a_device_that_refuses_changes_nothing, 0, 3);
	tcase_add_test(tc, what_a_file_system_cannot_do_is_eopnotsupp_or_zeros_written);
	tcase_add_loop_test(tc, a_device_of_fixed_size_or_without_allocate_gets_zeros, 0, 4);
	tcase_add_test(tc, a_failing_write_is_forgotten_with_its_range);
	tcase_add_test(tc, an_edge_that_cannot_be_read_is_the_error_and_keeps_its_bytes);
	tcase_add_test(tc, a_punched_block_needs_space_again);
	tcase_add_loop_test(tc, space_asked_for_beyond_the_size_survives_the_last_close, 0, 2);
	tcase_add_loop_test(tc, a_size_that_grows_covers_what_was_written_before, 0, 2);
	tcase_add_test(tc, old_data_that_cannot_be_written_keeps_the_device_short);
	tcase_add_test(tc, a_handle_that_may_not_write_is_ebadf);
	tcase_add_loop_test(tc, on_a_handle_with_o_dsync_it_is_durable_at_once, 0, 2);
	tcase_add_test(tc, a_punch_waits_for_what_is_in_flight_and_keeps_the_rest_from_it);
	return s;
}
