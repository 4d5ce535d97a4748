/*
 * arena.c - page frames: one mapping of memory, handed out in power-of-two runs by a buddy allocator
 *
 * A free run of 1 << order frames is naturally aligned; its buddy is the run that differs in the one bit of that order.
 * Allocation takes the smallest run that will do and gives back halves until it fits; freeing joins a run with its buddy
 * as long as that is free too. What is free is known by free_order[]: the order at the first frame of a free run,
 * FRAME_NOT_FREE at every other frame. It stands beside the descriptors and not in them, because lock-free lookups may
 * look at any descriptor at any time, and what they see there must not depend on whether the frame is free.
 *
 * The number of frames need not be a power of two: the arena starts as the largest aligned runs that fit, and a buddy
 * past the end is never free. The first touch of memory is slow, so a thread populates large arenas from the front; runs
 * are handed out from the front as well, until the lists have been mixed.
 *
 * Invariants: free runs do not overlap; no run below MAX_ORDER is free together with its buddy; see arena_check().
 * Locking:    a->lock for the lists and free_order, and for next and prev in the descriptors of free frames.
 * Kernel:     mm/page_alloc.c, v6.17. Differs: one zone, no migrate types, no per-CPU lists here, no watermarks.
 */
#include "arena.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include "bug.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ARENA_ASAN 1
#endif
#endif
#ifdef __SANITIZE_ADDRESS__
#define ARENA_ASAN 1
#endif
#ifdef ARENA_ASAN
#include <sanitizer/asan_interface.h>
#define poison(p, bytes)        ASAN_POISON_MEMORY_REGION(p, bytes)
#define unpoison(p, bytes)      ASAN_UNPOISON_MEMORY_REGION(p, bytes)
#else
#define poison(p, bytes)        ((void)(p), (void)(bytes))
#define unpoison(p, bytes)      ((void)(p), (void)(bytes))
#endif

#define POPULATE_ABOVE  (UINT64_C(64) << 20)
#define POPULATE_STEP   (UINT64_C(8) << 20)     /* a few milliseconds: so long arena_fini() may wait */

static uint64_t run_bytes(unsigned order) { return PAGE_BYTES << order; }

/* --- free lists; the lock is held ------------------------------------------------------------------------- */

static void push(struct arena *a, uint32_t frame, unsigned order)
{
	uint32_t next = a->free_list[order];

	a->frames[frame].next = next;
	a->frames[frame].prev = FRAME_NONE;
	if (next != FRAME_NONE)
		a->frames[next].prev = frame;
	a->free_list[order] = frame;
	a->free_order[frame] = (uint8_t)order;
}

static void unlink_run(struct arena *a, uint32_t frame)
{
	uint32_t next = a->frames[frame].next, prev = a->frames[frame].prev;

	if (next != FRAME_NONE)
		a->frames[next].prev = prev;
	if (prev != FRAME_NONE)
		a->frames[prev].next = next;
	else
		a->free_list[a->free_order[frame]] = next;
	a->free_order[frame] = FRAME_NOT_FREE;
}

static void add_free_frames(struct arena *a, int64_t frames)
{
	/* relaxed: only the holder of the lock writes, readers want a figure */
	store_relaxed(&a->free_frames, load_relaxed(&a->free_frames) + (uint64_t)frames);
}

/* Is any frame of the run free? Looks at every run that could hold it or lie in it. */
__attribute__((unused))         /* in release builds */
static bool overlaps_free(const struct arena *a, uint32_t frame, unsigned order)
{
	for (unsigned o = order; o <= MAX_ORDER; o++) {
		uint32_t head = frame & ~((1U << o) - 1);

		if (a->free_order[head] != FRAME_NOT_FREE && a->free_order[head] >= o)
			return true;
	}
	for (uint32_t i = 0; i < 1U << order; i++)
		if (a->free_order[frame + i] != FRAME_NOT_FREE)
			return true;
	return false;
}

