/*
 * ifs.c - block bits and what they charge, against four arrays of one byte a block
 */
#include <check.h>
#include <errno.h>
#include <limits.h>
#include <string.h>
#include "ifs.h"
#include "test.h"

Suite *suite_ifs(void);

/* What is true, block by block, and what all changes together have moved. */
static struct {
	unsigned nr, gb;                        /* blocks of the folio, of a granule */
	unsigned group;                         /* … of what is put in flight together: a granule, a page */
	bool keep;                              /* what becomes of failed blocks */
	uint8_t map[IFS_MAPS][IFS_MAX_BLOCKS];
	struct charge sum;                      /* of everything that was returned */
} model;

static struct mem mem;
static struct iomap_folio folio;
static struct ifs_geometry geom;
static uint64_t chance;

static unsigned below(uint64_t n) { return (unsigned)t_random_below(&chance, n); }
static uint8_t *bits(enum ifs_map map) { return model.map[map]; }
static uint64_t granule_bytes(void) { return (uint64_t)model.gb << geom.block_shift; }

static void start(unsigned block_shift, unsigned granule, unsigned order, bool keep)
{
	unsigned per_page = block_shift < PAGE_SHIFT ? 1U << (PAGE_SHIFT - block_shift) : 1;

	memset(&model, 0, sizeof(model));
	memset(&folio, 0, sizeof(folio));
	geom = (struct ifs_geometry){ .block_shift = (uint8_t)block_shift, .granule = granule };
	store_relaxed(&folio.order, (uint8_t)order);
	model.nr = (unsigned)((PAGE_BYTES << order) >> block_shift);
	model.gb = granule == GRANULE_BLOCK ? 1 : granule == GRANULE_PAGE ? per_page : model.nr;
	model.group = model.gb > per_page ? model.gb : per_page;
	model.keep = keep;
	if (model.nr > SMALL_BLOCKS) {
		struct ifs *ifs = ifs_alloc(&mem, model.nr);

		ck_assert_ptr_nonnull(ifs);
		store_relaxed(&folio.ifs, ifs);
	}
	ck_assert_uint_eq(ifs_blocks(&folio, &geom), model.nr);
	ck_assert_uint_eq(ifs_granule_blocks(&folio, &geom), model.gb);
	ck_assert_uint_eq(ifs_exclusive_blocks(&folio, &geom), model.group);
}

static void end(void)
{
	ifs_free_rcu(load_relaxed(&folio.ifs));
	store_relaxed(&folio.ifs, NULL);
	rcu_drain();
	ck_assert_uint_eq(mem_bytes(&mem), 0);
}

/* --- recount -------------------------------------------------------------------------------------------- */

static bool any(enum ifs_map map, unsigned first, unsigned to)
{
	for (unsigned b = first; b < to; b++)
		if (bits(map)[b])
			return true;
	return false;
}

static int64_t charged(enum ifs_map map)
{
	unsigned n = 0;

	for (unsigned g = 0; g < model.nr; g += model.gb)
		n += any(map, g, g + model.gb);
	return (int64_t)(n * granule_bytes());
}

static struct charge levels(void)
{
	struct charge c = {
		.dirty = charged(IFS_DIRTY), .writeback = charged(IFS_INFLIGHT), .failed = charged(IFS_FAILED),
	};

	if (folio_flags(&folio) & FOLIO_DROPBEHIND)
		c.dontcache = c.dirty;
	if (c.dirty || c.writeback)
		c.pinned = (int64_t)folio_bytes(&folio);
	return c;
}

static void add(struct charge *to, const struct charge *c)
{
	int64_t *lt = &to->dirty;
	uint64_t *tt = &to->dirtied;
	const int64_t *lc = &c->dirty;
	const uint64_t *tc = &c->dirtied;

	for (unsigned i = 0; i < 5; i++)
		lt[i] += lc[i];
	for (unsigned i = 0; i < 9; i++)
		tt[i] += tc[i];
}
static_assert(sizeof(struct charge) == 14 * sizeof(int64_t), "add() knows all fields");

