/*
 * extfs.c - the tests' filesystem of extents: what it answers to who plays the cache, and what it notices of one that plays badly
 */
#include <check.h>
#include <errno.h>
#include <linux/falloc.h>
#include <stdlib.h>
#include <string.h>
#include "extfs.h"
#include "test.h"

Suite *suite_extfs(void);

#define BS      4096u
#define BLOCKS  64u

static unsigned char store[BLOCKS * BS];
static struct extfs *fs;
static struct extfs_file *file;

static void poke(void *priv, uint64_t addr, const void *buf, uint64_t len)
{
	(void)priv;
	memcpy(store + addr, buf, len);
}

static void peek(void *priv, uint64_t addr, void *buf, uint64_t len)
{
	(void)priv;
	memcpy(buf, store + addr, len);
}

static void up(unsigned flags, uint32_t inline_max)
{
	struct extfs_params params = { .size = sizeof(store), .block = BS, .flags = flags, .inline_max = inline_max,
				       .poke = poke, .peek = peek };

	fs = extfs_create(&params);
	ck_assert_ptr_nonnull(fs);
	file = extfs_add(fs, "a");
	ck_assert_ptr_nonnull(file);
}

static void look(bool quiet)
{
	char why[300] = "";

	if (!extfs_check(fs, quiet, why, sizeof(why)))
		ck_abort_msg("%s", why);
}

static void down(void)
{
	look(true);
	extfs_free(fs);
}

/* It must have noticed, in such words. */
static void expect_bad(const char *words)
{
	char why[300] = "";

	ck_assert_ptr_nonnull(extfs_bad(fs));
	ck_assert_msg(strstr(extfs_bad(fs), words), "it says: %s", extfs_bad(fs));
	ck_assert(!extfs_check(fs, false, why, sizeof(why)));
	extfs_free(fs);
}

static struct iomap map, src;

static int begin(struct extfs_file *f, uint64_t pos, uint64_t len, unsigned flags)
{
	map = src = (struct iomap){ 0 };
	return extfs_ops.iomap_begin(f, pos, len, flags, &map, &src);
}

/* As a cache does: as much as both mappings hold. */
static uint64_t room(uint64_t pos, uint64_t len)
{
	uint64_t n = map.offset + map.length - pos;

	n = n < len ? n : len;
	if (src.type != IOMAP_HOLE && src.offset + src.length - pos < n)
		n = src.offset + src.length - pos;
	return n;
}

static void end(struct extfs_file *f, uint64_t pos, uint64_t len, uint64_t written, unsigned flags)
{
	ck_assert_int_eq(extfs_ops.iomap_end(f, pos, room(pos, len), (int64_t)written, flags, &map), 0);
}

/* A whole write, short by @less; its blocks would be dirty now. */
static void write_blocks(struct extfs_file *f, uint64_t pos, uint64_t len, uint64_t less)
{
	ck_assert_int_eq(begin(f, pos, len, IOMAP_WRITE), 0);
	ck_assert(extfs_ops.iomap_valid(f, &map));
	end(f, pos, len, room(pos, len) - less, IOMAP_WRITE);
}

static struct iomap_writepage_ctx wpc;

/* One request of [pos, pos + len), submitted. */
static struct iomap_ioend submitted(struct extfs_file *f, uint64_t pos, uint64_t len)
{
	struct iomap_ioend io = { .offset = pos, .size = len, .ops_priv = f };

	wpc = (struct iomap_writepage_ctx){ .ops_priv = f };
	ck_assert_int_eq(extfs_map(&wpc, pos, len), 0);
	io.addr = wpc.iomap.addr + (pos - wpc.iomap.offset);
	io.flags = (wpc.iomap.type == IOMAP_UNWRITTEN ? IOMAP_IOEND_UNWRITTEN : 0) |
		   (wpc.iomap.flags & IOMAP_F_SHARED ? IOMAP_IOEND_SHARED : 0);
	ck_assert_int_eq(extfs_writeback_ops.writeback_submit(&wpc, &io), 0);
	return io;
}

static void written(struct extfs_file *f, uint64_t pos, uint64_t len, int byte)
{
	struct iomap_ioend io = submitted(f, pos, len);

	memset(store + io.addr, byte, len);
	ck_assert_int_eq(extfs_writeback_ops.end_io(&io), 0);
}

static struct extfs_stat stat_now(void)
{
	struct extfs_stat st;

	extfs_stat(fs, &st);
	return st;
}

