/*
 * readahead.h - what to read next
 */
#ifndef IOMAP_READAHEAD_H
#define IOMAP_READAHEAD_H

#include "inode.h"
#include "readahead-window.h"

/* One handle's reader. Hits do not touch it. */
struct file_ra { struct mutex lock; struct ra_state ra; };      /* LOCK_LEAF */

/* The window of a new handle: the tunable, but never so much that a few readers' windows push each other out. */
uint32_t readahead_pages(struct iomap_cache *cache);
void readahead_init(struct file_ra *fra, uint32_t pages);
void readahead_fini(struct file_ra *fra);
/*
 * Page @index is not cached; the reader wants @req_pages from there. Starts reading; where no more than
 * what was asked for is read, waits for it and returns its error. @dontcache: new folios are to be dropped behind the reader.
 * invalidate_lock held shared.
 */
int  readahead_miss(struct inode *inode, struct file_ra *fra, pgoff_t index, uint64_t req_pages, bool dontcache);
/* The reader met FOLIO_READAHEAD on @f (referenced). invalidate_lock held shared. */
void readahead_hit_mark(struct inode *inode, struct file_ra *fra, struct iomap_folio *f, uint64_t req_pages, bool dontcache);
/* fadvise(WILLNEED): these pages, at most one window of them. invalidate_lock held shared. */
void readahead_force(struct inode *inode, struct file_ra *fra, pgoff_t index, uint64_t nr_pages);

#endif
