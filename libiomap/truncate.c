/*
 * truncate.c - cutting a range out of the cache
 *
 * Five ways: truncate_from() cuts the end off, whatever is dirty there, truncate_range() a piece out of the middle;
 * invalidate_clean() takes only what costs nothing to take; invalidate_range() takes all that is clean, and waits for it;
 * discard_failed() gives up blocks that cannot be written.
 *
 * A folio that straddles the cut is halved until the cut lies on a folio's edge or inside a folio of minimal order, so that
 * what remains dirty pins and (in FOLIO mode) charges no more than its own memory. Where it cannot be split (no memory for
 * bitmaps) it is trimmed: the blocks beyond are cancelled and zeroed in place.
 *
 * Invariants: after truncate_from(pos) no folio starts at or beyond pos, no block beyond it is dirty, cached bytes from pos
 *             to the end of its folio are zero.
 * Locking:    one folio lock at a time, plus that of a right half just made.
 * Kernel:     mm/truncate.c. Differs: dirty folios are split too, their bitmaps with them.
 */
#include <string.h>
#include "mutant.h"
#include "truncate.h"

void truncate_wait_writeback(struct mapping *m, struct iomap_folio *f)
{
	while (folio_is_writeback(f)) {
		folio_unlock(m->zone, f);
		folio_wait_writeback(m->zone, f);
		folio_lock(m->zone, f);
	}
}

/* Locked, nothing in flight: cancels all its dirty blocks and removes it. */
static void drop(struct mapping *m, struct iomap_folio *f)
{
	mapping_cancel(m, f, 0, ifs_blocks(f, &m->geom));
	mapping_remove(m, f);
}

void truncate_trim(struct mapping *m, struct iomap_folio *f, uint64_t off)
{
	unsigned first = (unsigned)div_round_up(off, ifs_block_bytes(&m->geom)), nr = ifs_blocks(f, &m->geom);

	folio_content_begin(f, off, folio_bytes(f) - off);
	if (!MUTANT(M_TRIM_NOT_ZEROED))
		folio_zero(folio_addr(m->zone, f) + off, folio_bytes(f) - off);
	folio_content_end(f, off, folio_bytes(f) - off);
	if (first < nr)
		mapping_cancel(m, f, first, nr - first);
}

/* The locked folio straddles @pos. Keeps what is before it, also if a DONTCACHE operation made it. */
static void cut(struct mapping *m, struct iomap_folio *f, uint64_t pos)
{
	struct iomap_folio *right;

	mapping_keep(m, f);
	folio_get(f);
	while (folio_order(f) > m->min_order && !mapping_halve(m, f, &right)) {
		uint64_t middle = folio_pos(right);

		if (pos <= middle) {
			drop(m, right);
			folio_unlock(m->zone, right);
			folio_put(m->zone, right);
			if (pos == middle)
				break;
			continue;
		}
		folio_unlock(m->zone, f);
		folio_put(m->zone, f);
		f = right;
	}
	if (pos - folio_pos(f) < folio_bytes(f))
		truncate_trim(m, f, pos - folio_pos(f));
	folio_unlock(m->zone, f);
	folio_put(m->zone, f);
}

void truncate_from(struct mapping *m, uint64_t pos)
{
	pgoff_t at = pos >> PAGE_SHIFT;
	struct iomap_folio *f;

	/* The folio that holds pos, if pos lies inside it. */
	f = pos ? mapping_get_locked(m, at) : NULL;
	if (f) {
		truncate_wait_writeback(m, f);
		if (folio_mapping(f) == m && folio_pos(f) < pos && pos - folio_pos(f) < folio_bytes(f))
			cut(m, f, pos);         /* unlocks */
		else
			folio_unlock(m->zone, f);
		folio_put(m->zone, f);
	}
	at = div_round_up(pos, PAGE_BYTES);
	while ((f = mapping_next(m, &at, UINT64_MAX >> PAGE_SHIFT))) {
		folio_lock(m->zone, f);
		truncate_wait_writeback(m, f);
		if (folio_mapping(f) == m && folio_pos(f) >= pos)
			drop(m, f);
		else if (folio_mapping(f) == m)
			at = folio_index(f) + folio_pages(f);
		folio_unlock(m->zone, f);
		folio_put(m->zone, f);
	}
}

void truncate_trim_range(struct mapping *m, struct iomap_folio *f, uint64_t start, uint64_t end)
{
	uint64_t pos = folio_pos(f), from = max_u64(start, pos), to = min_u64(end, pos + folio_bytes(f));

	lockdep_assert_held(f);
	if (from >= to)
		return;
	folio_content_begin(f, from - pos, to - from);
	folio_zero(folio_addr(m->zone, f) + (from - pos), to - from);
	folio_content_end(f, from - pos, to - from);
	if (MUTANT(M_PUNCH_PAST_END))
		to = pos + folio_bytes(f);
	mapping_cancel(m, f, (unsigned)((from - pos) >> m->geom.block_shift), (unsigned)((to - from) >> m->geom.block_shift));
}

/*
 * The locked, idle folio holds part of [start, end). The right halves that it is split into are left to the caller's walk, which
 * comes to them next. Returns the page to go on from.
 */
