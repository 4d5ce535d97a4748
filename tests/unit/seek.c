/*
 * seek.c - SEEK_DATA and SEEK_HOLE are exact: to the block, whatever is cached; and what sync_range writes is just the range
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

Suite *suite_seek(void);

enum { BYTES = 262144, WAIT = IOMAP_SYNC_WRITE | IOMAP_SYNC_WAIT_AFTER };

static const uint32_t blocks[] = { 512, 4096, 16384 };
static struct t_rig rig;
static bool data[BYTES / 512];

static off_t model_seek(uint64_t pos, uint64_t size, uint32_t block, int whence)
{
	for (uint64_t b = pos / block; b * block < size; b++)
		if (data[b] == (whence == SEEK_DATA))
			return (off_t)(b * block > pos ? b * block : pos);
	return whence == SEEK_DATA ? -ENXIO : (off_t)size;
}

/* [pos, end): blocks inside it become holes, those at its edges stay what they are. */
static void model_clear(uint64_t pos, uint64_t end, uint64_t size, uint32_t block)
{
	for (uint64_t b = 0; b * block < size; b++)
		if (b * block >= pos && ((b + 1) * block <= end || (end >= size && (b + 1) * block > size)))
			data[b] = false;
}

START_TEST(to_the_block_whatever_is_cached)
{
	uint32_t block = blocks[_i % 3];
	uint64_t random = (uint64_t)_i + 1, size = BYTES - (_i % 2 ? 1000 : 0);

	memset(data, 0, sizeof(data));
	t_rig_init(&rig);
	rig.block_size = block;
	t_rig_up(&rig);
	ck_assert_int_eq(iomap_ftruncate(rig.file, (off_t)size), 0);
	for (unsigned round = 0; round < 400; round++) {
		uint64_t pos = t_random_below(&random, size), len = 1 + t_random_below(&random, 3 * block);

		if (pos + len > size)
			len = size - pos;
		switch (t_random_below(&random, 8)) {
		case 0: case 1: case 2:
			t_rig_write(&rig, pos, len, 'a');
			for (uint64_t b = pos / block; b * block < pos + len; b++)
				data[b] = true;
			break;
		case 3:
			ck_assert_int_eq(iomap_fallocate(rig.file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)pos, (off_t)len), 0);
			model_clear(pos, pos + len, size, block);
			break;
		case 4:
			ck_assert_int_eq(iomap_fallocate(rig.file, FALLOC_FL_ZERO_RANGE, (off_t)pos, (off_t)len), 0);
			model_clear(pos, pos + len, size, block);
			break;
		case 5:
			ck_assert_int_eq(iomap_fallocate(rig.file, 0, (off_t)pos, (off_t)len), 0);
			break;
		case 6:
			ck_assert_int_eq(iomap_fsync(rig.file), 0);
			if (round % 2)
				ck_assert_int_eq(iomap_cache_drop(rig.cache), 0);
			break;
		default: {
			static char buf[BYTES];

			ck_assert_int_eq(iomap_pread(rig.file, buf, len, (off_t)pos), (ssize_t)len);
		}
		}
		for (unsigned i = 0; i < 8; i++) {
			int whence = i % 2 ? SEEK_DATA : SEEK_HOLE;
			off_t got, expected;

			pos = t_random_below(&random, size);
			got = iomap_lseek(rig.file, (off_t)pos, whence);
			expected = model_seek(pos, size, block, whence);
			ck_assert_msg(got == expected, "round %u: %s from %llu: %lld, expected %lld", round,
				      whence == SEEK_DATA ? "data" : "hole", (unsigned long long)pos, (long long)got, (long long)expected);
		}
	}
	t_rig_down(&rig);
}
END_TEST

START_TEST(a_block_in_flight_is_data)
{
	t_rig_init(&rig);
	t_rig_up(&rig);
	ck_assert_int_eq(iomap_ftruncate(rig.file, 65536), 0);
	t_rig_write(&rig, 8192, 4096, 'a');
	t_hold_park(rig.hold, T_HOLD_WRITE, 0, 0);
	ck_assert_int_eq(iomap_sync_range(rig.file, 0, 0, IOMAP_SYNC_WRITE), 0);
	ck_assert(t_hold_wait_parked(rig.hold, 1));
	ck_assert_uint_eq(t_rig_stat(&rig).dirty_bytes, 0);
	ck_assert_int_eq(iomap_lseek(rig.file, 0, SEEK_DATA), 8192);
	ck_assert_int_eq(iomap_lseek(rig.file, 8192, SEEK_HOLE), 12288);
	ck_assert_int_eq(iomap_lseek(rig.file, 0, SEEK_HOLE), 0);
	t_hold_release(rig.hold);
	t_rig_down(&rig);
}
END_TEST