static void check_bits(void)
{
	for (enum ifs_map map = 0; map < IFS_MAPS; map++)
		for (unsigned b = 0; b < model.nr; b++)
			if (ifs_block_set(&folio, &geom, map, b) != bits(map)[b])
				ck_abort_msg("map %u block %u of %u is %d (block shift %u, granule of %u)", map, b, model.nr,
					     !bits(map)[b], geom.block_shift, model.gb);
}

/* One random range through every question that can be asked. */
static void check_queries(void)
{
	unsigned from = below(model.nr), to = from + 1 + below(model.nr - from), first, nr, b;
	enum ifs_map map = below(IFS_MAPS);

	ck_assert(ifs_any(&folio, &geom, map, from, to - from) == any(map, from, to));
	for (b = from; b < to && !bits(map)[b]; b++)
		;
	ck_assert_uint_eq(ifs_next(&folio, &geom, map, from, to), b);
	for (b = from; b < to && bits(IFS_UPTODATE)[b]; b++)
		;
	ck_assert(ifs_range_uptodate(&folio, &geom, from, to - from) == (b == to));
	ck_assert(ifs_next_missing(&folio, &geom, from, to, &first, &nr) == (b < to));
	if (b < to) {
		unsigned e = b;

		while (e < to && !bits(IFS_UPTODATE)[e])
			e++;
		ck_assert_uint_eq(first, b);
		ck_assert_uint_eq(nr, e - b);
	}
}

static void check_laws(void)
{
	const struct charge *c = &model.sum;

	ck_assert_uint_eq(c->dirtied + c->redirtied, (uint64_t)c->dirty + c->submitted + c->cancelled);     /* D2 */
	ck_assert_uint_eq(c->submitted, (uint64_t)c->writeback + c->written + c->write_failed);             /* D3 */
	ck_assert_uint_eq(c->pin_acquired - c->pin_released - c->pin_dropped, (uint64_t)c->pinned);         /* D5 */
	ck_assert_int_le(c->dirty, c->pinned);
	ck_assert_int_le(c->writeback, c->pinned);
	ck_assert_int_le(c->failed, c->dirty + c->writeback);
}

static void check_all(void)
{
	struct charge now = levels(), receipt;
	uint32_t flags = folio_flags(&folio), want = 0;
	char why[300];

	check_bits();
	check_queries();
	if (ifs_check(&folio, &geom, why, sizeof(why)))
		ck_abort_msg("%s", why);
	ifs_receipt(&folio, &geom, &receipt);
	ck_assert_int_eq(receipt.dirty, now.dirty);                                                           /* D8 */
	ck_assert_int_eq(receipt.writeback, now.writeback);
	ck_assert_int_eq(receipt.failed, now.failed);
	ck_assert_int_eq(receipt.pinned, now.pinned);
	ck_assert_int_eq(model.sum.dirty, now.dirty);
	ck_assert_int_eq(model.sum.writeback, now.writeback);
	ck_assert_int_eq(model.sum.failed, now.failed);
	ck_assert_int_eq(model.sum.pinned, now.pinned);
	ck_assert_int_eq(receipt.dontcache, now.dontcache);
	ck_assert_int_eq(model.sum.dontcache, now.dontcache);
	check_laws();
	want |= any(IFS_DIRTY, 0, model.nr) ? FOLIO_DIRTY : 0;
	want |= any(IFS_INFLIGHT, 0, model.nr) ? FOLIO_WRITEBACK : 0;
	want |= any(IFS_FAILED, 0, model.nr) ? FOLIO_FAILED : 0;
	ck_assert_uint_eq(flags & (FOLIO_DIRTY | FOLIO_WRITEBACK | FOLIO_FAILED), want);
	ck_assert(!!(flags & FOLIO_UPTODATE) == (memchr(bits(IFS_UPTODATE), 0, model.nr) == NULL));
}

/* --- one step of each kind ------------------------------------------------------------------------------ */

