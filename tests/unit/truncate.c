/*
 * truncate.c - the end of a file is cut off: what stays dirty, what is cancelled, what is read
 */
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include "alloc.h"
#include "cache.h"
#include "call.h"
#include "file.h"
#include "rig.h"
#include "truncate.h"

Suite *suite_truncate(void);

enum { FOLIO = 65536 };

static const enum iomap_accounting modes[] = { IOMAP_ACCT_BLOCK, IOMAP_ACCT_PAGE, IOMAP_ACCT_FOLIO };

static struct t_rig rig;
static unsigned char buf[2 * MIB], want[2 * MIB];

static void up(enum iomap_accounting mode, uint32_t block)
{
	t_rig_init(&rig);
	rig.params.memory_bytes = 4 * MIB;
	rig.params.dirty_bytes = 3 * MIB;
	rig.params.dirty_background_bytes = 2 * MIB;
	rig.device_params.capacity = 4 * MIB;
	rig.params.accounting = mode;
	rig.block_size = block;
	t_rig_up(&rig);
}

static void write_byte(uint64_t pos, uint64_t len, int byte)
{
	t_rig_write(&rig, pos, len, byte);
	memset(want + pos, byte, len);
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

/* I25: no folio starts beyond the end, no block beyond it is dirty, cached bytes beyond it are zero. */
static void expect_nothing_beyond(uint64_t size)
{
	struct mapping *m = &rig.file->inode->mapping;
	struct iomap_folio *f;
	pgoff_t at = 0;

	while ((f = mapping_next(m, &at, UINT64_MAX >> PAGE_SHIFT))) {
		const char *p = folio_addr(m->zone, f);

		ck_assert_uint_lt(folio_pos(f), size);
		for (uint64_t off = 0; off < folio_bytes(f); off += ifs_block_bytes(&m->geom)) {
			unsigned b = (unsigned)(off >> m->geom.block_shift);
			uint64_t from = size > folio_pos(f) ? max_u64(size - folio_pos(f), off) : off;

			if (from == off && ifs_block_set(f, &m->geom, IFS_DIRTY, b))
				ck_abort_msg("block %u beyond the end is dirty", b);
			if (!ifs_range_uptodate(f, &m->geom, b, 1))
				continue;
			for (uint64_t i = from; i < off + ifs_block_bytes(&m->geom); i++)
				if (p[i])
					ck_abort_msg("byte %llu of the folio is not zero", (unsigned long long)i);
		}
		at = folio_index(f) + folio_pages(f);
		folio_put(m->zone, f);
	}
}

/* What a recount of the cut folio says, given which blocks were dirty and how it is to be split. */
struct expected { uint64_t dirty, pinned; unsigned splits; };

static struct expected recount(enum iomap_accounting mode, uint32_t block, const uint8_t *dirty, uint64_t size)
{
	uint64_t lo = 0, bytes = FOLIO, min = block > 4096 ? block : 4096, ends[16], granule;
	struct expected e = { 0, 0, 0 };
	unsigned nr = 0;

	while (bytes > min) {
		uint64_t middle = lo + bytes / 2;

		e.splits++;
		bytes /= 2;
		if (size == middle)
			break;
		if (size > middle) {
			ends[nr++] = middle;
			lo = middle;
		}
	}
	ends[nr++] = lo + bytes;
	lo = 0;
	for (unsigned i = 0; i < nr; lo = ends[i++]) {
		bool any = false;

		granule = mode == IOMAP_ACCT_BLOCK ? block : mode == IOMAP_ACCT_PAGE ? min : ends[i] - lo;
		for (uint64_t g = lo; g < ends[i]; g += granule) {
			bool here = false;

			for (uint64_t b = g; b < g + granule; b += block)
				here |= b < size && dirty[b / block];
			e.dirty += here ? granule : 0;
			any |= here;
		}
		e.pinned += any ? ends[i] - lo : 0;
	}
	return e;
}

static void cut(enum iomap_accounting mode, uint32_t block, unsigned pattern, uint64_t size)
{
	uint8_t dirty[FOLIO / 512] = { 0 };
	struct iomap_cache_stat before, after;
	struct expected e;

	up(mode, block);
	write_byte(0, FOLIO, 'a');
	ck_assert_int_eq(iomap_fsync(rig.file), 0);
	ck_assert_uint_eq(t_rig_stat(&rig).folios[4], 1);
	for (unsigned b = 0; b < FOLIO / block; b++) {
		dirty[b] = pattern == 0 || (pattern == 1 && b % 3 == 1) || (pattern == 2 && b == FOLIO / block - 1) ||
			   (pattern == 3 && b == 0);
		if (dirty[b])
			write_byte((uint64_t)b * block, block, 'b' + (int)(b % 20));
	}
	before = t_rig_stat(&rig);
	ck_assert_int_eq(iomap_ftruncate(rig.file, (off_t)size), 0);
	after = t_rig_stat(&rig);
	e = recount(mode, block, dirty, size);
	ck_assert_uint_eq(after.dirty_bytes, e.dirty);
	ck_assert_uint_eq(after.pinned_bytes, e.pinned);
	ck_assert_uint_eq(after.cancelled_bytes - before.cancelled_bytes, before.dirty_bytes - e.dirty);
	ck_assert_uint_eq(after.pin_dropped_bytes - before.pin_dropped_bytes, before.pinned_bytes - e.pinned);
	ck_assert_uint_eq(after.dirtied_bytes, before.dirtied_bytes);
	ck_assert_uint_eq(after.splits - before.splits, e.splits);
	ck_assert_uint_eq(after.split_failures, 0);
	t_rig_check(&rig);
	expect_nothing_beyond(size);
	expect_contents(size);
	ck_assert_int_eq(iomap_fsync(rig.file), 0);
	ck_assert_uint_eq(t_rig_stat(&rig).written_bytes - before.written_bytes, e.dirty);
	ck_assert_uint_eq(t_hold_size(rig.hold), size);
	t_hold_peek(rig.hold, buf, size, 0);
	ck_assert_int_eq(memcmp(buf, want, size), 0);
	/* Grown again, what was cut off is zeros. */
	ck_assert_int_eq(iomap_ftruncate(rig.file, FOLIO), 0);
	memset(want + size, 0, FOLIO - size);
	expect_contents(FOLIO);
	ck_assert_int_eq(iomap_fsync(rig.file), 0);
	ck_assert(t_drops_all(rig.cache));
	ck_assert_uint_eq(t_rig_stat(&rig).cached_bytes, 0);
	expect_contents(FOLIO);
	t_rig_down(&rig);
}

/* _i: mode + 3 * block */
START_TEST(cut_inside_a_dirty_folio_is_exact)
{
	static const uint32_t blocks[] = { 1024, 4096, 16384 };
	static const uint64_t sizes[] = { 1, 1024, 4097, 10000, 16384, 32767, 32768, 32769, 65535 };

	for (unsigned s = 0; s < ARRAY_SIZE(sizes); s++)
		for (unsigned pattern = 0; pattern < 4; pattern++)
			cut(modes[_i % 3], blocks[_i / 3], pattern, sizes[s]);
}
END_TEST

START_TEST(cut_to_nothing_leaves_nothing)
{
	struct iomap_cache_stat s;

	up(modes[_i], 4096);
	write_byte(0, 300000, 'x');
	ck_assert_int_eq(iomap_ftruncate(rig.file, 0), 0);
	s = t_rig_stat(&rig);
	ck_assert_uint_eq(s.dirty_bytes, 0);
	ck_assert_uint_eq(s.pinned_bytes, 0);
	ck_assert_uint_eq(s.cached_bytes, 0);
	ck_assert_uint_eq(s.cancelled_bytes, s.dirtied_bytes);
	expect_contents(0);
	ck_assert_int_eq(iomap_fsync(rig.file), 0);
	ck_assert_uint_eq(t_rig_io(&rig).written_bytes, 0);
	t_rig_down(&rig);
}
END_TEST

START_TEST(cut_at_the_end_or_beyond_moves_nothing)
{
	up(IOMAP_ACCT_BLOCK, 4096);
	write_byte(0, 10000, 'x');
	ck_assert_int_eq(iomap_ftruncate(rig.file, 10000), 0);
	ck_assert_uint_eq(t_rig_stat(&rig).cancelled_bytes, 0);
	ck_assert_uint_eq(t_rig_stat(&rig).splits, 0);
	ck_assert_int_eq(iomap_ftruncate(rig.file, 20000), 0);
	memset(want + 10000, 0, 10000);
	expect_contents(20000);
	ck_assert_uint_eq(t_rig_stat(&rig).cancelled_bytes, 0);
	t_rig_down(&rig);
}
END_TEST

/*
 * A 2 MiB folio of 512 blocks needs a bitmap for each half. Whichever allocation fails, the file is cut; where it is
 * that one, the folio stays whole and is trimmed.
 */
START_TEST(without_memory_for_bitmaps_the_folio_is_trimmed)
{
	static struct t_alloc alloc;
	enum { SIZE = 10000 };
	bool reached = true, trimmed = false;

	for (uint64_t n = 1; reached; n++) {
		struct iomap_cache_stat before, after;
		uint64_t dirty = 12288;

		t_rig_init(&rig);
		t_alloc_init(&alloc);
		rig.params.allocator = &alloc.ops;
		rig.params.memory_bytes = 32 * MIB;
		rig.params.max_folio_bytes = 2 * MIB;
		rig.params.dirty_bytes = 32 * MIB;      /* a write's steps, and so its folios, are at most a 16th of it */
		rig.device_params.capacity = 4 * MIB;
		rig.params.accounting = modes[_i];
		t_rig_up(&rig);
		write_byte(0, 2 * MIB, 'a');
		ck_assert_int_eq(iomap_fsync(rig.file), 0);
		ck_assert_uint_eq(t_rig_stat(&rig).folios[9], 1);
		write_byte(0, 2 * MIB, 'b');
		before = t_rig_stat(&rig);
		t_alloc_fail(&alloc, n);
		ck_assert_int_eq(iomap_ftruncate(rig.file, SIZE), 0);
		reached = alloc.calls >= n;
		t_alloc_fail(&alloc, 0);
		after = t_rig_stat(&rig);
		if (after.split_failures) {
			trimmed = true;
			if (modes[_i] == IOMAP_ACCT_FOLIO)
				dirty = after.pinned_bytes;     /* the folio, as far as it could be split */
			ck_assert_uint_gt(after.pinned_bytes, 12288);
		} else {
			ck_assert_uint_eq(after.pinned_bytes, 12288);
		}
		ck_assert_uint_eq(after.dirty_bytes, dirty);
		ck_assert_uint_eq(after.cancelled_bytes - before.cancelled_bytes, 2 * MIB - dirty);
		ck_assert_uint_eq(after.pin_dropped_bytes - before.pin_dropped_bytes, 2 * MIB - after.pinned_bytes);
		t_rig_check(&rig);
		expect_nothing_beyond(round_up(SIZE, 4096));
		expect_contents(SIZE);
		t_rig_reset(&rig);
		ck_assert_int_eq(iomap_fsync(rig.file), 0);
		ck_assert_uint_eq(t_rig_io(&rig).written_bytes, SIZE);
		ck_assert_uint_eq(t_hold_size(rig.hold), SIZE);
		ck_assert_int_eq(iomap_ftruncate(rig.file, FOLIO), 0);
		memset(want + SIZE, 0, FOLIO - SIZE);
		expect_contents(FOLIO);
		t_rig_down(&rig);
		ck_assert_int_eq(alloc.bytes, 0);
	}
	ck_assert(trimmed);
}
END_TEST

START_TEST(what_is_in_flight_ends_before_its_range_is_cut)
{
	struct t_call fsync_call, truncate_call;

	up(IOMAP_ACCT_BLOCK, 4096);
	write_byte(0, 4 * FOLIO, 'a');
	ck_assert_int_eq(iomap_fsync(rig.file), 0);
	write_byte(0, 4 * FOLIO, 'b');
	t_hold_park(rig.hold, T_HOLD_WRITE, 0, 0);
	t_call_fsync(&fsync_call, rig.file);
	ck_assert(t_hold_wait_parked(rig.hold, 1));
	t_call_truncate(&truncate_call, rig.file, 5000);
	ck_assert(!t_call_done(&fsync_call));
	t_hold_release(rig.hold);
	ck_assert_int_eq(t_call_wait(&truncate_call), 0);
	ck_assert_int_eq(t_call_wait(&fsync_call), 0);
	t_call_free(&truncate_call);
	t_call_free(&fsync_call);
	expect_contents(5000);
	expect_nothing_beyond(5000);
	ck_assert_uint_eq(t_hold_size(rig.hold), 5000);         /* no request made it longer again */
	ck_assert_int_eq(iomap_fsync(rig.file), 0);
	t_rig_down(&rig);
}
END_TEST

START_TEST(what_failed_beyond_the_cut_is_forgotten)
{
	struct iomap_failed_range r;

	up(modes[_i], 4096);
	write_byte(0, FOLIO, 'a');
	t_hold_fail(rig.hold, T_HOLD_WRITE, 0, 0, EIO);
	ck_assert_int_eq(iomap_fsync(rig.file), -EIO);
	ck_assert_uint_eq(t_rig_stat(&rig).failed_bytes, FOLIO);
	ck_assert_int_eq(iomap_ftruncate(rig.file, 4096), 0);
	ck_assert_uint_eq(t_rig_stat(&rig).failed_bytes, 4096);
	ck_assert_int_eq(iomap_failed_ranges(rig.file, &r, 1), 1);
	ck_assert_uint_eq(r.pos, 0);
	ck_assert_uint_eq(r.len, 4096);
	ck_assert_int_eq(r.error, -EIO);
	ck_assert_int_eq(iomap_ftruncate(rig.file, 0), 0);
	ck_assert_uint_eq(t_rig_stat(&rig).failed_bytes, 0);
	ck_assert_int_eq(iomap_failed_ranges(rig.file, NULL, 0), 0);
	t_hold_heal(rig.hold);
	ck_assert_int_eq(iomap_fsync(rig.file), 0);
	t_rig_down(&rig);
}
END_TEST

START_TEST(clean_folios_inside_go_and_others_stay)
{
	struct mapping *m;
	struct iomap_folio *held;

	up(IOMAP_ACCT_BLOCK, 4096);
	write_byte(0, 6 * FOLIO, 'a');
	ck_assert_int_eq(iomap_fsync(rig.file), 0);
	m = &rig.file->inode->mapping;
	ck_assert_uint_eq(t_rig_stat(&rig).folios[4], 6);
	write_byte(FOLIO, 1, 'b');                      /* pages 16 … 31: dirty */
	held = mapping_get(m, 40);                      /* 32 … 47: in use */
	ck_assert_uint_eq(invalidate_clean(m, 1, 79), 16 + 16 + 16);    /* the first begins before the range */
	ck_assert(mapping_has(m, 0) && mapping_has(m, 16) && mapping_has(m, 32));
	ck_assert(!mapping_has(m, 48) && !mapping_has(m, 64) && mapping_has(m, 80));
	folio_put(m->zone, held);
	ck_assert_uint_eq(invalidate_clean(m, 0, UINT64_MAX >> PAGE_SHIFT), 16);
	expect_contents(6 * FOLIO);
	t_rig_down(&rig);
}
END_TEST

START_TEST(discarded_blocks_are_read_from_the_device_again)
{
	struct mapping *m;
	struct iomap_cache_stat before, after;

	up(IOMAP_ACCT_BLOCK, 4096);
	write_byte(0, FOLIO, 'a');
	ck_assert_int_eq(iomap_fsync(rig.file), 0);
	t_rig_write(&rig, 8192, 8192, 'x');             /* blocks 2, 3: cannot be written, to be given up */
	t_hold_fail(rig.hold, T_HOLD_WRITE, 8192, 8192, EIO);
	ck_assert_int_eq(iomap_fsync(rig.file), -EIO);
	t_hold_heal(rig.hold);
	write_byte(20480, 4096, 'b');                   /* block 5 is dirty, but has not failed */
	m = &rig.file->inode->mapping;
	before = t_rig_stat(&rig);
	ck_assert_uint_eq(before.dirty_bytes, 12288);
	discard_failed(m, 8192 + 1, 16384);             /* block 3 alone lies wholly inside */
	ck_assert_uint_eq(t_rig_stat(&rig).dirty_bytes, 8192);
	discard_failed(m, 0, FOLIO);
	after = t_rig_stat(&rig);
	ck_assert_uint_eq(after.dirty_bytes, 4096);
	ck_assert_uint_eq(after.cancelled_bytes - before.cancelled_bytes, 8192);
	expect_contents(FOLIO);
	ck_assert_int_eq(iomap_fsync(rig.file), 0);
	expect_contents(FOLIO);
	t_rig_down(&rig);
}
END_TEST

/* --- a device that cannot be cut ------------------------------------------------------------------------ */

/* Its contents are @want. */
static struct iomap_device *stubborn;
static _Atomic int set_size_answer;

static int stubborn_submit(struct iomap_device *device, struct iomap_request **reqs, unsigned n)
{
	(void)device;
	for (unsigned i = 0; i < n; i++) {
		struct iomap_request *r = reqs[i];
		uint64_t pos = r->pos, len = 0;

		for (int v = 0; v < r->iovcnt; v++) {
			if (r->op == IOMAP_REQ_READ)
				memcpy(r->iov[v].iov_base, want + pos + len, r->iov[v].iov_len);
			else
				memcpy(want + pos + len, r->iov[v].iov_base, r->iov[v].iov_len);
			len += r->iov[v].iov_len;
		}
		r->result = (int64_t)len;
		r->done(r);
	}
	return (int)n;
}

static int stubborn_flush(struct iomap_device *device, struct iomap_request *r)
{
	(void)device;
	r->result = 0;
	r->done(r);
	return 0;
}

static int stubborn_set_size(struct iomap_device *device, uint64_t size)
{
	(void)device;
	(void)size;
	return load_relaxed(&set_size_answer);
}

static void stubborn_destroy(struct iomap_device *device)
{
	(void)device;
}

/* "… or -EIO or what the device said; the size is the old one then." */
START_TEST(size_the_device_refuses_is_not_the_files)
{
	static const struct iomap_device_ops ops = {
		.submit = stubborn_submit, .flush = stubborn_flush, .set_size = stubborn_set_size,
		.destroy = stubborn_destroy,
	};
	struct iomap_device_info info = { .block = 512, .mem_align = 512, .size = 65536 };
	struct iomap_cache_params p = IOMAP_CACHE_PARAMS_INIT;
	struct iomap_file_params fp = IOMAP_FILE_PARAMS_INIT;
	struct iomap_cache *cache;
	struct iomap_file *file;

	memset(want, 's', FOLIO);
	store_relaxed(&set_size_answer, -EIO);
	ck_assert_int_eq(iomap_device_create(&ops, NULL, &info, &stubborn), 0);
	p.memory_bytes = 16 * MIB;
	ck_assert_int_eq(iomap_cache_create(&cache, &p), 0);
	fp.device = stubborn;
	ck_assert_int_eq(iomap_open_with(cache, NULL, O_RDWR, 0, &fp, &file), 0);
	ck_assert_int_eq(iomap_ftruncate(file, 100000), -EIO);
	ck_assert_int_eq(iomap_size(file), 65536);
	ck_assert_int_eq(iomap_ftruncate(file, 5000), -EIO);
	ck_assert_int_eq(iomap_size(file), 65536);
	ck_assert_int_eq(iomap_pread(file, buf, sizeof(buf), 0), 65536);
	ck_assert_int_eq(buf[0], 's');
	ck_assert_int_eq(buf[5001], 's');
	store_relaxed(&set_size_answer, 0);
	ck_assert_int_eq(iomap_ftruncate(file, 5000), 0);
	ck_assert_int_eq(iomap_size(file), 5000);
	ck_assert_int_eq(iomap_close(file), 0);
	ck_assert_int_eq(iomap_cache_destroy(cache), 0);
	ck_assert_int_eq(iomap_device_close(stubborn), 0);
}
END_TEST

Suite *suite_truncate(void)
{
	Suite *s = suite_create("truncate");
	TCase *tc = tcase_create("truncate");

	suite_add_tcase(s, tc);
	tcase_set_timeout(tc, 120);
	tcase_add_loop_test(tc, cut_inside_a_dirty_folio_is_exact, 0, 9);
	tcase_add_loop_test(tc, cut_to_nothing_leaves_nothing, 0, 3);
	tcase_add_test(tc, cut_at_the_end_or_beyond_moves_nothing);
	tcase_add_loop_test(tc, without_memory_for_bitmaps_the_folio_is_trimmed, 0, 3);
	tcase_add_test(tc, what_is_in_flight_ends_before_its_range_is_cut);
	tcase_add_loop_test(tc, what_failed_beyond_the_cut_is_forgotten, 0, 3);
	tcase_add_test(tc, clean_folios_inside_go_and_others_stay);
	tcase_add_test(tc, discarded_blocks_are_read_from_the_device_again);
	tcase_add_test(tc, size_the_device_refuses_is_not_the_files);
	return s;
}
