/*
 * buffered-write.c - which folios a write makes, which blocks it reads first, what lies around the bytes
 */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include "file.h"
#include "call.h"
#include "rig.h"

Suite *suite_buffered_write(void);

static struct t_rig rig;
static unsigned char buf[8 * MIB];

static void up(uint32_t block, uint64_t max_folio)
{
	t_rig_init(&rig);
	rig.block_size = block;
	rig.params.max_folio_bytes = max_folio;
	rig.params.readahead_bytes = IOMAP_READAHEAD_OFF;
	if (max_folio <= 65536) {
		rig.params.memory_bytes = 4 * MIB;
		rig.params.dirty_bytes = 3 * MIB;
		rig.params.dirty_background_bytes = 2 * MIB;
		rig.device_params.capacity = 4 * MIB;
	} else {        /* a write's steps, and so its folios, are at most a 16th of the limit */
		rig.params.dirty_bytes = 32 * MIB;
		rig.params.dirty_background_bytes = 24 * MIB;
	}
	t_rig_up(&rig);
}

static struct mapping *mapping(void) { return &rig.file->inode->mapping; }

static ssize_t nowait(uint64_t pos, size_t len)
{
	struct iovec iov = { buf, len };

	memset(buf, 'n', len);
	return iomap_pwritev2(rig.file, &iov, 1, (off_t)pos, IOMAP_RWF_NOWAIT);
}

/* --- orders --------------------------------------------------------------------------------------------- */

struct made { pgoff_t index; unsigned order; uint64_t bytes; };

START_TEST(orders_come_from_length_and_alignment)
{
	static const struct { uint64_t pos, len; struct made folios[12]; } cases[] = {
		{ 0, MIB, { { 0, 8, 1048576 } } },
		{ 4096, MIB, { { 1, 0, 4096 }, { 2, 1, 8192 }, { 4, 2, 16384 }, { 8, 3, 32768 }, { 16, 4, 65536 },
			       { 32, 5, 131072 }, { 64, 6, 262144 }, { 128, 7, 524288 }, { 256, 0, 4096 } } },
		{ 2 * MIB, 5 * MIB, { { 512, 9, 2 * MIB }, { 1024, 9, 2 * MIB }, { 1536, 8, MIB } } },
		{ 12288, 65536, { { 3, 0, 4096 }, { 4, 2, 16384 }, { 8, 3, 32768 }, { 16, 1, 8192 }, { 18, 0, 4096 } } },
		{ 2 * MIB - 4096, 65536,
		  { { 511, 0, 4096 }, { 512, 3, 32768 }, { 520, 2, 16384 }, { 524, 1, 8192 }, { 526, 0, 4096 } } },
		{ 100, 8192, { { 0, 1, 8092 }, { 2, 0, 100 } } },
		{ 512, 12288, { { 0, 1, 7680 }, { 2, 0, 4096 }, { 3, 0, 512 } } },
		{ 0, 10240, { { 0, 1, 8192 }, { 2, 0, 2048 } } },
		{ 8192, 16384, { { 2, 1, 8192 }, { 4, 1, 8192 } } },
		{ 0, 1, { { 0, 0, 1 } } },
		{ 4095, 2, { { 0, 0, 1 }, { 1, 0, 1 } } },
	};

	for (unsigned i = 0; i < ARRAY_SIZE(cases); i++) {
		struct iomap_file_stat st;
		uint64_t folios[IOMAP_STAT_ORDERS] = { 0 };
		struct iomap_folio *f;
		pgoff_t at = 0;

		up(4096, 2 * MIB);
		t_rig_write(&rig, cases[i].pos, cases[i].len, 'w');
		for (const struct made *want = cases[i].folios; want->bytes; want++) {
			uint64_t from, to;

			f = mapping_next(mapping(), &at, UINT64_MAX >> PAGE_SHIFT);
			ck_assert_ptr_nonnull(f);
			ck_assert_uint_eq(folio_index(f), want->index);
			ck_assert_uint_eq(folio_order(f), want->order);
			from = max_u64(folio_pos(f), cases[i].pos);
			to = min_u64(folio_pos(f) + folio_bytes(f), cases[i].pos + cases[i].len);
			ck_assert_uint_eq(to - from, want->bytes);
			at = folio_index(f) + folio_pages(f);
			folio_put(mapping()->zone, f);
			folios[want->order]++;
		}
		ck_assert_ptr_null(mapping_next(mapping(), &at, UINT64_MAX >> PAGE_SHIFT));
		ck_assert_int_eq(iomap_file_stat(rig.file, &st, sizeof(st)), 0);
		ck_assert_int_eq(memcmp(st.folios, folios, sizeof(folios)), 0);
		ck_assert_uint_eq(st.size_bytes, cases[i].pos + cases[i].len);
		t_rig_expect(&rig, cases[i].pos, cases[i].len, 'w');
		t_rig_expect(&rig, 0, cases[i].pos, 0);
		t_rig_down(&rig);
	}
}
END_TEST

