/*
 * buffered-write.h - bytes copied into folios
 */
#ifndef IOMAP_BUFFERED_WRITE_H
#define IOMAP_BUFFERED_WRITE_H

#include "buffered-read.h"

/*
 * Bytes written, fewer only before an error; -errno. Each step of at most 2 MiB pays the throttle first, with no lock held
 * but, in an APPEND, inode->append_lock (the caller's). @flags: IOMAP_RWF_NOWAIT, _APPEND (every step goes to the end of the file),
 * _DONTCACHE. *@end becomes the byte after the last.
 */
ssize_t buffered_write(struct iomap_file *file, struct iov_iter *from, uint64_t pos, int flags, uint64_t *end);
/*
 * Makes [pos, pos + len) zeros in the cache, dirty where anything is stored or cached dirty there. Moves no size. rwsem
 * exclusive; no folio lock. 0 or -errno.
 */
int  buffered_zero(struct inode *inode, uint64_t pos, uint64_t len);
/*
 * The same, and each step is with the device before the next, block-exactly: the error of its own blocks' requests is this call's. Never
 * NOWAIT. *@end: the byte after the last of those counted.
 */
ssize_t buffered_write_through(struct iomap_file *file, struct iov_iter *from, uint64_t pos, bool append, uint64_t *end);
/* Sets the size; the cache beyond goes, or the space up to it reads as zeros. */
int  buffered_truncate(struct inode *inode, uint64_t size);
/* The same for a larger size, rwsem held exclusively. */
int  buffered_grow(struct inode *inode, uint64_t size);
/* Bytes [pos, end) of one block, perhaps none, become zeros, unless nothing is stored there anyway. rwsem exclusive. */
int  buffered_zero_edge(struct inode *inode, uint64_t pos, uint64_t end);
/* Zeros are written to [pos, end) as far as it lies below the size, step by step as a write. No lock held. */
int  buffered_zero_steps(struct iomap_file *file, uint64_t pos, uint64_t end);

#endif
