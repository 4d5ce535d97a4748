/*
 * endio.h - completions that may sleep
 */
#ifndef IOMAP_ENDIO_H
#define IOMAP_ENDIO_H

#include "cache.h"

struct ioend;

void endio_init(struct iomap_cache *cache);
void endio_fini(struct iomap_cache *cache);
/* Starts the thread, where it does not run yet: 0 or -errno. */
int  endio_start(struct iomap_cache *cache);
/* Nothing is queued any more. */
void endio_stop(struct iomap_cache *cache);
/* From a completion: the engine's end_io() is called, then the request's blocks leave flight. */
void endio_queue(struct iomap_cache *cache, struct ioend *io);

#endif
