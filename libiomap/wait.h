/*
 * wait.h - sleeping until a word of some object changes
 *
 * Objects far too many to hold a condition variable each (folios) share a table of buckets, picked by address. A waiter
 * sets a "somebody waits" bit in the object under the bucket's lock, looks once more, and sleeps; a waker that clears
 * state and finds the bit calls wait_wake(), which clears the bit and wakes all in the bucket.
 */
#ifndef IOMAP_WAIT_H
#define IOMAP_WAIT_H

#include "platform.h"

#define WAIT_BUCKETS 64

struct wait_bucket { _Alignas(64) struct mutex lock; struct cond cond; };
struct wait_table { struct wait_bucket bucket[WAIT_BUCKETS]; };

void wait_table_init(struct wait_table *t);
void wait_table_fini(struct wait_table *t);

/*
 * Sleeps until done(arg) is true. @flags gets @waiters_bit set before each look under the bucket's lock. done() takes no
 * lock, but may try one. A waker whose state is another word than @flags puts fence_full() between its change and its look
 * at the bit.
 */
void wait_until(struct wait_table *t, const void *object, _Atomic uint32_t *flags, uint32_t waiters_bit,
		bool (*done)(void *arg), void *arg);
/* Clears @waiters_bit and wakes every waiter of @object's bucket. */
void wait_wake(struct wait_table *t, const void *object, _Atomic uint32_t *flags, uint32_t waiters_bit);

/* Several requests and one who waits for all of them, and for the first error. */
struct io_wait { struct mutex lock; struct cond cond; unsigned pending; int error; };
void io_wait_init(struct io_wait *w);
void io_wait_add(struct io_wait *w);                    /* one more request is on its way */
void io_wait_done(struct io_wait *w, int error);        /* one ended; @w may be gone afterwards */
void io_wait_ended(struct io_wait *w);                  /* sleeps until none is under way; keeps the error */
int  io_wait_for_all(struct io_wait *w);                /* sleeps; the first error since the last call */
void io_wait_fini(struct io_wait *w);

#endif
