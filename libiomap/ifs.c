/*
 * ifs.c - block bits of one folio, and what they charge
 *
 * A map is an array of 64-bit words (or one 16-bit word in the descriptor). Ranges are turned into word masks once, in
 * next_mask(), and everything else works on words: setting, clearing, counting granules by folding a granule's bits onto
 * its lowest and counting those. There is no counter to drift: what a change charges is counted before and after over the
 * granules it touches.
 *
 * Invariants: dirty is a subset of uptodate; a block is in flight in at most one request; failed is a subset of
 *             dirty or in flight (a granule remembers a failed block until its last completion).
 * Locking:    the folio's state lock for all changes; uptodate words are read under RCU without it.
 * Kernel:     struct iomap_folio_state. Differs: four maps, small ones inside the descriptor, charges by difference.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "ifs.h"
#include "mutant.h"

struct ifs *ifs_alloc(struct mem *mem, unsigned nr_blocks)
{
	unsigned words = (unsigned)div_round_up(nr_blocks, 64);
	struct ifs *ifs = mem_alloc(mem, sizeof(*ifs) + (size_t)words * IFS_MAPS * sizeof(uint64_t));

	IOMAP_BUG_ON(nr_blocks <= SMALL_BLOCKS || nr_blocks > IFS_MAX_BLOCKS);
	if (!ifs)
		return NULL;
	ifs->mem = mem;
	ifs->words = words;
	return ifs;
}

static void free_callback(struct rcu_head *head)
{
	struct ifs *ifs = container_of(head, struct ifs, rcu);

	rcu_callback_begin(head);
	mem_free(ifs->mem, ifs, sizeof(*ifs) + (size_t)ifs->words * IFS_MAPS * sizeof(uint64_t));
}

void ifs_free_rcu(struct ifs *ifs)
{
	if (ifs)
		rcu_free(&ifs->rcu, free_callback);
}

/* --- words ------------------------------------------------------------------------------------------------ */

static uint64_t get_word(const struct iomap_folio *f, enum ifs_map map, unsigned i)
{
	/*
	 * pairs with set_word(): who sees an uptodate bit sees the bytes; the ifs itself was published before the
	 * folio
	 */
	struct ifs *ifs = load_acquire(&f->ifs);

	return ifs ? load_acquire(&ifs->bits[map * ifs->words + i]) : load_acquire(&f->small[map]);
}

static void set_word(struct iomap_folio *f, enum ifs_map map, unsigned i, uint64_t word)
{
	struct ifs *ifs = load_relaxed(&f->ifs);        /* state lock held */

	if (ifs)
		store_release(&ifs->bits[map * ifs->words + i], word);
	else
		store_release(&f->small[map], (uint16_t)word);
}

/* The part of [first, end) in the word that holds *@first: its index and mask; *@first moves on. */
static bool next_mask(unsigned *first, unsigned end, unsigned *i, uint64_t *mask)
{
	unsigned lo = *first % 64, n;

	if (*first >= end)
		return false;
	n = end - *first < 64 - lo ? end - *first : 64 - lo;
	*i = *first / 64;
	*mask = (n == 64 ? ~UINT64_C(0) : (UINT64_C(1) << n) - 1) << lo;
	*first += n;
	return true;
}

bool ifs_any(const struct iomap_folio *f, const struct ifs_geometry *g, enum ifs_map map, unsigned first, unsigned nr)
{
	unsigned end = first + nr, i;
	uint64_t mask;

	(void)g;
	while (next_mask(&first, end, &i, &mask))
		if (get_word(f, map, i) & mask)
			return true;
	return false;
}

static bool all(const struct iomap_folio *f, enum ifs_map map, unsigned first, unsigned end)
{
	unsigned i;
	uint64_t mask;

	while (next_mask(&first, end, &i, &mask))
		if (~get_word(f, map, i) & mask)
			return false;
	return true;
}

static void set(struct iomap_folio *f, enum ifs_map map, unsigned first, unsigned end)
{
	unsigned i;
	uint64_t mask;

	while (next_mask(&first, end, &i, &mask))
		set_word(f, map, i, get_word(f, map, i) | mask);
}

