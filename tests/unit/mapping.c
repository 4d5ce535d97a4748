/*
 * mapping.c - the page cache of one file: what is looked up, added, removed and split, and the marks
 */
#include <check.h>
#include <errno.h>
#include <string.h>
#include "alloc.h"
#include "mapping.h"
#include "test.h"

Suite *suite_mapping(void);

#define MEMORY (UINT64_C(24) << 20)
#define MIB2   (UINT64_C(2) << 20)

static struct zone zone;
static struct t_alloc alloc;
static struct wb *wb;
static struct wb_peaks peaks;
static struct wb_sums sums;
static struct mapping m;
static unsigned nr_added, nr_removed, nr_short, nr_low;
static bool removed_ones_are_held;      /* somebody has a reference to a folio that is not in the tree any more */

static void added(struct mapping *mapping, struct iomap_folio *f, bool read)
{
	(void)read;
	ck_assert_ptr_eq(folio_mapping(f), mapping);
	ck_assert(folio_is_locked(f));
	nr_added++;
}

static void removed(struct mapping *mapping, struct iomap_folio *f, bool gone)
{
	(void)gone;
	ck_assert_ptr_eq(folio_mapping(f), mapping);
	ck_assert(folio_is_locked(f));
	nr_removed++;
}

static int memory_short(struct mapping *mapping, unsigned order, bool may_wait)
{
	(void)mapping;
	(void)order;
	(void)may_wait;
	nr_short++;
	return -ENOMEM;
}

static void memory_low(struct mapping *mapping)
{
	(void)mapping;
	nr_low++;
}

static const struct mapping_ops ops = {
	.added = added, .removed = removed, .memory_short = memory_short, .memory_low = memory_low,
};

static void start(unsigned block_shift, unsigned granule)
{
	struct ifs_geometry geom = { .block_shift = (uint8_t)block_shift, .granule = granule };

	memset(&sums, 0, sizeof(sums));
	memset(&peaks, 0, sizeof(peaks));
	nr_added = nr_removed = nr_short = nr_low = 0;
	t_alloc_init(&alloc);
	ck_assert_int_eq(mem_init(&zone.mem, &alloc.ops), 0);
	ck_assert_int_eq(arena_init(&zone.arena, MEMORY), 0);
	wait_table_init(&zone.waits);
	ck_assert_int_eq(wb_create(&zone, &peaks, &sums, 16, &wb), 0);
	mapping_init(&m, &zone, wb, &ops, NULL, geom, MAX_ORDER);
	m.low_bytes = 0;
}

static uint64_t total(enum wb_total t) { return load_relaxed(&wb->total[t]); }

/* The mapping's own check, and the counters against what it added up (D1, D2, D3, D5). */
static struct mapping_sums check(void)
{
	struct mapping_sums s = { 0 };
	char why[400];

	if (mapping_check(&m, &s, why, sizeof(why)))
		ck_abort_msg("%s", why);
	ck_assert_int_eq(s.dirty, load_relaxed(&wb->level[WB_DIRTY]));
	ck_assert_int_eq(s.writeback, load_relaxed(&wb->level[WB_WRITEBACK]));
	ck_assert_int_eq(s.pinned, load_relaxed(&wb->level[WB_PINNED]));
	ck_assert_int_eq(s.failed, load_relaxed(&wb->level[WB_FAILED]));
	ck_assert_int_eq(s.dontcache, load_relaxed(&wb->level[WB_DONTCACHE]));
	ck_assert_int_eq(s.dontcache_files, s.dontcache);
	ck_assert_uint_eq(total(WB_DIRTIED) + total(WB_REDIRTIED),
			  (uint64_t)s.dirty + total(WB_SUBMITTED) + total(WB_CANCELLED));
	ck_assert_uint_eq(total(WB_SUBMITTED), (uint64_t)s.writeback + total(WB_WRITTEN) + total(WB_WRITE_FAILED));
	ck_assert_uint_eq(total(WB_PIN_ACQUIRED) - total(WB_PIN_RELEASED) - total(WB_PIN_DROPPED), (uint64_t)s.pinned);
	for (enum wb_level l = 0; l < WB_LEVELS; l++)
		ck_assert_int_eq(load_relaxed(&wb->level[l]), load_relaxed(&sums.level[l]));
	ck_assert(removed_ones_are_held || MEMORY - arena_free_bytes(&zone.arena) == s.pages * PAGE_BYTES);
	if (arena_check(&zone.arena, why, sizeof(why)))
		ck_abort_msg("%s", why);
	return s;
}

static void unlock_put(struct iomap_folio *f)
{
	folio_unlock(&zone, f);
	folio_put(&zone, f);
}

static struct iomap_folio *create(pgoff_t index, unsigned order)
{
	struct iomap_folio *f = NULL;