START_TEST(cached_folio_is_written_as_it_is)
{
	up(4096, 65536);
	t_rig_write(&rig, 8192, 1, 'x');                /* page 2: in the way of anything large */
	t_rig_write(&rig, 0, 65536, 'y');
	ck_assert_uint_eq(t_rig_stat(&rig).folios[0], 2);       /* page 2, and page 3: what is left of its four */
	ck_assert_uint_eq(t_rig_stat(&rig).folios[1], 1);
	t_rig_expect(&rig, 0, 65536, 'y');
	t_rig_down(&rig);
	up(16384, 65536);                               /* no folio below the block size */
	t_rig_write(&rig, 40000, 1, 'z');
	ck_assert_uint_eq(t_rig_stat(&rig).folios[2], 1);
	ck_assert_uint_eq(t_rig_stat(&rig).dirty_bytes, 16384);
	t_rig_down(&rig);
}
END_TEST

/* --- what is read and zeroed first ---------------------------------------------------------------------- */

/* Blocks of the page at 0 that are uptodate or dirty, as a set of bits. */
static unsigned bits(enum ifs_map map)
{
	struct iomap_folio *f = mapping_get(mapping(), 0);
	unsigned set = 0;

	ck_assert_ptr_nonnull(f);
	for (unsigned b = 0; b < ifs_blocks(f, &mapping()->geom); b++)
		set |= (unsigned)ifs_block_set(f, &mapping()->geom, map, b) << b;
	folio_put(mapping()->zone, f);
	return set;
}

static void expect_reads(uint64_t ios, uint64_t bytes)
{
	struct iomap_device_stat s = t_rig_io(&rig);

	ck_assert_uint_eq(s.read_ios, ios);
	ck_assert_uint_eq(s.read_bytes, bytes);
}

/* @size bytes of 's' on the device, nothing cached, blocks of 1 KiB. */
static void stored(uint64_t size)
{
	up(1024, 65536);
	if (size) {
		t_rig_write(&rig, 0, size, 's');
		ck_assert_int_eq(iomap_fsync(rig.file), 0);
		ck_assert(t_drops_all(rig.cache));
		ck_assert_uint_eq(t_rig_stat(&rig).cached_bytes, 0);
	}
	t_rig_reset(&rig);
}

/*
 * The paper reads the whole run of blocks that are not uptodate, inner ones too. Here the first and the last partly
 * covered block are read, each for itself, and only where a byte of it that the write leaves alone is stored.
 */