START_TEST(delayed_blocks_are_reserved_then_unwritten_then_mapped)
{
	struct iomap_ioend io;

	up(0, 0);
	write_blocks(file, 2 * BS, 3 * BS, 0);
	ck_assert_uint_eq(stat_now().reserved, 3 * BS);
	ck_assert_int_eq(begin(file, 2 * BS, BS, 0), 0);
	ck_assert_uint_eq(map.type, IOMAP_DELALLOC);
	ck_assert_uint_eq(map.length, 3 * BS);
	end(file, 2 * BS, BS, 0, 0);
	io = submitted(file, 2 * BS, 3 * BS);
	ck_assert_uint_eq(stat_now().reserved, 0);
	ck_assert_uint_eq(stat_now().unwritten, 3 * BS);
	ck_assert_uint_eq(extfs_size(file), 0);
	ck_assert_int_eq(extfs_writeback_ops.end_io(&io), 0);
	ck_assert_uint_eq(stat_now().mapped, 3 * BS);
	ck_assert_uint_eq(extfs_size(file), 5 * BS);
	down();
}
END_TEST

START_TEST(a_short_write_gives_the_rest_back)
{
	up(_i ? EXTFS_EARLY : 0, 0);
	write_blocks(file, 100, 5 * BS, 2 * BS);        /* ends inside block 3 */
	ck_assert_uint_eq(_i ? stat_now().unwritten : stat_now().reserved, 4 * BS);
	ck_assert_int_eq(begin(file, 0, BS, IOMAP_WRITE), 0);   /* what was there before is not this call's to give back */
	end(file, 0, BS, 0, IOMAP_WRITE);
	ck_assert_uint_eq(_i ? stat_now().unwritten : stat_now().reserved, 4 * BS);
	down();
}
END_TEST

START_TEST(space_runs_out_when_written_not_later)
{
	up(0, 0);
	ck_assert_int_eq(begin(file, 0, 2 * BLOCKS * BS, IOMAP_WRITE), 0);
	ck_assert_uint_eq(map.length, (BLOCKS - 1) * BS);
	ck_assert(extfs_ops.iomap_valid(file, &map));
	end(file, 0, 2 * BLOCKS * BS, map.length, IOMAP_WRITE);
	ck_assert_int_eq(begin(file, 2 * BLOCKS * BS, BS, IOMAP_WRITE), -ENOSPC);
	ck_assert_int_eq(extfs_ops.fallocate(file, 0, 2 * BLOCKS * BS, BS), -ENOSPC);
	written(file, 0, (BLOCKS - 1) * BS, 'A');
	ck_assert_uint_eq(stat_now().free, 0);
	ck_assert_int_eq(extfs_ops.fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 4 * BS, 2 * BS), 0);
	ck_assert_uint_eq(stat_now().free, 2 * BS);
	ck_assert_int_eq(extfs_ops.set_size(file, BS + 1), 0);
	ck_assert_uint_eq(stat_now().free, (BLOCKS - 3) * BS);
	down();
}
END_TEST

START_TEST(a_clone_keeps_its_bytes_when_the_file_is_written)
{
	struct extfs_file *clone;
	unsigned char buf[4 * BS];

	up(_i ? EXTFS_COW_UNWRITTEN : 0, 0);
	write_blocks(file, 0, 4 * BS, 0);
	clone = extfs_add(fs, "b");
	ck_assert_int_eq(extfs_clone(file, clone), -EBUSY);     /* delayed */
	written(file, 0, 4 * BS, 'A');
	ck_assert_int_eq(extfs_clone(file, clone), 0);
	look(true);
	ck_assert_int_eq(begin(file, BS, 2 * BS, IOMAP_WRITE), 0);
	ck_assert_uint_eq(map.type, IOMAP_DELALLOC);
	ck_assert_uint_eq(map.flags, IOMAP_F_SHARED);
	ck_assert_uint_eq(src.type, IOMAP_MAPPED);
	ck_assert(extfs_ops.iomap_valid(file, &map));
	end(file, BS, 2 * BS, 2 * BS, IOMAP_WRITE);
	written(file, BS, 2 * BS, 'B');
	extfs_peek(clone, buf, sizeof(buf), 0);
	ck_assert(buf[BS] == 'A' && buf[3 * BS - 1] == 'A');
	extfs_peek(file, buf, sizeof(buf), 0);
	ck_assert(buf[BS - 1] == 'A' && buf[BS] == 'B' && buf[3 * BS - 1] == 'B' && buf[3 * BS] == 'A');
	ck_assert_uint_eq(stat_now().shared, 4 * BS);
	extfs_remove(clone);
	ck_assert_uint_eq(stat_now().shared, 0);
	ck_assert_uint_eq(stat_now().free, (BLOCKS - 1 - 4) * BS);
	down();
}
END_TEST

START_TEST(a_mapping_goes_stale_with_any_change)
{
	up(0, 0);
	write_blocks(file, 0, BS, 0);
	ck_assert_int_eq(begin(file, 0, BS, IOMAP_WRITE), 0);
	ck_assert(extfs_ops.iomap_valid(file, &map));
	written(file, 0, BS, 'A');
	ck_assert(!extfs_ops.iomap_valid(file, &map));
	map.flags |= IOMAP_F_STALE;
	end(file, 0, BS, 0, IOMAP_WRITE);
	ck_assert_uint_eq(stat_now().stale, 1);
	down();
}
END_TEST