	ck_assert_int_eq(mapping_create(&m, index, order, 0, &f), 0);
	ck_assert(folio_is_locked(f));
	return f;
}

static unsigned create_order(pgoff_t index, unsigned order)
{
	struct iomap_folio *f = create(index, order);
	unsigned got = folio_order(f);

	ck_assert_uint_le(folio_index(f), index);
	ck_assert_uint_lt(index - folio_index(f), folio_pages(f));
	unlock_put(f);
	check();
	return got;
}

static struct iomap_folio *lock(pgoff_t index)
{
	struct iomap_folio *f = mapping_get_locked(&m, index);

	ck_assert_ptr_nonnull(f);
	return f;
}

static void drop(pgoff_t index)
{
	struct iomap_folio *f = lock(index);

	mapping_cancel(&m, f, 0, ifs_blocks(f, &m.geom));
	mapping_remove(&m, f);
	ck_assert_ptr_null(folio_mapping(f));
	unlock_put(f);
}

static void drop_all(void)
{
	struct iomap_folio *f;
	pgoff_t at = 0;

	while ((f = mapping_next(&m, &at, UINT64_MAX))) {
		folio_put(&zone, f);
		drop(at);
	}
}

static void dirty(pgoff_t index, unsigned first, unsigned nr)
{
	struct iomap_folio *f = lock(index);

	mapping_set_uptodate(&m, f, first, nr);
	mapping_set_dirty(&m, f, first, nr);
	unlock_put(f);
}

static void end(void)
{
	drop_all();
	check();
	ck_assert(mapping_is_empty(&m));
	ck_assert_uint_eq(nr_added, nr_removed);
	mapping_fini(&m);
	rcu_drain();
	wb_destroy(wb);
	ck_assert_uint_eq(mem_bytes(&zone.mem), 0);
	mem_fini(&zone.mem);
	ck_assert_int_eq(alloc.bytes, 0);
	ck_assert_uint_eq(arena_free_bytes(&zone.arena), MEMORY);
	arena_fini(&zone.arena);
	wait_table_fini(&zone.waits);
}

/* --- create --------------------------------------------------------------------------------------------- */

START_TEST(order_is_what_alignment_allows)
{
	static const struct { pgoff_t index; unsigned asked, got; } cases[] = {
		{ 0, 9, 9 }, { 512, 10, 9 }, { 1024 + 256, 9, 8 }, { 1024 + 1, 9, 0 }, { 1024 + 2, 9, 1 },
		{ 1024 + 12, 9, 2 }, { 1024 + 12 + 512, 1, 1 }, { UINT64_C(1) << 51, 3, 3 }, { (UINT64_C(1) << 51) - 1, 9, 0 },
		{ (UINT64_C(1) << 51) - 64, 9, 5 },     /* bounded by the last case */
	};

	start(12, GRANULE_BLOCK);
	for (unsigned i = 0; i < ARRAY_SIZE(cases); i++)
		ck_assert_uint_eq(create_order(cases[i].index, cases[i].asked), cases[i].got);
	store_relaxed(&m.max_order, 4);
	ck_assert_uint_eq(create_order(4096, 9), 4);
	ck_assert_uint_eq(nr_low, 0);
	m.low_bytes = MEMORY;                   /* reclaim hears of it when little is left */
	create_order(8192, 0);
	ck_assert_uint_eq(nr_low, 1);
	ck_assert_uint_eq(nr_added, ARRAY_SIZE(cases) + 2);
	end();
}
END_TEST

START_TEST(neighbour_in_the_way_makes_it_smaller)
{
	start(12, GRANULE_BLOCK);
	ck_assert_uint_eq(create_order(5, 0), 0);
	ck_assert_uint_eq(create_order(0, 9), 2);
	ck_assert_uint_eq(create_order(4, 2), 0);
	ck_assert_uint_eq(create_order(6, 9), 1);
	ck_assert_uint_eq(create_order(8, 9), 3);
	ck_assert_uint_eq(create_order(512 + 256, 0), 0);
	ck_assert_uint_eq(create_order(512, 9), 8);
	end();
}
END_TEST

START_TEST(taken_index_is_said_so)
{
	struct iomap_folio *f = (void *)1;

	start(12, GRANULE_BLOCK);
	create_order(16, 4);
	for (pgoff_t i = 16; i < 32; i++) {
		ck_assert_int_eq(mapping_create(&m, i, 4, 0, &f), -EEXIST);
		ck_assert_int_eq(mapping_create(&m, i, 0, MAPPING_EXACT, &f), -EEXIST);
		ck_assert(mapping_has(&m, i));
	}
	ck_assert(!mapping_has(&m, 15));
	ck_assert(!mapping_has(&m, 32));
	ck_assert_uint_eq(check().pages, 16);
	end();
}
END_TEST

