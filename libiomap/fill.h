/*
 * fill.h - blocks of folios read from the device
 *
 * Asynchronously for readahead: folios are added in file order, neighbours share a request, and each folio's lock and
 * reference pass to its request, whose completion unlocks. Synchronously for whoever needs these blocks now.
 */
#ifndef IOMAP_FILL_H
#define IOMAP_FILL_H

#include "mapping.h"

struct fill_request;
struct fill {
	struct mapping *mapping;
	struct iomap_device *device;
	struct io_wait *wait;                 /* or NULL */
	struct fill_request *open;              /* takes more */
	struct fill_request *first, *last;      /* closed, to be submitted */
	uint64_t bytes;                         /* asked of the device so far */
};

void fill_init(struct fill *fl, struct mapping *m, struct iomap_device *dev, struct io_wait *wait);
/*
 * A locked, referenced folio with no block uptodate: lock and reference are taken over, whatever is returned.
 * -ENOMEM: not read.
 */
int  fill_add(struct fill *fl, struct iomap_folio *f);
void fill_submit(struct fill *fl);

/*
 * Reads what is missing of blocks [first, first + nr) of a locked folio and waits. Where a run of several fails, its blocks are read one
 * by one, so that only what is really unreadable is missing: 0, or the first error.
 */
int  fill_blocks(struct mapping *m, struct iomap_device *dev, struct iomap_folio *f, unsigned first, unsigned nr);

#endif
