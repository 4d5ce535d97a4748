/*
 * flusher.h - which inode is written now, by which thread
 */
#ifndef IOMAP_FLUSHER_H
#define IOMAP_FLUSHER_H

#include "inode.h"

int  flusher_start(struct wb *wb);              /* its thread; -EAGAIN, -ENOMEM */
void flusher_ask_stop(struct wb *wb);           /* the thread ends as soon as it can */
void flusher_stop(struct wb *wb);               /* ends the thread; dirty inodes stay on the lists */
int  flusher_start_helpers(struct iomap_cache *cache);
void flusher_ask_stop_helpers(struct iomap_cache *cache);
void flusher_stop_helpers(struct iomap_cache *cache);

/* The inode has dirty blocks (marked before this call) or a size to set. No lock of rank 40 or above held. */
void flusher_mark_dirty(struct inode *inode);
/* Takes the inode off its device's lists if nothing is left to do for it, and drops the lists' reference. Sleeps. */
void flusher_check_clean(struct inode *inode);
/* The same for a closed inode; true: it is clean, or somebody writes it now and will look. False: it stays on the lists. */
bool flusher_lets_go(struct inode *inode);
/*
 * Nobody has it open any more, and it is not durable: the flusher sees to it at its next periodic round, then it
 * goes.
 */
void flusher_linger(struct inode *inode);
/* Its dirty data has been given up: off the lists. */
void flusher_forget(struct inode *inode);

void flusher_wake(struct wb *wb);               /* look at the limits now */
void flusher_wake_all(struct iomap_cache *cache);
/* Write about so many bytes, oldest inodes first, whatever the limits say. */
void flusher_request(struct wb *wb, uint64_t bytes);
/* Write what DONTCACHE writes have left dirty on this device, now. */
void flusher_write_behind(struct wb *wb);
/* Start writing what is dirty in [start, end) (rounded up to what else was asked for): now, by the flusher. Never waits for I/O. */
void flusher_write_range(struct inode *inode, uint64_t start, uint64_t end);
/* From a completion: when to try again. */
void flusher_write_failed(struct inode *inode, int error);

#endif
