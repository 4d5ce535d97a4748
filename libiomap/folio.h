/*
 * folio.h - one piece of cached memory: lock, references, flags, sequence counts
 *
 * A folio is a run of 1 << order frames that belongs to one file; its descriptor is that of its first frame (frame.h).
 *
 * State          what is true                                                   who moves it on, under which lock
 * free           in the arena's lists                                           arena_alloc()
 * new            mapping NULL, refs 1, locked by its maker                      mapping_create()
 * cached         every slot it covers holds it; refs >= 1                       mapping_remove(): folio lock, identity odd, tree lock
 * removed        mapping NULL, slots empty, some references may be left         last folio_put() frees
 * dirty          FOLIO_DIRTY: some block dirty; marked in the tree              writer or claim: folio lock, tree lock, state lock
 * in flight      FOLIO_WRITEBACK: some block in a write request; marked         claim: as above; completion: tree lock, state lock
 */
#ifndef IOMAP_FOLIO_PRIVATE_H
#define IOMAP_FOLIO_PRIVATE_H

#include <string.h>
#include "arena.h"
#include "bug.h"
#include "frame.h"
#include "mem.h"
#include "wait.h"

enum {
	FOLIO_LOCKED     = 1U << 0,     /* somebody owns it; set and cleared by folio_lock() and its kin, or a read's completion */
	FOLIO_WAITERS    = 1U << 1,     /* somebody sleeps until a flag or block bit changes; wait.h */
	FOLIO_STATE_LOCK = 1U << 2,     /* the short lock of its block bits */
	FOLIO_UPTODATE   = 1U << 3,     /* all its blocks are; cleared only by mapping_forget_clean(); state lock */
	FOLIO_DIRTY      = 1U << 4,     /* some block is dirty; state lock */
	FOLIO_WRITEBACK  = 1U << 5,     /* some block is in flight; state lock */
	FOLIO_FAILED     = 1U << 6,     /* some dirty block's last write failed; state lock */
	FOLIO_REFERENCED = 1U << 7,     /* used since reclaim last looked; set by anyone, cleared by reclaim */
	FOLIO_READAHEAD  = 1U << 8,     /* reading it starts the next window; cleared by who starts it */
	FOLIO_SMALL      = 1U << 9,     /* on the small reclaim queue; the queue's lock */
	FOLIO_MAIN       = 1U << 10,    /* on the main reclaim queue; the queue's lock */
	FOLIO_UNUSED     = 1U << 11,    /* brought in by readahead and not read yet; cleared by the first reader */
	FOLIO_DROPBEHIND = 1U << 12,    /* made by a DONTCACHE operation, wanted by nobody else: goes once it is clean. Set by its
					   maker; cleared, under the state lock, by the first ordinary lookup for writing */
	FOLIO_BEHIND     = 1U << 13,    /* on the reclaim queue of what is to be dropped; the queue's lock */
};

/* The memory of one cache: frames, metadata, and where threads sleep for a folio. */
struct zone {
	struct arena arena;
	struct mem mem;
	struct wait_table waits;
	_Atomic uint64_t splits, split_failures;
};

static inline unsigned folio_order(const struct iomap_folio *f) { return load_relaxed(&f->order); }
static inline uint64_t folio_pages(const struct iomap_folio *f) { return UINT64_C(1) << folio_order(f); }
static inline uint64_t folio_bytes(const struct iomap_folio *f) { return PAGE_BYTES << folio_order(f); }
static inline pgoff_t folio_index(const struct iomap_folio *f) { return load_relaxed(&f->index); }
static inline uint64_t folio_pos(const struct iomap_folio *f) { return folio_index(f) << PAGE_SHIFT; }
static inline struct mapping *folio_mapping(const struct iomap_folio *f) { return load_relaxed(&f->mapping); }
static inline uint32_t folio_flags(const struct iomap_folio *f) { return load_relaxed(&f->flags); }
/* pairs with the release in folio_flags_set(): who sees the bit sees the data */
static inline bool folio_is_uptodate(const struct iomap_folio *f) { return load_acquire(&f->flags) & FOLIO_UPTODATE; }
static inline bool folio_is_dirty(const struct iomap_folio *f) { return folio_flags(f) & FOLIO_DIRTY; }
static inline bool folio_is_writeback(const struct iomap_folio *f) { return load_acquire(&f->flags) & FOLIO_WRITEBACK; }
/* Made by DONTCACHE and clean: it may go. Only a hint where the folio is not locked. */
static inline bool folio_is_droppable(const struct iomap_folio *f)
{
	return (load_acquire(&f->flags) & (FOLIO_DROPBEHIND | FOLIO_DIRTY | FOLIO_WRITEBACK)) == FOLIO_DROPBEHIND;
}
static inline bool folio_is_locked(const struct iomap_folio *f) { return folio_flags(f) & FOLIO_LOCKED; }
static inline char *folio_addr(const struct zone *z, const struct iomap_folio *f) { return frame_addr(&z->arena, f); }

