/*
 * ifs.c - bytes -> changes to the block bits of one folio, against four arrays of bool
 *
 * The first bytes choose block size, granule, folio size and what becomes of failed blocks. Each operation changes
 * the arrays block by block; what it should have charged is recomputed from the arrays of before and after, granule
 * by granule, and must be what the library returned. After each step all bits, flags, the receipt and ifs_check() are
 * compared, with the laws that tie the totals to the levels. A folio may be halved on the way, as a split does.
 */
#include <limits.h>
#include <string.h>
#include "fuzz.h"
#include "ifs.h"

enum { STEPS = 300 };

struct bits { bool up[IFS_MAX_BLOCKS], dirty[IFS_MAX_BLOCKS], inflight[IFS_MAX_BLOCKS], failed[IFS_MAX_BLOCKS]; };

static struct bits now;
static unsigned nr_blocks;
static unsigned granule;                /* blocks that are charged together */
static unsigned group;                  /* … that are in flight together: a granule, and at least a page */
static bool keep;                       /* blocks whose write failed stay dirty */

static struct mem mem;
static struct iomap_folio folio;
static struct ifs_geometry geom;
static struct charge sum;               /* of all that was charged */

static uint64_t granule_bytes(void) { return (uint64_t)granule << geom.block_shift; }

/* --- recomputing ------------------------------------------------------------------------------------------ */

static bool any(const bool *map, unsigned first, unsigned n)
{
	for (unsigned b = first; b < first + n; b++)
		if (map[b])
			return true;
	return false;
}

/* Bytes of all granules that hold a block of @map. */
static int64_t charged(const bool *map)
{
	uint64_t bytes = 0;

	for (unsigned b = 0; b < nr_blocks; b += granule)
		bytes += any(map, b, granule) ? granule_bytes() : 0;
	return (int64_t)bytes;
}

static struct charge levels(void)
{
	struct charge c = {
		.dirty = charged(now.dirty), .writeback = charged(now.inflight), .failed = charged(now.failed),
	};

	c.dontcache = folio_flags(&folio) & FOLIO_DROPBEHIND ? c.dirty : 0;
	c.pinned = c.dirty || c.writeback ? (int64_t)folio_bytes(&folio) : 0;
	return c;
}

/*
 * @got was charged by a change that began at the levels @before. @totals: what it adds to the totals, but for those
 * that follow from the levels.
 */
static void charge(struct charge before, struct charge totals, const struct charge *got)
{
	struct charge after = levels(), want = totals;

	want.dirty = after.dirty - before.dirty;
	want.writeback = after.writeback - before.writeback;
	want.failed = after.failed - before.failed;
	want.pinned = after.pinned - before.pinned;
	want.dontcache = after.dontcache - before.dontcache;
	want.pin_acquired = want.pinned > 0 ? (uint64_t)want.pinned : 0;
	FUZZ_EQ(got->dirty, want.dirty);
	FUZZ_EQ(got->writeback, want.writeback);
	FUZZ_EQ(got->failed, want.failed);
	FUZZ_EQ(got->pinned, want.pinned);
	FUZZ_EQ(got->dontcache, want.dontcache);
	FUZZ_EQ(got->dirtied, want.dirtied);
	FUZZ_EQ(got->redirtied, want.redirtied);
	FUZZ_EQ(got->submitted, want.submitted);
	FUZZ_EQ(got->written, want.written);
	FUZZ_EQ(got->write_failed, want.write_failed);
	FUZZ_EQ(got->cancelled, want.cancelled);
	FUZZ_EQ(got->pin_acquired, want.pin_acquired);
	FUZZ_EQ(got->pin_released, want.pin_released);
	FUZZ_EQ(got->pin_dropped, want.pin_dropped);
	sum.dirty += got->dirty;
	sum.writeback += got->writeback;
	sum.pinned += got->pinned;
	sum.dirtied += got->dirtied + got->redirtied;           /* what comes in, whichever way */
	sum.submitted += got->submitted;
	sum.written += got->written + got->write_failed;        /* what went out, whichever way */
	sum.cancelled += got->cancelled;
	sum.pin_acquired += got->pin_acquired;
	sum.pin_released += got->pin_released + got->pin_dropped;
}

