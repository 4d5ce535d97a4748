/*
 * rangeset.c - a sorted set of byte ranges that never needs memory at the wrong moment
 *
 * One sorted array. Ranges that overlap or touch are one, so the array is as short as the set allows and a binary search
 * answers everything. Adding and removing shift the tail; sets are small (at most RANGESET_MAX ranges, nearly always a few).
 *
 * Both adding a range apart from the others and removing the middle of one need one more place. If the array has none, the
 * set of old ranges and the new one is brought down by one range, as the policy says:
 *
 *     RANGESET_SUPERSET   [a) [b)      [c) + [d)     the smallest gap between any two is filled
 *     RANGESET_SUBSET     [a) [b)      [c) + [d)     the smallest of all is left out, be it the new one
 *
 * Invariants: see rangeset_check().
 * Locking:    rs->lock for everything; memory is allocated and freed without it.
 * Kernel:     none; what it is used for is done with extent status trees in ext4.
 */
#include "rangeset.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "bug.h"
#include "util.h"

#define MOVE_BATCH      64U

/* --- the array; the lock is held -------------------------------------------------------------------------- */

/* The first range that ends after @pos, or rs->nr. */
static unsigned first_after(const struct rangeset *rs, uint64_t pos)
{
	unsigned lo = 0, hi = rs->nr;

	while (lo < hi) {
		unsigned mid = (lo + hi) / 2;

		if (rs->ranges[mid].end > pos)
			hi = mid;
		else
			lo = mid + 1;
	}
	return lo;
}

static void drop(struct rangeset *rs, unsigned at, unsigned n)
{
	memmove(&rs->ranges[at], &rs->ranges[at + n], (rs->nr - at - n) * sizeof(*rs->ranges));
	rs->nr -= n;
}

static void put_in(struct rangeset *rs, unsigned at, struct range r)
{
	memmove(&rs->ranges[at + 1], &rs->ranges[at], (rs->nr - at) * sizeof(*rs->ranges));
	rs->ranges[at] = r;
	rs->nr++;
}

/* The array is full: fills the smallest gap there would be with @r at @at. */
static void join_closest(struct rangeset *rs, unsigned at, struct range r)
{
	struct range *x = rs->ranges;
	uint64_t before = at ? r.start - x[at - 1].end : UINT64_MAX;
	uint64_t after = at < rs->nr ? x[at].start - r.end : UINT64_MAX;
	uint64_t best = min_u64(before, after);
	unsigned left = rs->nr;         /* the left one of the closest old neighbours, if they are closer */

	/* (the old gap that @r is in is larger than what it leaves on either side) */
	for (unsigned i = 0; i + 1 < rs->nr; i++)
		if (x[i + 1].start - x[i].end < best) {
			best = x[i + 1].start - x[i].end;
			left = i;
		}
	if (left < rs->nr) {
		x[left].end = x[left + 1].end;
		drop(rs, left + 1, 1);
		put_in(rs, left < at ? at - 1 : at, r);
	} else if (before <= after) {
		x[at - 1].end = r.end;
	} else {
		x[at].start = r.start;
	}
}

/* The array is full: leaves out the smallest of its ranges and @r at @at. */
static void forget_smallest(struct rangeset *rs, unsigned at, struct range r)
{
	struct range *x = rs->ranges;
	uint64_t best = r.end - r.start;
	unsigned smallest = rs->nr;

	for (unsigned i = 0; i < rs->nr; i++)
		if (x[i].end - x[i].start < best) {
			best = x[i].end - x[i].start;
			smallest = i;
		}
	if (smallest == rs->nr)
		return;
	drop(rs, smallest, 1);
	put_in(rs, smallest < at ? at - 1 : at, r);
}

/* @r touches no other range and belongs at @at. */
static void insert(struct rangeset *rs, unsigned at, struct range r)
{
	if (rs->nr < rs->cap)
		put_in(rs, at, r);
	else if (rs->policy == RANGESET_SUPERSET)
		join_closest(rs, at, r);
	else
		forget_smallest(rs, at, r);
}

static void add_locked(struct rangeset *rs, struct range r)
{
	struct range *x = rs->ranges;
	unsigned from = r.start ? first_after(rs, r.start - 1) : 0;     /* the first that overlaps or touches, if one does */
	unsigned to = from;

	while (to < rs->nr && x[to].start <= r.end)
		to++;
	if (from == to) {
		insert(rs, from, r);
		return;
	}
	x[from].start = min_u64(x[from].start, r.start);
	x[from].end = max_u64(x[to - 1].end, r.end);
	drop(rs, from + 1, to - from - 1);
}

static void remove_locked(struct rangeset *rs, struct range r)
{
	struct range *x = rs->ranges;
	unsigned from = first_after(rs, r.start), to;

	if (from < rs->nr && x[from].start < r.start) {
		struct range tail = { r.end, x[from].end };

		x[from].end = r.start;
		from++;
		if (tail.start < tail.end) {
			insert(rs, from, tail);
			return;
		}
	}
	for (to = from; to < rs->nr && x[to].end <= r.end; )
		to++;
	drop(rs, from, to - from);
	if (from < rs->nr)
		x[from].start = max_u64(x[from].start, r.end);
}

/* --- the set ---------------------------------------------------------------------------------------------- */

void rangeset_init(struct rangeset *rs, struct mem *mem, enum rangeset_policy policy, unsigned max)
{
	IOMAP_BUG_ON(!max || max > RANGESET_MAX);
	mutex_init(&rs->lock, LOCK_LEAF);
	rs->mem = mem;
	rs->policy = policy;
	rs->ranges = rs->few;
	rs->nr = 0;
	rs->max = max;
	rs->cap = (unsigned)min_u64(max, ARRAY_SIZE(rs->few));
}

