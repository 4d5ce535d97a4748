/*
 * arena.h - page frames: one mapping of memory, handed out in power-of-two runs by a buddy allocator
 */
#ifndef IOMAP_ARENA_H
#define IOMAP_ARENA_H

#include "frame.h"
#include "mem.h"
#include "platform.h"

#define FRAME_NOT_FREE  0xff

struct arena {
	/* fixed */
	char *base;
	struct iomap_folio *frames;             /* one a frame, zeroed at the start */
	uint32_t nr_frames;
	size_t frames_bytes;                    /* size of the descriptor array with free_order behind it */
	/* lock */
	struct mutex lock;                      /* LOCK_LEAF */
	uint8_t *free_order;                    /* one a frame: the order of the free run it heads, else FRAME_NOT_FREE */
	uint32_t free_list[MAX_ORDER + 1];      /* frame numbers, FRAME_NONE at the end */
	_Atomic uint64_t free_frames;           /* written under the lock */
	/* populating in the background */
	struct thread populate;
	bool populating;
	_Atomic bool stop;
};

int  arena_init(struct arena *a, uint64_t bytes);       /* rounded down to whole frames; -ENOMEM */
void arena_fini(struct arena *a);
/*
 * A run of 1 << order frames, naturally aligned in the arena; its head's order is set, refs 0. -ENOMEM: no such
 * run.
 */
int  arena_alloc(struct arena *a, unsigned order, struct iomap_folio **out);
/* Gives back a run, or any naturally aligned part of one (a split is only a relabelling). */
void arena_free(struct arena *a, struct iomap_folio *head, unsigned order);
uint64_t arena_free_bytes(const struct arena *a);
/* Recomputes free lists, alignment, merging and the count: 0 or -EUCLEAN. */
int  arena_check(struct arena *a, char *why, size_t why_len);

static inline uint32_t frame_number(const struct arena *a, const struct iomap_folio *f) { return (uint32_t)(f - a->frames); }
static inline void *frame_addr(const struct arena *a, const struct iomap_folio *f)
{
	return a->base + ((uint64_t)frame_number(a, f) << PAGE_SHIFT);
}

#endif
