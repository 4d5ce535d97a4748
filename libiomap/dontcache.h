/*
 * dontcache.h - what a DONTCACHE operation does when its bytes are copied
 */
#ifndef IOMAP_DONTCACHE_H
#define IOMAP_DONTCACHE_H

#include "file.h"

/*
 * A DONTCACHE write of [start, end) has been copied: starts its writeback as the cache's policy says. Never waits for the I/O; with
 * @nowait not for room in a queue either. No lock held.
 */
void dontcache_wrote(struct inode *inode, uint64_t start, uint64_t end, bool nowait);
/*
 * A DONTCACHE read has copied [start, pos) and goes on there: now and then the folios that it has left behind are dropped. Returns
 * from where on they are not. No lock held.
 */
uint64_t dontcache_read_on(struct inode *inode, uint64_t start, uint64_t pos);
/*
 * It has ended: it began at @start, and [from, pos) is not dropped yet. @cut_short: by an error or the file's end; so there may be a
 * folio at @pos, too, that it made.
 */
void dontcache_read_done(struct iomap_file *file, uint64_t start, uint64_t from, uint64_t pos, bool cut_short);
/* The handle is closed: so is what its last read left half. */
void dontcache_close(struct iomap_file *file);

#endif