void rangeset_fini(struct rangeset *rs)
{
	mutex_fini(&rs->lock);
	if (rs->ranges != rs->few)
		mem_free(rs->mem, rs->ranges, rs->cap * sizeof(*rs->ranges));
	rs->ranges = rs->few;
	rs->nr = rs->cap = 0;
}

/* Two at once may both allocate; the larger array stays. */
void rangeset_reserve(struct rangeset *rs, unsigned extra)
{
	mutex_lock(&rs->lock);
	unsigned cap = rs->cap;
	uint64_t want = min_u64(rs->max, (uint64_t)rs->nr + extra);
	mutex_unlock(&rs->lock);

	if (want <= cap)
		return;
	want = min_u64(rs->max, max_u64(want, UINT64_C(2) * cap));
	struct range *ranges = mem_alloc(rs->mem, want * sizeof(*ranges)), *old = ranges;
	if (!ranges)
		return;

	cap = (unsigned)want;
	mutex_lock(&rs->lock);
	if (rs->cap < want) {
		memcpy(ranges, rs->ranges, rs->nr * sizeof(*ranges));
		old = rs->ranges;
		cap = rs->cap;
		rs->ranges = ranges;
		rs->cap = (unsigned)want;
	}
	mutex_unlock(&rs->lock);
	if (old != rs->few)
		mem_free(rs->mem, old, cap * sizeof(*old));
}

void rangeset_add(struct rangeset *rs, uint64_t start, uint64_t end)
{
	if (start >= end)
		return;
	mutex_lock(&rs->lock);
	add_locked(rs, (struct range){ start, end });
	mutex_unlock(&rs->lock);
}

void rangeset_remove(struct rangeset *rs, uint64_t start, uint64_t end)
{
	if (start >= end)
		return;
	mutex_lock(&rs->lock);
	remove_locked(rs, (struct range){ start, end });
	mutex_unlock(&rs->lock);
}

bool rangeset_contains(struct rangeset *rs, uint64_t start, uint64_t end)
{
	if (start >= end)
		return true;
	mutex_lock(&rs->lock);
	unsigned at = first_after(rs, start);
	/* Ranges do not touch, so one holds all of it or none does. */
	bool contains = at < rs->nr && rs->ranges[at].start <= start && rs->ranges[at].end >= end;
	mutex_unlock(&rs->lock);
	return contains;
}

bool rangeset_next(struct rangeset *rs, uint64_t pos, struct range *out)
{
	mutex_lock(&rs->lock);
	unsigned at = first_after(rs, pos);
	bool found = at < rs->nr;
	if (found)
		*out = rs->ranges[at];
	mutex_unlock(&rs->lock);
	return found;
}

bool rangeset_next_gap(struct rangeset *rs, uint64_t start, uint64_t end, struct range *out)
{
	if (start >= end)
		return false;
	mutex_lock(&rs->lock);
	unsigned at = first_after(rs, start);
	if (at < rs->nr && rs->ranges[at].start <= start)
		start = rs->ranges[at++].end;
	if (at < rs->nr)
		end = min_u64(end, rs->ranges[at].start);
	mutex_unlock(&rs->lock);
	if (start >= end)
		return false;
	*out = (struct range){ start, end };
	return true;
}

/*
 * By batches in ascending order, so that @from keeps its memory, which somebody may have reserved for what comes next. Each
 * batch starts where the last one ended: adding to @from meanwhile cannot keep this going.
 */
void rangeset_move(struct rangeset *to, struct rangeset *from)
{
	struct range batch[MOVE_BATCH];
	uint64_t pos = 0;
	unsigned n;

	IOMAP_BUG_ON(to == from);
	do {
		mutex_lock(&from->lock);
		unsigned at = first_after(from, pos);
		n = (unsigned)min_u64(MOVE_BATCH, from->nr - at);
		memcpy(batch, &from->ranges[at], n * sizeof(*batch));
		drop(from, at, n);
		mutex_unlock(&from->lock);
		if (!n)
			break;
		mutex_lock(&to->lock);
		for (unsigned i = 0; i < n; i++)
			add_locked(to, batch[i]);
		mutex_unlock(&to->lock);
		pos = batch[n - 1].end;
	} while (n == MOVE_BATCH);
}

bool rangeset_empty(struct rangeset *rs)
{
	return !rangeset_count(rs);
}

uint64_t rangeset_bytes(struct rangeset *rs)
{
	uint64_t bytes = 0;

	mutex_lock(&rs->lock);
	for (unsigned i = 0; i < rs->nr; i++)
		bytes += rs->ranges[i].end - rs->ranges[i].start;
	mutex_unlock(&rs->lock);
	return bytes;
}

unsigned rangeset_count(struct rangeset *rs)
{
	mutex_lock(&rs->lock);
	unsigned nr = rs->nr;
	mutex_unlock(&rs->lock);
	return nr;
}

static const char *first_broken(const struct rangeset *rs)
{
	if (rs->nr > rs->cap || rs->cap > rs->max)
		return "not nr <= cap <= max";
	if (rs->ranges == rs->few && rs->cap > ARRAY_SIZE(rs->few))
		return "more room than the inline array has";
	for (unsigned i = 0; i < rs->nr; i++) {
		if (rs->ranges[i].start >= rs->ranges[i].end)
			return "an empty range";
		if (i && rs->ranges[i - 1].end >= rs->ranges[i].start)
			return "ranges out of order or touching";
	}
	return NULL;
}

int rangeset_check(struct rangeset *rs, char *why, size_t why_len)
{
	mutex_lock(&rs->lock);
	const char *broken = first_broken(rs);
	mutex_unlock(&rs->lock);
	if (!broken)
		return 0;
	snprintf(why, why_len, "rangeset: %s", broken);
	return -EUCLEAN;
}