START_TEST(first_and_last_block_are_read_where_they_are_covered_in_part)
{
	stored(4096);
	t_rig_write(&rig, 1500, 2000, 'w');
	expect_reads(2, 2048);                  /* blocks 1 and 3; the paper: [1024, 4096) at once */
	ck_assert_uint_eq(bits(IFS_UPTODATE), 0xe);
	ck_assert_uint_eq(bits(IFS_DIRTY), 0xe);
	t_rig_expect(&rig, 1024, 476, 's');
	t_rig_expect(&rig, 1500, 2000, 'w');
	t_rig_expect(&rig, 3500, 596, 's');
	t_rig_down(&rig);

	stored(4096);                           /* the same with block 2 uptodate */
	t_rig_write(&rig, 2048, 1024, 'v');
	expect_reads(0, 0);
	t_rig_write(&rig, 1500, 2000, 'w');
	expect_reads(2, 2048);
	ck_assert_uint_eq(bits(IFS_UPTODATE), 0xe);
	ck_assert_uint_eq(bits(IFS_DIRTY), 0xe);
	t_rig_down(&rig);

	stored(4096);                           /* whole blocks: none */
	t_rig_write(&rig, 1024, 2048, 'w');
	expect_reads(0, 0);
	ck_assert_uint_eq(bits(IFS_UPTODATE), 0x6);
	ck_assert_uint_eq(bits(IFS_DIRTY), 0x6);
	t_rig_down(&rig);

	stored(4096);                           /* one block on both sides: one read */
	t_rig_write(&rig, 1500, 10, 'w');
	expect_reads(1, 1024);
	ck_assert_uint_eq(bits(IFS_UPTODATE), 0x2);
	t_rig_expect(&rig, 1024, 476, 's');
	t_rig_expect(&rig, 1510, 514, 's');
	t_rig_down(&rig);
}
END_TEST

START_TEST(what_is_not_stored_is_zeroed_not_read)
{
	stored(0);
	t_rig_write(&rig, 100, 50, 'w');
	expect_reads(0, 0);
	ck_assert_uint_eq(bits(IFS_UPTODATE), 0x1);
	ck_assert_uint_eq(bits(IFS_DIRTY), 0x1);
	ck_assert_int_eq(iomap_size(rig.file), 150);
	t_rig_expect(&rig, 0, 100, 0);
	t_rig_expect(&rig, 100, 50, 'w');
	t_rig_down(&rig);

	/* Blocks 0 and 1 stored, the file ends inside block 1, the write lies beyond. */
	stored(1100);
	t_rig_write(&rig, 3000, 10, 'w');
	expect_reads(1, 76);                    /* block 1, up to the device's end; [1100, 2048) zeroed in memory */
	ck_assert_uint_eq(bits(IFS_UPTODATE), 0x6);
	ck_assert_uint_eq(bits(IFS_DIRTY), 0x6);
	ck_assert_int_eq(iomap_size(rig.file), 3010);
	t_rig_expect(&rig, 0, 1100, 's');
	t_rig_expect(&rig, 1100, 1900, 0);
	t_rig_expect(&rig, 3000, 10, 'w');
	ck_assert_int_eq(iomap_fsync(rig.file), 0);
	t_rig_expect_stored(&rig, 1100, 1900, 0);
	ck_assert_uint_eq(t_hold_size(rig.hold), 3010);
	t_rig_down(&rig);

	/* All stored bytes of the last block are covered, its other bytes lie past the end: no read. */
	stored(1100);
	t_rig_write(&rig, 1024, 200, 'w');
	expect_reads(0, 0);
	ck_assert_int_eq(iomap_size(rig.file), 1224);
	t_rig_expect(&rig, 0, 1024, 's');
	t_rig_expect(&rig, 1024, 200, 'w');
	t_rig_down(&rig);

	/* One stored byte is not: a read. */
	stored(1100);
	t_rig_write(&rig, 1024, 75, 'w');
	expect_reads(1, 76);
	t_rig_expect(&rig, 1024, 75, 'w');
	t_rig_expect(&rig, 1099, 1, 's');
	t_rig_down(&rig);
}
END_TEST

START_TEST(dirty_bits_are_the_blocks_written)
{
	stored(4096);
	t_rig_write(&rig, 0, 4096, 'w');
	expect_reads(0, 0);
	ck_assert_uint_eq(bits(IFS_DIRTY), 0xf);
	t_rig_write(&rig, 10, 10, 'x');         /* before writeback: all four stay dirty */
	ck_assert_uint_eq(bits(IFS_DIRTY), 0xf);
	ck_assert_int_eq(iomap_fsync(rig.file), 0);
	ck_assert_uint_eq(bits(IFS_DIRTY), 0);
	t_rig_write(&rig, 10, 10, 'y');         /* after: block 0 alone */
	expect_reads(0, 0);
	ck_assert_uint_eq(bits(IFS_DIRTY), 0x1);
	t_rig_down(&rig);
}
END_TEST