START_TEST(exact_order_or_none)
{
	struct iomap_folio *f;

	start(12, GRANULE_BLOCK);
	create_order(7, 0);
	ck_assert_int_lt(mapping_create(&m, 0, 3, MAPPING_EXACT, &f), 0);       /* a neighbour */
	ck_assert_uint_eq(check().pages, 1);
	ck_assert_int_eq(mapping_create(&m, 0, 2, MAPPING_EXACT, &f), 0);
	ck_assert_uint_eq(folio_order(f), 2);
	unlock_put(f);
	/* No such run: every second frame is taken, as in an old cache. */
	for (unsigned i = 0; arena_free_bytes(&zone.arena); i++)
		unlock_put(create(4096 + i, 0));
	for (unsigned i = 0; i < 64; i += 2)
		drop(4096 + i);
	ck_assert_int_eq(mapping_create(&m, 65536, 3, MAPPING_EXACT, &f), -ENOMEM);
	ck_assert_uint_eq(nr_short, 0);         /* there is plenty, in pieces: nothing goes for it */
	m.low_bytes = MEMORY;
	ck_assert_int_eq(mapping_create(&m, 65536, 3, MAPPING_EXACT, &f), -ENOMEM);
	ck_assert_uint_gt(nr_short, 0);
	ck_assert_int_eq(mapping_create(&m, 65536, 3, 0, &f), 0);       /* a smaller one will do */
	ck_assert_uint_eq(folio_order(f), 0);
	unlock_put(f);
	end();
}
END_TEST

START_TEST(no_folio_is_smaller_than_a_block)
{
	struct iomap_folio *f;

	start(15, GRANULE_BLOCK);       /* eight pages */
	ck_assert_uint_eq(m.min_order, 3);
	ck_assert_uint_eq(create_order(9, 0), 3);
	ck_assert(mapping_has(&m, 8) && mapping_has(&m, 15) && !mapping_has(&m, 16));
	store_relaxed(&m.max_order, 0);
	ck_assert_uint_eq(create_order(17, 0), 3);
	f = lock(17);
	ck_assert_int_eq(mapping_halve(&m, f, &f), -EINVAL);
	unlock_put(f);
	end();
}
END_TEST

START_TEST(failing_allocation_leaves_all_as_it_was)
{
	static const pgoff_t at = (UINT64_C(1) << 40) + 512;

	for (unsigned exact = 0; exact < 2; exact++) {
		bool reached = true;

		for (uint64_t n = 1; reached; n++) {
			struct iomap_folio *f = NULL;
			uint64_t bytes;
			int ret;

			start(12, GRANULE_BLOCK);
			create_order(0, 9);
			dirty(0, 3, 400);
			rcu_drain();
			bytes = mem_bytes(&zone.mem);
			t_alloc_fail(&alloc, n);
			ret = mapping_create(&m, at, 9, exact ? MAPPING_EXACT : 0, &f);
			reached = alloc.calls >= n;
			if (!reached || !ret) {
				ck_assert_int_eq(ret, 0);
				ck_assert(folio_order(f) == 9 || !exact);
				unlock_put(f);
			} else {
				ck_assert_int_eq(ret, -ENOMEM);
				ck_assert_uint_eq(check().pages, 512);
				rcu_drain();
				ck_assert_uint_eq(mem_bytes(&zone.mem), bytes);
				ck_assert_uint_eq(nr_added, 1);
				t_alloc_fail(&alloc, 0);
				ck_assert_uint_eq(create_order(at, 9), 9);
			}
			end();
		}
	}
}
END_TEST

/* --- lookup and remove ---------------------------------------------------------------------------------- */

START_TEST(lookup_finds_the_folio_over_a_page)
{
	struct iomap_folio *f, *g;
	pgoff_t at;

	start(12, GRANULE_BLOCK);
	ck_assert_ptr_null(mapping_get(&m, 0));
	ck_assert_ptr_null(mapping_get_locked(&m, 0));
	ck_assert_int_eq(mapping_get_trylocked(&m, 0, &f), 0);
	ck_assert_ptr_null(f);
	f = create(16, 4);
	for (pgoff_t i = 16; i < 32; i++) {
		g = mapping_get(&m, i);
		ck_assert_ptr_eq(g, f);
		folio_put(&zone, g);
		ck_assert_int_eq(mapping_get_trylocked(&m, i, &g), -EAGAIN);
	}
	ck_assert_uint_eq(load_relaxed(&f->refs), 2);
	folio_unlock(&zone, f);
	ck_assert_int_eq(mapping_get_trylocked(&m, 31, &g), 0);
	ck_assert_ptr_eq(g, f);
	unlock_put(g);
	folio_put(&zone, f);
	create_order(64, 0);

	at = 0;
	ck_assert_ptr_eq(f = mapping_next(&m, &at, 15), NULL);
	at = 0;
	f = mapping_next(&m, &at, 16);
	ck_assert_uint_eq(at, 16);
	folio_put(&zone, f);
	at = 30;                                /* begins before, ends after */
	f = mapping_next(&m, &at, 30);
	ck_assert_ptr_nonnull(f);
	ck_assert_uint_eq(at, 16);
	folio_put(&zone, f);
	at = 32;
	f = mapping_next(&m, &at, UINT64_MAX);
	ck_assert_uint_eq(at, 64);
	folio_put(&zone, f);
	at = 65;
	ck_assert_ptr_null(mapping_next(&m, &at, UINT64_MAX));
	end();
}
END_TEST