/* --- the arena -------------------------------------------------------------------------------------------- */

static void populate(void *arg)
{
	struct arena *a = arg;
	uint64_t bytes = (uint64_t)a->nr_frames << PAGE_SHIFT;

	/* relaxed: nothing is passed on with it; arena_fini() joins us */
	for (uint64_t off = 0; off < bytes && !load_relaxed(&a->stop); off += POPULATE_STEP)
		plat_populate(a->base + off, min_u64(POPULATE_STEP, bytes - off));
}

/* All of the arena as free runs, lowest first in each list. */
static void free_all(struct arena *a)
{
	for (uint32_t end = a->nr_frames; end; ) {
		/* the last run ends at @end: as large as the alignment of @end allows, MAX_ORDER at most */
		unsigned order = (unsigned)__builtin_ctz(end);

		if (order > MAX_ORDER)
			order = MAX_ORDER;
		end -= 1U << order;
		push(a, end, order);
	}
	add_free_frames(a, a->nr_frames);
}

int arena_init(struct arena *a, uint64_t bytes)
{
	uint64_t nr = bytes >> PAGE_SHIFT;

	if (!nr || nr >= FRAME_NONE)
		return -ENOMEM;
	a->nr_frames = (uint32_t)nr;
	a->frames_bytes = nr * (sizeof(*a->frames) + sizeof(*a->free_order));
	a->base = plat_map(nr << PAGE_SHIFT, true);
	if (!a->base)
		return -ENOMEM;
	a->frames = plat_map(a->frames_bytes, false);
	if (!a->frames)
		goto unmap_base;

	a->free_order = (uint8_t *)(a->frames + nr);
	memset(a->free_order, FRAME_NOT_FREE, nr);
	mutex_init(&a->lock, LOCK_LEAF);
	for (unsigned order = 0; order <= MAX_ORDER; order++)
		a->free_list[order] = FRAME_NONE;
	store_relaxed(&a->free_frames, 0);      /* nobody else knows the arena yet */
	free_all(a);
	poison(a->base, nr << PAGE_SHIFT);

	store_relaxed(&a->stop, false);
	/* without the thread it is only slower */
	a->populating = nr << PAGE_SHIFT > POPULATE_ABOVE && !thread_create(&a->populate, "iomap-populate", populate, a);
	return 0;

unmap_base:
	plat_unmap(a->base, nr << PAGE_SHIFT);
	return -ENOMEM;
}

void arena_fini(struct arena *a)
{
	uint64_t bytes = (uint64_t)a->nr_frames << PAGE_SHIFT;

	store_relaxed(&a->stop, true);
	if (a->populating)
		thread_join(&a->populate);
	mutex_fini(&a->lock);
	unpoison(a->base, bytes);
	plat_unmap(a->frames, a->frames_bytes);
	plat_unmap(a->base, bytes);
}

int arena_alloc(struct arena *a, unsigned order, struct iomap_folio **out)
{
	unsigned from = order;

	IOMAP_BUG_ON(order > MAX_ORDER);
	mutex_lock(&a->lock);
	while (from <= MAX_ORDER && a->free_list[from] == FRAME_NONE)
		from++;
	if (from > MAX_ORDER) {
		mutex_unlock(&a->lock);
		return -ENOMEM;
	}
	uint32_t frame = a->free_list[from];
	unlink_run(a, frame);
	while (from > order) {
		from--;
		push(a, frame + (1U << from), from);
	}
	add_free_frames(a, -(INT64_C(1) << order));
	mutex_unlock(&a->lock);

	struct iomap_folio *head = a->frames + frame;
	IOMAP_BUG_ON(load_relaxed(&head->refs));
	store_relaxed(&head->order, (uint8_t)order);    /* published by who raises refs */
	unpoison(frame_addr(a, head), run_bytes(order));
	*out = head;
	return 0;
}