static void clear(struct iomap_folio *f, enum ifs_map map, unsigned first, unsigned end)
{
	unsigned i;
	uint64_t mask;

	while (next_mask(&first, end, &i, &mask))
		set_word(f, map, i, get_word(f, map, i) & ~mask);
}

/* First block in [from, end) whose bit is @value, or @end. */
static unsigned find(const struct iomap_folio *f, enum ifs_map map, unsigned from, unsigned end, bool value)
{
	unsigned i;
	uint64_t mask;

	while (next_mask(&from, end, &i, &mask)) {
		uint64_t hit = (value ? get_word(f, map, i) : ~get_word(f, map, i)) & mask;

		if (hit)
			return i * 64 + (unsigned)__builtin_ctzll(hit);
	}
	return end;
}

unsigned ifs_next(const struct iomap_folio *f, const struct ifs_geometry *g, enum ifs_map map, unsigned from, unsigned end)
{
	(void)g;
	return find(f, map, from, end, true);
}

bool ifs_block_set(const struct iomap_folio *f, const struct ifs_geometry *g, enum ifs_map map, unsigned blk)
{
	(void)g;
	return get_word(f, map, blk / 64) >> (blk % 64) & 1;
}

bool ifs_range_uptodate(const struct iomap_folio *f, const struct ifs_geometry *g, unsigned first, unsigned nr)
{
	(void)g;
	return folio_is_uptodate(f) || all(f, IFS_UPTODATE, first, first + nr);
}

bool ifs_next_missing(const struct iomap_folio *f, const struct ifs_geometry *g, unsigned from, unsigned end,
		      unsigned *first, unsigned *nr)
{
	(void)g;
	if (folio_is_uptodate(f))
		return false;
	*first = find(f, IFS_UPTODATE, from, end, false);
	*nr = find(f, IFS_UPTODATE, *first, end, true) - *first;
	return *first < end;
}

/* --- granules --------------------------------------------------------------------------------------------- */

unsigned ifs_granule_blocks(const struct iomap_folio *f, const struct ifs_geometry *g)
{
	switch (g->granule) {
	case GRANULE_BLOCK:
		return 1;
	case GRANULE_PAGE:
		return g->block_shift < PAGE_SHIFT ? 1U << (PAGE_SHIFT - g->block_shift) : 1;
	case GRANULE_FOLIO:
		break;
	}
	return ifs_blocks(f, g);
}

/* Each granule of @gb blocks that has a bit set in @word becomes its lowest bit alone. @gb is 1, 2, 4 or 8. */
static uint64_t fold(uint64_t word, unsigned gb)
{
	static const uint64_t lowest[] = {
		~UINT64_C(0), 0x5555555555555555, 0x1111111111111111, 0x0101010101010101,
	};

	for (unsigned shift = 1; shift < gb; shift *= 2)
		word |= word >> shift;
	return word & lowest[log2_floor(gb)];
}

/* Granules in [first, end), both granule-aligned, that hold a bit of @map. */
static unsigned count(const struct iomap_folio *f, const struct ifs_geometry *g, enum ifs_map map, unsigned first, unsigned end)
{
	unsigned gb = ifs_granule_blocks(f, g), n = 0, i;
	uint64_t mask;

	if (gb > 8)     /* the folio itself */
		return ifs_any(f, g, map, first, end - first);
	while (next_mask(&first, end, &i, &mask))
		n += (unsigned)__builtin_popcountll(fold(get_word(f, map, i) & mask, gb));
	return n;
}

struct levels { unsigned dirty, inflight, failed; bool pinned; };

/* The granules that [*first, *end) touches; what they charge now. */
static struct levels levels(const struct iomap_folio *f, const struct ifs_geometry *g, unsigned first, unsigned end)
{
	unsigned gb = ifs_granule_blocks(f, g);

