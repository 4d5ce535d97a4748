/*
 * ifs.h - per-block uptodate, dirty, in-flight and failed bits of one folio, and what they charge
 *
 * The bits are the only record: every change returns the difference it makes to the counters, computed from the bits
 * before and after. A folio of at most SMALL_BLOCKS blocks keeps them in its descriptor, a larger one in an ifs.
 *
 * Charges are counted in granules: the block, the page (or block, if larger) or the whole folio. A granule is charged as
 * dirty while it holds a dirty block and as writeback while it holds a block in flight; it is claimed for
 * writing as a whole and leaves writeback with its last completion, as failed if one of its blocks failed.
 */
#ifndef IOMAP_IFS_H
#define IOMAP_IFS_H

#include "folio.h"
#include "rcu.h"

#define IFS_MAX_BLOCKS 4096             /* 2 MiB of 512-byte blocks */

struct ifs {
	struct rcu_head rcu;
	struct mem *mem;
	unsigned words;                 /* of one map */
	_Atomic uint64_t bits[];        /* IFS_MAPS maps */
};

/* What every folio of one mapping shares; fixed when the mapping is made. */
struct ifs_geometry {
	uint8_t block_shift;            /* 9 … 16 */
	enum { GRANULE_BLOCK, GRANULE_PAGE, GRANULE_FOLIO } granule;
};

/* What a change of bits does to the counters, in bytes. */
struct charge {
	int64_t dirty, writeback, pinned, failed;       /* levels */
	int64_t dontcache;                              /* level: of dirty, what is in folios made by DONTCACHE */
	uint64_t dirtied, redirtied, submitted, written, write_failed, cancelled;       /* totals */
	uint64_t pin_acquired, pin_released, pin_dropped;
};

/* A set of blocks of one folio, for a claim's caller. */
struct block_set { uint64_t word[IFS_MAX_BLOCKS / 64]; unsigned nr_blocks; };

static inline unsigned ifs_blocks(const struct iomap_folio *f, const struct ifs_geometry *g)
{
	return (unsigned)(folio_bytes(f) >> g->block_shift);    /* >= 1: a file's folios are never below its block size */
}
unsigned ifs_granule_blocks(const struct iomap_folio *f, const struct ifs_geometry *g);
/*
 * Blocks of one granule, and of one page, are put in flight together or not at all: a kernel file must not get direct and buffered
 * writes of one page at the same time (its last page is written through the page cache).
 */
unsigned ifs_exclusive_blocks(const struct iomap_folio *f, const struct ifs_geometry *g);
static inline uint64_t ifs_block_bytes(const struct ifs_geometry *g) { return UINT64_C(1) << g->block_shift; }

struct ifs *ifs_alloc(struct mem *mem, unsigned nr_blocks);     /* NULL: no memory. Only for nr_blocks > SMALL_BLOCKS */
void ifs_free_rcu(struct ifs *ifs);                             /* after a grace period; NULL does nothing */

/* Lock-free under RCU, or with the folio locked. */
bool ifs_range_uptodate(const struct iomap_folio *f, const struct ifs_geometry *g, unsigned first, unsigned nr);
/* First run of blocks in [from, end) that are not uptodate: false if there is none. Folio locked. */
bool ifs_next_missing(const struct iomap_folio *f, const struct ifs_geometry *g, unsigned from, unsigned end,
		      unsigned *first, unsigned *nr);
bool ifs_any(const struct iomap_folio *f, const struct ifs_geometry *g, enum ifs_map map, unsigned first, unsigned nr);
bool ifs_block_set(const struct iomap_folio *f, const struct ifs_geometry *g, enum ifs_map map, unsigned blk);
/* First block in [from, end) with the bit set, or @end. */
unsigned ifs_next(const struct iomap_folio *f, const struct ifs_geometry *g, enum ifs_map map, unsigned from, unsigned end);

/*
 * All below: the state lock is held; summary flags of the folio (UPTODATE, DIRTY, WRITEBACK, FAILED) follow the
 * bits.
 */
void ifs_set_uptodate(struct iomap_folio *f, const struct ifs_geometry *g, unsigned first, unsigned nr);
/* Blocks become dirty by a write (uptodate first). */
void ifs_set_dirty(struct iomap_folio *f, const struct ifs_geometry *g, unsigned first, unsigned nr, struct charge *c);
/* Blocks that were written become dirty again: their flush failed (IOMAP_RESOLVE_RETRY). */
void ifs_redirty(struct iomap_folio *f, const struct ifs_geometry *g, unsigned first, unsigned nr, struct charge *c);
/*
 * Moves what is dirty in granules that start before block @end (and lie at or after the granule of @from) to in flight,
 * adds it to @out (cleared first), and says in *@busy whether some dirty granule was left because one of its blocks, or of its page,
 * is in flight already.
 * Granules with a failed block are skipped unless @retry_failed.
 */
void ifs_claim(struct iomap_folio *f, const struct ifs_geometry *g, unsigned from, unsigned end, bool retry_failed,
	       struct block_set *out, bool *busy, struct charge *c);
/*
 * A write request over [first, first + nr) ended. @failed: dirty again (@keep), or clean with the failure counted.
 * Blocks that a truncate cancelled meanwhile are not made dirty again: the caller passes keep = false for them.
 */
void ifs_complete(struct iomap_folio *f, const struct ifs_geometry *g, unsigned first, unsigned nr, bool failed, bool keep,
		  struct charge *c);
/* Dirty blocks are given up without being written. */
void ifs_cancel(struct iomap_folio *f, const struct ifs_geometry *g, unsigned first, unsigned nr, struct charge *c);
/* The folio is wanted after all: FOLIO_DROPBEHIND goes, and so does what it has charged as DONTCACHE's. */
void ifs_keep(struct iomap_folio *f, const struct ifs_geometry *g, struct charge *c);
/* Uptodate stays set only where dirty is. */
void ifs_forget_clean(struct iomap_folio *f, const struct ifs_geometry *g);
/* What the folio charges now: the receipt. */
void ifs_receipt(const struct iomap_folio *f, const struct ifs_geometry *g, struct charge *levels);
/*
 * Copies the bits of blocks [first, first + blocks(to)) of @from to the fresh folio @to. For a split; no charge
 * moves but pins.
 */
void ifs_copy_bits(struct iomap_folio *to, const struct iomap_folio *from, const struct ifs_geometry *g, unsigned first);
/*
 * @f becomes a folio of @order, keeps the bits of the blocks that are left, in @ifs or (NULL) in its small maps.
 * The old ifs is the caller's.
 */
void ifs_shrink_to(struct iomap_folio *f, const struct ifs_geometry *g, struct ifs *ifs, uint8_t order);
void ifs_update_flags(struct iomap_folio *f, const struct ifs_geometry *g);

/*
 * Bits against flags and against each other (dirty within uptodate, failed within dirty or in flight): 0 or
 * -EUCLEAN.
 */
int  ifs_check(const struct iomap_folio *f, const struct ifs_geometry *g, char *why, size_t why_len);

static inline bool block_set_next_run(const struct block_set *s, unsigned from, unsigned *first, unsigned *nr)
{
	unsigned b = from, e;

	while (b < s->nr_blocks && !(s->word[b / 64] >> (b % 64) & 1))
		b = s->word[b / 64] >> (b % 64) ? b + 1 : (b / 64 + 1) * 64;
	if (b >= s->nr_blocks)
		return false;
	for (e = b; e < s->nr_blocks && (s->word[e / 64] >> (e % 64) & 1); )
		e++;
	*first = b;
	*nr = e - b;
	return true;
}

#endif
