/*
 * frame.h - the descriptor of one 4 KiB frame of the arena
 *
 * One 64-byte descriptor a frame, in an array made with the arena and type-stable for the cache's life: a stale pointer
 * found by a lock-free lookup always points at some descriptor, and the lookup looks again. The descriptor of a run's first
 * frame is the folio; those behind it only lend their content count (one per 64 KiB) and, while free, belong to the buddy
 * allocator.
 */
#ifndef IOMAP_FRAME_H
#define IOMAP_FRAME_H

#include <assert.h>
#include "atomic.h"
#include "util.h"

struct mapping;
struct ifs;

#define FRAME_NONE      UINT32_MAX      /* end of a list of frames */
#define SMALL_BLOCKS    16              /* a folio of at most so many blocks keeps its bitmaps here, without an ifs */
#define CONTENT_FRAMES  16              /* one content count per 64 KiB */

enum ifs_map { IFS_UPTODATE, IFS_DIRTY, IFS_INFLIGHT, IFS_FAILED, IFS_MAPS };

struct iomap_folio {
	/* fixed while in the cache; read under RCU, so look again after folio_tryget() */
	_Atomic(struct mapping *) mapping;      /* NULL: not in a file */
	_Atomic uint64_t index;                 /* first page in the file */
	/* block bits: written under the state lock; uptodate words are also read under RCU */
	_Atomic(struct ifs *) ifs;              /* NULL where the small maps suffice */
	_Atomic uint16_t small[IFS_MAPS];
	/* atomic */
	_Atomic uint32_t flags;                 /* FOLIO_*, see folio.h */
	_Atomic uint32_t refs;
	_Atomic uint32_t identity;              /* odd while being removed or split; never reset */
	_Atomic uint32_t content;               /* odd while a writer copies into this 64 KiB; never reset */
	_Atomic uint32_t stable;                /* pieces of write requests that read it in place, + 1 while a claim is cut up */
	/* the reclaim queue's lock while queued; the arena's lock while free */
	uint32_t next, prev;                    /* frame numbers */
	/* fixed while allocated, but for a split under the folio lock */
	_Atomic uint8_t order;
	/* folio lock or completion: the last write error and how often writing failed */
	uint8_t tries;
	int16_t error;
};
static_assert(sizeof(struct iomap_folio) == 64, "one cache line a frame");

#endif