/* A block that cannot be read cannot be written in part; nothing changes, and whole blocks can be. */
START_TEST(failed_read_changes_nothing)
{
	stored(4096);
	t_hold_fail(rig.hold, T_HOLD_READ, 3072, 1024, EIO);
	memset(buf, 'w', 2000);
	ck_assert_int_eq(iomap_pwrite(rig.file, buf, 2000, 1500), -EIO);
	ck_assert_uint_eq(t_rig_stat(&rig).dirty_bytes, 0);
	ck_assert_int_eq(iomap_size(rig.file), 4096);
	t_rig_write(&rig, 1500, 1572, 'w');     /* up to the bad block */
	t_rig_write(&rig, 3072, 1024, 'v');     /* all of it */
	t_rig_expect(&rig, 1024, 476, 's');
	t_rig_expect(&rig, 1500, 1572, 'w');
	t_rig_expect(&rig, 3072, 1024, 'v');
	t_rig_down(&rig);
}
END_TEST

/* --- around the end ------------------------------------------------------------------------------------- */

/*
 * I26: between the old end and where writing goes on all is zeros: in the cache, stored, and after a power cut.
 * _i: block size
 */
START_TEST(gap_after_the_old_end_is_zeros)
{
	static const uint32_t blocks[] = { 512, 1024, 4096, 16384 };
	static const uint64_t sizes[] = { 1, 511, 512, 1000, 4095, 4096, 5000, 16385, 20000 };
	static const uint64_t gaps[] = { 1, 100, 511, 3000, 4096, 70000 };

	for (unsigned s = 0; s < ARRAY_SIZE(sizes); s++) {
		for (unsigned g = 0; g < ARRAY_SIZE(gaps); g++) {
			uint64_t size = sizes[s], at = size + gaps[g];
			unsigned how = (s + g) % 4;     /* clean or dirty or not cached; write or truncate */

			up(blocks[_i], 65536);
			t_rig_write(&rig, 0, size + 300, 'x');
			ck_assert_int_eq(iomap_ftruncate(rig.file, (off_t)size), 0);    /* something was there once */
			if (how) {
				ck_assert_int_eq(iomap_fsync(rig.file), 0);
				if (how == 2)
					t_rig_remount(&rig);
			}
			if (how == 3) {
				ck_assert_int_eq(iomap_ftruncate(rig.file, (off_t)at), 0);
				t_rig_expect(&rig, size, at - size, 0);
			}
			t_rig_write(&rig, at, 10, 'y');
			t_rig_expect(&rig, 0, size, 'x');
			t_rig_expect(&rig, size, at - size, 0);
			t_rig_expect(&rig, at, 10, 'y');
			ck_assert_int_eq(iomap_size(rig.file), (off_t)at + 10);
			t_rig_check(&rig);
			ck_assert_int_eq(iomap_fsync(rig.file), 0);
			ck_assert_uint_eq(t_hold_size(rig.hold), at + 10);
			t_rig_expect_stored(&rig, size, at - size, 0);
			t_rig_crash(&rig, s * 10 + g + 1);
			t_rig_expect(&rig, 0, size, 'x');
			t_rig_expect(&rig, size, at - size, 0);
			t_rig_expect(&rig, at, 10, 'y');
			t_rig_down(&rig);
		}
	}
}
END_TEST

/* C18 on a device whose memory behind the end is garbage when read (the hold device fills it with 0xAA). */
START_TEST(garbage_behind_the_end_is_never_read)
{
	for (unsigned how = 0; how < 2; how++) {
		stored(5000);
		if (how)
			ck_assert_int_eq(iomap_ftruncate(rig.file, 8192), 0);
		else
			t_rig_write(&rig, 9000, 1, 'N');
		t_rig_expect(&rig, 4096, 904, 's');
		t_rig_expect(&rig, 5000, 3192, 0);
		ck_assert_int_eq(iomap_size(rig.file), how ? 8192 : 9001);
		ck_assert_int_eq(iomap_fsync(rig.file), 0);
		t_rig_crash(&rig, 7);
		t_rig_expect(&rig, 4096, 904, 's');
		t_rig_expect(&rig, 5000, 3192, 0);
		ck_assert_int_eq(iomap_size(rig.file), how ? 8192 : 9001);
		t_rig_down(&rig);
	}
}
END_TEST