static void compare(void)
{
	const bool *const maps[IFS_MAPS] = {
		[IFS_UPTODATE] = now.up, [IFS_DIRTY] = now.dirty,
		[IFS_INFLIGHT] = now.inflight, [IFS_FAILED] = now.failed,
	};
	struct charge want = levels(), receipt;
	uint32_t flags = folio_flags(&folio);
	char why[300];

	for (enum ifs_map map = 0; map < IFS_MAPS; map++)
		for (unsigned b = 0; b < nr_blocks; b++)
			FUZZ_CHECK(ifs_block_set(&folio, &geom, map, b) == maps[map][b], "map %u block %u of %u",
				   map, b, nr_blocks);
	FUZZ_EQ(!(flags & FOLIO_UPTODATE), memchr(now.up, 0, nr_blocks) != NULL);
	FUZZ_EQ(!(flags & FOLIO_DIRTY), !any(now.dirty, 0, nr_blocks));
	FUZZ_EQ(!(flags & FOLIO_WRITEBACK), !any(now.inflight, 0, nr_blocks));
	FUZZ_EQ(!(flags & FOLIO_FAILED), !any(now.failed, 0, nr_blocks));
	FUZZ_CHECK(ifs_check(&folio, &geom, why, sizeof(why)) == 0, "%s", why);

	ifs_receipt(&folio, &geom, &receipt);
	FUZZ_EQ(receipt.dirty, want.dirty);
	FUZZ_EQ(receipt.writeback, want.writeback);
	FUZZ_EQ(receipt.failed, want.failed);
	FUZZ_EQ(receipt.pinned, want.pinned);
	FUZZ_EQ(receipt.dontcache, want.dontcache);

	/* every byte that came in is dirty, in flight, or went out */
	FUZZ_EQ(sum.dirty, want.dirty);
	FUZZ_EQ(sum.writeback, want.writeback);
	FUZZ_EQ(sum.pinned, want.pinned);
	FUZZ_EQ(sum.dirtied, (uint64_t)sum.dirty + sum.submitted + sum.cancelled);
	FUZZ_EQ(sum.submitted, (uint64_t)sum.writeback + sum.written);
	FUZZ_EQ(sum.pin_acquired, (uint64_t)sum.pinned + sum.pin_released);
}

/* --- changes ---------------------------------------------------------------------------------------------- */

static void fill(bool *map, unsigned first, unsigned n, bool value)
{
	for (unsigned b = first; b < first + n; b++)
		map[b] = value;
}

static void set_uptodate(unsigned first, unsigned n)
{
	fill(now.up, first, n, true);
	ifs_set_uptodate(&folio, &geom, first, n);
}

/* By a write; @again: because its flush failed. */
static void set_dirty(unsigned first, unsigned n, bool again)
{
	struct charge before = levels(), totals = { 0 }, got = { 0 };

	set_uptodate(first, n);
	fill(now.dirty, first, n, true);
	*(again ? &totals.redirtied : &totals.dirtied) = (uint64_t)(levels().dirty - before.dirty);
	(again ? ifs_redirty : ifs_set_dirty)(&folio, &geom, first, n, &got);
	charge(before, totals, &got);
}

static void claim(unsigned from, unsigned end, bool retry)
{
	static struct block_set out;
	static bool took[IFS_MAX_BLOCKS];
	static struct bits old;
	struct charge before = levels(), totals = { 0 }, got = { 0 };
	bool busy, want_busy = false;
	unsigned at = 0, first, n;

	old = now;
	fill(took, 0, nr_blocks, false);
	for (unsigned g = from / granule * granule; g < nr_blocks && g < end; g += granule) {
		if (!any(old.dirty, g, granule))
			continue;
		if (any(old.inflight, g / group * group, group)) {
			want_busy = true;
			continue;
		}
		if (any(old.failed, g, granule) && !retry)
			continue;
		for (unsigned b = g; b < g + granule; b++) {
			if (!old.dirty[b])
				continue;
			took[b] = now.inflight[b] = true;
			now.dirty[b] = now.failed[b] = false;
		}
		totals.submitted += granule_bytes();
	}
	memset(&out, 0xff, sizeof(out));
	ifs_claim(&folio, &geom, from, end, retry, &out, &busy, &got);
	charge(before, totals, &got);
	FUZZ_EQ(busy, want_busy);
	FUZZ_EQ(out.nr_blocks, nr_blocks);
	while (block_set_next_run(&out, at, &first, &n)) {
		FUZZ_CHECK(n && first >= at && first + n <= nr_blocks, "a run of %u at %u", n, first);
		for (; at < first + n; at++)
			FUZZ_CHECK(took[at] == (at >= first), "block %u is in the wrong set", at);
	}
	for (; at < nr_blocks; at++)
		FUZZ_CHECK(!took[at], "block %u was left out", at);
}