/* Ends a step: @c is what it returned; @want has the totals that are expected beside what the levels tell. */
static void settle(const struct charge *before, const struct charge *c, struct charge want)
{
	struct charge after = levels();

	want.dirty = after.dirty - before->dirty;
	want.writeback = after.writeback - before->writeback;
	want.failed = after.failed - before->failed;
	want.pinned = after.pinned - before->pinned;
	want.dontcache = after.dontcache - before->dontcache;
	if (want.pinned > 0)
		want.pin_acquired = (uint64_t)want.pinned;
	if (memcmp(&want, c, sizeof(want)))
		ck_abort_msg("charge differs (block shift %u, %u blocks, granule of %u): dirty %lld, expected %lld; "
			     "writeback %lld, %lld; pinned %lld, %lld; failed %lld, %lld; dontcache %lld, %lld; dirtied %llu, %llu; redirtied %llu, %llu; "
			     "submitted %llu, %llu; written %llu, %llu; write_failed %llu, %llu; cancelled %llu, %llu; "
			     "pin released %llu, %llu; dropped %llu, %llu", geom.block_shift, model.nr, model.gb,
			     (long long)c->dirty, (long long)want.dirty, (long long)c->writeback, (long long)want.writeback,
			     (long long)c->pinned, (long long)want.pinned, (long long)c->failed, (long long)want.failed, (long long)c->dontcache, (long long)want.dontcache,
			     (unsigned long long)c->dirtied, (unsigned long long)want.dirtied,
			     (unsigned long long)c->redirtied, (unsigned long long)want.redirtied,
			     (unsigned long long)c->submitted, (unsigned long long)want.submitted,
			     (unsigned long long)c->written, (unsigned long long)want.written,
			     (unsigned long long)c->write_failed, (unsigned long long)want.write_failed,
			     (unsigned long long)c->cancelled, (unsigned long long)want.cancelled,
			     (unsigned long long)c->pin_released, (unsigned long long)want.pin_released,
			     (unsigned long long)c->pin_dropped, (unsigned long long)want.pin_dropped);
	add(&model.sum, c);
}

static uint64_t grown(int64_t before, int64_t after) { return after > before ? (uint64_t)(after - before) : 0; }

static void set_uptodate(unsigned first, unsigned nr)
{
	memset(bits(IFS_UPTODATE) + first, 1, nr);
	ifs_set_uptodate(&folio, &geom, first, nr);
}

/* By a write, or (@again) because its flush failed. */
static void make_dirty(unsigned first, unsigned nr, bool again)
{
	struct charge before = levels(), c = { 0 }, want = { 0 };

	set_uptodate(first, nr);
	memset(bits(IFS_DIRTY) + first, 1, nr);
	if (again)
		want.redirtied = grown(before.dirty, levels().dirty);
	else
		want.dirtied = grown(before.dirty, levels().dirty);
	(again ? ifs_redirty : ifs_set_dirty)(&folio, &geom, first, nr, &c);
	settle(&before, &c, want);
}

static void claim(unsigned from, unsigned to, bool retry)
{
	static struct block_set out;
	static uint8_t took[IFS_MAX_BLOCKS], inflight[IFS_MAX_BLOCKS];
	struct charge before = levels(), c = { 0 }, want = { 0 };
	unsigned first, nr, at = 0;
	bool busy = true, want_busy = false;

	memset(&out, 0xff, sizeof(out));        /* "cleared first" */
	memset(took, 0, sizeof(took));
	memcpy(inflight, bits(IFS_INFLIGHT), model.nr);
	for (unsigned g = from / model.gb * model.gb; g < to && g < model.nr; g += model.gb) {
		if (!any(IFS_DIRTY, g, g + model.gb))
			continue;
		if (memchr(inflight + g / model.group * model.group, 1, model.group)) {
			want_busy = true;
			continue;
		}
		if (!retry && any(IFS_FAILED, g, g + model.gb))
			continue;
		for (unsigned b = g; b < g + model.gb; b++) {
			if (!bits(IFS_DIRTY)[b])
				continue;
			took[b] = bits(IFS_INFLIGHT)[b] = 1;
			bits(IFS_DIRTY)[b] = bits(IFS_FAILED)[b] = 0;
		}
		want.submitted += granule_bytes();
	}
	ifs_claim(&folio, &geom, from, to, retry, &out, &busy, &c);
	settle(&before, &c, want);
	ck_assert(busy == want_busy);
	ck_assert_uint_eq(out.nr_blocks, model.nr);
	while (block_set_next_run(&out, at, &first, &nr)) {
		ck_assert_uint_gt(nr, 0);
		for (unsigned b = at; b < first; b++)
			ck_assert(!took[b]);
		for (unsigned b = first; b < first + nr; b++)
			ck_assert(took[b]);
		at = first + nr;
	}
	for (unsigned b = at; b < model.nr; b++)
		ck_assert(!took[b]);
}