START_TEST(append_goes_to_the_end_whatever_it_is)
{
	struct iovec iov = { buf, 700 };

	stored(1100);
	for (unsigned i = 0; i < 20; i++) {
		memset(buf, 'a' + (int)i, 700);
		ck_assert_int_eq(iomap_pwritev2(rig.file, &iov, 1, 3, IOMAP_RWF_APPEND), 700);
		ck_assert_int_eq(iomap_size(rig.file), 1100 + 700 * ((off_t)i + 1));
	}
	t_rig_expect(&rig, 0, 1100, 's');
	for (unsigned i = 0; i < 20; i++)
		t_rig_expect(&rig, 1100 + 700 * i, 700, 'a' + (int)i);
	t_rig_down(&rig);
}
END_TEST

START_TEST(offsets_end_at_2_to_the_63)
{
	up(4096, 65536);
	ck_assert_int_eq(iomap_pwrite(rig.file, "ab", 2, INT64_MAX), -EINVAL);
	ck_assert_int_eq(iomap_pwrite(rig.file, "ab", 2, INT64_MAX - 1), -EINVAL);
	ck_assert_int_eq(iomap_pwrite(rig.file, "ab", 2, -1), -EINVAL);
	ck_assert_int_eq(iomap_pwrite(rig.file, "ab", 0, INT64_MAX), 0);
	ck_assert_int_eq(iomap_size(rig.file), 0);
	t_rig_down(&rig);
}
END_TEST

/* --- without waiting ------------------------------------------------------------------------------------ */

START_TEST(nowait_does_what_needs_no_wait)
{
	stored(4096);
	ck_assert_int_eq(nowait(1024, 1024), 1024);             /* a whole block */
	ck_assert_int_eq(nowait(1100, 10), 10);                 /* part of one that is uptodate */
	ck_assert_int_eq(nowait(4096, 300), 300);               /* append: nothing stored there */
	expect_reads(0, 0);
	t_rig_expect(&rig, 4096, 300, 'n');
	t_rig_expect(&rig, 0, 1024, 's');
	t_rig_down(&rig);
}
END_TEST

START_TEST(nowait_beyond_a_whole_last_block_needs_no_wait)
{
	stored(4096);
	ck_assert_int_eq(nowait(10240, 10), 10);                /* a gap, and no block of the old end to fill up */
	expect_reads(0, 0);
	t_rig_expect(&rig, 4096, 6144, 0);
	t_rig_down(&rig);
}
END_TEST

START_TEST(nowait_says_again_and_changes_nothing)
{
	struct iomap_cache_stat before, after;
	struct iomap_folio *f;

	stored(4096);
	before = t_rig_stat(&rig);
	ck_assert_int_eq(nowait(1100, 10), -EAGAIN);            /* a block to be read */
	ck_assert_int_eq(nowait(4096, 10), 10);                 /* not this one */
	after = t_rig_stat(&rig);
	ck_assert_uint_eq(after.dirtied_bytes - before.dirtied_bytes, 1024);
	expect_reads(0, 0);

	f = mapping_get_locked(mapping(), 1);                   /* somebody has the folio */
	ck_assert_int_eq(nowait(4096, 1024), -EAGAIN);
	folio_unlock(mapping()->zone, f);
	folio_put(mapping()->zone, f);
	ck_assert_int_eq(nowait(4096, 1024), 1024);

	rwsem_lock(&rig.file->inode->rwsem);                    /* somebody cuts the file */
	ck_assert_int_eq(nowait(4096, 512), -EAGAIN);
	rwsem_unlock(&rig.file->inode->rwsem);
	rwsem_lock_shared(&rig.file->inode->rwsem);     /* somebody writes inside: so may we, but not append */
	ck_assert_int_eq(nowait(4096, 512), 512);
	ck_assert_int_eq(nowait(6000, 512), -EAGAIN);
	rwsem_unlock_shared(&rig.file->inode->rwsem);
	ck_assert_int_eq(iomap_size(rig.file), 5120);
	t_rig_down(&rig);
}
END_TEST