	first = first / gb * gb;
	end = (unsigned)min_u64(div_round_up(end, gb) * gb, ifs_blocks(f, g));
	return (struct levels){
		.dirty = count(f, g, IFS_DIRTY, first, end),
		.inflight = count(f, g, IFS_INFLIGHT, first, end),
		.failed = count(f, g, IFS_FAILED, first, end),
		.pinned = folio_flags(f) & (FOLIO_DIRTY | FOLIO_WRITEBACK),
	};
}

static uint64_t granule_bytes(const struct iomap_folio *f, const struct ifs_geometry *g)
{
	return (uint64_t)ifs_granule_blocks(f, g) << g->block_shift;
}

void ifs_update_flags(struct iomap_folio *f, const struct ifs_geometry *g)
{
	unsigned nr = ifs_blocks(f, g);
	uint32_t want = 0, was = folio_flags(f);
	const uint32_t summary = FOLIO_UPTODATE | FOLIO_DIRTY | FOLIO_WRITEBACK | FOLIO_FAILED;

	if (all(f, IFS_UPTODATE, 0, nr))
		want |= FOLIO_UPTODATE;
	if (ifs_any(f, g, IFS_DIRTY, 0, nr))
		want |= FOLIO_DIRTY;
	if (ifs_any(f, g, IFS_INFLIGHT, 0, nr))
		want |= FOLIO_WRITEBACK;
	if (ifs_any(f, g, IFS_FAILED, 0, nr))
		want |= FOLIO_FAILED;
	if (want & ~was)
		folio_flags_set(f, want & ~was);
	if (was & summary & ~want)
		folio_flags_clear(f, was & summary & ~want);
}

/* Adds to @c what changed since @was in the granules of [first, end); flags follow. */
static struct levels settle(struct iomap_folio *f, const struct ifs_geometry *g, unsigned first, unsigned end,
			    struct levels was, struct charge *c)
{
	int64_t gbytes = (int64_t)granule_bytes(f, g);
	struct levels now;

	ifs_update_flags(f, g);
	now = levels(f, g, first, end);
	c->dirty += ((int64_t)now.dirty - was.dirty) * gbytes;
	if (folio_flags(f) & FOLIO_DROPBEHIND)
		c->dontcache += ((int64_t)now.dirty - was.dirty) * gbytes;
	c->writeback += ((int64_t)now.inflight - was.inflight) * gbytes;
	c->failed += ((int64_t)now.failed - was.failed) * gbytes;
	if (now.pinned && !was.pinned) {
		c->pinned += (int64_t)folio_bytes(f);
		c->pin_acquired += folio_bytes(f);
	} else if (was.pinned && !now.pinned) {
		c->pinned -= (int64_t)folio_bytes(f);
	}
	return now;
}

/* --- changes ---------------------------------------------------------------------------------------------- */

void ifs_set_uptodate(struct iomap_folio *f, const struct ifs_geometry *g, unsigned first, unsigned nr)
{
	lockdep_assert_held(&f->small);
	set(f, IFS_UPTODATE, first, first + nr);
	if (!(folio_flags(f) & FOLIO_UPTODATE) && all(f, IFS_UPTODATE, 0, ifs_blocks(f, g)))
		folio_flags_set(f, FOLIO_UPTODATE);
}

/* Bytes newly charged as dirty. */
static uint64_t make_dirty(struct iomap_folio *f, const struct ifs_geometry *g, unsigned first, unsigned nr, struct charge *c)
{
	struct levels was = levels(f, g, first, first + nr), now;

	lockdep_assert_held(&f->small);
	IOMAP_BUG_ON(!ifs_range_uptodate(f, g, first, nr));
	set(f, IFS_DIRTY, first, first + nr);
	now = settle(f, g, first, first + nr, was, c);
	return (now.dirty - was.dirty) * granule_bytes(f, g);
}

void ifs_set_dirty(struct iomap_folio *f, const struct ifs_geometry *g, unsigned first, unsigned nr, struct charge *c)
{
	c->dirtied += make_dirty(f, g, first, nr, c);
}

void ifs_redirty(struct iomap_folio *f, const struct ifs_geometry *g, unsigned first, unsigned nr, struct charge *c)
{
	c->redirtied += make_dirty(f, g, first, nr, c);
}