/* A request over blocks that are all in flight ends. */
static void complete(unsigned first, unsigned nr, bool failed)
{
	struct charge before = levels(), c = { 0 }, want = { 0 };

	memset(bits(IFS_INFLIGHT) + first, 0, nr);
	if (failed) {
		memset(bits(IFS_FAILED) + first, 1, nr);
		if (model.keep)
			memset(bits(IFS_DIRTY) + first, 1, nr);
	}
	for (unsigned g = first / model.gb * model.gb; g < first + nr; g += model.gb) {
		bool bad = any(IFS_FAILED, g, g + model.gb);

		if (any(IFS_INFLIGHT, g, g + model.gb))
			continue;       /* leaves writeback with its last completion */
		if (model.gb == 1)
			bad = failed;   /* a block dirtied, failed and claimed anew has no old failure */
		*(bad ? &want.write_failed : &want.written) += granule_bytes();
		for (unsigned b = g; b < g + model.gb; b++)
			if (!bits(IFS_DIRTY)[b] || !model.keep)
				bits(IFS_FAILED)[b] = 0;
	}
	want.redirtied = grown(before.dirty, levels().dirty);
	if (before.pinned && !levels().pinned)
		want.pin_released = (uint64_t)before.pinned;
	ifs_complete(&folio, &geom, first, nr, failed, model.keep, &c);
	settle(&before, &c, want);
}

static void cancel(unsigned first, unsigned nr)
{
	struct charge before = levels(), c = { 0 }, want = { 0 };

	memset(bits(IFS_DIRTY) + first, 0, nr);
	for (unsigned b = first; b < first + nr; b++)
		if (!any(IFS_INFLIGHT, b / model.gb * model.gb, b / model.gb * model.gb + model.gb))
			bits(IFS_FAILED)[b] = 0;
	want.cancelled = grown(levels().dirty, before.dirty);
	if (before.pinned && !levels().pinned)
		want.pin_dropped = (uint64_t)before.pinned;
	ifs_cancel(&folio, &geom, first, nr, &c);
	settle(&before, &c, want);
}

static void forget_clean(void)
{
	for (unsigned b = 0; b < model.nr; b++)
		bits(IFS_UPTODATE)[b] &= bits(IFS_DIRTY)[b];
	ifs_forget_clean(&folio, &geom);
}

/* Wanted by somebody who has not said DONTCACHE; or (as if it were another folio) made by DONTCACHE while it charges nothing. */
static void flip(void)
{
	struct charge before = levels(), c = { 0 }, want = { 0 };

	if (!before.dirty && !(folio_flags(&folio) & FOLIO_DROPBEHIND)) {
		folio_flags_set(&folio, FOLIO_DROPBEHIND);
		return;
	}
	ifs_keep(&folio, &geom, &c);
	ck_assert(!(folio_flags(&folio) & FOLIO_DROPBEHIND));
	settle(&before, &c, want);
}

/* Ends one run in flight, or part of it; false: there is none. */
static bool complete_some(bool failed)
{
	unsigned from = below(model.nr), first, nr = 1;

	for (first = from; first < model.nr && !bits(IFS_INFLIGHT)[first]; first++)
		;
	if (first == model.nr) {
		for (first = 0; first < from && !bits(IFS_INFLIGHT)[first]; first++)
			;
		if (first == from)
			return false;
	}
	while (first + nr < model.nr && bits(IFS_INFLIGHT)[first + nr] && below(8))
		nr++;
	complete(first, nr, failed);
	return true;
}