START_TEST(removed_folio_lives_as_long_as_its_references)
{
	struct iomap_folio *f;
	uint32_t identity;

	start(12, GRANULE_BLOCK);
	f = create(8, 3);
	identity = folio_identity(f);
	ck_assert(!(identity & 1));
	folio_get(f);
	mapping_remove(&m, f);
	ck_assert(!mapping_has(&m, 8));
	ck_assert_uint_eq(folio_identity(f), identity + 2);
	unlock_put(f);
	ck_assert_uint_eq(MEMORY - arena_free_bytes(&zone.arena), 8 * PAGE_BYTES);
	removed_ones_are_held = true;
	create_order(8, 3);
	folio_put(&zone, f);
	removed_ones_are_held = false;
	ck_assert_uint_eq(check().pages, 8);
	end();
}
END_TEST

/* --- split ---------------------------------------------------------------------------------------------- */

/* Halves everything over [0, pages) until each folio is of @order. */
static unsigned split_down(pgoff_t pages, unsigned order)
{
	unsigned splits = 0;

	for (pgoff_t i = 0; i < pages; ) {
		struct iomap_folio *f = lock(i), *right;

		while (folio_order(f) > order) {
			uint32_t identity = folio_identity(f);

			ck_assert_int_eq(mapping_halve(&m, f, &right), 0);
			splits++;
			ck_assert_uint_gt(folio_identity(f), identity);
			ck_assert(!(folio_identity(f) & 1) && !(folio_identity(right) & 1));
			ck_assert_ptr_eq(folio_addr(&zone, right), folio_addr(&zone, f) + folio_bytes(f));
			unlock_put(right);
		}
		i += folio_pages(f);
		unlock_put(f);
	}
	return splits;
}

/* T49 */
START_TEST(split_moves_no_dirty_byte_and_frees_what_is_clean)
{
	for (unsigned granule = GRANULE_BLOCK; granule <= GRANULE_FOLIO; granule++) {
		struct mapping_sums s;

		start(12, granule);
		create_order(0, 9);
		dirty(0, 0, 1);
		dirty(0, 256, 1);
		s = check();
		ck_assert_int_eq(s.dirty, granule == GRANULE_FOLIO ? MIB2 : 8192);
		ck_assert_int_eq(s.pinned, MIB2);
		ck_assert_uint_eq(split_down(512, 0), 511);
		s = check();
		ck_assert_int_eq(s.dirty, 8192);
		ck_assert_int_eq(s.pinned, 8192);
		ck_assert_uint_eq(total(WB_PIN_DROPPED), 2088960);
		ck_assert_uint_eq(total(WB_CANCELLED), granule == GRANULE_FOLIO ? MIB2 - 8192 : 0);
		ck_assert_uint_eq(s.folios[0], 512);
		ck_assert_uint_eq(load_relaxed(&zone.splits), 511);
		store_relaxed(&zone.splits, 0);
		for (unsigned i = 0; i < 512; i++) {
			struct iomap_folio *f = lock(i);

			ck_assert(folio_is_dirty(f) == (i == 0 || i == 256));
			ck_assert(folio_is_uptodate(f) == (i == 0 || i == 256));
			unlock_put(f);
		}
		/* Then every child is dirtied and all of it written. */
		for (unsigned i = 0; i < 512; i++)
			dirty(i, 0, 1);
		ck_assert_int_eq(check().dirty, MIB2);
		ck_assert_int_eq(check().pinned, MIB2);
		for (unsigned i = 0; i < 512; i++) {
			struct iomap_folio *f = lock(i);
			struct block_set set;
			bool busy;

			ck_assert(mapping_claim(&m, f, 0, 1, false, &set, &busy));
			mapping_complete(&m, f, 0, 1, 0, true);
			unlock_put(f);
		}
		s = check();
		ck_assert_int_eq(s.dirty + s.writeback + s.pinned, 0);
		end();
	}
}
END_TEST

