/*
 * reclaim.h - which folio goes
 */
#ifndef IOMAP_RECLAIM_H
#define IOMAP_RECLAIM_H

#include "cache.h"

struct ioend;

void reclaim_init(struct iomap_cache *cache);
int  reclaim_start(struct iomap_cache *cache);          /* the background thread */
void reclaim_stop(struct iomap_cache *cache);
/* A write came back short: the background thread, which never waits for a completion itself, gives its rest out. Any context. */
void reclaim_offer_again(struct iomap_cache *cache, struct ioend *io);
void reclaim_fini(struct iomap_cache *cache);
/*
 * A DONTCACHE folio that is clean goes, if nobody else uses it: at once, or where it is busy, by the background thread a little
 * later. @f referenced (and the caller's still), not locked by the caller. Any context that may free memory under RCU; only tries locks.
 */
void reclaim_drop_behind(struct mapping *m, struct iomap_folio *f);
/* The same from a completion: leaves it to the background thread. */
void reclaim_drop_behind_later(struct mapping *m, struct iomap_folio *f);
extern const struct mapping_ops reclaim_mapping_ops;
/* Walks the queues against their bytes and flags: 0 or -EUCLEAN. */
int  reclaim_check(struct iomap_cache *cache, char *why, size_t why_len);
uint64_t reclaim_queued_bytes(struct iomap_cache *cache);

#endif