static void step(unsigned without)
{
	unsigned first = below(model.nr), left = model.nr - first;
	unsigned nr = 1 + below(below(3) ? min_u64(left, 5) : left), what = below(13);

	if (what == without)
		return;
	folio_state_lock(&folio);
	switch (what) {
	case 0: set_uptodate(first, nr); break;
	case 1:
	case 2:
	case 3: make_dirty(first, nr, false); break;
	case 4: make_dirty(first, nr, true); break;
	case 5: claim(first, first + nr, below(2)); break;
	case 6: claim(0, below(2) ? UINT_MAX : model.nr, true); break;
	case 7:
	case 8: complete_some(false); break;
	case 9: complete_some(true); break;
	case 10: cancel(first, nr); break;
	case 11:
		if (!any(IFS_INFLIGHT, 0, model.nr))
			forget_clean();
		break;
	case 12: flip(); break;
	}
	folio_state_unlock(&folio);
	check_all();
}

/* All is written and done: nothing is charged any more, totals have met. */
static void drain(void)
{
	folio_state_lock(&folio);
	while (complete_some(false))
		;
	claim(0, model.nr, true);
	while (complete_some(false))
		;
	folio_state_unlock(&folio);
	check_all();
	ck_assert_int_eq(model.sum.dirty, 0);
	ck_assert_int_eq(model.sum.writeback, 0);
	ck_assert_int_eq(model.sum.pinned, 0);
	ck_assert_int_eq(model.sum.failed, 0);
	ck_assert_uint_eq(model.sum.dirtied + model.sum.redirtied,
			  model.sum.written + model.sum.write_failed + model.sum.cancelled);
}

/* --- tests ---------------------------------------------------------------------------------------------- */

/* _i: block shift * 3 + granule */
START_TEST(random_changes_charge_what_a_recount_says)
{
	unsigned shift = 9 + (unsigned)_i / 3, granule = (unsigned)_i % 3;
	unsigned min = shift > PAGE_SHIFT ? shift - PAGE_SHIFT : 0;

	chance = (uint64_t)_i * 77 + 1;
	for (unsigned order = min; order <= MAX_ORDER; order++) {
		for (unsigned keep = 0; keep < 2; keep++) {
			start(shift, granule, order, keep);
			for (unsigned i = 0, n = 40 + 16000 / model.nr; i < n && i < 500; i++)
				step(i < 250 ? (unsigned)_i % 13 : UINT_MAX);
			drain();
			end();
		}
	}
}
END_TEST

START_TEST(a_granule_is_in_flight_once_and_ends_with_its_last_block)
{
	start(10, GRANULE_PAGE, 0, true);
	folio_state_lock(&folio);
	make_dirty(0, 1, false);
	make_dirty(3, 1, false);
	ck_assert_int_eq(model.sum.dirty, 4096);
	claim(0, 1, false);                     /* all of what is dirty in the page goes */
	ck_assert_int_eq(model.sum.writeback, 4096);
	ck_assert_int_eq(model.sum.dirty, 0);
	make_dirty(1, 1, false);
	claim(0, 4, false);                     /* busy */
	ck_assert_int_eq(model.sum.dirty, 4096);
	complete(0, 1, true);
	ck_assert_uint_eq(model.sum.write_failed, 0);
	complete(3, 1, false);
	ck_assert_uint_eq(model.sum.write_failed, 4096);
	ck_assert_uint_eq(model.sum.written, 0);
	ck_assert_int_eq(model.sum.failed, 4096);
	claim(0, 4, false);                     /* failed: passed over */
	ck_assert_int_eq(model.sum.writeback, 0);
	claim(0, 4, true);
	complete(0, 2, false);
	ck_assert_uint_eq(model.sum.written, 4096);
	ck_assert_int_eq(model.sum.pinned, 0);
	folio_state_unlock(&folio);
	check_all();
	end();
}
END_TEST