void arena_free(struct arena *a, struct iomap_folio *head, unsigned order)
{
	uint32_t frame = frame_number(a, head);

	IOMAP_BUG_ON(order > MAX_ORDER || frame & ((1U << order) - 1) || frame + (1U << order) > a->nr_frames);
	IOMAP_BUG_ON(load_relaxed(&head->refs));
	poison(frame_addr(a, head), run_bytes(order));

	mutex_lock(&a->lock);
	IOMAP_BUG_ON(overlaps_free(a, frame, order));
	add_free_frames(a, INT64_C(1) << order);
	for (; order < MAX_ORDER; order++) {
		uint32_t buddy = frame ^ (1U << order);

		if (buddy >= a->nr_frames || a->free_order[buddy] != order)
			break;
		unlink_run(a, buddy);
		frame &= ~(1U << order);
	}
	push(a, frame, order);
	mutex_unlock(&a->lock);
}

uint64_t arena_free_bytes(const struct arena *a)
{
	return load_relaxed(&a->free_frames) << PAGE_SHIFT;     /* a figure; orders nothing */
}

/* --- checking --------------------------------------------------------------------------------------------- */

/* Reads free_order from front to end: runs are aligned, apart, joined where they can be. Counts them. */
static const char *check_runs(const struct arena *a, uint32_t nr_runs[MAX_ORDER + 1], uint64_t *nr_frames)
{
	uint32_t inside = 0;    /* end of the last free run */

	for (uint32_t frame = 0; frame < a->nr_frames; frame++) {
		unsigned order = a->free_order[frame];

		if (order == FRAME_NOT_FREE)
			continue;
		if (order > MAX_ORDER)
			return "no such order";
		uint32_t size = 1U << order, buddy = frame ^ size;
		if (frame & (size - 1))
			return "a free run is not aligned";
		if (size > a->nr_frames - frame)
			return "a free run reaches past the end";
		if (frame < inside)
			return "free runs overlap";
		if (order < MAX_ORDER && buddy < a->nr_frames && a->free_order[buddy] == order)
			return "two free buddies are not joined";
		if (load_relaxed(&a->frames[frame].refs))       /* the frame is free: nobody may raise it */
			return "a free run has references";
		inside = frame + size;
		nr_runs[order]++;
		*nr_frames += size;
	}
	return NULL;
}

/* Each list links @nr_runs[order] different runs of its order, both ways: so all of them. */
static const char *check_lists(const struct arena *a, const uint32_t nr_runs[MAX_ORDER + 1])
{
	for (unsigned order = 0; order <= MAX_ORDER; order++) {
		uint32_t prev = FRAME_NONE, n = 0;

		for (uint32_t frame = a->free_list[order]; frame != FRAME_NONE; frame = a->frames[frame].next) {
			if (frame >= a->nr_frames)
				return "a list leads out of the arena";
			if (a->free_order[frame] != order)
				return "a list leads to a run of another order";
			if (a->frames[frame].prev != prev)
				return "a list is linked differently backwards";
			if (n++ == nr_runs[order])
				return "a list is longer than there are runs";
			prev = frame;
		}
		if (n != nr_runs[order])
			return "a free run is not on its list";
	}
	return NULL;
}

int arena_check(struct arena *a, char *why, size_t why_len)
{
	uint32_t nr_runs[MAX_ORDER + 1] = { 0 };
	uint64_t nr_frames = 0;

	mutex_lock(&a->lock);
	const char *broken = check_runs(a, nr_runs, &nr_frames);
	if (!broken)
		broken = check_lists(a, nr_runs);
	if (!broken && load_relaxed(&a->free_frames) != nr_frames)
		broken = "free_frames is not what is free";
	mutex_unlock(&a->lock);
	if (!broken)
		return 0;
	snprintf(why, why_len, "arena: %s", broken);
	return -EUCLEAN;
}
