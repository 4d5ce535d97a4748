/*
 * fill.h - blocks of folios read from the device
 *
 * Asynchronously for readahead: folios are added in file order, neighbours share a request, and each folio's lock and
 * reference pass to its request, whose completion unlocks. Synchronously for whoever needs these blocks now.
 */
#ifndef IOMAP_FILL_H
#define IOMAP_FILL_H

#include "iter.h"

struct fill_request;
struct fill {
	struct inode *inode;
	struct io_wait *wait;                 /* or NULL */
	struct fill_request *open;              /* takes more */
	struct fill_request *first, *last;      /* closed, to be submitted */
	uint64_t bytes;                         /* asked of the device so far */
};

void fill_init(struct fill *fl, struct inode *inode, struct io_wait *wait);
/*
 * A locked, referenced folio with no block uptodate: lock and reference are taken over, whatever is returned.
 * 0; or -ENOMEM, or an engine's error: not read, or only in part.
 */
int  fill_add(struct fill *fl, struct iomap_folio *f);
void fill_submit(struct fill *fl);

/*
 * Reads what is missing of blocks [first, first + nr) of a locked folio and waits. Where a run of several fails, its blocks are read one
 * by one, so that only what is really unreadable is missing: 0, or the first error.
 */
int  fill_blocks(struct inode *inode, struct iomap_folio *f, unsigned first, unsigned nr);
/* Brings one block of a locked folio in from where @map says that it is: 0, or the device's error. Sets no uptodate bit. */
int  fill_block_from(struct inode *inode, struct iomap_folio *f, unsigned blk, const struct iomap *map);

#endif