START_TEST(block_dirtied_in_flight_is_charged_twice_and_pinned_once)
{
	for (unsigned granule = GRANULE_BLOCK; granule <= GRANULE_FOLIO; granule++) {
		int64_t g;

		start(12, granule, 2, true);
		g = (int64_t)granule_bytes();
		folio_state_lock(&folio);
		make_dirty(1, 1, false);
		claim(0, 4, false);
		make_dirty(1, 1, false);
		ck_assert_int_eq(model.sum.dirty, g);
		ck_assert_int_eq(model.sum.writeback, g);
		ck_assert_int_eq(model.sum.pinned, 16384);
		complete(1, 1, false);
		ck_assert_int_eq(model.sum.pinned, 16384);
		claim(0, 4, false);
		complete(1, 1, false);
		ck_assert_uint_eq(model.sum.dirtied, 2 * (uint64_t)g);
		ck_assert_uint_eq(model.sum.written, 2 * (uint64_t)g);
		ck_assert_uint_eq(model.sum.pin_acquired, 16384);
		ck_assert_uint_eq(model.sum.pin_released, 16384);
		folio_state_unlock(&folio);
		check_all();
		end();
	}
}
END_TEST

/* Small blocks of one page, in BLOCK mode: charged each for itself, in flight one request after the other. */
START_TEST(blocks_of_a_page_in_flight_keep_their_neighbours_waiting)
{
	start(9, GRANULE_BLOCK, 1, true);
	folio_state_lock(&folio);
	make_dirty(0, 2, false);
	make_dirty(9, 1, false);
	claim(0, 1, false);                     /* block 0 alone */
	ck_assert_int_eq(model.sum.writeback, 512);
	claim(1, 2, false);
	ck_assert_int_eq(model.sum.writeback, 512);
	claim(0, 16, false);                    /* the other page's goes */
	ck_assert_int_eq(model.sum.writeback, 1024);
	complete(0, 1, false);
	claim(0, 16, false);
	ck_assert_int_eq(model.sum.writeback, 1024);
	ck_assert_int_eq(model.sum.dirty, 0);
	complete(1, 1, false);
	complete(9, 1, false);
	folio_state_unlock(&folio);
	check_all();
	end();
}
END_TEST

START_TEST(bits_that_contradict_each_other_are_found)
{
	static const struct { enum ifs_map map; uint32_t flag; } wrong[] = {
		{ IFS_DIRTY, FOLIO_DIRTY }, { IFS_INFLIGHT, FOLIO_WRITEBACK }, { IFS_FAILED, FOLIO_FAILED },
	};
	char why[300];

	start(10, GRANULE_BLOCK, 0, true);
	ck_assert_int_eq(ifs_check(&folio, &geom, why, sizeof(why)), 0);
	for (unsigned i = 0; i < ARRAY_SIZE(wrong); i++) {
		store_relaxed(&folio.small[wrong[i].map], 2);
		ck_assert_int_eq(ifs_check(&folio, &geom, why, sizeof(why)), -EUCLEAN);
		store_relaxed(&folio.flags, wrong[i].flag);
		ck_assert_int_eq(ifs_check(&folio, &geom, why, sizeof(why)), -EUCLEAN);
		store_relaxed(&folio.small[wrong[i].map], 0);
		ck_assert_int_eq(ifs_check(&folio, &geom, why, sizeof(why)), -EUCLEAN);
		store_relaxed(&folio.flags, 0);
	}
	store_relaxed(&folio.small[IFS_UPTODATE], 0x10);        /* beyond the fourth block */
	ck_assert_int_eq(ifs_check(&folio, &geom, why, sizeof(why)), -EUCLEAN);
	store_relaxed(&folio.small[IFS_UPTODATE], 0xf);
	ck_assert_int_eq(ifs_check(&folio, &geom, why, sizeof(why)), -EUCLEAN);
	store_relaxed(&folio.flags, FOLIO_UPTODATE);
	ck_assert_int_eq(ifs_check(&folio, &geom, why, sizeof(why)), 0);
	store_relaxed(&folio.ifs, (struct ifs *)ifs_alloc(&mem, 17));
	ck_assert_int_eq(ifs_check(&folio, &geom, why, sizeof(why)), -EUCLEAN);
	end();
}
END_TEST

