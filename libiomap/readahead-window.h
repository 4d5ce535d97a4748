/*
 * readahead-window.h - what to read ahead of a reader, page by page
 *
 * Decisions only, on numbers: readahead.c owns the folios, the locks and the I/O. A reader that misses asks
 * ra_sync(), one that meets the mark asks ra_async(); either moves the window and gives a plan, which
 * ra_plan_next() turns into folios to create, one by one. The state belongs to one open file, and whoever calls
 * here holds what protects it.
 */
#ifndef IOMAP_READAHEAD_WINDOW_H
#define IOMAP_READAHEAD_WINDOW_H

#include "util.h"

#define RA_PREV_NONE    UINT64_MAX      /* prev_pos of a file not read yet */

/*
 * One open file's reader: from open to close. The window is [start, start + size), its last async_size pages
 * were not asked for.
 */
struct ra_state {
	pgoff_t start;
	uint32_t size, async_size;      /* pages */
	uint32_t order;                 /* of the folios in the window; grows with every window that was of use */
	uint32_t ra_pages;              /* how large a window may get; 0: no readahead */
	uint64_t prev_pos;              /* byte where the last read ended; the reader stores it */
	bool random;                    /* advice: read what is asked for and no more */
};

/* What holds while one plan is made and carried out. */
struct ra_env {
	pgoff_t file_pages;             /* nothing that begins here or later is read */
	uint32_t io_pages;              /* what the device likes at once: a larger read may get such windows */
	uint32_t min_order, max_order;  /* of this file's folios; max_order 0: no large folios */
	bool (*cached)(void *arg, pgoff_t index);       /* is there a folio, whatever its state? */
	void *arg;
};

/* Folios still to create: index counts up to end, with min_order of env at least. */
struct ra_plan {
	pgoff_t index, end, mark;       /* mark: the page whose folio tells the reader to read on */
	uint32_t order;
	bool plain;                     /* smallest folios, cached pages are passed over */
};

void ra_init(struct ra_state *ra, uint32_t ra_pages);
/*
 * Page @index is missing; the reader wants @req_pages from there. The plan may come out empty (past the end of
 * the file).
 */
void ra_sync(struct ra_state *ra, pgoff_t index, uint64_t req_pages, const struct ra_env *env,
	     struct ra_plan *plan);
/*
 * The reader met the mark on the folio that begins at @index and has @folio_pages; it wants @req_pages from
 * @index. Not for a folio under writeback. The caller has cleared the mark. False: there is nothing to do.
 */
bool ra_async(struct ra_state *ra, pgoff_t index, uint64_t folio_pages, uint64_t req_pages,
	      const struct ra_env *env, struct ra_plan *plan);

struct ra_folio { pgoff_t index; uint32_t order; bool marked; };

/* The next folio to create, or false at the end. Where the index jumps, the gathered I/O ends. */
bool ra_plan_next(struct ra_plan *plan, const struct ra_env *env, struct ra_folio *out);
/*
 * @folio could not be inserted: something is there, or memory is short for its size. Submit what was gathered
 * and go on: the rest comes in smallest folios. For a smallest one that found no memory, give the plan up
 * instead.
 */
void ra_plan_failed(struct ra_plan *plan, const struct ra_folio *folio);

#endif