/* In each accounting mode: the charge follows a write, a split, a failed request, a cancel, and the flag itself. */
START_TEST(dirty_bytes_of_dontcache_folios_are_exact)
{
	for (unsigned granule = GRANULE_BLOCK; granule <= GRANULE_FOLIO; granule++) {
		struct iomap_folio *f, *right;
		struct block_set set;
		bool busy;

		start(12, granule);
		ck_assert_int_eq(mapping_create(&m, 0, 4, MAPPING_DROPBEHIND | MAPPING_WRITE, &f), 0);
		mapping_set_uptodate(&m, f, 0, 16);
		mapping_set_dirty(&m, f, 0, 1);
		mapping_set_dirty(&m, f, 9, 2);
		ck_assert_int_eq(check().dontcache, granule == GRANULE_FOLIO ? 65536 : 3 * 4096);
		ck_assert_int_eq(mapping_halve(&m, f, &right), 0);
		ck_assert(folio_flags(right) & FOLIO_DROPBEHIND);
		ck_assert_int_eq(check().dontcache, granule == GRANULE_FOLIO ? 65536 : 3 * 4096);
		mapping_keep(&m, f);                    /* the left half alone */
		ck_assert_int_eq(check().dontcache, granule == GRANULE_FOLIO ? 32768 : 2 * 4096);
		ck_assert_int_eq(check().dirty, granule == GRANULE_FOLIO ? 65536 : 3 * 4096);
		ck_assert(mapping_claim(&m, right, 0, 8, false, &set, &busy));
		ck_assert_int_eq(check().dontcache, 0);
		mapping_complete(&m, right, 1, 2, -EIO, true);
		ck_assert_int_eq(check().dontcache, granule == GRANULE_FOLIO ? 32768 : 2 * 4096);
		mapping_cancel(&m, right, 1, 1);
		ck_assert_int_eq(check().dontcache, granule == GRANULE_FOLIO ? 32768 : 4096);
		ck_assert(mapping_claim(&m, right, 0, 8, true, &set, &busy));
		mapping_set_dirty(&m, right, 2, 1);     /* dirty and in flight */
		ck_assert_int_eq(check().dontcache, granule == GRANULE_FOLIO ? 32768 : 4096);
		mapping_keep(&m, right);
		ck_assert_int_eq(check().dontcache, 0);
		mapping_complete(&m, right, 2, 1, -EIO, true);
		ck_assert_int_eq(check().dontcache, 0);
		unlock_put(right);
		unlock_put(f);
		end();
		store_relaxed(&zone.splits, 0);
	}
}
END_TEST

/* Under DROP a failed block is given up, and what the cache has of it is the only copy. */
START_TEST(a_dontcache_folio_whose_write_was_given_up_stays)
{
	struct iomap_folio *f;
	struct block_set set;
	bool busy;

	start(12, GRANULE_BLOCK);
	ck_assert_int_eq(mapping_create(&m, 0, 0, MAPPING_DROPBEHIND | MAPPING_WRITE, &f), 0);
	mapping_set_uptodate(&m, f, 0, 1);
	mapping_set_dirty(&m, f, 0, 1);
	ck_assert(mapping_claim(&m, f, 0, 1, false, &set, &busy));
	ck_assert(!folio_is_droppable(f));
	mapping_complete(&m, f, 0, 1, -EIO, false);
	ck_assert(!folio_is_dirty(f));
	ck_assert(!folio_is_droppable(f));
	check();
	unlock_put(f);
	end();
}
END_TEST

