/*
 * direct-io.h - bytes between the device and the caller's memory, around the cache and coherent with it
 */
#ifndef IOMAP_DIRECT_IO_H
#define IOMAP_DIRECT_IO_H

#include "buffered-read.h"

/* As buffered_read(): what is dirty of the range is written first, then the device is read. The cache stays as it is. */
ssize_t direct_read(struct iomap_file *file, struct iov_iter *to, uint64_t pos, bool nowait);
/* As buffered_write(): on return the device has the bytes, and the cache does not. */
ssize_t direct_write(struct iomap_file *file, struct iov_iter *from, uint64_t pos, bool append, bool nowait, uint64_t *end);

#endif