/* What mapping_halve() does to the bits, at every order: both halves hold what the whole held. */
START_TEST(halves_keep_their_bits)
{
	chance = 5;
	for (unsigned shift = 9; shift <= 16; shift++) {
		for (unsigned order = shift > PAGE_SHIFT ? shift - PAGE_SHIFT + 1 : 1; order <= MAX_ORDER; order++) {
			static struct iomap_folio right;
			struct ifs *old, *left_ifs = NULL;
			unsigned half;
			char why[300];

			start(shift, GRANULE_BLOCK, order, true);
			half = model.nr / 2;
			if (half > SMALL_BLOCKS)
				left_ifs = ifs_alloc(&mem, half);
			memset(&right, 0, sizeof(right));
			store_relaxed(&right.order, (uint8_t)(order - 1));
			if (half > SMALL_BLOCKS)
				store_relaxed(&right.ifs, ifs_alloc(&mem, half));
			folio_state_lock(&folio);
			for (unsigned i = 0; i < 12; i++) {
				unsigned first = below(model.nr);

				set_uptodate(first, 1 + below(model.nr - first));
				first = below(model.nr);
				make_dirty(first, 1 + below(model.nr - first), false);
			}
			claim(below(half), half + below(half), true);
			complete_some(true);
			while (complete_some(false))
				;
			old = load_relaxed(&folio.ifs);
			ifs_copy_bits(&right, &folio, &geom, half);
			ifs_shrink_to(&folio, &geom, left_ifs, (uint8_t)(order - 1));
			folio_state_unlock(&folio);
			ck_assert_int_eq(ifs_check(&folio, &geom, why, sizeof(why)), 0);
			ck_assert_int_eq(ifs_check(&right, &geom, why, sizeof(why)), 0);
			for (enum ifs_map map = 0; map < IFS_MAPS; map++) {
				for (unsigned b = 0; b < half; b++) {
					ck_assert(ifs_block_set(&folio, &geom, map, b) == bits(map)[b]);
					ck_assert(ifs_block_set(&right, &geom, map, b) == bits(map)[half + b]);
				}
			}
			ifs_free_rcu(old);
			ifs_free_rcu(load_relaxed(&right.ifs));
			end();
		}
	}
}
END_TEST

START_TEST(small_folios_need_no_memory)
{
	struct ifs *ifs;

	ifs = ifs_alloc(&mem, SMALL_BLOCKS + 1);
	ck_assert_ptr_nonnull(ifs);
	ck_assert_uint_eq(ifs->words, 1);
	ifs_free_rcu(ifs);
	ifs = ifs_alloc(&mem, IFS_MAX_BLOCKS);
	ck_assert_uint_eq(ifs->words, IFS_MAX_BLOCKS / 64);
	ifs_free_rcu(ifs);
	ifs_free_rcu(NULL);
	for (unsigned order = 0; order <= 4; order++) {
		start(12, GRANULE_BLOCK, order, true);
		ck_assert_ptr_null(load_relaxed(&folio.ifs));
		folio_state_lock(&folio);
		make_dirty(model.nr - 1, 1, false);
		folio_state_unlock(&folio);
		check_all();
		end();
	}
}
END_TEST

static void setup(void)
{
	mem_init_malloc(&mem);
}

Suite *suite_ifs(void)
{
	Suite *s = suite_create("ifs");
	TCase *tc = tcase_create("ifs");

	suite_add_tcase(s, tc);
	tcase_set_timeout(tc, 120);
	tcase_add_checked_fixture(tc, setup, NULL);
	tcase_add_loop_test(tc, random_changes_charge_what_a_recount_says, 0, 8 * 3);
	tcase_add_test(tc, a_granule_is_in_flight_once_and_ends_with_its_last_block);
	tcase_add_test(tc, block_dirtied_in_flight_is_charged_twice_and_pinned_once);
	tcase_add_test(tc, blocks_of_a_page_in_flight_keep_their_neighbours_waiting);
	tcase_add_test(tc, bits_that_contradict_each_other_are_found);
	tcase_add_test(tc, halves_keep_their_bits);
	tcase_add_test(tc, small_folios_need_no_memory);
	return s;
}