static pgoff_t cut_out(struct mapping *m, struct iomap_folio *f, uint64_t start, uint64_t end)
{
	pgoff_t next;

	for (;;) {
		uint64_t pos = folio_pos(f), stop = pos + folio_bytes(f);
		struct iomap_folio *right;

		next = folio_index(f) + folio_pages(f);
		if (stop <= start || pos >= end)
			break;
		if (start <= pos && stop <= end) {
			drop(m, f);
			break;
		}
		if (folio_order(f) <= m->min_order || mapping_halve(m, f, &right)) {
			truncate_trim_range(m, f, start, end);
			break;
		}
		folio_unlock(m->zone, right);
		folio_put(m->zone, right);
	}
	return next;
}

void truncate_range(struct mapping *m, uint64_t start, uint64_t end)
{
	pgoff_t at = start >> PAGE_SHIFT, last = (end - 1) >> PAGE_SHIFT;
	struct iomap_folio *f;

	while (at <= last && (f = mapping_next(m, &at, last))) {
		folio_lock(m->zone, f);
		truncate_wait_writeback(m, f);
		if (folio_mapping(f) == m)      /* else it went meanwhile: look again */
			at = cut_out(m, f, start, end);
		folio_unlock(m->zone, f);
		folio_put(m->zone, f);
	}
}

uint64_t invalidate_clean(struct mapping *m, pgoff_t first, pgoff_t last)
{
	uint64_t left = 0;
	pgoff_t at = first;
	struct iomap_folio *f;

	while (at <= last && (f = mapping_next(m, &at, last))) {
		pgoff_t next = at + folio_pages(f);

		if (!folio_trylock(f)) {
			left += folio_pages(f);
		} else {
			next = folio_index(f) + folio_pages(f);
			if (folio_mapping(f) != m) {
				next = at;      /* it went meanwhile: look again */
			} else if ((folio_flags(f) & (FOLIO_DIRTY | FOLIO_WRITEBACK)) || load_relaxed(&f->refs) != 2 ||
				   folio_index(f) < first || next - 1 > last) {
				left += folio_pages(f);
			} else {
				mapping_remove(m, f);
			}
			folio_unlock(m->zone, f);
		}
		folio_put(m->zone, f);
		if (!next)
			break;
		at = next;
	}
	return left;
}

bool invalidate_range(struct mapping *m, uint64_t *start, uint64_t end, uint64_t *stop)
{
	pgoff_t at = *start >> PAGE_SHIFT, last = (end - 1) >> PAGE_SHIFT;
	struct iomap_folio *f;
	bool dirty = false;

	while (!dirty && at <= last && (f = mapping_next(m, &at, last))) {
		folio_lock(m->zone, f);
		truncate_wait_writeback(m, f);
		if (folio_mapping(f) == m) {    /* else it went meanwhile: look again */
			dirty = folio_is_dirty(f);
			*start = folio_pos(f);
			*stop = folio_pos(f) + folio_bytes(f);
			if (!dirty) {
				at = folio_index(f) + folio_pages(f);
				mapping_remove(m, f);
			}
		}
		folio_unlock(m->zone, f);
		folio_put(m->zone, f);
	}
	return !dirty;
}

void discard_failed(struct mapping *m, uint64_t start, uint64_t end)
{
	pgoff_t at = start >> PAGE_SHIFT, last = (end - 1) >> PAGE_SHIFT;
	struct iomap_folio *f;

	while (at <= last && (f = mapping_next_marked(m, &at, last, XA_MARK_DIRTY))) {
		folio_lock(m->zone, f);
		truncate_wait_writeback(m, f);
		if (folio_mapping(f) == m) {
			uint64_t bs = ifs_block_bytes(&m->geom), pos = folio_pos(f);
			unsigned nr = ifs_blocks(f, &m->geom), b = 0, e = nr;

			if (start > pos)
				b = (unsigned)min_u64(div_round_up(start - pos, bs), nr);
			if (end - pos < folio_bytes(f))
				e = (unsigned)((end - pos) / bs);
			for (; b < e; b++)
				if (ifs_block_set(f, &m->geom, IFS_FAILED, b))
					mapping_cancel(m, f, b, 1);
			at = folio_index(f) + folio_pages(f);
			/*
			 * What is cached differs from what is stored: it goes, where nothing else in the folio is
			 * dirty.
			 */
			if (!folio_is_dirty(f))
				mapping_remove(m, f);
			else
				mapping_forget_clean(m, f);
		}
		folio_unlock(m->zone, f);
		folio_put(m->zone, f);
	}
}

void forget_clean(struct mapping *m, uint64_t start, uint64_t end)
{
	pgoff_t at = start >> PAGE_SHIFT, last = (end - 1) >> PAGE_SHIFT;
	struct iomap_folio *f;

	while (at <= last && (f = mapping_next(m, &at, last))) {
		folio_lock(m->zone, f);
		truncate_wait_writeback(m, f);
		if (folio_mapping(f) == m) {
			at = folio_index(f) + folio_pages(f);
			if (folio_is_dirty(f))
				mapping_forget_clean(m, f);
			else
				mapping_remove(m, f);
		}
		folio_unlock(m->zone, f);
		folio_put(m->zone, f);
	}
}