START_TEST(a_device_that_does_not_tell_is_all_data)
{
	struct iomap_file_params params = IOMAP_FILE_PARAMS_INIT;
	struct iomap_device *device;
	struct iomap_cache *cache;
	struct iomap_file *file;
	struct iomap_device_ops ops;

	ck_assert_int_eq(iomap_cache_create(&cache, NULL), 0);
	ck_assert_int_eq(iomap_device_open_mem(NULL, &device), 0);
	ops = *device->ops;
	ops.seek = NULL;
	device->ops = &ops;
	params.device = device;
	ck_assert_int_eq(iomap_open_with(cache, NULL, O_RDWR, 0, &params, &file), 0);
	ck_assert_int_eq(iomap_ftruncate(file, 50000), 0);
	ck_assert_int_eq(iomap_lseek(file, 0, SEEK_DATA), 0);
	ck_assert_int_eq(iomap_lseek(file, 0, SEEK_HOLE), 50000);
	ck_assert_int_eq(iomap_lseek(file, 49999, SEEK_HOLE), 50000);
	ck_assert_int_eq(iomap_lseek(file, 50000, SEEK_HOLE), -ENXIO);
	ck_assert_int_eq(iomap_close(file), 0);
	ck_assert_int_eq(iomap_cache_destroy(cache), 0);
	ck_assert_int_eq(iomap_device_close(device), 0);
}
END_TEST

/* --- iomap_sync_range() --------------------------------------------------------------------------------- */

/* 64 KiB stored and then dirty again, in one folio. */
static void up_dirty(enum iomap_error_policy policy)
{
	t_rig_init(&rig);
	rig.params.error_policy = policy;
	rig.device_params.volatile_cache = true;
	t_rig_up(&rig);
	t_rig_write(&rig, 0, 65536, 's');
	ck_assert_int_eq(iomap_fsync(rig.file), 0);
	t_rig_write(&rig, 0, 65536, 'n');
	t_rig_reset(&rig);
}

START_TEST(just_the_blocks_of_the_range_are_written)
{
	up_dirty(IOMAP_ERROR_KEEP_DIRTY);
	ck_assert_int_eq(iomap_sync_range(rig.file, 8192, 4096, _i ? IOMAP_SYNC_DURABLE : WAIT), 0);
	ck_assert_uint_eq(t_rig_io(&rig).written_bytes, 4096);
	ck_assert_uint_eq(t_rig_stat(&rig).dirty_bytes, 61440);
	ck_assert_uint_eq(t_rig_io(&rig).flushes, (unsigned)_i);
	t_rig_expect_stored(&rig, 8192, 4096, 'n');
	t_rig_expect_stored(&rig, 12288, 4096, 's');
	ck_assert_int_eq(iomap_sync_range(rig.file, 12289, 1, WAIT), 0);        /* a byte's block */
	ck_assert_uint_eq(t_rig_stat(&rig).dirty_bytes, 57344);
	ck_assert_int_eq(iomap_sync_range(rig.file, 32768, 0, IOMAP_SYNC_WAIT_BEFORE | WAIT), 0);
	ck_assert_uint_eq(t_rig_stat(&rig).dirty_bytes, 24576);
	ck_assert_int_eq(iomap_sync_range(rig.file, 65536, 0, IOMAP_SYNC_DURABLE), 0);
	ck_assert_uint_eq(t_rig_stat(&rig).dirty_bytes, 24576);
	t_rig_down(&rig);
}
END_TEST

static int64_t wait_before(void *arg) { return iomap_sync_range(arg, 0, 0, IOMAP_SYNC_WAIT_BEFORE); }

START_TEST(write_does_not_wait_and_wait_does)
{
	struct t_call c;

	up_dirty(IOMAP_ERROR_KEEP_DIRTY);
	t_hold_park(rig.hold, T_HOLD_WRITE, 0, 0);
	ck_assert_int_eq(iomap_sync_range(rig.file, 0, 8192, IOMAP_SYNC_WRITE), 0);
	ck_assert(t_hold_wait_parked(rig.hold, 1));
	ck_assert_int_eq(iomap_sync_range(rig.file, 0, 8192, IOMAP_SYNC_WRITE), 0);     /* nothing to do */
	ck_assert_uint_eq(t_rig_stat(&rig).writeback_bytes, 8192);
	ck_assert_uint_eq(t_rig_stat(&rig).dirty_bytes, 57344);
	t_call_fn(&c, wait_before, rig.file);
	T_WAIT(t_call_done(&c), 50);
	ck_assert(!t_call_done(&c));
	t_hold_release(rig.hold);
	ck_assert_int_eq(t_call_wait(&c), 0);
	t_call_free(&c);
	ck_assert_uint_eq(t_rig_stat(&rig).writeback_bytes, 0);
	ck_assert_uint_eq(t_rig_stat(&rig).dirty_bytes, 57344);
	t_rig_down(&rig);
}
END_TEST