START_TEST(a_small_file_is_inline_until_it_does_not_fit)
{
	unsigned char buf[100];

	up(0, 1000);
	ck_assert_int_eq(begin(file, 0, 100, IOMAP_WRITE), 0);
	ck_assert_uint_eq(map.type, IOMAP_INLINE);
	memset(map.inline_data, 'A', 100);
	map.flags |= IOMAP_F_SIZE_CHANGED;
	ck_assert(extfs_ops.iomap_valid(file, &map));
	end(file, 0, 100, 100, IOMAP_WRITE);
	ck_assert_uint_eq(extfs_size(file), 100);
	ck_assert_int_eq(begin(file, 900, 200, IOMAP_WRITE), 0);
	ck_assert_uint_eq(map.type, IOMAP_MAPPED);
	end(file, 900, 200, 0, IOMAP_WRITE);
	extfs_peek(file, buf, 100, 0);
	ck_assert(buf[0] == 'A' && buf[99] == 'A');
	ck_assert_int_eq(extfs_ops.set_size(file, 0), 0);
	ck_assert_uint_eq(stat_now().inline_files, 1);
	down();
}
END_TEST

/* --- a cache that plays badly ------------------------------------------------------------------------------------- */

START_TEST(it_notices_a_begin_without_end)
{
	char why[300];

	up(0, 0);
	ck_assert_int_eq(begin(file, 0, BS, 0), 0);
	look(false);
	ck_assert(!extfs_check(fs, true, why, sizeof(why)));
	extfs_free(fs);
	up(0, 0);
	ck_assert_int_eq(begin(file, 0, BS, IOMAP_WRITE), 0);
	ck_assert_int_eq(begin(file, BS, BS, IOMAP_WRITE), 0);
	expect_bad("has not ended");
}
END_TEST

START_TEST(it_notices_an_end_that_is_wrong)
{
	up(0, 0);
	ck_assert_int_eq(begin(file, 0, BS, IOMAP_WRITE), 0);
	switch (_i) {
	case 0:                 /* twice */
		end(file, 0, BS, 0, IOMAP_WRITE);
		end(file, 0, BS, 0, IOMAP_WRITE);
		expect_bad("without a begin");
		break;
	case 1:                 /* more than asked for */
		extfs_ops.iomap_valid(file, &map);
		end(file, 0, BS, BS + 1, IOMAP_WRITE);
		expect_bad("written of");
		break;
	case 2:                 /* another range */
		extfs_ops.iomap_end(file, 0, 2 * BS, 0, IOMAP_WRITE, &map);
		expect_bad("but begin was");
		break;
	case 3:                 /* not asked whether it holds */
		end(file, 0, BS, BS, IOMAP_WRITE);
		expect_bad("without asking");
		break;
	default:                /* stale, though nobody said so */
		map.flags |= IOMAP_F_STALE;
		end(file, 0, BS, 0, IOMAP_WRITE);
		expect_bad("nobody said so");
	}
}
END_TEST

START_TEST(it_notices_zeroing_that_moves_the_end)
{
	up(0, 0);
	ck_assert_int_eq(begin(file, 0, BS, IOMAP_ZERO), 0);
	map.flags |= IOMAP_F_SIZE_CHANGED;
	end(file, 0, BS, BS, IOMAP_ZERO);
	expect_bad("made the file grow");
}
END_TEST

START_TEST(it_notices_dirty_blocks_that_nobody_began)
{
	struct extfs_file *clone;

	up(0, 0);
	wpc = (struct iomap_writepage_ctx){ .ops_priv = file };
	if (!_i) {
		ck_assert_int_eq(extfs_map(&wpc, 0, BS), -EIO);
		expect_bad("over a hole");
		return;
	}
	write_blocks(file, 0, BS, 0);
	written(file, 0, BS, 'A');
	clone = extfs_add(fs, "b");
	ck_assert_int_eq(extfs_clone(file, clone), 0);
	ck_assert_int_eq(extfs_map(&wpc, 0, BS), -EIO);
	expect_bad("over shared ones");
}
END_TEST

