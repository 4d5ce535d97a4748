/*
 * copy-pool.h - memory for the contents of small write requests in flight
 *
 * A request of up to 64 KiB is copied when it is submitted, so that its blocks may be written again at once. The pool is
 * fixed: with it empty a request reads folio memory in place, as a large one does. Slots of 4, 16 and 64 KiB would need a
 * policy between them; runs of 4 KiB frames from one bitmap do not.
 */
#ifndef IOMAP_COPY_POOL_H
#define IOMAP_COPY_POOL_H

#include "mem.h"
#include "platform.h"
#include "util.h"

#define COPY_MAX_BYTES 65536

struct copy_pool { char *base; size_t bytes; struct mutex lock; uint64_t *used; unsigned nr_frames, hand; };

int   copy_pool_init(struct copy_pool *p, struct mem *mem, uint64_t bytes);
void  copy_pool_fini(struct copy_pool *p, struct mem *mem);
void *copy_pool_get(struct copy_pool *p, size_t bytes);         /* page-aligned, 1 … COPY_MAX_BYTES; NULL: none free */
void  copy_pool_put(struct copy_pool *p, void *copy, size_t bytes);
static inline uint64_t copy_pool_bytes(const struct copy_pool *p) { return p->bytes; }

#endif