START_TEST(split_keeps_bits_marks_and_the_reason_of_failures)
{
	struct iomap_folio *f, *right;
	struct block_set set;
	bool busy;

	start(10, GRANULE_BLOCK);
	create_order(0, 5);             /* 128 blocks, 64 a half, 16 in the smallest that needs no ifs */
	dirty(0, 10, 1);
	dirty(0, 70, 3);
	f = lock(0);
	ck_assert(mapping_claim(&m, f, 71, 72, false, &set, &busy));
	ck_assert_int_eq(mapping_halve(&m, f, &right), -EBUSY);
	mapping_complete(&m, f, 71, 1, -EIO, true);
	folio_mark_referenced(f);
	folio_unlock(&zone, f);
	folio_put(&zone, f);
	mapping_tag_towrite(&m, 0, 31);
	f = lock(0);
	ck_assert_int_eq(mapping_halve(&m, f, &right), 0);
	ck_assert_int_eq(right->error, -EIO);
	ck_assert_uint_eq(right->tries, 1);
	ck_assert(folio_flags(right) & FOLIO_FAILED);
	ck_assert(folio_flags(right) & FOLIO_REFERENCED);
	ck_assert(!(folio_flags(f) & FOLIO_FAILED));
	ck_assert(ifs_block_set(right, &m.geom, IFS_FAILED, 7));
	for (unsigned b = 0; b < 64; b++) {
		ck_assert(ifs_block_set(f, &m.geom, IFS_DIRTY, b) == (b == 10));
		ck_assert(ifs_block_set(right, &m.geom, IFS_DIRTY, b) == (b >= 6 && b < 9));
		ck_assert(ifs_block_set(right, &m.geom, IFS_UPTODATE, b) == (b >= 6 && b < 9));
	}
	ck_assert(xa_get_mark(&m.tree, 0, XA_MARK_TOWRITE) && xa_get_mark(&m.tree, 16, XA_MARK_TOWRITE));
	ck_assert(xa_get_mark(&m.tree, 0, XA_MARK_DIRTY) && xa_get_mark(&m.tree, 16, XA_MARK_DIRTY));
	unlock_put(right);
	unlock_put(f);
	ck_assert_int_eq(check().failed, 1024);
	split_down(32, 0);
	ck_assert_int_eq(check().dirty, 4096);
	ck_assert_int_eq(check().pinned, 2 * 4096 + 4096 * (70 / 4 != 72 / 4));
	end();
}
END_TEST

START_TEST(split_without_memory_changes_nothing)
{
	bool reached = true;

	for (uint64_t n = 1; reached; n++) {
		struct iomap_folio *f, *right;
		struct mapping_sums before, after;
		uint64_t bytes;
		int ret;

		start(12, GRANULE_BLOCK);
		create_order(0, 9);
		dirty(0, 0, 1);
		dirty(0, 300, 100);
		rcu_drain();
		before = check();
		bytes = mem_bytes(&zone.mem);
		f = lock(0);
		t_alloc_fail(&alloc, n);
		ret = mapping_halve(&m, f, &right);
		reached = alloc.calls >= n;
		if (reached) {
			ck_assert_int_eq(ret, -ENOMEM);
			ck_assert_uint_eq(load_relaxed(&zone.split_failures), 1);
			ck_assert_uint_eq(folio_order(f), 9);
			rcu_drain();
			ck_assert_uint_eq(mem_bytes(&zone.mem), bytes);
			after = check();
			ck_assert_int_eq(memcmp(&before, &after, sizeof(before)), 0);
			ck_assert_int_eq(mapping_halve(&m, f, &right), 0);
		}
		unlock_put(right);
		unlock_put(f);
		store_relaxed(&zone.split_failures, 0);
		end();
	}
}
END_TEST

/* --- marks ---------------------------------------------------------------------------------------------- */

START_TEST(marks_follow_the_bits)
{
	struct iomap_folio *f;
	struct block_set set;
	bool busy;

	start(12, GRANULE_BLOCK);
	create_order(0, 2);
	ck_assert(!mapping_is_marked(&m, XA_MARK_DIRTY));
	dirty(0, 1, 1);
	ck_assert(mapping_is_marked(&m, XA_MARK_DIRTY));
	mapping_tag_towrite(&m, 3, 3);          /* the middle of the folio */
	ck_assert(mapping_is_marked(&m, XA_MARK_TOWRITE));
	f = lock(0);
	ck_assert(!mapping_claim(&m, f, 2, 4, false, &set, &busy));
	ck_assert(!busy);
	ck_assert(mapping_claim(&m, f, 0, 2, false, &set, &busy));
	ck_assert(!mapping_is_marked(&m, XA_MARK_DIRTY) && mapping_is_marked(&m, XA_MARK_WRITEBACK));
	ck_assert(!mapping_is_marked(&m, XA_MARK_TOWRITE));
	ck_assert_uint_eq(mapping_set_dirty(&m, f, 1, 1), 4096);
	ck_assert(mapping_is_marked(&m, XA_MARK_DIRTY));
	ck_assert(!mapping_claim(&m, f, 0, 4, false, &set, &busy));
	ck_assert(busy);
	unlock_put(f);
	check();
	mapping_complete(&m, f, 1, 1, 0, true);
	ck_assert(!mapping_is_marked(&m, XA_MARK_WRITEBACK));
	f = lock(0);
	ck_assert_uint_eq(mapping_set_dirty(&m, f, 1, 1), 0);   /* dirty already */
	mapping_cancel(&m, f, 0, 4);
	ck_assert(!mapping_is_marked(&m, XA_MARK_DIRTY));
	mapping_redirty(&m, f, 1, 1);
	ck_assert(mapping_is_marked(&m, XA_MARK_DIRTY));
	ck_assert_uint_eq(total(WB_REDIRTIED), 4096);
	mapping_clear_towrite(&m, f);
	unlock_put(f);
	check();
	end();
}
END_TEST