START_TEST(it_notices_a_request_that_goes_elsewhere_or_comes_twice)
{
	struct iomap_ioend io;

	up(0, 0);
	write_blocks(file, 0, 2 * BS, 0);
	io = submitted(file, 0, BS);
	switch (_i) {
	case 0:
		extfs_writeback_ops.writeback_submit(&wpc, &io);
		expect_bad("in flight already");
		break;
	case 1:
		io.offset += BS;
		extfs_writeback_ops.writeback_submit(&wpc, &io);
		expect_bad("where it is not");
		break;
	case 2:
		io.offset += BS;
		io.addr += BS;
		io.flags = 0;
		extfs_writeback_ops.writeback_submit(&wpc, &io);
		expect_bad("but the extent is");
		break;
	default:
		ck_assert_int_eq(extfs_writeback_ops.end_io(&io), 0);
		ck_assert_int_eq(extfs_writeback_ops.end_io(&io), 0);
		expect_bad("no such request");
	}
}
END_TEST

START_TEST(it_notices_a_cut_under_a_request_or_a_call)
{
	up(0, 0);
	write_blocks(file, 0, 2 * BS, 0);
	if (!_i) {
		submitted(file, BS, BS);
		ck_assert_int_eq(extfs_ops.set_size(file, BS), 0);
		expect_bad("in flight");
	} else {
		ck_assert_int_eq(begin(file, 0, BS, 0), 0);
		ck_assert_int_eq(extfs_ops.fallocate(file, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, BS), 0);
		expect_bad("between begin and end");
	}
}
END_TEST

/* Against two arrays: what state each block is in. Writes, short ones, writeback, punches, cuts, clones. */
START_TEST(random_operations_lose_no_block)
{
	uint64_t random = 1 + (uint64_t)_i;
	struct extfs_file *clone;

	up((unsigned)(_i & 1 ? EXTFS_CHOP : 0) | (_i & 2 ? EXTFS_ALWAYS_COW : 0), 0);
	clone = extfs_add(fs, "b");
	for (unsigned i = 0; i < 3000; i++) {
		struct extfs_file *f = t_random_below(&random, 3) ? file : clone;
		uint64_t blk = t_random_below(&random, 20), n = 1 + t_random_below(&random, 8);
		struct extfs_stat st;

		switch (t_random_below(&random, 8)) {
		case 0: case 1: case 2:
			if (begin(f, blk * BS, n * BS, IOMAP_WRITE))
				break;
			ck_assert(extfs_ops.iomap_valid(f, &map));
			end(f, blk * BS, n * BS, t_random_below(&random, room(blk * BS, n * BS) + 1), IOMAP_WRITE);
			break;
		case 3: case 4:         /* what is set aside is written */
			for (uint64_t b = 0; b < 40; b++) {
				if (begin(f, b * BS, BS, IOMAP_WRITE))
					continue;
				ck_assert(extfs_ops.iomap_valid(f, &map));
				end(f, b * BS, BS, BS, IOMAP_WRITE);
				written(f, b * BS, BS, 'A');
			}
			break;
		case 5:
			ck_assert_int_eq(extfs_ops.set_size(f, blk * BS), 0);
			break;
		case 6:
			ck_assert_int_eq(extfs_ops.fallocate(f, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, blk * BS, n * BS), 0);
			break;
		default:
			(void)extfs_clone(file, clone);
		}
		look(true);
		extfs_stat(fs, &st);
		ck_assert_uint_le(st.reserved, st.free);
	}
	ck_assert_int_eq(extfs_ops.set_size(file, 0), 0);
	ck_assert_int_eq(extfs_ops.set_size(clone, 0), 0);
	ck_assert_uint_eq(stat_now().free, (BLOCKS - 1) * BS);
	ck_assert_uint_eq(stat_now().reserved, 0);
	down();
}
END_TEST

Suite *suite_extfs(void)
{
	Suite *s = suite_create("extfs");
	TCase *tc = tcase_create("extfs");

	tcase_add_test(tc, delayed_blocks_are_reserved_then_unwritten_then_mapped);
	tcase_add_loop_test(tc, a_short_write_gives_the_rest_back, 0, 2);
	tcase_add_test(tc, space_runs_out_when_written_not_later);
	tcase_add_loop_test(tc, a_clone_keeps_its_bytes_when_the_file_is_written, 0, 2);
	tcase_add_test(tc, a_mapping_goes_stale_with_any_change);
	tcase_add_test(tc, a_small_file_is_inline_until_it_does_not_fit);
	tcase_add_test(tc, it_notices_a_begin_without_end);
	tcase_add_loop_test(tc, it_notices_an_end_that_is_wrong, 0, 5);
	tcase_add_test(tc, it_notices_zeroing_that_moves_the_end);
	tcase_add_loop_test(tc, it_notices_dirty_blocks_that_nobody_began, 0, 2);
	tcase_add_loop_test(tc, it_notices_a_request_that_goes_elsewhere_or_comes_twice, 0, 4);
	tcase_add_loop_test(tc, it_notices_a_cut_under_a_request_or_a_call, 0, 2);
	tcase_add_loop_test(tc, random_operations_lose_no_block, 0, 4);
	suite_add_tcase(s, tc);
	return s;
}
