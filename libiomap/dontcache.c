/*
 * dontcache.c - what a DONTCACHE operation does when its bytes are copied
 *
 * Folios that a DONTCACHE read or write makes carry FOLIO_DROPBEHIND, until somebody else looks one up for writing. They go when they
 * are clean: those of a write when their last request has ended (the completion leaves that to the reclaim thread), those of a read
 * here, once it has copied from them. A folio that is busy then goes a little later (reclaim.c).
 *
 * A write starts its own writeback, by one of three policies:
 *
 *      KICK       the flusher is woken and writes what such writes have left dirty on this device, file by file
 *      NAIVE      the writer itself starts what it has just written, each time
 *      RATELIMIT  the same, but not while the file has something in flight, and never more than what it has written
 *
 * What makes the device grow is written in order, one request after the other; the writer leaves that to the flusher in any case.
 *
 * A reader that takes less than a folio at a time would read each folio many times if it were dropped after every call. So where a
 * read goes on where the handle's last one ended, the folio that it stops in stays until the handle reads past it, reads
 * elsewhere, or is closed.
 *
 * Locking: none; folio locks are tried.
 * Kernel:  filemap_end_dropbehind(), filemap_dontcache_kick_writeback() and their kin in mm/filemap.c. Differs: the deferral above; an
 *          ordinary read drops nothing.
 */
#include "dontcache.h"
#include "flusher.h"
#include "reclaim.h"
#include "writeback.h"

#define NOWHERE UINT64_MAX              /* file->behind_pos: no read to go on from */
#define READ_ON_BYTES UINT64_C(262144)  /* a long read drops in steps of this */

/* What could not be started by the writer is the flusher's: what is locked or in flight, and what lies beyond the device's size. */
static void start(struct inode *inode, uint64_t from, uint64_t end, uint64_t quota, bool nowait)
{
	if (!nowait)
		writeback_start(inode, from, end, quota, false);
	if (mapping_marked_in(&inode->mapping, from, end, XA_MARK_DIRTY))
		flusher_write_range(inode, from, end);
}

void dontcache_wrote(struct inode *inode, uint64_t from, uint64_t end, bool nowait)
{
	switch (load_relaxed(&inode->cache->dontcache)) {
	case IOMAP_DONTCACHE_KICK:
		if (wb_level(inode->wb, WB_DONTCACHE))
			flusher_write_behind(inode->wb);
		break;
	case IOMAP_DONTCACHE_NAIVE:
		start(inode, from, end, UINT64_MAX, nowait);
		break;
	case IOMAP_DONTCACHE_RATELIMIT:
		if (!mapping_is_marked(&inode->mapping, XA_MARK_WRITEBACK))
			start(inode, from, end, end - from, nowait);
		break;
	}
}

/* Drops the folios over [from, to) that were made by DONTCACHE; not the one that ends beyond @most. */
static void drop(struct mapping *m, uint64_t from, uint64_t to, uint64_t most)
{
	pgoff_t at = from >> PAGE_SHIFT, last = (to - 1) >> PAGE_SHIFT;
	struct iomap_folio *f;

	while (from < to && at <= last && (f = mapping_next(m, &at, last))) {
		pgoff_t next = at + folio_pages(f);

		if (folio_pos(f) + folio_bytes(f) <= most)
			reclaim_drop_behind(m, f);
		folio_put(m->zone, f);
		at = next;
	}
}

uint64_t dontcache_read_on(struct inode *inode, uint64_t from, uint64_t pos)
{
	if (pos - from < READ_ON_BYTES)
		return from;
	drop(&inode->mapping, from, pos, pos);
	return pos;
}

void dontcache_read_done(struct iomap_file *file, uint64_t began, uint64_t from, uint64_t pos, bool cut_short)
{
	struct mapping *m = &file->inode->mapping;
	uint64_t last = exchange_acq_rel(&file->behind_pos, pos);
	bool goes_on = last == began && !cut_short && pos < inode_size(file->inode);

	if (last != began && last != NOWHERE && last)
		drop(m, last - 1, last, UINT64_MAX);
	drop(m, from, cut_short ? pos + 1 : pos, goes_on ? pos : UINT64_MAX);
}

void dontcache_close(struct iomap_file *file)
{
	uint64_t last = load_relaxed(&file->behind_pos);

	if (last != NOWHERE && last)
		drop(&file->inode->mapping, last - 1, last, UINT64_MAX);
}