/* A request over blocks that are all in flight has ended. */
static void complete(unsigned first, unsigned n, bool failed)
{
	struct charge before = levels(), totals = { 0 }, got = { 0 };

	fill(now.inflight, first, n, false);
	if (failed)
		fill(now.failed, first, n, true);
	if (failed && keep)
		fill(now.dirty, first, n, true);
	for (unsigned g = first / granule * granule; g < first + n; g += granule) {
		bool bad = granule == 1 ? failed : any(now.failed, g, granule);

		if (any(now.inflight, g, granule))
			continue;               /* the last completion of a granule decides */
		*(bad ? &totals.write_failed : &totals.written) += granule_bytes();
		for (unsigned b = g; b < g + granule; b++)
			now.failed[b] = now.failed[b] && now.dirty[b] && keep;
	}
	totals.redirtied = (uint64_t)(levels().dirty - before.dirty);
	if (!levels().pinned)
		totals.pin_released = (uint64_t)before.pinned;
	ifs_complete(&folio, &geom, first, n, failed, keep, &got);
	charge(before, totals, &got);
}

/* The request that began in the first block in flight from @from on, or a part of it; false: there is none. */
static bool complete_one(unsigned from, unsigned max, bool failed)
{
	unsigned first = from, n = 0;

	while (first < nr_blocks && !now.inflight[first])
		first++;
	while (n < max && first + n < nr_blocks && now.inflight[first + n])
		n++;
	if (n)
		complete(first, n, failed);
	return n;
}

static void cancel(unsigned first, unsigned n)
{
	struct charge before = levels(), totals = { 0 }, got = { 0 };

	fill(now.dirty, first, n, false);
	for (unsigned b = first; b < first + n; b++)
		if (!any(now.inflight, b / granule * granule, granule))
			now.failed[b] = false;
	totals.cancelled = (uint64_t)(before.dirty - levels().dirty);
	if (!levels().pinned)
		totals.pin_dropped = (uint64_t)before.pinned;
	ifs_cancel(&folio, &geom, first, n, &got);
	charge(before, totals, &got);
}

static void forget_clean(void)
{
	for (unsigned b = 0; b < nr_blocks; b++)
		now.up[b] = now.up[b] && now.dirty[b];
	ifs_forget_clean(&folio, &geom);
}

/* Somebody wants the folio who has not said DONTCACHE. */
static void keep_it(void)
{
	struct charge before = levels(), totals = { 0 }, got = { 0 };

	ifs_keep(&folio, &geom, &got);
	charge(before, totals, &got);
}

static void ask(unsigned first, unsigned n)
{
	unsigned b = first, end = first + n, got_first, got_n;

	while (b < end && !now.dirty[b])
		b++;
	FUZZ_EQ(ifs_next(&folio, &geom, IFS_DIRTY, first, end), b);
	FUZZ_EQ(ifs_any(&folio, &geom, IFS_DIRTY, first, n), any(now.dirty, first, n));
	FUZZ_EQ(ifs_any(&folio, &geom, IFS_INFLIGHT, first, n), any(now.inflight, first, n));
	for (b = first; b < end && now.up[b]; )
		b++;
	FUZZ_EQ(ifs_range_uptodate(&folio, &geom, first, n), b == end);
	FUZZ_EQ(ifs_next_missing(&folio, &geom, first, end, &got_first, &got_n), b < end);
	if (b == end)
		return;
	FUZZ_EQ(got_first, b);
	while (b < end && !now.up[b])
		b++;
	FUZZ_EQ(got_first + got_n, b);
}

static struct ifs *ifs_for(unsigned blocks)
{
	return blocks > SMALL_BLOCKS ? ifs_alloc(&mem, blocks) : NULL;
}

static void set_geometry(unsigned order)
{
	unsigned page = geom.block_shift < PAGE_SHIFT ? 1U << (PAGE_SHIFT - geom.block_shift) : 1;

	nr_blocks = (unsigned)((PAGE_BYTES << order) >> geom.block_shift);
	granule = geom.granule == GRANULE_BLOCK ? 1 : geom.granule == GRANULE_PAGE ? page : nr_blocks;
	group = granule > page ? granule : page;
}