unsigned ifs_exclusive_blocks(const struct iomap_folio *f, const struct ifs_geometry *g)
{
	unsigned page = g->block_shift < PAGE_SHIFT ? 1U << (PAGE_SHIFT - g->block_shift) : 1, gb = ifs_granule_blocks(f, g);

	return gb > page ? gb : page;
}

/* Where the granule is the block: a word of blocks at a time. */
static void claim_words(struct iomap_folio *f, const struct ifs_geometry *g, unsigned from, unsigned end, bool retry_failed,
			struct block_set *out, bool *busy)
{
	unsigned i, page = MUTANT(M_PAGE_SHARED) ? 1 : ifs_exclusive_blocks(f, g);
	uint64_t mask;

	while (next_mask(&from, end, &i, &mask)) {
		uint64_t dirty = get_word(f, IFS_DIRTY, i), inflight = get_word(f, IFS_INFLIGHT, i);
		/* every block of a page that has one in flight */
		uint64_t taken = fold(inflight, page) * ((UINT64_C(1) << page) - 1);
		uint64_t failed = get_word(f, IFS_FAILED, i), take = dirty & mask & ~taken;

		if (MUTANT(M_IN_FLIGHT_TWICE))
			take = dirty & mask;
		*busy |= (dirty & mask & taken) != 0;
		if (!retry_failed)
			take &= ~failed;
		if (!take)
			continue;
		out->word[i] = take;
		set_word(f, IFS_INFLIGHT, i, inflight | take);
		set_word(f, IFS_DIRTY, i, dirty & ~take);
		set_word(f, IFS_FAILED, i, failed & ~take);
	}
}

void ifs_claim(struct iomap_folio *f, const struct ifs_geometry *g, unsigned from, unsigned end, bool retry_failed,
	       struct block_set *out, bool *busy, struct charge *c)
{
	unsigned nr = ifs_blocks(f, g), gb = ifs_granule_blocks(f, g);
	struct levels was, now;

	lockdep_assert_held(&f->small);
	memset(out->word, 0, div_round_up(nr, 64) * sizeof(uint64_t));
	out->nr_blocks = nr;
	*busy = false;
	from = from / gb * gb;
	end = (unsigned)min_u64(div_round_up(end, gb) * gb, nr);
	if (from >= end)
		return;
	was = levels(f, g, from, end);
	if (gb == 1) {
		claim_words(f, g, from, end, retry_failed, out, busy);
		now = settle(f, g, from, end, was, c);
		c->submitted += (now.inflight - was.inflight) * granule_bytes(f, g);
		return;
	}
	for (unsigned b = find(f, IFS_DIRTY, from, nr, true); b < end; b = find(f, IFS_DIRTY, b, nr, true)) {
		unsigned g0 = b / gb * gb, g1 = g0 + gb;

		b = g1;
		if (ifs_any(f, g, IFS_INFLIGHT, g0, gb)) {
			*busy = true;
			continue;
		}
		if (!retry_failed && ifs_any(f, g, IFS_FAILED, g0, gb))
			continue;
		for (unsigned d = find(f, IFS_DIRTY, g0, g1, true); d < g1; d = find(f, IFS_DIRTY, d + 1, g1, true)) {
			out->word[d / 64] |= UINT64_C(1) << (d % 64);
			set(f, IFS_INFLIGHT, d, d + 1);
			clear(f, IFS_DIRTY, d, d + 1);
			clear(f, IFS_FAILED, d, d + 1);
		}
	}
	now = settle(f, g, from, end, was, c);
	c->submitted += (now.inflight - was.inflight) * granule_bytes(f, g);
}

void ifs_complete(struct iomap_folio *f, const struct ifs_geometry *g, unsigned first, unsigned nr, bool failed, bool keep,
		  struct charge *c)
{
	unsigned gb = ifs_granule_blocks(f, g), end = first + nr;
	struct levels was = levels(f, g, first, end), now;
	unsigned failed_granules = 0;

