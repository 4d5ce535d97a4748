/*
 * sync.h - what makes a file durable, and what becomes of it when that fails
 */
#ifndef IOMAP_SYNC_H
#define IOMAP_SYNC_H

#include "inode.h"

/*
 * Writes [start, end), then the size, then one flush, then an engine's commit (@datasync: its times may wait): 0 means everything
 * written there before is durable. No lock held.
 */
int  sync_inode(struct inode *inode, uint64_t start, uint64_t end, bool datasync);
/* fsync's part beyond the data: a file made here has its name durable too, once. */
int  sync_name(struct inode *inode);
/* One flush for all who wait; sticky when it fails. What it covers has been written and waited for. */
int  sync_flush(struct inode *inode);
/* Nobody has it open and nothing is dirty: its size, space reserved ahead, a flush. Never waits for a lock that a writer holds. */
void sync_closed(struct inode *inode);
/* Nobody will ever read the file again: nothing of it needs a flush. */
void sync_forget(struct inode *inode);
/* iomap_resolve(): RETRY with no lock held, DISCARD with rwsem exclusive. */
int  sync_retry(struct inode *inode, uint64_t start, uint64_t end);
void sync_discard(struct inode *inode, uint64_t start, uint64_t end);

#endif
