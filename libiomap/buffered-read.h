/*
 * buffered-read.h - bytes copied out of folios
 */
#ifndef IOMAP_BUFFERED_READ_H
#define IOMAP_BUFFERED_READ_H

#include <sys/uio.h>
#include "file.h"

/* Where a call's buffers stand; moves on as bytes are copied. */
struct iov_iter { const struct iovec *iov; int nr; size_t off, left; };
void iov_iter_init(struct iov_iter *it, const struct iovec *iov, int nr, size_t len);
/* The next contiguous piece, at most @max bytes: its address, its length in *@len. */
void *iov_iter_piece(const struct iov_iter *it, size_t max, size_t *len);
void iov_iter_advance(struct iov_iter *it, size_t n);

/*
 * Bytes read, fewer at the end of the file or before an error; 0 at the end; -errno. @flags: IOMAP_RWF_NOWAIT, _DONTCACHE. No
 * lock held.
 */
ssize_t buffered_read(struct iomap_file *file, struct iov_iter *to, uint64_t pos, int flags);

#endif