	lockdep_assert_held(&f->small);
	IOMAP_BUG_ON(!all(f, IFS_INFLIGHT, first, end));
	clear(f, IFS_INFLIGHT, first, end);
	if (failed) {
		set(f, IFS_FAILED, first, end);
		if (keep)
			set(f, IFS_DIRTY, first, end);
	}
	/* Granules that have just left writeback: written, or failed if one of their blocks did since the claim. */
	if (gb == 1) {
		failed_granules = failed ? nr : 0;
	} else {
		for (unsigned g0 = first / gb * gb; g0 < end; g0 += gb)
			if (!ifs_any(f, g, IFS_INFLIGHT, g0, gb) && ifs_any(f, g, IFS_FAILED, g0, gb))
				failed_granules++;
	}
	/* The mark of a failure that is not dirty any more has done its work once its granule is complete. */
	for (unsigned g0 = first / gb * gb; failed_granules && g0 < end; g0 += gb) {
		if (ifs_any(f, g, IFS_INFLIGHT, g0, gb))
			continue;
		for (unsigned b = find(f, IFS_FAILED, g0, g0 + gb, true); b < g0 + gb;
		     b = find(f, IFS_FAILED, b + 1, g0 + gb, true))
			if (!keep || !ifs_block_set(f, g, IFS_DIRTY, b))
				clear(f, IFS_FAILED, b, b + 1);
	}
	now = settle(f, g, first, end, was, c);
	c->redirtied += (now.dirty - was.dirty) * granule_bytes(f, g);
	c->write_failed += failed_granules * granule_bytes(f, g);
	c->written += (was.inflight - now.inflight - failed_granules) * granule_bytes(f, g);
	if (was.pinned && !now.pinned)
		c->pin_released += folio_bytes(f);
}

void ifs_cancel(struct iomap_folio *f, const struct ifs_geometry *g, unsigned first, unsigned nr, struct charge *c)
{
	struct levels was = levels(f, g, first, first + nr), now;

	lockdep_assert_held(&f->small);
	clear(f, IFS_DIRTY, first, first + nr);
	for (unsigned b = find(f, IFS_FAILED, first, first + nr, true); b < first + nr; b = find(f, IFS_FAILED, b + 1, first + nr, true))
		if (!ifs_any(f, g, IFS_INFLIGHT, b / ifs_granule_blocks(f, g) * ifs_granule_blocks(f, g), ifs_granule_blocks(f, g)))
			clear(f, IFS_FAILED, b, b + 1);
	now = settle(f, g, first, first + nr, was, c);
	c->cancelled += (was.dirty - now.dirty) * granule_bytes(f, g);
	if (was.pinned && !now.pinned)
		c->pin_dropped += folio_bytes(f);
}

void ifs_keep(struct iomap_folio *f, const struct ifs_geometry *g, struct charge *c)
{
	struct levels l = levels(f, g, 0, ifs_blocks(f, g));

	lockdep_assert_held(&f->small);
	if (!(folio_flags(f) & FOLIO_DROPBEHIND))
		return;
	if (!MUTANT(M_FLIP_NOT_CHARGED))
		c->dontcache -= (int64_t)(l.dirty * granule_bytes(f, g));
	folio_flags_clear(f, FOLIO_DROPBEHIND);
}

void ifs_forget_clean(struct iomap_folio *f, const struct ifs_geometry *g)
{
	unsigned at = 0, i;
	uint64_t mask;

	lockdep_assert_held(&f->small);
	while (next_mask(&at, ifs_blocks(f, g), &i, &mask))
		set_word(f, IFS_UPTODATE, i, get_word(f, IFS_UPTODATE, i) & get_word(f, IFS_DIRTY, i));
	ifs_update_flags(f, g);
}

void ifs_receipt(const struct iomap_folio *f, const struct ifs_geometry *g, struct charge *out)
{
	struct levels l = levels(f, g, 0, ifs_blocks(f, g));

	memset(out, 0, sizeof(*out));
	out->dirty = (int64_t)(l.dirty * granule_bytes(f, g));
	out->writeback = (int64_t)(l.inflight * granule_bytes(f, g));
	out->failed = (int64_t)(l.failed * granule_bytes(f, g));
	out->dontcache = folio_flags(f) & FOLIO_DROPBEHIND ? out->dirty : 0;
	out->pinned = l.dirty || l.inflight ? (int64_t)folio_bytes(f) : 0;
}