START_TEST(nowait_stops_short_at_what_it_would_wait_for)
{
	up(4096, 4096);
	t_rig_write(&rig, 0, 12288, 's');
	ck_assert_int_eq(iomap_fsync(rig.file), 0);
	ck_assert(t_drops_all(rig.cache));
	ck_assert_int_eq(nowait(0, 8192 + 100), 8192);          /* the third block is covered in part */
	ck_assert_int_eq(nowait(8192, 100), -EAGAIN);
	t_rig_expect(&rig, 0, 8192, 'n');
	t_rig_expect(&rig, 8192, 4096, 's');
	t_rig_down(&rig);
}
END_TEST

/* A small request in flight is a copy; a large one reads the folio's memory, which stays as it is until the end. */
START_TEST(only_blocks_whose_memory_is_read_are_waited_for)
{
	struct t_call call, writer;

	for (unsigned large = 0; large < 2; large++) {
		size_t len = large ? 131072 : 65536;

		up(4096, 2 * MIB);
		t_rig_write(&rig, 0, MIB, 's');
		ck_assert_int_eq(iomap_fsync(rig.file), 0);
		t_rig_write(&rig, 0, len, 'w');
		t_hold_park(rig.hold, T_HOLD_WRITE, 0, 0);
		t_call_fsync(&call, rig.file);
		ck_assert(t_hold_wait_parked(rig.hold, 1));
		ck_assert_int_eq(nowait(8192, 4096), large ? -EAGAIN : 4096);
		ck_assert_int_eq(nowait(MIB - 4096, 4096), 4096);       /* the same folio, a block not in flight */
		t_call_write(&writer, rig.file, 'v', 4096, 4096);
		if (!large)
			ck_assert_int_eq(t_call_wait(&writer), 4096);
		t_hold_release(rig.hold);
		ck_assert_int_eq(t_call_wait(&call), 0);
		ck_assert_int_eq(t_call_wait(&writer), 4096);
		t_call_free(&call);
		t_call_free(&writer);
		t_rig_expect(&rig, 0, 4096, 'w');
		t_rig_expect(&rig, 4096, 4096, 'v');
		t_rig_expect(&rig, 8192, 4096, large ? 'w' : 'n');
		ck_assert_int_eq(iomap_fsync(rig.file), 0);
		t_rig_expect_stored(&rig, 4096, 4096, 'v');
		t_rig_down(&rig);               /* the device says so if memory changed in flight */
	}
}
END_TEST

Suite *suite_buffered_write(void)
{
	Suite *s = suite_create("buffered-write");
	TCase *tc = tcase_create("buffered-write");

	suite_add_tcase(s, tc);
	tcase_set_timeout(tc, 120);
	tcase_add_test(tc, orders_come_from_length_and_alignment);
	tcase_add_test(tc, cached_folio_is_written_as_it_is);
	tcase_add_test(tc, first_and_last_block_are_read_where_they_are_covered_in_part);
	tcase_add_test(tc, what_is_not_stored_is_zeroed_not_read);
	tcase_add_test(tc, dirty_bits_are_the_blocks_written);
	tcase_add_test(tc, failed_read_changes_nothing);
	tcase_add_loop_test(tc, gap_after_the_old_end_is_zeros, 0, 4);
	tcase_add_test(tc, garbage_behind_the_end_is_never_read);
	tcase_add_test(tc, append_goes_to_the_end_whatever_it_is);
	tcase_add_test(tc, offsets_end_at_2_to_the_63);
	tcase_add_test(tc, nowait_does_what_needs_no_wait);
	tcase_add_test(tc, nowait_beyond_a_whole_last_block_needs_no_wait);
	tcase_add_test(tc, nowait_says_again_and_changes_nothing);
	tcase_add_test(tc, nowait_stops_short_at_what_it_would_wait_for);
	tcase_add_test(tc, only_blocks_whose_memory_is_read_are_waited_for);
	return s;
}
