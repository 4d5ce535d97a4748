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
 * Starts writing what is dirty in blocks of [start, end) and not in flight, at most about @quota bytes; what is locked is passed over,
 * what failed as well. Waits for a request slot and for room in the device's queue, not for requests; unless @beyond, which also writes
 * what makes the device grow (one request after the other, and what is dirty before it). Returns the bytes submitted.
 */
uint64_t writeback_start(struct inode *inode, uint64_t start, uint64_t end, uint64_t quota, bool beyond);
/*
 * Everything dirty in blocks of [start, end) when this is called is written and waited for, failed blocks once more. 0; or
 * (KEEP_DIRTY) the error of a block of the range that is still not written. No lock held but rwsem.
 */
int  writeback_range_sync(struct inode *inode, uint64_t start, uint64_t end);
/*
 * sync_file_range(): what is dirty in blocks of [start, end) and not in flight is put there, failed blocks once more. Waits only
 * where what extends the device must be written in order. And: waits for what is in flight there.
 */
void writeback_start_range(struct inode *inode, uint64_t start, uint64_t end);
void writeback_wait_range(struct inode *inode, uint64_t start, uint64_t end);
/*
 * The blocks of [start, end), just written to, go to the device and are waited for; of their folios nothing else is, but what shares a
 * granule, or must come first because the file grows. 0, or the error of one of these blocks, never that of others. No lock held
 * but rwsem.
 */
int  writeback_through(struct inode *inode, uint64_t start, uint64_t end);
/*
 * Before the device's size is raised, extend_lock held: a request that was made out to end where the file and the device ended
 * then has ended. No such request comes afterwards, since i_size is beyond that already.
 */
void writeback_settle_end(struct inode *inode);
/* The first error among failed blocks of [start, end), or 0. */
int  writeback_failed(struct inode *inode, uint64_t start, uint64_t end);

#endif
