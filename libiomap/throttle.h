/*
 * throttle.h - slow writers to the speed their device cleans at
 */
#ifndef IOMAP_THROTTLE_H
#define IOMAP_THROTTLE_H

#include "cache.h"

void throttle_init(struct throttle_domain *d);
void throttle_fini(struct throttle_domain *d);
/* The thread made @bytes dirty: it owes them. */
void throttle_dirtied(struct task *task, uint64_t bytes);
/*
 * Before a writer's next step: sleeps if it owes enough. No lock held but append_lock. 0; -EAGAIN (@nowait, would sleep); or the
 * error of a device that has failed for good (docs/design.md).
 */
int  throttle_balance(struct iomap_cache *cache, struct wb *wb, struct task *task, bool nowait);
/*
 * How much a writer may dirty between two looks at the limits: @most (a power of two), less where the limits are
 * small.
 */
uint64_t throttle_step(struct iomap_cache *cache, uint64_t most);
/* Is more dirty than the background limit, all told or of this device's share? */
bool throttle_over_background(struct iomap_cache *cache, struct wb *wb);
/* A write request of @bytes ended. */
void throttle_completed(struct iomap_cache *cache, struct wb *wb, uint64_t bytes);
/* How much of one inode to write before the next gets its turn, in bytes. */
uint64_t throttle_chunk(struct iomap_cache *cache, struct wb *wb);
/* Bandwidth of a device, renewed; @idle: nothing is in flight, silence says nothing about its speed. */
void throttle_update_bandwidth(struct wb *wb, bool idle);

struct throttle_view { uint64_t limit, background, setpoint, ratelimit, bandwidth; };   /* bytes, bytes per second */
void throttle_look(struct iomap_cache *cache, struct throttle_view *view);

#endif