static inline void folio_flags_set(struct iomap_folio *f, uint32_t bits) { or_release(&f->flags, bits); }
static inline void folio_flags_clear(struct iomap_folio *f, uint32_t bits) { and_release(&f->flags, ~bits); }
/* A hit stores nothing where the bit is there already. */
static inline void folio_mark_referenced(struct iomap_folio *f)
{
	if (!(folio_flags(f) & FOLIO_REFERENCED))
		or_relaxed(&f->flags, FOLIO_REFERENCED);
}

/* A new folio: locked, one reference, no mapping. -ENOMEM: the arena has no such run. */
int  folio_alloc(struct zone *z, unsigned order, struct iomap_folio **out);
bool folio_tryget(struct iomap_folio *f);       /* false: it is free. Whoever found it without a lock looks again afterwards */
void folio_get(struct iomap_folio *f);
void folio_put(struct zone *z, struct iomap_folio *f);  /* the last one frees it */

void folio_lock(struct zone *z, struct iomap_folio *f);         /* sleeps */
bool folio_trylock(struct iomap_folio *f);
void folio_unlock(struct zone *z, struct iomap_folio *f);
/* Unlocks a folio that a read owned: by its completion, in whatever thread. */
void folio_unlock_by_io(struct zone *z, struct iomap_folio *f);
void folio_wait_unlocked(struct zone *z, struct iomap_folio *f);
/*
 * Sleeps until no block is in flight. A stream of new writes cannot hold it for ever: it takes the folio lock
 * after a few.
 */
void folio_wait_writeback(struct zone *z, struct iomap_folio *f);
void folio_wake(struct zone *z, struct iomap_folio *f);         /* block bits changed: wakes who sleeps on this folio */

void folio_state_lock(struct iomap_folio *f);
void folio_state_unlock(struct iomap_folio *f);

/*
 * Sequence counts. A reader that takes no lock notes identity and content, copies, and looks again. identity is odd while
 * the folio is being removed or split; content, one per 64 KiB, while a writer who holds the folio lock copies there.
 */
static inline uint32_t folio_identity(const struct iomap_folio *f) { return load_acquire(&f->identity); }
static inline struct iomap_folio *folio_segment(struct iomap_folio *f, uint64_t off)
{
	return f + (off >> (PAGE_SHIFT + 4)) * CONTENT_FRAMES;
}
static_assert(CONTENT_FRAMES == 16, "folio_segment() shifts by log2(CONTENT_FRAMES)");
void folio_identity_begin(struct iomap_folio *f);
void folio_identity_end(struct iomap_folio *f);
void folio_content_begin(struct iomap_folio *f, uint64_t off, uint64_t len);
void folio_content_end(struct iomap_folio *f, uint64_t off, uint64_t len);
/*
 * The copy whose result is only believed after the counts were checked; the one place where a race on data is
 * meant.
 */
void seq_copy(void *dst, const void *src, size_t len);
/* Copies into and out of folios by who holds the lock. The simulator may switch threads between their pieces. */
#ifdef IOMAP_SIM
void folio_copy(void *dst, const void *src, size_t len);
void folio_zero(void *dst, size_t len);
#else
static inline void folio_copy(void *dst, const void *src, size_t len) { memcpy(dst, src, len); }
static inline void folio_zero(void *dst, size_t len) { memset(dst, 0, len); }
#endif

/* Does a write request read this memory in place (or will, once a claim is cut up)? */
static inline bool folio_has_stable_io(const struct iomap_folio *f) { return load_acquire(&f->stable); }

/* "folio 0x… index 12 order 4 refs 1 locked dirty …" for messages */
void folio_describe(const struct iomap_folio *f, char *buf, size_t len);

#endif
