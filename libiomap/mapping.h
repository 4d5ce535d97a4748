/*
 * mapping.h - the page cache of one file: index, marks, lookup, add, remove, split
 *
 * Everything that changes a folio's block bits goes through here, because bits, the folio's summary flags, the tree's marks
 * and the backing device's counters change together: tree lock, then state lock.
 */
#ifndef IOMAP_MAPPING_H
#define IOMAP_MAPPING_H

#include "bdi.h"
#include "ifs.h"
#include "platform.h"
#include "xarray.h"

struct mapping;

/* What reclaim wants to know; set when the mapping is made. */
struct mapping_ops {
	/* In the tree, still locked by its maker. @read: brought in to be read, so it may be a refault. */
	void (*added)(struct mapping *m, struct iomap_folio *f, bool read);
	/* About to leave it (@gone) or to be cut in two; locked. */
	void (*removed)(struct mapping *m, struct iomap_folio *f, bool gone);
	/* No run of @order is free. Frees some, waiting for I/O only if @may_wait: 0 to try again, or -ENOMEM. */
	int  (*memory_short)(struct mapping *m, unsigned order, bool may_wait);
	void (*memory_low)(struct mapping *m);          /* little is left: reclaim in the background */
};

struct mapping {
	/* fixed */
	struct zone *zone;
	struct wb *wb;
	const struct mapping_ops *ops;
	void *owner;                            /* the cache, for ops */
	struct ifs_geometry geom;
	unsigned min_order;
	uint64_t file_id;                       /* never reused in this cache; for fingerprints */
	_Atomic unsigned max_order;             /* a tunable of the cache */
	uint64_t low_bytes;                     /* free memory below this: memory_low() */
	/* tree_lock; readers of the tree: RCU */
	struct mutex tree_lock;                 /* LOCK_TREE */
	struct xarray tree;
	_Atomic uint64_t nr_pages;
	/* state locks of its folios */
	_Atomic int64_t dontcache_dirty;        /* of the backing device's WB_DONTCACHE, what is in this file */
	/* nobody adds folios to a range being cut */
	struct rwsem invalidate_lock;           /* LOCK_INVALIDATE */
};

void mapping_init(struct mapping *m, struct zone *zone, struct wb *wb, const struct mapping_ops *ops, void *owner,
		  struct ifs_geometry geom, unsigned max_order);
void mapping_fini(struct mapping *m);           /* empty, no readers */

/* The folio that covers page @index, referenced, or NULL. */
struct iomap_folio *mapping_get(struct mapping *m, pgoff_t index);
/* The same, locked too. Sleeps. */
struct iomap_folio *mapping_get_locked(struct mapping *m, pgoff_t index);
/* The same without sleeping: 0 and a folio or NULL, or -EAGAIN if somebody else holds its lock. */
int mapping_get_trylocked(struct mapping *m, pgoff_t index, struct iomap_folio **out);
/*
 * First folio that ends after *@index and begins at most at @last, with @mark, referenced; *@index becomes its first page. NULL: none.
 */
struct iomap_folio *mapping_next_marked(struct mapping *m, pgoff_t *index, pgoff_t last, enum xa_mark mark);
/* As mapping_next_marked(), with a block that is dirty or in flight: none is missed that goes from one to the other meanwhile. */
struct iomap_folio *mapping_next_busy(struct mapping *m, pgoff_t *index, pgoff_t last);
struct iomap_folio *mapping_next(struct mapping *m, pgoff_t *index, pgoff_t last);
/*
 * Flags move first, then marks, then the sums of the device, under one hold of the tree lock. Who has seen a flag without a lock calls
 * this before it looks at marks.
 */
void mapping_settle(struct mapping *m);
/* Does some folio in [start, end) have the mark? No promise beyond the moment. */
bool mapping_marked_in(struct mapping *m, uint64_t start, uint64_t end, enum xa_mark mark);
/* Is page @index cached? No promise beyond the moment. */
bool mapping_has(struct mapping *m, pgoff_t index);