void ifs_copy_bits(struct iomap_folio *to, const struct iomap_folio *from, const struct ifs_geometry *g, unsigned first)
{
	unsigned nr = ifs_blocks(to, g);

	for (enum ifs_map map = 0; map < IFS_MAPS; map++)
		for (unsigned b = 0; b < nr; b++)
			if (ifs_block_set(from, g, map, first + b))
				set(to, map, b, b + 1);
	if (MUTANT(M_SPLIT_LOSES_DIRTY))
		clear(to, IFS_DIRTY, 0, nr);
	ifs_update_flags(to, g);
}

void ifs_shrink_to(struct iomap_folio *f, const struct ifs_geometry *g, struct ifs *ifs, uint8_t order)
{
	unsigned nr = (unsigned)((PAGE_BYTES << order) >> g->block_shift), i;
	uint64_t kept[IFS_MAPS][IFS_MAX_BLOCKS / 64], mask;

	for (enum ifs_map map = 0; map < IFS_MAPS; map++)
		for (unsigned at = 0; next_mask(&at, nr, &i, &mask); )
			kept[map][i] = get_word(f, map, i) & mask;
	store_release(&f->ifs, ifs);
	store_relaxed(&f->order, order);
	for (enum ifs_map map = 0; map < IFS_MAPS; map++)
		for (unsigned at = 0; next_mask(&at, nr, &i, &mask); )
			set_word(f, map, i, kept[map][i]);
	ifs_update_flags(f, g);
}

int ifs_check(const struct iomap_folio *f, const struct ifs_geometry *g, char *why, size_t why_len)
{
	unsigned nr = ifs_blocks(f, g);
	struct ifs *ifs = load_relaxed(&f->ifs);
	uint32_t flags = folio_flags(f);
	char name[192];
	const char *what = NULL;

	if (!!ifs != (nr > SMALL_BLOCKS))
		what = "has an ifs where the small maps suffice, or none where they do not";
	else if (!!(flags & FOLIO_UPTODATE) != all(f, IFS_UPTODATE, 0, nr))
		what = "uptodate flag and bits disagree";
	else if (!!(flags & FOLIO_DIRTY) != ifs_any(f, g, IFS_DIRTY, 0, nr))
		what = "dirty flag and bits disagree";
	else if (!!(flags & FOLIO_WRITEBACK) != ifs_any(f, g, IFS_INFLIGHT, 0, nr))
		what = "writeback flag and bits disagree";
	else if (!!(flags & FOLIO_FAILED) != ifs_any(f, g, IFS_FAILED, 0, nr))
		what = "failed flag and bits disagree";
	else if (ifs && ifs->words != div_round_up(nr, 64))
		what = "ifs has the wrong size";
	for (unsigned b = 0; !what && b < nr; b++) {
		bool dirty = ifs_block_set(f, g, IFS_DIRTY, b), inflight = ifs_block_set(f, g, IFS_INFLIGHT, b);

		if ((dirty || inflight) && !ifs_block_set(f, g, IFS_UPTODATE, b))
			what = "a dirty or in-flight block is not uptodate";
		else if (ifs_block_set(f, g, IFS_FAILED, b) && !dirty && !(flags & FOLIO_WRITEBACK))
			what = "a failed block is neither dirty nor in a granule in flight";
	}
	for (enum ifs_map map = 0; !what && map < IFS_MAPS; map++)
		if (nr < (ifs ? ifs->words * 64 : SMALL_BLOCKS) && ifs_any(f, g, map, nr, (ifs ? ifs->words * 64 : SMALL_BLOCKS) - nr))
			what = "bits beyond the last block";
	if (!what)
		return 0;
	folio_describe(f, name, sizeof(name));
	snprintf(why, why_len, "%s: %s", name, what);
	return -EUCLEAN;
}
