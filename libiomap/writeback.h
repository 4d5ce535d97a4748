/*
 * writeback.h - dirty blocks become write requests
 */
#ifndef IOMAP_WRITEBACK_H
#define IOMAP_WRITEBACK_H

#include "inode.h"

/*
 * Background: from where the last such pass stopped to the end of the file, at most about @quota bytes; what is in flight or
 * failed a short while ago is passed over. Returns the bytes submitted.
 */
uint64_t writeback_some(struct inode *inode, uint64_t quota, bool retry_failed);
/*
 * Everything dirty in blocks of [start, end) when this is called is written and waited for, failed blocks once more. 0; or (KEEP_DIRTY)
 * the error of a block of the range that is still not written. No lock held but rwsem.
 */
int  writeback_range_sync(struct inode *inode, uint64_t start, uint64_t end);
/* As above, then the size, then one flush: 0 means everything written before is durable. */
int  inode_fsync(struct inode *inode, uint64_t start, uint64_t end);
/* fsync's part beyond the data: a file made here has its name durable too, once. */
int  inode_sync_name(struct inode *inode);
/* The first error among failed blocks of [start, end), or 0. */
int  writeback_failed(struct inode *inode, uint64_t start, uint64_t end);
/* One flush for all who wait; sticky when it fails. */
int  inode_flush(struct inode *inode);
/* Nobody will ever read the file again. */
void inode_forget_unflushed(struct inode *inode);
/* iomap_resolve(). rwsem held shared. */
int  writeback_retry(struct inode *inode, uint64_t start, uint64_t end);
void writeback_discard(struct inode *inode, uint64_t start, uint64_t end);

#endif
