/*
 * crash-device.c - what a power cut may leave, and what it may not
 */
#include <check.h>
#include <stdlib.h>
#include <string.h>
#include "crash-device.h"
#include "device-io.h"

Suite *suite_crash_device(void);

enum { BYTES = 16384, SECTOR = T_CRASH_SECTOR };

static struct t_crash *crash;
static struct iomap_device *device;
static unsigned char image[BYTES];

static void setup(void)
{
	crash = t_crash_create(BYTES, NULL);
	device = t_crash_device(crash, true);
}

static void teardown(void)
{
	iomap_device_close(device);
	t_crash_free(crash);
}

static void write_sectors(uint64_t sector, unsigned n, int byte)
{
	unsigned char buf[8 * SECTOR];

	memset(buf, byte, sizeof(buf));
	ck_assert_int_eq(t_dev_write(device, sector * SECTOR, buf, n * SECTOR), n * SECTOR);
}

/* The byte that fills a sector of the image; each is whole. */
static int sector_of(uint64_t sector)
{
	for (unsigned i = 1; i < SECTOR; i++)
		ck_assert_int_eq(image[sector * SECTOR + i], image[sector * SECTOR]);
	return image[sector * SECTOR];
}

START_TEST(flushed_is_in_every_image)
{
	struct t_crash_replay *replay;
	uint64_t random = 1;

	write_sectors(3, 4, 'a');
	ck_assert_int_eq(t_dev_flush(device), 0);
	replay = t_crash_replay(crash);
	t_crash_replay_to(replay, 1);
	ck_assert_uint_eq(t_crash_replay_pending(replay), 4);
	t_crash_image(replay, T_CRASH_OLDEST, &random, image);
	ck_assert_int_eq(sector_of(3), 0);
	t_crash_image(replay, T_CRASH_NEWEST, &random, image);
	ck_assert_int_eq(sector_of(3), 'a');
	t_crash_replay_to(replay, 2);
	ck_assert_uint_eq(t_crash_replay_pending(replay), 0);
	for (unsigned how = 0; how < T_CRASH_HOWS; how++) {
		t_crash_image(replay, how, &random, image);
		ck_assert_int_eq(sector_of(2), 0);
		ck_assert_int_eq(sector_of(3), 'a');
		ck_assert_int_eq(sector_of(6), 'a');
		ck_assert_int_eq(sector_of(7), 0);
	}
	t_crash_replay_free(replay);
}
END_TEST

START_TEST(unflushed_is_any_version_sector_by_sector)
{
	struct t_crash_replay *replay;
	bool seen[4] = { false }, mixed = false;
	uint64_t random = 1;

	write_sectors(0, 8, 'a');
	ck_assert_int_eq(t_dev_flush(device), 0);
	write_sectors(0, 8, 'b');
	write_sectors(0, 4, 'c');
	write_sectors(0, 2, 'd');
	replay = t_crash_replay(crash);
	t_crash_replay_to(replay, t_crash_moments(crash));
	for (unsigned n = 0; n < 300; n++) {
		t_crash_image(replay, T_CRASH_RANDOM, &random, image);
		ck_assert_int_ge(sector_of(0), 'a');
		ck_assert_int_le(sector_of(0), 'd');
		ck_assert_int_le(sector_of(7), 'b');
		seen[sector_of(0) - 'a'] = true;
		mixed = mixed || sector_of(0) != sector_of(1);
	}
	for (unsigned i = 0; i < 4; i++)
		ck_assert(seen[i]);
	ck_assert(mixed);
	t_crash_image(replay, T_CRASH_OLDEST, &random, image);
	ck_assert_int_eq(sector_of(0), 'a');
	t_crash_image(replay, T_CRASH_NEWEST, &random, image);
	ck_assert_int_eq(sector_of(0), 'd');
	ck_assert_int_eq(sector_of(2), 'c');
	ck_assert_int_eq(sector_of(4), 'b');
	t_crash_replay_free(replay);
}
END_TEST

START_TEST(moment_has_seen_what_came_before_it)
{
	struct t_crash_replay *replay;
	uint64_t random = 1;

	write_sectors(0, 1, 'a');
	write_sectors(0, 1, 'b');
	replay = t_crash_replay(crash);
	t_crash_image(replay, T_CRASH_NEWEST, &random, image);
	ck_assert_int_eq(sector_of(0), 0);
	t_crash_replay_to(replay, 1);
	t_crash_image(replay, T_CRASH_NEWEST, &random, image);
	ck_assert_int_eq(sector_of(0), 'a');
	t_crash_replay_to(replay, 2);
	t_crash_image(replay, T_CRASH_NEWEST, &random, image);
	ck_assert_int_eq(sector_of(0), 'b');
	t_crash_replay_free(replay);
}
END_TEST

START_TEST(bytes_are_read_back_and_bounds_are_kept)
{
	unsigned char buf[SECTOR];

	write_sectors(31, 1, 'z');
	ck_assert_int_eq(t_dev_read(device, 31 * SECTOR, buf, SECTOR), SECTOR);
	ck_assert_int_eq(buf[SECTOR - 1], 'z');
	ck_assert_ptr_null(t_crash_complaint(crash));
	ck_assert_int_lt(t_dev_write(device, BYTES, buf, SECTOR), 0);
	ck_assert_ptr_nonnull(t_crash_complaint(crash));
	ck_assert_uint_eq(t_crash_moments(crash), 1);
}
END_TEST

Suite *suite_crash_device(void)
{
	Suite *s = suite_create("crash-device");
	TCase *tc = tcase_create("crash-device");

	tcase_add_checked_fixture(tc, setup, teardown);
	tcase_add_test(tc, flushed_is_in_every_image);
	tcase_add_test(tc, unflushed_is_any_version_sector_by_sector);
	tcase_add_test(tc, moment_has_seen_what_came_before_it);
	tcase_add_test(tc, bytes_are_read_back_and_bounds_are_kept);
	suite_add_tcase(s, tc);
	return s;
}