START_TEST(an_error_is_that_of_the_range)
{
	up_dirty(IOMAP_ERROR_KEEP_DIRTY);
	t_hold_fail(rig.hold, T_HOLD_WRITE, 8192, 4096, EIO);
	ck_assert_int_eq(iomap_sync_range(rig.file, 8192, 4096, IOMAP_SYNC_WRITE), 0);
	ck_assert_int_eq(iomap_sync_range(rig.file, 8192, 4096, IOMAP_SYNC_WAIT_AFTER), -EIO);
	ck_assert_int_eq(iomap_sync_range(rig.file, 8192, 4096, _i ? IOMAP_SYNC_DURABLE : WAIT), -EIO);
	ck_assert_int_eq(iomap_sync_range(rig.file, 16384, 0, _i ? IOMAP_SYNC_DURABLE : WAIT), 0);
	ck_assert_int_eq(iomap_fsync(rig.file), -EIO);
	t_hold_heal(rig.hold);
	ck_assert_int_eq(iomap_sync_range(rig.file, 8192, 4096, _i ? IOMAP_SYNC_DURABLE : WAIT), 0);
	ck_assert_uint_eq(t_rig_stat(&rig).failed_bytes, 12288);        /* what fsync tried in one request with it */
	ck_assert_int_eq(iomap_fsync(rig.file), 0);
	t_rig_down(&rig);
}
END_TEST

START_TEST(under_drop_an_error_is_told_once)
{
	up_dirty(IOMAP_ERROR_DROP);
	t_hold_fail_nth(rig.hold, T_HOLD_WRITE, 1, EIO);
	ck_assert_int_eq(iomap_sync_range(rig.file, 8192, 4096, _i ? IOMAP_SYNC_DURABLE : WAIT), -EIO);
	ck_assert_int_eq(iomap_sync_range(rig.file, 8192, 4096, _i ? IOMAP_SYNC_DURABLE : WAIT), 0);
	ck_assert_int_eq(iomap_fsync(rig.file), 0);
	t_rig_down(&rig);
}
END_TEST

START_TEST(durable_bytes_survive_and_bring_their_size)
{
	t_rig_init(&rig);
	rig.device_params.volatile_cache = true;
	t_rig_up(&rig);
	t_rig_write(&rig, 0, 4096, 'a');
	t_rig_write(&rig, 65536, 3000, 'b');
	ck_assert_int_eq(iomap_sync_range(rig.file, 65536, 3000, IOMAP_SYNC_DURABLE), 0);
	ck_assert_uint_eq(t_hold_durable_size(rig.hold), 68536);
	t_rig_crash(&rig, 3);
	ck_assert_int_eq(iomap_size(rig.file), 68536);
	t_rig_expect(&rig, 65536, 3000, 'b');
	t_rig_down(&rig);
}
END_TEST

START_TEST(durable_tells_of_a_flush_that_failed)
{
	up_dirty(IOMAP_ERROR_KEEP_DIRTY);
	t_hold_fail_nth(rig.hold, T_HOLD_FLUSH, 1, EIO);
	ck_assert_int_eq(iomap_sync_range(rig.file, 0, 4096, IOMAP_SYNC_DURABLE), -EIO);
	ck_assert_int_eq(iomap_sync_range(rig.file, 0, 4096, WAIT), 0);
	ck_assert_int_eq(iomap_sync_range(rig.file, 0, 4096, IOMAP_SYNC_DURABLE), -EIO);
	ck_assert_int_eq(iomap_resolve(rig.file, 0, 0, IOMAP_RESOLVE_RETRY), 0);
	ck_assert_int_eq(iomap_sync_range(rig.file, 0, 4096, IOMAP_SYNC_DURABLE), 0);
	t_rig_down(&rig);
}
END_TEST

Suite *suite_seek(void)
{
	Suite *s = suite_create("seek");
	TCase *tc = tcase_create("seek"), *sync = tcase_create("sync_range");

	suite_add_tcase(s, tc);
	tcase_set_timeout(tc, 120);
	tcase_add_loop_test(tc, to_the_block_whatever_is_cached, 0, 12);
	tcase_add_test(tc, a_block_in_flight_is_data);
	tcase_add_test(tc, a_device_that_does_not_tell_is_all_data);
	suite_add_tcase(s, sync);
	tcase_set_timeout(sync, 60);
	tcase_add_loop_test(sync, just_the_blocks_of_the_range_are_written, 0, 2);
	tcase_add_test(sync, write_does_not_wait_and_wait_does);
	tcase_add_loop_test(sync, an_error_is_that_of_the_range, 0, 2);
	tcase_add_loop_test(sync, under_drop_an_error_is_told_once, 0, 2);
	tcase_add_test(sync, durable_bytes_survive_and_bring_their_size);
	tcase_add_test(sync, durable_tells_of_a_flush_that_failed);
	return s;
}