enum {
	MAPPING_MAY_WAIT = 1U << 0,     /* for memory: reclaim directly, wait for writeback */
	MAPPING_EXACT = 1U << 1,        /* no smaller order for want of room or memory: -EEXIST, -ENOMEM */
	MAPPING_WRITE = 1U << 2,        /* made by a write: its return is no refault */
	MAPPING_DROPBEHIND = 1U << 3,   /* made by a DONTCACHE operation: FOLIO_DROPBEHIND */
};
/*
 * A new folio over page @index of at most order @order (smaller if misaligned, if a neighbour is in the way, or memory is
 * short; never below min_order): in the tree, locked, referenced, no block uptodate. -EEXIST: @index is taken; -ENOMEM.
 */
int  mapping_create(struct mapping *m, pgoff_t index, unsigned order, unsigned flags, struct iomap_folio **out);
/* Takes a locked, clean folio with nothing in flight out of the tree; the caller's reference stays. */
void mapping_remove(struct mapping *m, struct iomap_folio *f);
/*
 * Cuts a locked folio with nothing in flight in two; @f keeps the left half, *@right is locked and referenced.
 * -ENOMEM, -EBUSY (in flight), -EINVAL (already min_order).
 */
int  mapping_halve(struct mapping *m, struct iomap_folio *f, struct iomap_folio **right);

/* Folio locked: somebody wants it who has not said DONTCACHE. It stays when it is clean. */
void mapping_keep(struct mapping *m, struct iomap_folio *f);

/* Folio locked; mapping_set_uptodate(): or owned by a read. */
void mapping_set_uptodate(struct mapping *m, struct iomap_folio *f, unsigned first, unsigned nr);
/* Returns the bytes charged as newly dirtied. */
uint64_t mapping_set_dirty(struct mapping *m, struct iomap_folio *f, unsigned first, unsigned nr);
void mapping_redirty(struct mapping *m, struct iomap_folio *f, unsigned first, unsigned nr);
/* Puts dirty blocks of [from, end) in flight; see ifs_claim(). Returns whether @out has any. */
bool mapping_claim(struct mapping *m, struct iomap_folio *f, unsigned from, unsigned end, bool retry_failed,
		   struct block_set *out, bool *busy);
void mapping_cancel(struct mapping *m, struct iomap_folio *f, unsigned first, unsigned nr);
/*
 * Clean blocks of a locked folio with nothing in flight are not uptodate any more: they differ from what is
 * stored.
 */
void mapping_forget_clean(struct mapping *m, struct iomap_folio *f);
/* From a completion: no folio lock. @error 0 or -errno. Wakes who waits for the folio. */
void mapping_complete(struct mapping *m, struct iomap_folio *f, unsigned first, unsigned nr, int error, bool keep);

/* Marks what is dirty in [first, last] for one pass, so that what is dirtied later cannot keep it busy. */
void mapping_tag_towrite(struct mapping *m, pgoff_t first, pgoff_t last);
/* Folio locked. Only for who has seen that nothing of it is dirty and unclaimed: other sync passes go by the mark, too. */
void mapping_clear_towrite(struct mapping *m, struct iomap_folio *f);
static inline bool mapping_is_marked(const struct mapping *m, enum xa_mark mark)
{
	bool marked;

	rcu_enter();
	marked = xa_marked(&m->tree, mark);
	rcu_exit();
	return marked;
}
static inline bool mapping_is_empty(const struct mapping *m) { return !load_relaxed(&m->nr_pages); }

struct mapping_sums { int64_t dirty, writeback, pinned, failed, dontcache, dontcache_files; uint64_t pages, folios[MAX_ORDER + 1]; };
/* Recomputes everything from the bitmaps; adds to @sums. 0 or -EUCLEAN. Any context without locks. */
int  mapping_check(struct mapping *m, struct mapping_sums *sums, char *why, size_t why_len);

#endif
