/*
 * split.h - one request as several, for a device that takes less than a block at a time
 */
#ifndef IOMAP_SPLIT_H
#define IOMAP_SPLIT_H

#include "device.h"
#include "mem.h"

struct split;
/* Cuts @req into parts of at most @step bytes. NULL: no memory. */
struct split *split_create(struct mem *mem, struct iomap_request *req, uint64_t step);
/* The parts, to be given to the device; the last one's completion completes @req and frees the split. */
struct iomap_request **split_parts(struct split *s, unsigned *nr);

#endif