/* Goes on with one half of the folio, as if the other were evicted. What is charged begins anew. */
static void halve(bool right)
{
	unsigned order = folio_order(&folio) - 1, half = nr_blocks / 2;
	static struct iomap_folio other;
	struct ifs *old = load_relaxed(&folio.ifs), *small = ifs_for(half);
	char why[300];

	memset(&other, 0, sizeof(other));
	store_relaxed(&other.order, (uint8_t)order);
	store_relaxed(&other.flags, folio_flags(&folio) & FOLIO_DROPBEHIND);
	store_relaxed(&other.ifs, ifs_for(half));
	folio_state_lock(&folio);
	ifs_copy_bits(&other, &folio, &geom, half);
	ifs_shrink_to(&folio, &geom, small, (uint8_t)order);
	folio_state_unlock(&folio);
	ifs_free_rcu(old);
	set_geometry(order);
	FUZZ_CHECK(ifs_check(&folio, &geom, why, sizeof(why)) == 0, "left: %s", why);
	FUZZ_CHECK(ifs_check(&other, &geom, why, sizeof(why)) == 0, "right: %s", why);
	if (right) {
		struct ifs *left = load_relaxed(&folio.ifs);

		memmove(now.up, now.up + half, half);
		memmove(now.dirty, now.dirty + half, half);
		memmove(now.inflight, now.inflight + half, half);
		memmove(now.failed, now.failed + half, half);
		store_relaxed(&folio.ifs, load_relaxed(&other.ifs));
		for (enum ifs_map map = 0; map < IFS_MAPS; map++)
			store_relaxed(&folio.small[map], load_relaxed(&other.small[map]));
		store_relaxed(&folio.flags, folio_flags(&other));
		store_relaxed(&other.ifs, left);
	}
	ifs_free_rcu(load_relaxed(&other.ifs));
	sum = levels();
	sum.submitted = (uint64_t)sum.writeback;
	sum.dirtied = (uint64_t)(sum.dirty + sum.writeback);
	sum.pin_acquired = (uint64_t)sum.pinned;
}

static void step(struct fuzz_in *in, unsigned min_order)
{
	uint8_t op = fuzz_byte(in);
	unsigned first = (unsigned)fuzz_below(in, nr_blocks), left = nr_blocks - first;
	unsigned n = 1 + (op & 16 ? (unsigned)fuzz_below(in, nr_blocks) : fuzz_byte(in) % 8);

	if (n > left)
		n = left;
	if (op % 16 == 15) {            /* only what is not in flight is split */
		if (folio_order(&folio) > min_order && !any(now.inflight, 0, nr_blocks))
			halve(op & 32);
		return;
	}
	folio_state_lock(&folio);
	switch (op % 16) {
	case 0: set_uptodate(first, n); break;
	case 1: case 2: case 3: set_dirty(first, n, false); break;
	case 4: set_dirty(first, n, true); break;
	case 5: claim(first, first + n, op & 32); break;
	case 6: claim(first, op & 64 ? UINT_MAX : nr_blocks, op & 32); break;
	case 7: claim(0, nr_blocks, op & 32); break;
	case 8: case 9: complete_one(first, n, false); break;
	case 10: case 11: complete_one(first, n, true); break;
	case 12: cancel(first, n); break;
	case 13:
		if (op & 32)
			keep_it();
		else
			cancel(first, n);
		break;
	case 14:
		ask(first, n);
		if (op & 32 && !any(now.inflight, 0, nr_blocks))
			forget_clean();
	}
	folio_state_unlock(&folio);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz_in in = fuzz_begin(data, size);
	unsigned how = (unsigned)fuzz_number(&in, 2), shift = 9 + how % 8;
	unsigned min_order = shift > PAGE_SHIFT ? shift - PAGE_SHIFT : 0;
	static unsigned inputs;

	if (!inputs)
		mem_init_malloc(&mem);
	memset(&now, 0, sizeof(now));
	memset(&sum, 0, sizeof(sum));
	memset(&folio, 0, sizeof(folio));
	geom = (struct ifs_geometry){ .block_shift = (uint8_t)shift, .granule = how / 8 % 3 };
	keep = how / 256 & 1;
	store_relaxed(&folio.flags, fuzz_more(&in) && size % 2 ? FOLIO_DROPBEHIND : 0);    /* made by DONTCACHE */
	store_relaxed(&folio.order, (uint8_t)(min_order + how / 512 % (MAX_ORDER + 1 - min_order)));
	set_geometry(folio_order(&folio));
	store_relaxed(&folio.ifs, ifs_for(nr_blocks));
	FUZZ_EQ(ifs_blocks(&folio, &geom), nr_blocks);
	FUZZ_EQ(ifs_granule_blocks(&folio, &geom), granule);
	FUZZ_EQ(ifs_exclusive_blocks(&folio, &geom), group);

	for (unsigned i = 0; i < STEPS && fuzz_more(&in); i++) {
		step(&in, min_order);
		compare();
	}
	/* written back to the end, nothing is charged any more */
	folio_state_lock(&folio);
	for (unsigned round = 0; round < 2; round++) {
		while (complete_one(0, nr_blocks, false))
			;
		claim(0, nr_blocks, true);
		while (complete_one(0, nr_blocks, false))
			;
	}
	folio_state_unlock(&folio);
	compare();
	FUZZ_EQ(sum.dirty | sum.writeback | sum.pinned, 0);
	ifs_free_rcu(load_relaxed(&folio.ifs));
	if (++inputs % FUZZ_DRAIN_EVERY == 0) {
		rcu_drain();
		FUZZ_EQ(mem_bytes(&mem), 0);
	}
	return 0;
}