START_TEST(tagging_takes_what_is_dirty_now)
{
	start(12, GRANULE_BLOCK);
	for (pgoff_t i = 0; i < 5000; i++) {    /* more than one batch */
		unlock_put(create(i, 0));
		dirty(i, 0, 1);
	}
	check();
	mapping_tag_towrite(&m, 10, 4990);
	check();
	for (pgoff_t i = 0; i < 5000; i++)
		ck_assert(xa_get_mark(&m.tree, i, XA_MARK_TOWRITE) == (i >= 10 && i <= 4990));
	create_order(5000, 0);
	dirty(5000, 0, 1);
	for (pgoff_t i = 10; i <= 4990; i++) {
		struct iomap_folio *f = lock(i);

		mapping_clear_towrite(&m, f);
		unlock_put(f);
	}
	ck_assert(!mapping_is_marked(&m, XA_MARK_TOWRITE));
	end();
}
END_TEST

START_TEST(marked_folios_are_found_in_order_from_their_middle_too)
{
	struct iomap_folio *f;
	pgoff_t at;

	start(12, GRANULE_BLOCK);
	create_order(0, 3);
	create_order(8, 3);
	create_order(16, 0);
	dirty(8, 7, 1);
	dirty(16, 0, 1);
	at = 0;
	f = mapping_next_marked(&m, &at, UINT64_MAX, XA_MARK_DIRTY);
	ck_assert_uint_eq(at, 8);
	folio_put(&zone, f);
	at = 15;
	f = mapping_next_marked(&m, &at, 15, XA_MARK_DIRTY);
	ck_assert_ptr_nonnull(f);
	ck_assert_uint_eq(at, 8);
	folio_put(&zone, f);
	at = 5;
	ck_assert_ptr_null(mapping_next_marked(&m, &at, 7, XA_MARK_DIRTY));
	at = 16;
	f = mapping_next_marked(&m, &at, UINT64_MAX, XA_MARK_DIRTY);
	ck_assert_uint_eq(at, 16);
	folio_put(&zone, f);
	at = 17;
	ck_assert_ptr_null(mapping_next_marked(&m, &at, UINT64_MAX, XA_MARK_DIRTY));
	at = 0;
	ck_assert_ptr_null(mapping_next_marked(&m, &at, UINT64_MAX, XA_MARK_WRITEBACK));
	end();
}
END_TEST

START_TEST(forgetting_keeps_what_is_dirty)
{
	struct iomap_folio *f;
	uint32_t identity;

	start(12, GRANULE_BLOCK);
	f = create(0, 3);
	identity = folio_identity(f);
	mapping_set_uptodate(&m, f, 0, 8);
	ck_assert(folio_is_uptodate(f));
	mapping_set_dirty(&m, f, 2, 3);
	mapping_forget_clean(&m, f);
	ck_assert(!folio_is_uptodate(f));
	ck_assert_uint_eq(folio_identity(f), identity + 2);
	for (unsigned b = 0; b < 8; b++)
		ck_assert(ifs_range_uptodate(f, &m.geom, b, 1) == (b >= 2 && b < 5));
	unlock_put(f);
	check();
	end();
}
END_TEST

/* --- all of it, at random ------------------------------------------------------------------------------- */

enum { PAGES = 1024 };

/* _i: granule + 3 * (512-byte blocks) */
START_TEST(random_changes_keep_all_invariants)
{
	uint64_t chance = (uint64_t)_i + 3;
	unsigned shift = _i >= 3 ? 9 : 12;

	start(shift, (unsigned)_i % 3);
	for (unsigned i = 0; i < 3000; i++) {
		pgoff_t at = t_random_below(&chance, PAGES);
		struct iomap_folio *f = mapping_get_locked(&m, at), *right;
		unsigned nr, first, n;
		struct block_set set;
		bool busy;

		if (!f) {
			unsigned how = t_random_below(&chance, 2) ? MAPPING_DROPBEHIND : 0;

			if (!mapping_create(&m, at, (unsigned)t_random_below(&chance, 10), how, &f))
				unlock_put(f);
			continue;
		}
		nr = ifs_blocks(f, &m.geom);
		first = (unsigned)t_random_below(&chance, nr);
		n = 1 + (unsigned)t_random_below(&chance, nr - first);
		switch (t_random_below(&chance, 10)) {
		case 0:
		case 1:
		case 2:
			mapping_set_uptodate(&m, f, first, n);
			mapping_set_dirty(&m, f, first, n);
			break;
		case 3:
			mapping_claim(&m, f, first, first + n, t_random_below(&chance, 2), &set, &busy);
			break;
		case 4:
		case 5:
			while (first < nr && !ifs_block_set(f, &m.geom, IFS_INFLIGHT, first))
				first++;
			for (n = 0; first + n < nr && ifs_block_set(f, &m.geom, IFS_INFLIGHT, first + n); )
				n++;
			if (n)
				mapping_complete(&m, f, first, n, t_random_below(&chance, 3) ? 0 : -EIO, true);
			break;
		case 6:
			mapping_cancel(&m, f, first, n);
			break;
		case 7:
			if (!folio_is_writeback(f) && !mapping_halve(&m, f, &right))
				unlock_put(right);
			break;
		case 8:
			if (!folio_is_writeback(f)) {
				mapping_cancel(&m, f, 0, nr);
				mapping_remove(&m, f);
			}
			break;
		case 9:
			mapping_keep(&m, f);
			break;
		}
		unlock_put(f);
		if (i % 128 == 0)
			mapping_tag_towrite(&m, at, at + 100);
		if (i % 16 == 0)
			check();
	}
	for (pgoff_t i = 0; i < PAGES; i++) {   /* what is in flight ends */
		struct iomap_folio *f = mapping_get_locked(&m, i);

		for (unsigned b = 0; f && b < ifs_blocks(f, &m.geom); b++)
			if (ifs_block_set(f, &m.geom, IFS_INFLIGHT, b))
				mapping_complete(&m, f, b, 1, 0, true);
		if (f)
			unlock_put(f);
	}
	end();
	store_relaxed(&zone.splits, 0);
}
END_TEST

/* --- from several threads ------------------------------------------------------------------------------- */

static _Atomic bool over;
static _Atomic unsigned wrong, found;

static void look_up(void *arg)
{
	uint64_t chance = (uintptr_t)arg;

	while (!load_relaxed(&over)) {
		pgoff_t at = t_random_below(&chance, 64);
		struct iomap_folio *f = mapping_get_locked(&m, at);

		if (!f)
			continue;
		if (folio_mapping(f) != &m || at < folio_index(f) || at - folio_index(f) >= folio_pages(f))
			add_relaxed(&wrong, 1);
		add_relaxed(&found, 1);
		unlock_put(f);
	}
}

START_TEST(locked_folio_is_the_one_asked_for_while_folios_come_split_and_go)
{
	struct thread t[2];

	start(12, GRANULE_BLOCK);
	removed_ones_are_held = true;
	for (uintptr_t i = 0; i < ARRAY_SIZE(t); i++)
		ck_assert_int_eq(thread_create(&t[i], "lookup", look_up, (void *)(i + 1)), 0);
	for (unsigned i = 0; i < 300 || !load_relaxed(&found); i++) {
		create_order(0, 6);
		dirty(0, 0, 20);
		split_down(64, i % 3);
		drop_all();
	}
	store_relaxed(&over, true);
	for (unsigned i = 0; i < ARRAY_SIZE(t); i++)
		thread_join(&t[i]);
	ck_assert_uint_eq(load_relaxed(&wrong), 0);
	removed_ones_are_held = false;
	end();
}
END_TEST

Suite *suite_mapping(void)
{
	Suite *s = suite_create("mapping");
	TCase *tc = tcase_create("mapping");

	suite_add_tcase(s, tc);
	tcase_set_timeout(tc, 120);
	tcase_add_test(tc, order_is_what_alignment_allows);
	tcase_add_test(tc, neighbour_in_the_way_makes_it_smaller);
	tcase_add_test(tc, taken_index_is_said_so);
	tcase_add_test(tc, exact_order_or_none);
	tcase_add_test(tc, no_folio_is_smaller_than_a_block);
	tcase_add_test(tc, failing_allocation_leaves_all_as_it_was);
	tcase_add_test(tc, lookup_finds_the_folio_over_a_page);
	tcase_add_test(tc, removed_folio_lives_as_long_as_its_references);
	tcase_add_test(tc, split_moves_no_dirty_byte_and_frees_what_is_clean);
	tcase_add_test(tc, split_keeps_bits_marks_and_the_reason_of_failures);
	tcase_add_test(tc, split_without_memory_changes_nothing);
	tcase_add_test(tc, marks_follow_the_bits);
	tcase_add_test(tc, tagging_takes_what_is_dirty_now);
	tcase_add_test(tc, marked_folios_are_found_in_order_from_their_middle_too);
	tcase_add_test(tc, forgetting_keeps_what_is_dirty);
	tcase_add_test(tc, dirty_bytes_of_dontcache_folios_are_exact);
	tcase_add_test(tc, a_dontcache_folio_whose_write_was_given_up_stays);
	tcase_add_loop_test(tc, random_changes_keep_all_invariants, 0, 6);
	tcase_add_test(tc, locked_folio_is_the_one_asked_for_while_folios_come_split_and_go);
	return s;
}
